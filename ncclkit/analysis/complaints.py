"""Whether a line says that something failed, or is not as it should be.

Programs speak of failure all the time without having failed: options (`--max-restarts`), settings
(`timeout=900`), counts of nothing (`0 errors`), warnings after which they go on.  A line counts
only where a word of failure is left once all of that is taken away.  What programs say is judged by
`says_failure`, what people say by `says_complaint`.
"""

from __future__ import annotations

import re

from ncclkit.analysis.phrases import any_of, any_word


def says_failure(text: str) -> bool:
    """Whether a line, as a program wrote it, says that something failed."""
    if TABLE.search(text) or CHATTER.search(text) or is_source(text) or SETTING.match(text):
        return False
    if (
        REWARD.search(text)
        or EARLIER.search(text)
        # the memory of a browser is no matter of the job
        or ("oom-killer" in text and DESKTOP.search(text))
    ):
        return False
    # before settings are taken away, and these names with them
    if ERROR_NAMES.search(text):
        return True
    rest = without_settings(text)
    # before the level is asked: after such a word nobody goes on, whatever level the line has
    if GRAVE.search(rest) and not BENIGN.search(text):
        return not KERNEL.match(text)
    if LEVEL.search(text) or BENIGN.search(text) or KERNEL.match(text):
        return False
    return PLAIN.search(rest) is not None


def says_complaint(text: str) -> bool:
    """Whether a person says in a line that something is not as it should be."""
    if LOGGED.search(text) or TABLE.search(text) or CHATTER.search(text) or is_source(text):
        return False
    if SETTING.match(text) or KERNEL.match(text) or REWARD.search(text):
        return False
    if OTHER_LANGUAGES.search(text):
        return True
    # a command line with `--on-hang abort` complains of nothing
    text = OPTION.sub(" ", without_names(text))
    words = len(SPOKEN.findall(text))
    if words >= WORDS_OF_A_REMARK and REMARK.search(text):
        return True
    is_sentence = words >= WORDS_OF_A_SENTENCE and 2 * words >= len(text.split())
    if not is_sentence and text.isascii():
        return False
    return any(words.search(text) for words in (COMPLAINT, SOLVED, SLOW))


def says_death(text: str) -> bool:
    """Whether a line says that a process ended badly, or that a test failed."""
    if REWARD.search(text) or EARLIER.search(text):
        return False
    # a checkpoint may be called killed.pt
    return DEATH.search(without_names(text)) is not None


def says_slow(text: str) -> bool:
    """Whether a complaint is one that the end of the job cannot refute.

    It is that something is slow, late or wrong.
    """
    return any(words.search(text) for words in (SLOW, OTHER_LANGUAGES))


def says_solved(text: str) -> bool:
    """Whether a complaint is of something that is over."""
    return SOLVED.search(text) is not None


def is_short_of_target(text: str) -> bool:
    """Whether a benchmark ended without its target: no rank failed for that."""
    return re.search(SHORT_OF_TARGET, text) is not None


def is_mere_warning(text: str) -> bool:
    """Whether a program marks a line as something after which it goes on."""
    return LEVEL.search(text) is not None


def is_source(text: str) -> bool:
    """Whether a line is of no job.

    Then it is of source code, a compiler, git, a prompt, or a program that is tried.
    """
    if "\n" in text:
        return False
    return any(words.search(text) for words in (SOURCE, PROMPT, SANDBOX))


def is_stack(text: str) -> bool:
    """Whether a line is of a stack that somebody took.

    It may also name the program that took it.
    """
    return STACK.search(text) is not None


def without_names(text: str) -> str:
    """A line without file names, paths, and single words in quotes.

    A data set may be called ``"hang"``, and a checkpoint ``killed.pt``.
    """
    return NAMES.sub(" ", text)


def without_settings(text: str) -> str:
    """A line without options, settings, paths, names of code, and counts of nothing."""
    for pattern in TAKEN_AWAY:
        text = pattern.sub(" ", text)
    return text


