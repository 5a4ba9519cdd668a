"""Whether a line says that something failed, or a person that something is not as it should be.

Programs speak of failure all the time without having failed: options (`--max-restarts`), settings
(`timeout=900`), counts of nothing (`0 errors`), warnings after which they go on.  A line counts only
where a word of failure is left
once all of that is taken away.  What programs say is judged by `says_failure`, what people say by
`says_complaint`.
"""

from __future__ import annotations

import re

TAKEN_AWAY = (
    # https://docs.nvidia.com/…/troubleshooting.html
    re.compile(r"\b\w{2,10}://\S+"),
    # --max_restarts=0     --monitor-interval 5     -x NCCL_IB_DISABLE=1
    re.compile(r"(?<!\S)-{1,2}[A-Za-z][\w.-]*(?:=\S*)?"),
    # {'rank': 1, 'timeout': 900}     error_file: /tmp/torchelastic/error.json     timeout=900
    re.compile(r"['\"]?\b[\w.-]{1,60}['\"]?\s{0,20}=\s{0,2}[^\s,;)]{1,200}"),
    re.compile(r"['\"][\w.-]{1,60}['\"]:\s{0,2}[^\s,;)}]{1,200}"),
    # NCCL_ASYNC_ERROR_HANDLING     torch.distributed.elastic.multiprocessing.errors
    re.compile(r"\b\w*_\w*\b"),
    re.compile(r"\b[a-z]\w*(?:(?:\.|::)\w+)+\b(?!\s*:)"),
    # /opt/conda/lib/python3.10/site-packages/torch/errors.py:12
    re.compile(r"(?<![\w.])(?:[\w.~$-]*/)+[\w.+-]+(?::\d+)*"),
    # 0 errors     no error     errors: 0     failed=0     Out of bounds values : 0 OK
    re.compile(
        r"\b(?:no|zero|0|without(?: any)?)(?: \w+)? "
        r"(?:errors?|failures?|failed|warnings?|mismatch\w*|exceptions?|timeouts?|aborted|killed"
        r"|dropped|lost)\b",
        re.IGNORECASE,
    ),
    re.compile(
        r"\b(?:errors?|failures?|failed|warnings?|mismatch\w*|timeouts?|aborted|killed|lost"
        r"|dropped|out of bounds values"
        r"|volatile \w+ ecc|ecc errors?)(?:\s*[:=|]\s*|\s+)(?:0|none|n/?a|false|off|disabled|no)\b",
        re.IGNORECASE,
    ),
    # [  OK  ]     test_timeout PASSED     expected number of connected peer ranks
    re.compile(
        r"\b\S*(?:error|fail|abort|timeout|invalid|kill)\S*\s+"
        r"(?:\.{2,}\s*)?(?:ok|pass(?:ed)?|success)\b",
        re.I,
    ),
    # retry on failure     abort on error     in case of failure     if … fails
    re.compile(
        r"\b(?:on|upon|in case of|for|until|unless|if|when|whether|should)\s+(?:\w+\s+){0,3}"
        r"(?:errors?|fail(?:s|ed|ure|ures)?|exceptions?|timeout|killed|aborted)\b",
        re.IGNORECASE,
    ),
)
"""What programs write without having failed."""

GRAVE = re.compile(
    r"\bTraceback \(most recent|\b[A-Z]\w*(?:Error|Exception)\b(?!\s*(?:as|,|\)))"
    r"|\bcore dumped\b|\bsegmentation fault\b"
    r"|\bsegfault\b|\bkilled\b|\bkilling\b|\bdied\b|\baborted\b|\baborting\b|\bpanic(?:ked)?\b"
    r"|\bcrash(?:ed|es|ing)?\b"
    r"|\bout of memory\b|\bOOM\b|\bdeadlock(?:ed)?\b|\bunhandled\b"
    r"|\bexit(?:ed)?(?: with)?(?: \w+)?(?: code)?:? [1-9]\d*\b"
    r"|\bexitcode\W{1,3}-?[1-9]|\bSIG(?:TERM|KILL|ABRT|SEGV|BUS|FPE|ILL)\b|\bFAULTY\b"
    r"|\btimed[ -]out\b|\bterminated\b"
    r"|\bevict(?:ed|ion)\b|\bpreempted\b|\bfell off the bus\b|\bXid\b|\bfatal\b|\bunresponsive\b"
    r"|\bunreachable\b"
    r"|\bfail(?:s|ed|ure|ures)?\b|\bassertion\b"
    r"|段错误|已杀死|失败|超时|内存不足|卡住|挂起|abgebrochen|échec",
    re.IGNORECASE,
)
"""Words after which nobody goes on, whatever level the line has."""

