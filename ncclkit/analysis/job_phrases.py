"""What jobs print of their own course.

They print that they end, that they are at work, and which rank speaks.
"""

from __future__ import annotations

import re

from ncclkit.analysis.phrases import any_of

END_OF_ALL = any_of(
    # torchrun, its events, sacct of a step, a Kubernetes or cloud job
    r"worker group (?:successfully )?finished",
    r"worker\.status\.SUCCEEDED",
    r"\bCOMPLETED\b",
    r"\bjob\b.{0,80}(?:successfully|succeeded)",
    r"PyTorchJob .{0,120}(?:successfully completed|[Ss]ucceeded)",
    r"\bphase: Succeeded",
    r"\b\w+_STATE_SUCCEEDED\b",
    r"[Tt]raining job completed",
    r"[Ss]tatus: TERMINATED",
    # a test that checked its values, or adds up what all ranks did
    r"Collective test concluded",
    r"\b[Tt]otal im(?:ages|g)/sec\b",
    r"\ball ranks (?:are )?(?:done|finished|completed)",
    r"\bDiagnostic .* [Pp]ass",
    r"^NOTE: The CUDA Samples are not meant for",
    r"={3,} .*\b\d+ passed\b(?!.*\b(?:failed|error))",
    r"^OK(?: \(skipped=\d+\))?\s*$",
    r"\bRESULT,\w+,\d*,\d",
    # :::MLLOG {… "key": "run_stop", … "status": "success"}: what the ranks of MLPerf agreed on
    r"\"run_stop\".*\"success\"",
    # the status of the command: rc=0     EXIT_CODE=0
    r"\bEXIT_CODE=0\b",
    r"\b(?:mpirun|mpiexec|srun|torchrun|prterun) exit (?:status|code)\s*[=:]\s*0\s*$",
    # PASS: 2/2 ranks ok     Successful requests: 1000 (a client's last table)
    r"\bPASS\w*\W{1,2}(?P<ranks>\d{1,7})/(?P=ranks)\b",
    r"={4,} Serving Benchmark Result ={4,}",
    # Loop time of 9.81 on 4 procs for 1000 steps (LAMMPS)
    r"^Loop time of [\d.]+ on \d+ procs",
    r"^\W{0,3}(?:rc|exit|exit (?:code|status)|status|returned?|\$\?)\s*[=:]\s*0\s*$",
)
"""What is said by a program that watched all ranks."""

END_OF_ONE = any_of(
    # Training completed.     Finished training     [after training is done]     End training
    r"[Tt]rain(?:ing)? (?:(?:has|is|was) )?(?:successfully )?"
    r"(?:complete|completed|finished|done|ended)\b(?! at step)",
    r"(?:[Ff]inish(?:ed)?|[Cc]ompleted|[Dd]one) (?:with )?(?:the )?(?:re|pre)?-?"
    r"(?:[Tt]raining|fine-?tuning)\b",
    r"^\W*End (?:of )?training",
    r"\[after training is done\]",
    # Training abgeschlossen.     训练完成     Entraînement terminé     学習が完了しました
    r"Training (?:ist |wurde )?(?:abgeschlossen|beendet)\b",
    r"训练(?:已经?)?(?:完成|结束)",
    r"[Ee]ntraînement terminé\b",
    r"[Ee]ntrenamiento (?:terminado|finalizado|completado)\b",
    r"学習(?:が|は)?(?:完了|終了)",
    # Total training time 11:20:41     {'train_runtime': 812.1, …     20 epochs completed in 0.3 h
    r"[Tt]otal training time",
    r"^\W*[Tt]raining time\s*[:=]",
    r"'?train_runtime'?\s*[:=]",
    r"\d+ epochs completed in\b",
    r"`Trainer\.fit` stopped: `max_",
    r"\[exiting program at iteration",
    # ENDING TIMING RUN AT 2023-09-27 …
    r"ENDING TIMING RUN AT\b",
    # Run finished     Successfully trained     All epochs are done     rank 3: done.
    r"\bRun(?: has)? (?:successfully )?finished\b",
    r"\bBenchmark (?:finished|completed?|done)\b",
    r"\b(?:[Ff]inished|[Cc]ompleted) (?:all|\d+) (?:epochs?|steps?)\b",
    r"\bSuccessfully (?:finished|completed|trained)\b",
    r"\b[Aa]ll (?:epochs|steps|tests) (?:are )?(?:done|passed|OK)\b",
    r"^\W*(?:[Rr]ank ?\d+\W{1,3})?(?:[Aa]ll )?[Dd]one(?:[.!]|\s*$)",
    # Process 4711 exits successfully.     exited with code 0     Pod completed     n1: success
    r"exits? successfully",
    r"\bexit(?:ed|ing)? (?:with )?(?:exit )?(?:code|status) 0\b",
    r"\bPod completed\b",
    r"^\S{1,80}: success\s*$",
    # what comes last: results of a test
    r"\bTest (?:PASSED|passed)\b",
    r"^\W*SUM \w+ [\d.]+",
    r"\bFinal evaluation\b",
    r"^\W*Eval loss\b",
    r"^\W*Test metric\b",
    r"^\s*GPU \d+: OK\b",
    r"Average Recall +\(AR\)",
    r"\bfinal (?:epoch )?checkpoint\b",
    # real    518m14.771s
    r"^real\s+\d+m[\d.]+s",
)
"""What a rank says of its own end, or a test whose ranks write into one table."""