NAMES = re.compile(
    r"\"[\w.-]{1,60}\"|(?<!\w)'[\w.-]{1,60}'(?!\w)"
    r"|(?<![\w/])(?:[\w.~-]{0,60}/){1,20}[\w.+-]{0,80}"
    r"|\b[\w-]{1,60}\.(?:pt|pth|ckpt|safetensors|jsonl?|parquet|csv|ya?ml|txt|bin|npz|tar)\b"
)
"""What somebody chose as a name."""
NOTHING_FAILED = (
    r"errors?|failures?|failed|warnings?|mismatch\w*|exceptions?|timeouts?|aborted|killed|dropped"
    r"|lost"
)
# --max_restarts=0     --monitor-interval 5     -x NCCL_IB_DISABLE=1
OPTION = re.compile(r"(?<!\S)-{1,2}[A-Za-z][\w.-]*(?:=\S*)?")
TAKEN_AWAY = (
    # https://docs.nvidia.com/…/troubleshooting.html
    re.compile(r"\b\w{2,10}://\S+"),
    OPTION,
    # timeout=900     error_file = /tmp/torchelastic/error.json
    re.compile(r"['\"]?\b[\w.-]{1,60}['\"]?\s{0,20}=\s{0,2}[^\s,;)]{1,200}"),
    # {'rank': 1, 'timeout': 900}
    re.compile(r"['\"][\w.-]{1,60}['\"]:\s{0,2}[^\s,;)}]{1,200}"),
    # NCCL_ASYNC_ERROR_HANDLING     torch.distributed.elastic.multiprocessing.errors
    re.compile(r"\b\w*_\w*\b"),
    re.compile(r"\b[a-z]\w*(?:(?:\.|::)\w+)+\b(?!\s*:)"),
    # /opt/conda/lib/python3.10/site-packages/torch/errors.py:12
    re.compile(r"(?<![\w.])(?:[\w.~$-]*/)+[\w.+-]+(?::\d+)*"),
    # 0 errors     no error     without any failure     0 tests completed and failed
    re.compile(rf"\b(?:no|without(?: any)?)(?: \w+)? (?:{NOTHING_FAILED})\b", re.IGNORECASE),
    re.compile(rf"\b(?:zero|0)(?: \w+){{0,3}} (?:{NOTHING_FAILED})\b", re.IGNORECASE),
    # Kein Fehler gefunden     aucune erreur     sin errores     未发现错误
    re.compile(
        r"\b(?:keine?|ohne|aucune?|sans|sin|nessun|senza) (?:fehler|erreurs?|error\w{0,2})\b",
        re.IGNORECASE,
    ),
    re.compile(r"(?:没有|未发现|无)(?:任何)?(?:错误|失败|超时|异常)"),
    re.compile(r"(?:错误|失败|超时).{0,12}(?:重试|后).{0,12}成功"),
    # Fehlerprotokoll ist leer
    re.compile(r"\bfehler(?:protokoll|frei)\w*", re.IGNORECASE),
    # errors: 0     failed=0     Out of bounds values : 0 OK     Volatile Uncorr. ECC | N/A
    re.compile(
        rf"\b(?:{NOTHING_FAILED}|out of bounds values|volatile \w+ ecc|ecc errors?)"
        r"(?:\s*[:=|]\s*|\s+)(?:0|none|n/?a|false|off|disabled|no)\b",
        re.IGNORECASE,
    ),
    # test_timeout PASSED     test_abort (test_c10d.Test) ... ok
    re.compile(
        r"\b\S*(?:error|fail|abort|timeout|invalid|kill)\S*\s+"
        r"(?:\.{2,}\s*)?(?:ok|pass(?:ed)?|success)\b",
        re.IGNORECASE,
    ),
    # retry on failure     abort on error     in case of failure     if … fails
    re.compile(
        r"\b(?:on|upon|in case of|for|until|unless|if|when|whether|should)\s+(?:\w+\s+){0,3}"
        r"(?:errors?|fail(?:s|ed|ure|ures)?|exceptions?|timeout|killed|aborted)\b",
        re.IGNORECASE,
    ),
)
"""What programs write without having failed."""