PLAIN = re.compile(
    r"\berrors?\b|\bcannot\b|\bcan(?:'|no)t\b|\bcould(?: not|n't)\b|\bunable\b|\bdenied\b"
    r"|\brefused\b|\breset by peer\b"
    r"|\bbroken pipe\b|\bconnection (?:was )?(?:closed|lost|reset)\b|\blost connection\b"
    r"|\bno route to host\b"
    r"|\bmismatch(?:ed)?\b|\bdoes not match\b|\bdo(?:es)?(?:n't| not) (?:exist|match|fit)\b"
    r"|\binvalid\b|\bnot found\b"
    r"|\bno such\b|\bnot permitted\b|\bnot supported\b|\bunsupported\b|\bincompatible\b"
    r"|\bcorrupt(?:ed|ion)?\b"
    r"|\bundefined symbol\b|\bexceed(?:s|ed)\b|\binsufficient\b|\bnot enough\b|\btoo (?:many|few"
    r"|old|large|small|long)\b"
    r"|\bno space\b|\bhang(?:s|ing)?\b|\bhung\b|\bstuck\b|\bfrozen\b|\bstall(?:s|ed)?\b"
    r"|\bunexpected\w*\b|\bdegraded\b"
    r"|\bthrottl\w+\b|\bout of (?:sync|range|bounds)\b|\bnot responding\b|\bdropped\b"
    r"|\balready in use\b"
    r"|\bnot (?:available|ready|initialized|reachable)\b|\bis down\b|\bduplicate\b|\bquota\b"
    r"|\bexhausted\b"
    r"|\b\w*(?:Errors?|Discards?|Downed)(?:Counter)?\W{1,40}[1-9]\d*\s*$|\bran for \d+"
    r"|\b[Ww]atchdog caught\b"
    r"|\bloss\W{1,4}nan\b|\bnan\b.{0,20}\b(?:loss|grad)|\binconsistent\b|\bimpossible\b"
    r"|\bwrong\b|\bbad\b"
    r"|\b(?:is |was |were )missing\b|\bmissing ranks?\b|\bstill waiting\b"
    r"|错误|拒绝|没有空间|无法|不匹配|不一致|fehler|abgelehnt|erreur|refusée",
    re.IGNORECASE,
)
"""Words of failure in a line that no program marks as a mere warning or notice."""

CODE = re.compile(
    r"\bIBV_WC_\w*ERR\b|loss['\"]?\W{1,4}nan\b|\bHW (?:Thermal )?Slowdown\W+Active"
    r"|\bnccl(?:System|Internal|Remote|UnhandledCuda)Error\b"
)
"""Names of errors, which would be taken away with settings."""

