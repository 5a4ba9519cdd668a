"""Whether a line says that something failed, or a person that something is not as it should be.

Programs speak of failure all the time without having failed: options (`--max-restarts`), settings (`timeout=900`),
counts of nothing (`0 errors`), warnings after which they go on.  A line counts only where a word of failure is left
once all of that is taken away.  What programs say is judged by `says_failure`, what people say by `says_complaint`.
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
    # NCCL_ASYNC_ERROR_HANDLING     torch.distributed.elastic.multiprocessing.errors     std::exception
    re.compile(r"\b\w*_\w*\b"),
    re.compile(r"\b[a-z]\w*(?:(?:\.|::)\w+)+\b(?!\s*:)"),
    # /opt/conda/lib/python3.10/site-packages/torch/errors.py:12
    re.compile(r"(?<![\w.])(?:[\w.~$-]*/)+[\w.+-]+(?::\d+)*"),
    # 0 errors     no error     errors: 0     failed=0     Out of bounds values : 0 OK     without any failure
    re.compile(
        r"\b(?:no|zero|0|without(?: any)?)(?: \w+)? "
        r"(?:errors?|failures?|failed|warnings?|mismatch\w*|exceptions?|timeouts?|aborted|killed|dropped|lost)\b",
        re.IGNORECASE,
    ),
    re.compile(
        r"\b(?:errors?|failures?|failed|warnings?|mismatch\w*|timeouts?|aborted|killed|lost|dropped|out of bounds values"
        r"|volatile \w+ ecc|ecc errors?)(?:\s*[:=|]\s*|\s+)(?:0|none|n/?a|false|off|disabled|no)\b",
        re.IGNORECASE,
    ),
    # [  OK  ]     test_timeout PASSED     expected number of connected peer ranks
    re.compile(r"\b\S*(?:error|fail|abort|timeout|invalid|kill)\S*\s+(?:\.{2,}\s*)?(?:ok|pass(?:ed)?|success)\b", re.I),
    # retry on failure     on error resume     abort on error     in case of failure     if … fails
    re.compile(r"\b(?:on|upon|in case of|for|until|unless|if|when|whether|should)\s+(?:\w+\s+){0,3}"
               r"(?:errors?|fail(?:s|ed|ure|ures)?|exceptions?|timeout|killed|aborted)\b", re.IGNORECASE),
)
"""What programs write without having failed."""

GRAVE = re.compile(
    r"\bTraceback \(most recent|\b[A-Z]\w*(?:Error|Exception)\b(?!\s*(?:as|,|\)))|\bcore dumped\b|\bsegmentation fault\b"
    r"|\bsegfault\b|\bkilled\b|\bkilling\b|\bdied\b|\baborted\b|\baborting\b|\bpanic(?:ked)?\b|\bcrash(?:ed|es|ing)?\b"
    r"|\bout of memory\b|\bOOM\b|\bdeadlock(?:ed)?\b|\bunhandled\b|\bexit(?:ed)?(?: with)?(?: \w+)?(?: code)?:? [1-9]\d*\b"
    r"|\bexitcode\W{1,3}-?[1-9]|\bSIG(?:TERM|KILL|ABRT|SEGV|BUS|INT|HUP|FPE|ILL)\b|\btimed[ -]out\b|\bterminated\b"
    r"|\bevict(?:ed|ion)\b|\bpreempted\b|\bfell off the bus\b|\bXid\b|\bfatal\b|\bunresponsive\b|\bunreachable\b"
    r"|\bfail(?:s|ed|ure|ures)?\b|\bassertion\b"
    r"|段错误|已杀死|失败|超时|内存不足|卡住|挂起|abgebrochen|échec",
    re.IGNORECASE,
)
"""Words after which nobody goes on, whatever level the line has."""

PLAIN = re.compile(
    r"\berrors?\b|\bcannot\b|\bcan(?:'|no)t\b|\bcould(?: not|n't)\b|\bunable\b|\bdenied\b|\brefused\b|\breset by peer\b"
    r"|\bbroken pipe\b|\bconnection (?:was )?(?:closed|lost|reset)\b|\blost connection\b|\bno route to host\b"
    r"|\bmismatch(?:ed)?\b|\bdoes not match\b|\bdo(?:es)?(?:n't| not) (?:exist|match|fit)\b|\binvalid\b|\bnot found\b"
    r"|\bno such\b|\bnot permitted\b|\bnot supported\b|\bunsupported\b|\bincompatible\b|\bcorrupt(?:ed|ion)?\b"
    r"|\bundefined symbol\b|\bexceed(?:s|ed)\b|\binsufficient\b|\bnot enough\b|\btoo (?:many|few|old|large|small|long)\b"
    r"|\bno space\b|\bhang(?:s|ing)?\b|\bhung\b|\bstuck\b|\bfrozen\b|\bstall(?:s|ed)?\b|\bunexpected\w*\b|\bdegraded\b"
    r"|\bthrottl\w+\b|\bout of (?:sync|range|bounds)\b|\bnot responding\b|\bdropped\b|\balready in use\b"
    r"|\bnot (?:available|ready|initialized|reachable)\b|\bis down\b|\bduplicate\b|\bquota\b|\bexhausted\b"
    r"|\b\w*(?:Errors?|Discards?|Downed)(?:Counter)?\W{1,40}[1-9]\d*\s*$|\bran for \d+|\b[Ww]atchdog caught\b"
    r"|\bloss\W{1,4}nan\b|\bnan\b.{0,20}\b(?:loss|grad)|\binconsistent\b|\bimpossible\b|\bwrong\b|\bbad\b"
    r"|\b(?:is |was |were )missing\b|\bmissing ranks?\b|\bstill waiting\b|\bnever\b"
    r"|错误|拒绝|没有空间|无法|不匹配|不一致|fehler|abgelehnt|erreur|refusée",
    re.IGNORECASE,
)
"""Words of failure in a line that no program marks as a mere warning or notice."""

CODE = re.compile(r"\bIBV_WC_\w*ERR\b|\bHW (?:Thermal )?Slowdown\W+Active|\bnccl(?:System|Internal|Remote|UnhandledCuda)Error\b")
"""Names of errors, which would be taken away with settings."""

LEVEL = re.compile(
    r"(?<![\w])(?:INFO|info|Info|NOTICE|notice|DEBUG|debug|TRACE|WARN(?:ING)?|warn(?:ing)?|Warning|UserWarning"
    r"|RuntimeWarning|\w+Warning)(?![\w])|^\s*\[?[IW]\d{4}[ :]|^\s*\[[IW](?:\d{3,4})? |\|\s*(?:INFO|WARNING)\s*\|"
)
"""How a program marks what it goes on after."""

BENIGN = re.compile(
    r"libibverbs|libnccl-?\w*\.so|NET/Plugin|\bplugin\b|hostname of the client socket|IPv6 network addresses"
    r"|recommended minimum|can cause the process to hang|[Uu]sing best-guess|current stream|lazy_init"
    r"|Permanently added|X11 forwarding|locale|apex|flash.?attn|xformers|tensorboard|wandb|TPU|NUMA support"
    r"|cuDNN factory|cuBLAS factory|computation_placer|TF-TRT|Unable to register|AVX|deprecat|not compiled|ninja"
    r"|tokeniz|pad_token|special tokens|use_cache|gradient.checkpoint|find_unused_parameters=True was|checkpoint.{0,40}not"
    r"|newly initialized|not used when initializing|huggingface_hub|triton|CUDA_LAUNCH_BLOCKING|core file|ulimit"
    r"|\"should dump\" flag|recvValue failed|shut down too early|[Cc]ompiler|swap|overcommit|sysctl|pynvml|nvidia-ml|font|cache",
)
"""What a warning may be about that harms no job: a library that is tried, a default that is taken."""

SLOW = re.compile(
    r"\bslow(?:er|ly|ness|s)?\b|\b(?:very|too|so) (?:low|bad|long)\b|\bonly (?:get )?\d|\d[\d.]* ?[\w/%]{1,6} only\b"
    r"|\blow(?:er)? (?:bandwidth|throughput|performance|utili[sz]ation|speed)\b|\b(?:much|far) (?:lower|less|worse)\b"
    r"|\binstead of\b|\bexpect(?:ed|ing)?\W{1,3}(?:to|about|around|it|at least|~?\d)|\bhalves\b|\bhalf (?:of )?(?:the|what)\b"
    r"|\bdrop(?:s|ped)?\b|\bjumps?\b|\bspikes?\b|\bdegrad\w+|\blate\b|\blonger\b|\bstarv\w+|\bthrottl\w+|\bstraggl\w+"
    r"|\d ?\w{0,3} (?:->|→|=>) ?\d|\(was\b|\bused to\b|\bwith (?:one|1|a single)\b.{0,40}\bwith (?:two|\d)|\bwrong\b|\bgarbage\b|\bgrows?\b|\bleaks?\b|\bnan\b|\bdiverg\w+"
    r"|很慢|变慢",
    re.IGNORECASE,
)
"""What people say of a job that goes on, but not as well as it should: its end refutes none of that."""
COMPLAINT = re.compile(
    r"\bhangs?\b|\bhung\b|\bhanging\b|\bstuck\b|\bfreezes?\b|\bfrozen\b|\bforever\b|\binfinite(?:ly)?\b|\bspins?\b"
    r"|\bnothing (?:happens|more|else|is printed|comes?|after)\b|\bsilent\b|\bmakes no sense\b|\bat all\b"
    r"|\bno (?:output|progress|response|effect|log|logs|further)\b"
    r"|\bnever (?:returns?|ends?|finish\w*|comes?|gets?|starts?|goe?s?|reach\w*)\b"
    r"|\bfails?\b|\bfailed\b|\bfailing\b|\bcrash(?:es|ed|ing)?\b|\bdies?\b|\bkills?\b|\bkilled\b|\bsegfaults?\b"
    r"|\b(?:does|do|did)(?:n'?t| not) (?:work|start|finish|return|continue|end|move|train|print|respond|converge)\b"
    r"|\b(?:is|are)(?:n'?t| not) (?:running|working|used|using|moving|responding|training|starting)\b"
    r"|\b(?:can|could)(?:'?t| ?not) (?:connect|start|run|train|get|use|find|see|reach)\b|\bproblem\b|\berrors?\b"
    r"|\brandomly\b|\bdeadlock\w*\b|\btakes? (?:forever|ages|hours|too long)\b|\bafter (?:a while|some time)\b"
    r"|\bany (?:idea|help|suggestion)\b|\bwhy\b|\bno longer\b|\btime(?:s|d)? ?out\b|\btimeouts\b|\btimeout of\b"
    r"|\bhelps\b|\bcures?\b|\bfixe[sd]\b|\bsolve[sd]\b|\bwork(?:s|ed) (?:fine |well )?(?:with|when|after|until|if|again)\b"
    r"|\bwhenever\b|\bin the future\b|\bbefore (?:the )?start\b|\bout of memory\b|\bkill -9\b"
    r"|卡住|挂起|不动|报错|失败|没有反应",
    re.IGNORECASE,
)
"""What people say of a job that is not as it should be, besides that it is slow."""
STACK = re.compile(
    r"\bpy-spy\b|\((?:cuda-)?gdb\)|\b(?:cuda-)?gdb\b|^\s*#\d+ +(?:0x[0-9a-f]+|\w)|^Thread \d+ .*(?:active|idle|LWP)"
    r"|Waiting for the GIL|^\s*\w[\w.<>]* \([\w./-]+\.py:\d+\)|\w\([\w./-]+\.(?:py|cc|cpp):\d+\)"
)
"""Lines of stacks that somebody took: of a job that goes well nobody takes them."""
SPOKEN = re.compile(r"(?<!\S)[\"'(]?[A-Za-z][a-z']{0,20}[,.?:!;)\"']{0,3}(?!\S)")
FIRM = re.compile(
    r"\bhangs?\b|\bstuck\b|\bexpected\W|\bworked after\b|\bonly get\b|\bdropped\b|\bslow\b|\bwaits? for rank\b|\blate\b",
    re.IGNORECASE,
)
"""Words that nobody but a person puts into a short line."""
WORDS_OF_A_SENTENCE = 4
WORDS_OF_A_REMARK = 2
LOGGED = re.compile(
    r"^\W{0,4}(?:\d{4}[-/]\d\d|\d\d:\d\d:\d\d|\w{3} +\d{1,2} \d\d:|[\w.-]+:\d+:\d+ \[)"
    r"|(?:^|[\s\]:])\[?[IWEF]\d{3,4} \d\d|\[[IWEF] ?\w+\.\w+:\d|\[W \w+\.cpp"
    r"|\b(?:INFO|WARN(?:ING)?|DEBUG|ERROR|NOTICE)\b|\w*Warning\b:|^\s*(?:#|//|/\*)|^\s*[\w.-]{1,40}: \S*$"
    r"|^(?:wandb|srun|slurmstepd|mpirun|libibverbs|ssh|docker|kubectl)\b[^:]{0,60}:"
)
"""How lines begin that a program wrote."""


TABLE = re.compile(r"\balgbw\b|\bbusbw\b|out-of-place|# ?Out of bounds values\s*:\s*0 OK")
"""Titles of a test's table, which name the column of wrong values, and its closing line."""


def says_failure(text: str) -> bool:
    """Whether a line, as a program wrote it, says that something failed."""
    if TABLE.search(text):
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
    if LOGGED.search(text) or TABLE.search(text):
        return False
    words = len(SPOKEN.findall(text))
    if words >= WORDS_OF_A_REMARK and FIRM.search(text):
        return True
    is_sentence = words >= WORDS_OF_A_SENTENCE and 2 * words >= len(text.split())
    if not is_sentence and text.isascii():
        return False
    return (COMPLAINT.search(text) or SLOW.search(text)) is not None


def says_slow(text: str) -> bool:
    """Whether a complaint is of a kind that the end of the job does not refute: slow, late, wrong."""
    return SLOW.search(text) is not None


def is_stack(text: str) -> bool:
    """Whether a line is of a stack that somebody took of a process, or names the program that took it."""
    return STACK.search(text) is not None


def without_settings(text: str) -> str:
    """A line without options, settings, paths, names of code, and counts of nothing."""
    for pattern in TAKEN_AWAY:
        text = pattern.sub(" ", text)
    return text