EXIT_STATUS = r"exit(?:ed)?(?: with)?(?: \w+)?(?: code)?:? [1-9]\d*"
DEADLY_SIGNAL = r"SIG(?:TERM|KILL|ABRT|SEGV|BUS|FPE|ILL)"

GRAVE = any_word(
    # how a program ends
    r"core dumped",
    r"segmentation fault",
    r"segfault",
    r"panic(?:ked)?",
    r"crash(?:ed|es|ing)?",
    r"killed",
    r"killing",
    r"died",
    r"aborted",
    r"aborting",
    r"terminated",
    r"evict(?:ed|ion)",
    r"preempted",
    EXIT_STATUS,
    DEADLY_SIGNAL,
    r"return code:? [1-9]\d*",
    # what went wrong
    r"out of memory",
    r"OOM",
    r"deadlock(?:ed)?",
    r"unhandled",
    r"timed[ -]out",
    r"fatal",
    r"unresponsive",
    r"unreachable",
    r"fail(?:s|ed|ure|ures)?",
    r"assertion",
    r"FAULTY",
    r"fell off the bus",
    r"Xid",
    more=(
        r"\bTraceback \(most recent",
        r"\b[A-Z]\w*(?:Error|Exception)\b(?!\s*(?:as|,|\)))",
        r"\bexitcode\W{1,3}-?[1-9]",
        "段错误",
        "已杀死",
        "失败",
        "超时",
        "内存不足",
        "卡住",
        "挂起",
        "abgebrochen",
        "échec",
    ),
)
"""Words after which nobody goes on, whatever level the line has."""

PLAIN = any_word(
    # what could not be done
    r"errors?",
    r"cannot",
    r"can(?:'|no)t",
    r"could(?: not|n't)",
    r"unable",
    r"denied",
    r"refused",
    r"not (?:found|permitted|supported)",
    r"no such",
    r"unsupported",
    r"no space",
    # of connections
    r"reset by peer",
    r"broken pipe",
    r"connection (?:was )?(?:closed|lost|reset)",
    r"lost connection",
    r"no route to host",
    r"dropped",
    r"already in use",
    r"is down",
    # of things that do not fit
    r"mismatch(?:ed)?",
    r"does not match",
    r"do(?:es)?(?:n't| not) (?:exist|match|fit)",
    r"invalid",
    r"incompatible",
    r"inconsistent",
    r"undefined symbol",
    r"duplicate",
    r"wrong",
    r"bad",
    r"corrupt(?:ed|ion)?",
    r"unexpected\w*",
    r"impossible",
    # of too much and too little
    r"exceed(?:s|ed)",
    r"insufficient",
    r"not enough",
    r"quota",
    r"exhausted",
    r"too (?:many|few|old|large|small|long)",
    r"out of (?:sync|range|bounds)",
    # of what does not move
    r"hang(?:s|ing)?",
    r"hung",
    r"stuck",
    r"(?:job|training|run|process|everything|it) (?:is|was|stays) frozen",
    r"stall(?:s|ed)?",
    r"degraded",
    r"throttl\w+",
    r"not responding",
    r"still waiting",
    r"ran for \d+\w*",
    r"watchdog caught",
    r"not (?:available|ready|initialized|reachable)",
    # of what is not there
    r"(?:is|was|were) missing",
    r"missing ranks?",
    more=(
        # SymbolErrorCounter:..............65535
        r"\b\w*(?:Errors?|Discards?|Downed)(?:Counter)?\W{1,40}[1-9]\d*\s*$",
        r"\bnan\b.{0,20}\b(?:loss|grad)",
        "错误",
        "拒绝",
        "没有空间",
        "无法",
        "不匹配",
        "不一致",
        "fehler",
        "abgelehnt",
        "erreur",
        "refusée",
    ),
)
"""Words of failure in a line that no program marks as a mere warning or notice."""