NO_LOG = re.compile(
    r"^\[ *\d+\.\d+\] |^\S+\.(?:c|cc|cpp|cxx|h|hpp|cu|cuh|rs|go|java|ts):\d+:(?:\d+:)? |^make(?:\[\d+\])?: "
    r"|^\s*[\w-]*(?:restart|signal|policy|timeout|retries|grace)[\w-]*: +\S+$"
    r"|^[0-9a-f]{7,12} (?=\S)(?!.*\d$)"
    r"|^\s*(?:raise|except|print|echo|if|elif|def|class|import|assert|return)\b.*[(:\"']"
    r"|^test \S+ \.\.\. |^thread '[^']+' panicked|^error: test failed|^test result: "
    r"|\|\| *(?:echo|exit)\b|^commit [0-9a-f]{40}"
)
"""Lines of the kernel, of compilers, of git and of source code: they speak of other things than the job."""
DEATH = re.compile(
    r"\bSIG(?:TERM|KILL|ABRT|SEGV|BUS|FPE|ILL)\b|\bkilled\b|\bterminated\b|\bdied\b|\bcore dumped\b"
    r"|\b[Ss]egmentation fault\b|\bevicted\b|\bpreempted\b|\bexit(?:ed)?(?: with)?(?: \w+)?(?: code)?:? [1-9]\d*\b"
    r"|\bFAILED\b|\bFAULTY\b|\bOUT_OF_ME\w*|\bNODE_FAIL\b|\bCANCELLED\b|\bOOMKilled\b"
)
"""The end of a process, or the verdict of a table: no work of others refutes it."""
LEVEL = re.compile(
    r"(?<![\w])(?:INFO|info|Info|NOTICE|notice|DEBUG|debug|TRACE|WARN(?:ING)?|warn(?:ing)?"
    r"|Warning|UserWarning"
    r"|RuntimeWarning|\w+Warning)(?![\w])|^\s*\[?[IW]\d{4,8}[ :]|^\s*\[[IW](?:\d{3,4})? "
    r"|\|\s*(?:INFO|WARNING)\s*\|"
)
"""How a program marks what it goes on after."""

BENIGN = re.compile(
    r"asterisks indicate|Could not collect|may be insufficient|insufficient for PyTorch"
    r"|libibverbs|libnccl-?\w*\.so|NET/Plugin|\bplugin\b"
    r"|hostname of the client socket|IPv6 network addresses"
    r"|recommended minimum|can cause the process to hang|[Uu]sing best-guess|current stream"
    r"|lazy_init"
    r"|Permanently added|X11 forwarding|locale|apex|flash.?attn|xformers|tensorboard|wandb|TPU"
    r"|NUMA support"
    r"|cuDNN factory|cuBLAS factory|computation_placer|TF-TRT|Unable to register|AVX|deprecat"
    r"|not compiled|ninja"
    r"|tokeniz|pad_token|special tokens|use_cache|gradient.checkpoint"
    r"|find_unused_parameters=True was|checkpoint.{0,40}not"
    r"|newly initialized|not used when initializing|huggingface_hub|triton|CUDA_LAUNCH_BLOCKING"
    r"|core file|ulimit"
    r"|\"should dump\" flag|recvValue failed|shut down too early|[Cc]ompiler|swap|overcommit"
    r"|sysctl|pynvml|nvidia-ml|font|cache"
)
"""What a warning may be about that harms no job: a library that is tried, a default."""