PROCESS_END = re.compile(r"exits? successfully|\bexit(?:ed|ing)? (?:with )?(?:exit )?code 0\b")
"""The end of one process; a launcher prints one for each."""
STARTED = re.compile(
    r"\b(?:submitted|created|started|launched|scheduled|queued|registered|connected|loaded|saved"
    r"|initialized|installed|downloaded)\b.{0,20}successfully"
    r"|successfully (?:submitted|created|started|launched|scheduled|queued|registered|connected"
    r"|loaded|saved|initialized|installed|downloaded)",
    re.IGNORECASE,
)
"""What succeeded was a beginning, or a part of it."""
HELPER = re.compile(
    r"\bagent\b|\bdashboard\b|\bsidecar\b|\bexporter\b|\bhook\b|\binit.container\b", re.IGNORECASE
)
"""Helpers beside the ranks.

That one of them exits with 0 says nothing of the job.
"""
NOT_A_NUMBER = re.compile(r"\bnan\b", re.IGNORECASE)
"""A loss that is not a number.

Such a model has not been trained, whatever is said of its end.
"""

RATE = any_of(
    # 3.1 it/s     1669.59 tok/sec     320.6 img/sec per GPU
    r"\d ?(?:it|tok(?:en)?s?|samples?|examples?|im(?:a)?ge?s?|img|req(?:uest)?s?|s|ms|sequences?"
    r"|frames?|words?)/(?:s(?:ec(?:ond)?|tep)?|it(?:er(?:ation)?)?|GPU)\b",
    r"\bthroughput\b[^:=]{0,30}[:=]\s*[\d.]+",
    r"\bTFLOPs?\b",
    r"\b(?:images|samples|tokens)/sec(?:ond)?\b\W{1,3}[\d.]+",
)
"""How fast a job works."""
SERVING = any_of(
    r"\b[Dd]ecode batch\b", r"\b[Pp]refill batch\b", r"generation throughput",
    r"Uvicorn running on", r"[Aa]pplication startup complete", r"server is fired up",
    r"ready to roll", r"\bReceived request\b",
    # not torch's debug server, which any job may have
    r"(?<!Frontend )[Ss]erver (?:is )?(?:ready|started|listening(?! to TCP :))",
    r"Finished request", r"Started (?:\w+ )?(?:GRPC|HTTP)\w*", r"Connected\s*$",
    r"\"(?:GET|POST|HEAD) /\S* HTTP/\d(?:\.\d)?\" 20\d",
)  # fmt: skip
"""What a server prints that answers."""
COUNTED = re.compile(
    r"\b(?:loss|epoch|iter(?:ation)?|step|lr|learning_rate|eta|ppl|wps|grad_norm)\b|[a-z]/s\b",
    re.IGNORECASE,
)
"""What lines count that a job at work prints again and again."""
LOSS = re.compile(
    r"\b(?:loss|lm loss|train_loss|eval_loss|acc(?:uracy)?1?)['\"]?\s*(?:train)?\s*"
    r"[:= |]{1,3}\s*\d+\.\d+",
    re.IGNORECASE,
)
"""The loss of a model, or how often it is right."""
MODEL_SERVED = any_of(
    r"\btoken usage\b", r"generation throughput", r"\btok(?:en)?s?/s\b", r"vLLM", r"sglang",
    r"/v1/\w+",
)  # fmt: skip
"""What only servers of language models print."""

TEST_ROW = re.compile(
    r"^[\W]*(?P<size>\d{1,15})\s+\|?\s*(?:"
    r"\d{1,15}\s+(?:float|double|half|bfloat16|u?int\d{1,2}|fp?\d{1,2}|f8e\dm\d)\b"
    r"|[\d.]+\s*\|\s*[\d.]+\s*\|\s*success)"
)
"""A row of nccl-tests, of rccl-tests or of HCCL's test, whose check is fine or off."""
WRONG_VALUES = re.compile(r"(?:\s[\d.]+){2,3}\s+[1-9]\d*\s+(?:[\d.]+\s+){3}\d+\s*$")
"""A row of such a table that counts wrong values."""
NO_WRONG_VALUE = re.compile(r"# ?Out of bounds values\s*:\s*0 OK")
LARGEST_SIZE = re.compile(r"maxBytes (?P<bytes>\d{1,15})|maxbytes is (?P<other>\d{1,15})")

SET_BY_COMMAND = re.compile(
    r"(?:(?<!\S)(?:-x|-e|--env)[ =]|^[$#]? ?(?:\w+=\S+ )*)(?P<name>NCCL_\w+)=\S+ "
)
"""A variable of NCCL in the command that started the job: ``mpirun -x NCCL_IB_DISABLE=1 …``."""
OWN_LINE = re.compile(r"^\W{0,3}[Rr](?:ank)? ?(?P<rank>\d{1,5})\b[\]:\s)]")
"""How a program marks the lines of its ranks in its own way."""
DESTROYED = re.compile(r"\[PG ID 0 .{0,80} Rank (\d{1,6})\] Destroy complete\.")
"""What torch writes on each rank at level INFO once the group of all ranks is destroyed."""
OWN_RANK = re.compile(r"\b[Rr]ank[ :=_]{0,2}(\d{1,7})\b")
"""The rank that a sentence names."""
TORCH_LINE = re.compile(r"\[rank\d+\]:\s*\[?[WI]\d{3,4} |\[TC\]\[rank=\d")
"""How torch itself warns, and torchcomms; their last log lines say nothing of the program."""
SECTION = re.compile(r"^==> .{1,200} <==$")
"""The title under which `tail` shows one of several files."""
KEYBOARD = "KeyboardInterrupt"
INTERRUPTED = re.compile(rf"^\^C|\b{KEYBOARD}\s*$")
"""Somebody ended the program from the keyboard."""
PROMPT = re.compile(r"^(?:\([\w.-]+\) ?)?\[?[\w.-]+@[\w.-]+[: ][^$#>]{0,80}[$#>]\s*$")
"""A shell that waits for the next command."""
NUMBERS = re.compile(r"\d+")