SHORT_OF_TARGET = r"\"run_stop\".*\"aborted\""
"""What MLPerf says of a run that did not reach its target.

The line is ``:::MLLOG {… "key": "run_stop", … "status": "aborted"}``.
"""
ERROR_NAMES = any_of(
    r"\bIBV_WC_\w*ERR\b",
    r"loss['\"]?\W{1,4}nan\b",
    SHORT_OF_TARGET,
    # number of nan iterations: 100 (Megatron)
    r"number of nan iterations:\s+[1-9]",
    r"\bHW (?:Thermal )?Slowdown\W+Active",
    r"\bnccl(?:System|Internal|Remote|UnhandledCuda)Error\b",
)
"""Names of errors, which would be taken away with settings."""

SANDBOX = re.compile(
    r"\bsandbox\b|\btest cases?\b|\bprogram \d+:|\bprograms exited\b", re.IGNORECASE
)
"""Words on a program that a model wrote and that is tried.

Its end is not that of the job.
"""
REWARD = re.compile(rf"\brewards?\b|\bepisodes?\b|{SANDBOX.pattern}", re.IGNORECASE)
"""Words on an agent in a game, or on such a program."""
PROMPT = re.compile(
    r"\bprompt: ?['\"]"
    r"|^\W{0,3}(?:sample|generat(?:ed|ion)|completion|response|answer|question|user|assistant"
    r"|reference|hypothesis|prediction)s?(?: ?\[?\d+\]?)? ?: ?\S",
    re.IGNORECASE,
)
"""What somebody asks a model, what it answers, what stands in its data."""
EARLIER = re.compile(
    r"\b(?:previous|last|earlier) (?:run|job|attempt) (?:was|had)\b", re.IGNORECASE
)
"""Words on a run before this one, which this one goes on from."""
DEATH = any_of(
    rf"\b{DEADLY_SIGNAL}\b",
    rf"\b{EXIT_STATUS}\b",
    r"\breturn code:? [1-9]",
    r"\bkilled\b",
    r"\bterminated\b",
    r"\bdied\b",
    r"\bcore dumped\b",
    r"\b[Ss]egmentation fault\b",
    r"\bevicted\b",
    r"\bpreempted\b",
    r"\bFAILED\b",
    r"\bFAULTY\b",
    r"\bOUT_OF_ME\w*",
    r"\bNODE_FAIL\b",
    r"\bCANCELLED\b",
    r"\bOOMKilled\b",
    r"\b[KT](?:illed|erminated)\b",
)
"""The end of a process, or the verdict of a table: no work of others refutes it."""