SLOW = re.compile(
    r"\bslow(?:er|ly|ness|s)?\b|\b(?:very|too|so) (?:low|bad|long)\b|\bonly (?:get )?\d"
    r"|\d[\d.]* ?[\w/%]{1,6} only\b"
    r"|\blow(?:er)? (?:bandwidth|throughput|performance|utili[sz]ation|speed)\b|\b(?:much"
    r"|far) (?:lower|less|worse)\b"
    r"|\binstead of\b|\bexpect(?:ed|ing)?\W{1,3}(?:to|about|around|it|at least|~?\d)|\bhalves\b"
    r"|\bhalf (?:of )?(?:the|what)\b"
    r"|\bdrop(?:s|ped)?\b|\bjumps?\b|\bspikes?\b|\bdegrad\w+|\blate\b|\bstarv\w+|\bthrottl\w+"
    r"|\bstraggl\w+"
    r"|\d ?\w{0,3} (?:->|→|=>) ?\d|\(was\b|\bused to\b|\bwith (?:one|1"
    r"|a single)\b.{0,40}\bwith (?:two|\d)|\bwrong\b|\bgarbage\b|\bgrows?\b|\bleaks?\b|\bnan\b"
    r"|\bdiverg\w+"
    r"|很慢|变慢",
    re.IGNORECASE,
)
"""What people say of a job that goes on, but not as well as it should: its end refutes none of
that."""
COMPLAINT = re.compile(
    r"\bhangs?\b|\bhung\b|\bhanging\b|\bstuck\b|\bfreezes?\b|\bfrozen\b|\bforever\b"
    r"|\binfinite(?:ly)?\b|\bspins?\b"
    r"|\bnothing (?:happens|more|else|is printed|comes?|after)\b|\bsilent\b|\bmakes no sense\b"
    r"|\bat all\b"
    r"|\bno (?:output|progress|response|effect|log|logs|further)\b"
    r"|\bnever (?:returns?|ends?|finish\w*|comes?|gets?|starts?|goe?s?|reach\w*)\b"
    r"|\bfails?\b|\bfailed\b|\bfailing\b|\bcrash(?:es|ed|ing)?\b|\bdies?\b|\bkills?\b|\bkilled\b"
    r"|\bsegfaults?\b"
    r"|\b(?:does|do|did)(?:n'?t| not) (?:work|start|finish|return|continue|end|move|train|print"
    r"|respond|converge)\b"
    r"|\b(?:is|are)(?:n'?t| not) (?:running|working|used|using|moving|responding|training"
    r"|starting)\b"
    r"|\b(?:can|could)(?:'?t| ?not) (?:connect|start|run|train|get|use|find|see|reach)\b"
    r"|\bproblem\b|\berrors?\b"
    r"|\brandomly\b|\bdeadlock\w*\b|\btakes? (?:forever|ages|hours|too long)\b"
    r"|\bafter (?:a while|some time)\b"
    r"|\bany (?:idea|help|suggestion)\b|\bwhy\b|\bno longer\b|\btime(?:s|d)? ?out\b|\btimeouts\b"
    r"|\btimeout of\b"
    r"|\bhelps\b|\bcures?\b|\bfixe[sd]\b|\bsolve[sd]\b|\bwork(?:s|ed) (?:fine |well )?(?:with"
    r"|when|after|until|if|again)\b"
    r"|\bwhenever\b|\bin the future\b|\bbefore (?:the )?start\b|\bout of memory\b|\bkill -9\b"
    r"|卡住|挂起|不动|报错|失败|没有反应",
    re.IGNORECASE,
)
"""What people say of a job that is not as it should be, besides that it is slow."""
SOLVED = re.compile(
    r"\bwork(?:s|ed) (?:fine |well )?(?:with|when|after|until|if|again)\b|\bhelps\b|\bcures?\b"
    r"|\bfixe[sd]\b|\bsolve[sd]\b",
    re.IGNORECASE,
)
"""What people say of a trouble that is over: beside a good end it is none."""
OTHER_LANGUAGES = re.compile(
    r"\blangsam|\bhängt\b|\bbricht\b|\bstürzt\b|\bbleibt (?:stehen|hängen)|\bnicht\b|\bbloqu|\blent\b|\bplante\b"
    r"|\béchoue|\bfige\b|\blento\b|\bcuelga|\bfalla\b|\btrava\b|завис|медленн|ошибк|падает|止ま|遅い|固ま|動かな"
    r"|落ち|進まな|エラー|멈|느려|에러|오류|卡|慢|报错|失败|不动|没有反应|不一致|对不上|只有|错",
    re.IGNORECASE,
)
"""The same in other languages than English."""
STACK = re.compile(
    r"\bpy-spy\b|\((?:cuda-)?gdb\)|\b(?:cuda-)?gdb\b|^\s*#\d+ +(?:0x[0-9a-f]+|\w)"
    r"|^Thread \d+ .*(?:active|idle|LWP)"
    r"|Waiting for the GIL|^\s*\w[\w.<>]* \([\w./-]+\.py:\d+\)|\w\([\w./-]+\.(?:py|cc|cpp):\d+\)"
)
"""Lines of stacks that somebody took: of a job that goes well nobody takes them."""
SPOKEN = re.compile(r"(?<!\S)[\"'(]?[A-Za-z][a-z']{0,20}[,.?:!;)\"']{0,3}(?!\S)")
FIRM = re.compile(
    r"\bhangs?\b|\bstuck\b|\bexpected\W|\bworked after\b|\bonly get\b|\bdropped\b"
    r"|\bslow(?:er)?\b|\bhalves\b|\bcures?\b|\bjumps\b|\bworse\b|\bwaits? for rank\b|\blate\b",
    re.IGNORECASE,
)
"""Words that nobody but a person puts into a short line."""
WORDS_OF_A_SENTENCE = 4
WORDS_OF_A_REMARK = 2
LOGGED = re.compile(
    r"^.{0,20}\d{4}[-/]\d\d[-/]\d\d|\|.*\|.*\||^\W{0,4}(?:\d\d:\d\d:\d\d|\w{3} +\d{1,2} \d\d:"
    r"|[\w.-]+:\d+:\d+ \[)"
    r"|(?:^|[\s\]:])\[?[IWEF]\d{3,4} \d\d|\[[IWEF] ?\w+\.\w+:\d|\[W \w+\.cpp"
    r"|\b(?:INFO|WARN(?:ING)?|DEBUG|ERROR|NOTICE)\b|\w*Warning\b:|^\s*(?:#|//|/\*)"
    r"|^\s*[\w.-]{1,40}: \S*$"
    r"|^\s*(?:iter|step|epoch|eval|train|val)\w*\W{1,3}\d|^\w{2,12}: .*\d$"
    r"|^(?:wandb|srun|slurmstepd|mpirun|libibverbs|ssh|docker|kubectl)\b[^:]{0,60}:"
)
"""How lines begin that a program wrote."""