DESKTOP = re.compile(
    r"chrom|firefox|Web Content|Xorg|gnome|plasma|kwin|slack|teams|spotify|\bcode\b", re.IGNORECASE
)
"""Programs of somebody's desk, whose end is not that of a rank."""
KERNEL = re.compile(r"\[ *\d{1,9}\.\d{6}\] (?!.*(?:NVRM|Xid|Killed|oom|segfault))")
"""How the kernel stamps its lines, which tell of all the machine; what ends a job has grammars."""
SETTING = re.compile(
    r"\s*[\w-]*(?:restart|signal|policy|timeout|retries|grace)[\w-]*: +[\w.:-]+$"
    r"|\s*[A-Z]{1,5}\s{1,4}= [A-Z][\w ]{0,60}$",
    re.IGNORECASE,
)
"""A line of a configuration, or of a legend: ``GNS = GPU not supported``."""
SOURCE = any_of(
    # socket_all_reduce.cpp:131:5: error: 'timeout_ms_' was not declared     make[2]: *** [all]
    r"^\S+\.(?:c|cc|cpp|cxx|h|hpp|cu|cuh|rs|go|java|ts):\d+:(?:\d+:)? ",
    r"^make(?:\[\d+\])?: ",
    # 41d0e7c Fix hang in all_gather      commit 41d0e7c…
    r"^(?=[0-9a-f]{0,9}[a-f])(?=[0-9a-f]{0,9}\d)[0-9a-f]{7,10} [A-Za-z][\w ]*\b(?!.*\d$)",
    r"^commit [0-9a-f]{40}",
    # - Fix a deadlock in all_reduce      Retry when the store times out
    r"^[\s*+-]{0,8}(?:Fix(?:e[sd])?|Add(?:s|ed)?|Avoid|Prevent|Handle|Improved?|Removed?|Support"
    r"|Retry) [a-z]",
    # docs/faq.md:40:RuntimeError: CUDA out of memory (grep)
    r"^[\w./-]{1,200}\.(?:md|rst|adoc|html|ipynb|py|sh|ya?ml):\d{1,7}:(?:\S|\s{2})",
    # If training hangs at the first step, set NCCL_DEBUG=INFO and look for the interface.
    r"^\W*If (?!.*\b(?:I|we|my|our)\b)[^,]{1,80}, (?:then )?"
    r"(?:set|try|use|lower|raise|look|check|run|add|see)\b",
    # 104  grep -n 'timed out' slurm-1.out     $ grep -rn RuntimeError docs/     dmesg | grep oom
    r"(?:^[\s\d$#]{0,10}|\| ?)[ef]?grep (?:-\w+ )*[\w'\"]",
    # raise RuntimeError(f"…")     if rank == 0:     print("…")     || echo "srun failed"
    r"^\s*(?:raise|return) \w[\w.]*\(",
    r"^\s*(?:self\.)?_?(?:log(?:ger|ging)?|console|warnings)\.\w+\(",
    r"^\s*(?:if|elif|for|while|with|def|class|except)\b.*:\s*$",
    r"^\s*(?:@?printf?|echo)\b ?[(\"']",
    r"\|\| *(?:echo|exit)\b",
    r"^\s*//",
    r"^\s*exit \d+;?\s*$",
    r"^\s*(?:\"{3}|'{3})",
    # #SBATCH --error=%x-%j.out     #PBS -j oe     # HELP node_errors Number of errors
    r"^\s*# ?(?:SBATCH|PBS|BSUB|HELP|TYPE)\b",
    # # kill what hangs on all nodes; but not a table's own lines, nor a crash of Java
    r"^\s*# (?!.*(?:Out of bounds|Rank|nThread|error has been detected|SIG[A-Z]+))[A-Za-z]",
    # {"name": "oom", "text": "CUDA out of memory.", "expect": "oom"},
    r"^\s*\{.*\"(?:expect(?:ed)?|label|example|pattern)\"\s*:",
    # test ring::tests::broadcast ... FAILED
    r"^test \S+ \.\.\. ",
    r"^thread '[^']+' panicked",
    r"^error: test failed",
    r"^test result: ",
)
"""Source code, and what compilers, runners of other languages' tests and git print."""

LEVEL = any_of(
    r"(?<!\w)(?:INFO|[Ii]nfo|NOTICE|notice|DEBUG|debug|TRACE|WARN(?:ING)?|[Ww]arn(?:ing)?)(?!\w)",
    r"(?<!\w)\w+Warning(?!\w)",
    # W20230512 17:30:10.003310     [W512 17:30:10 …     [I socket.cpp:580]
    r"^\s*\[?[IW]\d{4,8}[ :]",
    r"^\s*\[[IW](?:\d{3,4})? ",
    r"\|\s*(?:INFO|WARNING)\s*\|",
    # [NeMo I 2024-05-10 05:34:48 ddpm:305] Unexpected Keys: […]
    r"\[NeMo [IW] ",
)
"""How a program marks what it goes on after."""

BENIGN = any_of(
    # a library that is tried, a default that is taken
    r"libibverbs",
    r"libnccl-?\w*\.so",
    r"NET/Plugin",
    r"\bplugin\b",
    r"apex",
    r"flash.?attn",
    r"xformers",
    r"tensorboard",
    r"wandb",
    r"triton",
    r"ninja",
    r"pynvml",
    r"nvidia-ml",
    r"font",
    r"cuDNN factory",
    r"cuBLAS factory",
    r"computation_placer",
    r"TF-TRT",
    r"Unable to register",
    r"AVX",
    r"TPU",
    r"not compiled",
    r"[Cc]ompiler",
    # settings of the host
    r"NUMA support",
    r"locale",
    r"core file",
    r"ulimit",
    r"swap",
    r"overcommit",
    r"sysctl",
    r"recommended minimum",
    r"cache",
    # of tokenizers and checkpoints
    r"tokeniz",
    r"pad_token",
    r"special tokens",
    r"use_cache",
    r"gradient.checkpoint",
    r"checkpoint.{0,40}not",
    r"newly initialized",
    r"not used when initializing",
    r"huggingface_hub",
    r"find_unused_parameters=True was",
    # of torch
    r"hostname of the client socket",
    r"IPv6 network addresses",
    r"current stream",
    r"lazy_init",
    r"can cause the process to hang",
    r"[Uu]sing best-guess",
    r"CUDA_LAUNCH_BLOCKING",
    r"\"should dump\" flag",
    r"recvValue failed",
    r"shut down too early",
    r"deprecat",
    # of other programs
    r"retrying in \d",
    # … have sent help message help-mpi-btl-openib.txt / error in device init (Open MPI)
    r"help message|help / error messages",
    r"asterisks indicate",
    r"Could not collect",
    r"may be insufficient",
    r"insufficient for PyTorch",
    r"Permanently added",
    r"X11 forwarding",
)
"""What a warning may be about that harms no job."""

SLOW = any_word(
    r"slow(?:er|ly|ness|s)?",
    r"(?:very|too|so) (?:low|bad|long)",
    r"only (?:get )?\d[\d.]*",
    r"low(?:er)? (?:bandwidth|throughput|performance|utili[sz]ation|speed)",
    r"(?:much|far) (?:lower|less|worse)",
    r"instead of",
    r"halves",
    r"half (?:of )?(?:the|what)",
    r"drop(?:s|ped)?",
    r"jumps?",
    r"spikes?",
    r"degrad\w+",
    r"late",
    r"starv\w+",
    r"throttl\w+",
    r"straggl\w+",
    r"used to",
    r"wrong",
    r"garbage",
    r"grows?",
    r"leaks?",
    r"nan",
    r"diverg\w+",
    r"with (?:one|1|a single)\b.{0,40}\bwith (?:two|\d+)",
    more=(
        # busbw 42 GB/s, expected ~190     20 GB/s only     0.3 -> 2.9 s     31871 ms (was 4100)
        r"\bexpect(?:ed|ing)?\W{1,3}(?:to\b|about\b|around\b|it\b|at least\b|~?\d)",
        r"\d[\d.]* ?[\w/%]{1,6} only\b",
        r"\d ?\w{0,3} (?:->|→|=>) ?\d",
        r"\(was\b",
        "很慢",
        "变慢",
    ),
)
"""What people say of a job that goes on, but not as well as it should: no end refutes that."""