TABLE = re.compile(r"\balgbw\b.*\bbusbw\b|out-of-place|# ?Out of bounds values\s*:\s*0 OK")
"""Titles of a test's table, which name the column of wrong values, and its closing line."""


CHATTER = re.compile(
    r"Token indices sequence|TokenizerFast|Some weights of|should probably TRAIN|`use_cache="
    r"|Special tokens have been"
    r"|might be asynchronously|soft kill|It is recommended|The following (?:values|arguments"
    r"|columns) |^Note:|^Hint:|\bMake sure (?:to|that)\b"
)
"""Sentences that well-known programs write without complaining."""


def says_failure(text: str) -> bool:
    """Whether a line, as a program wrote it, says that something failed."""
    if TABLE.search(text) or NO_LOG.search(text) or CHATTER.search(text):
        return False
    if CODE.search(text):
        return True
    rest = without_settings(text)
    if GRAVE.search(rest) and not BENIGN.search(text):
        return True
    if LEVEL.search(text) or BENIGN.search(text):
        return False
    return PLAIN.search(rest) is not None


def says_complaint(text: str) -> bool:
    """Whether a line is a sentence in which a person says that something is not as it should be."""
    if LOGGED.search(text) or TABLE.search(text) or CHATTER.search(text) or NO_LOG.search(text):
        return False
    if OTHER_LANGUAGES.search(text) and not LEVEL.search(text):
        return True
    words = len(SPOKEN.findall(text))
    if words >= WORDS_OF_A_REMARK and FIRM.search(text):
        return True
    is_sentence = words >= WORDS_OF_A_SENTENCE and 2 * words >= len(text.split())
    if not is_sentence and text.isascii():
        return False
    return (COMPLAINT.search(text) or SLOW.search(text)) is not None


def says_death(text: str) -> bool:
    """Whether a line says that a process ended badly, or that a test failed."""
    return DEATH.search(text) is not None


def says_slow(text: str) -> bool:
    """Whether a complaint is one that the end of the job does not refute: slow, late, wrong."""
    return any(words.search(text) for words in (SLOW, OTHER_LANGUAGES))


def is_mere_warning(text: str) -> bool:
    """Whether a program marks a line as something after which it goes on."""
    return LEVEL.search(text) is not None


def says_solved(text: str) -> bool:
    """Whether a complaint is of something that is over."""
    return SOLVED.search(text) is not None


def is_source(text: str) -> bool:
    """Whether a line is source code, or of a compiler or of git: none of them is the job's own."""
    return "\n" not in text and NO_LOG.search(text) is not None


def is_stack(text: str) -> bool:
    """Whether a line is of a stack that somebody took of a process, or names the program that took
    it."""
    return STACK.search(text) is not None


def without_settings(text: str) -> str:
    """A line without options, settings, paths, names of code, and counts of nothing."""
    for pattern in TAKEN_AWAY:
        text = pattern.sub(" ", text)
    return text