COMPLAINT = any_word(
    # it does not move
    r"hangs?",
    r"hung",
    r"hanging",
    r"stuck",
    r"freezes?",
    r"(?:job|training|run|process|everything|it) (?:is|was|stays) frozen",
    r"forever",
    r"spins?",
    r"infinite(?:ly)?",
    r"silent",
    r"deadlock\w*",
    r"at all",
    r"takes? (?:forever|ages|hours)",
    r"nothing (?:happens|more|else|is printed|comes?|after)",
    r"no (?:output|progress|response|effect|logs?|further)",
    r"never (?:returns?|ends?|finish\w*|comes?|gets?|starts?|goe?s?|reach\w*)",
    r"time(?:s|d)? ?out",
    r"timeouts",
    r"timeout of",
    # it ends
    r"fails?",
    r"failed",
    r"failing",
    r"crash(?:es|ed|ing)?",
    r"dies?",
    r"kills?",
    r"killed",
    r"segfaults?",
    r"out of memory",
    r"kill -9",
    # it does not do what it should
    r"(?:does|do|did)(?:n'?t| not)"
    r" (?:work|start|finish|return|continue|end|move|train|print|respond|converge)",
    r"(?:is|are)(?:n'?t| not) (?:running|working|used|using|moving|responding|training|starting)",
    r"(?:can|could)(?:'?t| ?not) (?:connect|start|run|train|get|use|find|see|reach)",
    # the person is at a loss
    r"problem",
    r"errors?",
    r"why",
    r"any (?:idea|help|suggestion)",
    r"makes no sense",
    r"randomly",
    r"whenever",
    r"after (?:a while|some time)",
    r"no longer",
    r"in the future",
    r"before (?:the )?start",
    r"stays? at",
    r"anything (?:I|we|else) (?:can|could)",
    r"no new (?:lines?|output|messages?)",
    r"last (?:line|output|message) .{0,20}\bago",
    more=("卡住", "挂起", "不动", "报错", "失败", "没有反应"),
)
"""What people say of a job that is not as it should be, besides that it is slow."""

SOLVED = any_word(
    r"work(?:s|ed) (?:fine |well )?(?:with|when|after|until|if|again)",
    r"helps",
    r"cures?",
    r"fixe[sd]",
    r"solve[sd]",
)
"""What people say of a trouble that is over: beside a good end it is none."""

REMARK = any_word(
    r"hangs?",
    r"stuck",
    r"worked after",
    r"only get",
    r"dropped",
    r"slow(?:er)?",
    r"halves",
    r"cures?",
    r"jumps",
    r"worse",
    r"waits? for rank",
    r"late",
    more=(r"\bexpected\W",),
)
"""Words that nobody but a person puts into a short line."""

OTHER_LANGUAGES = any_of(
    r"\blangsam",
    r"\bhängt\b",
    r"\bbricht\b",
    r"\bstürzt\b",
    r"\bbleibt (?:stehen|hängen)",
    r"\b(?:geht|funktioniert|läuft) nicht\b",
    r"\bnicht mehr\b",
    r"\bbloqu",
    r"\blent\b",
    r"\bplante\b",
    r"\béchoue",
    r"\bfige\b",
    r"\blento\b",
    r"\bcuelga",
    r"\bfalla\b",
    r"\btrava\b",
    "завис",
    "медленн",
    "ошибк",
    "падает",
    "止ま",
    "遅い",
    "固ま",
    "動かな",
    "落ち",
    "進まな",
    "エラー",
    "멈",
    "느려",
    "에러",
    "오류",
    "卡住",
    "卡死",
    "卡在",
    "卡了",
    "很慢",
    "太慢",
    "变慢",
    "慢了",
    "报错",
    "报的错",
    "出错",
    "错误",
    "失败",
    "不动",
    "没有反应",
    "不一致",
    "对不上",
    "顺序错",
    small_letters=True,
)
"""Complaints in other languages than English."""

STACK = any_of(
    r"\bpy-spy\b",
    r"\b(?:cuda-)?gdb\b",
    # #0  0x00002aa4585a6709 in pthread_cond_timedwait     Thread 1302975 (active): "MainThread"
    # not the steps of a build: #0 building with "default" instance
    r"^\s*#\d+ +(?:0x[0-9a-f]+|[\w:~@.<>]+ ?\(|\S+ (?:from|at) \S*[./])",
    r"^Thread \d+ .*(?:active|idle|LWP)",
    r"Waiting for the GIL",
    # all_reduce (torch/distributed/distributed_c10d.py:2219)
    r"^\s*\w[\w.<>]* \([\w./-]+\.py:\d+\)",
    r"\w\([\w./-]+\.(?:py|cc|cpp):\d+\)",
)
"""Lines of stacks that somebody took: of a job that goes well nobody takes them."""

SPOKEN = re.compile(r"(?<!\S)[\"'(]?[A-Za-z][a-z']{0,20}[,.?:!;)\"']{0,3}(?!\S)")
WORDS_OF_A_SENTENCE, WORDS_OF_A_REMARK = 4, 2

LOGGED = any_of(
    # 2024-03-01 …     [NeMo W 2023-07-21 …     12:00:01     Nov 26 12:00     node-1:77:312 [0]
    r"^.{0,20}\d{4}[-/]\d\d[-/]\d\d",
    r"^\W{0,4}(?:\d\d:\d\d:\d\d|\w{3} +\d{1,2} \d\d:|[\w.-]+:\d+:\d+ \[)",
    # W0910 14:22:10     [W512 17:30:10     [W socket.cpp:601]
    r"(?:^|[\s\]:])\[?[IWEF]\d{3,4} \d\d",
    r"\[[IWEF] ?\w+\.\w+:\d",
    r"\[W \w+\.cpp",
    r"\b(?:INFO|WARN(?:ING)?|DEBUG|ERROR|NOTICE|NCCL (?:ATTN|DIAG))\b",
    r"\w*Warning\b:",
    # | a | table |     # a comment     key: value     step 12 …     eval: wer error 0.213
    r"\|.*\|.*\|",
    r"^\s*(?:#|//|/\*)",
    r"^\s*[\w.-]{1,40}: \S*$",
    r"^\s*(?:iter|step|epoch|eval|train|val)\w*\W{1,3}\d",
    r"^\w{2,12}: .*\d$",
    r"^(?:wandb|srun|slurmstepd|mpirun|libibverbs|ssh|docker|kubectl)\b[^:]{0,60}:",
)
"""How lines begin that a program wrote."""

TABLE = any_of(
    r"\balgbw\b.*\bbusbw\b",
    r"out-of-place",
    # │   ├── m2n_checks.h    # Error-checking macros
    r"^[│├└─ ]{2,}",
    r"\b(?:PASS\b.*\bFAIL|FAIL\b.*\bPASS)\b",
    r"# ?Out of bounds values\s*:\s*0 OK",
)
"""Titles and legends of a test's table, which name what could go wrong, and its closing line."""

GLOG_INFO = r"^(?:\[rank\d{1,6}\]:)?\[I\d{0,4} .{0,60}\.cpp:\d+\] "
"""How torch's own lines begin that only inform: ``[rank0]:[I1127 00:27:38 …cpp:1515] …``."""
CHATTER = any_of(
    r"Token indices sequence",
    r"TokenizerFast",
    r"Some weights of",
    r"should probably TRAIN",
    r"`use_cache=",
    r"Special tokens have been",
    r"might be asynchronously",
    r"soft kill",
    r"It is recommended",
    r"The following (?:values|arguments|columns) ",
    r"^Note:",
    r"^Hint:",
    r"\bThis option\b",
    # Expected result: sum of ranks 0 to 3 = 6      have the expected size of 4
    r"\bexpected (?:results?|sizes?|outputs?|values?)\b(?!.*\b(?:but|got|instead|not)\b)",
    r"\bexpected (?P<value>[\w.+-]+),? (?:but )?got (?P=value)(?![\w.])",
    r"\bMake sure (?:to|that)\b",
    GLOG_INFO,
)
"""Sentences that well-known programs write without complaining."""
