"""What a text says of a job beside its symptom.

It may name hosts, framework, phase, kind of collective, or machine.  A context proves nothing.  It
shifts the order of the suspects by how often settled cases of each cause had it
(`ncclkit.causes.differential`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cache

from ncclkit.analysis.trouble import trouble
from ncclkit.core.case import Case
from ncclkit.core.model import Event


@dataclass(frozen=True, slots=True)
class JobContext:
    """One thing that may be so of a job, and how a text shows it."""

    name: str
    says: str
    """``several hosts take part``: the same in a sentence."""
    words: str = ""
    """A regular expression, searched in each line."""
    kinds: tuple[str, ...] = ()
    """Kinds of events any of which shows it, too."""
    unsaid: bool = False
    """Whether it is that no line says that anything failed."""
    remedy: str = ""
    """A regular expression: a line that says that this helped shows it, too."""


CONTEXTS = (
    # ------------------------------------------------------------ hosts and machines
    JobContext(
        "several_hosts",
        "several hosts take part",
        r"nnodes[= ]+[2-9]|multi-?node"
        r"|\b(?:two|2|both|four|4|all) (?:nodes|machines|servers|hosts)\b|-N ?[2-9]\b"
        r"|node[-_ ]?rank|inter-?node|across nodes|\bnode-[2-9]\b|-worker-[1-9]"
        r"|second (?:node|machine|server)|other (?:node|machine|server|host)",
    ),
    JobContext(
        "one_host",
        "one host",
        r"single (?:node|machine|server|host)|\b(?:one|1) (?:node|machine|host)\b"
        r"|--standalone|nnodes[= ]+1\b",
    ),
    JobContext(
        "one_rank",
        "there is one rank",
        r"\bWORLD_SIZE=1\b|\bworld_size['\"]?[:= ]{1,3}1\b|\bnranks 1\b",
    ),
    JobContext(
        "only_cpu",
        "the ranks run on CPUs, over gloo",
        r"backend[ ='\":]{0,4}gloo\b|\bgloo (?:backend|on CPU)|\bgloo::|use_cpu[= ]+True"
        r"|device[= ]+['\"]?cpu\b",
    ),
    JobContext(
        "container",
        "it runs in containers",
        r"docker|container|\bpods?\b|\bkube|k8s|podman|singularity|apptainer|--ipc\b"
        r"|shm-size|compose",
    ),
    JobContext(
        "kubernetes",
        "it runs in Kubernetes",
        r"\bpods?\b|\bkube|k8s|istio|svc\.cluster|mpijob|pytorchjob|statefulset",
        ("net.mesh",),
    ),
    JobContext(
        "virtual_machine",
        "it runs in a virtual machine",
        r"vmware|\bvgpu\b|qemu|\bkvm\b|hyper-?v\b|passthrough|\bVMs?\b|virtual machine" r"|\bWSL",
    ),
    JobContext(
        "consumer_gpu",
        "the GPUs are consumer or workstation cards",
        r"\bRTX|GeForce|\b[2345]0[789]0\b|\bA[456]000\b|\bL4\b|\bP40\b|TITAN|\bTesla [PT]",
    ),
    JobContext(
        "pcie_path",
        "the GPUs talk over PCIe",
        r"\b(?:PHB|PXB|PIX)\b|iommu|\bACS\b|PCIe",
    ),
    JobContext(
        "datacenter_gpu",
        "the GPUs have NVLink",
        r"nvlink|nvswitch|\b[AH]100\b|\bH[28]00\b|\bG?B[23]00\b",
    ),
    JobContext(
        "rocm",
        "the GPUs are AMD's",
        r"\brccl|\bMI\d{2,3}|\bROCm|\bhip(?:Error)?\b",
    ),
    # ------------------------------------------------------------ networks
    JobContext(
        "uses_sockets",
        "NCCL uses sockets",
        r"Using network Socket|NET/Socket/\d|\[(?:send|receive)\] via NET/Socket",
    ),
    JobContext(
        # also by what people paste: cards, verbs and channels name it where NCCL's start is cut off
        "uses_infiniband",
        "NCCL uses InfiniBand or RoCE",
        r"Using network IB|NET/IB ?: Using|via NET/IB|\bmlx\d|\bibv_|\bRoCE|infiniband" r"|\bGID\b",
    ),
    JobContext(
        "network_ib",
        "NCCL says that it uses InfiniBand or RoCE",
        r"Using network IB",
    ),
    JobContext(
        "no_infiniband",
        "NCCL found no InfiniBand",
        r"NET/IB : No device found|open libibverbs",
    ),
    JobContext(
        "uses_efa",
        "NCCL uses EFA",
        r"\bEFA\b|\blibfabric|\bOFI\b|efa_addr",
    ),
    JobContext(
        "loads_plugin",
        "NCCL loads a network plugin",
        r"Loaded (?:net|coll) plugin|plugin.{0,40}SHARP|HPC-?X|nccl_rdma_sharp|aws-ofi",
    ),
    JobContext(
        "wants_interface",
        "an interface is chosen by hand",
        r"SOCKET_IFNAME|NCCL_IB_HCA|_SOCKET_FAMILY",
    ),
    # ------------------------------------------------------------ how far it came
    JobContext(
        "init_begun",
        "NCCL began to initialise",
        r"Init START|cudaDriverVersion|Bootstrap ?: Using",
        (
            "nccl.init",
            "nccl.bootstrap",
        ),
    ),
    JobContext(
        "init_done",
        "NCCL finished its initialisation",
        r"Init COMPLETE|Connected all (?:rings|trees)",
        ("nccl.connected",),
    ),
    JobContext(
        "has_steps",
        "steps were done before",
        r"\d+/\d+ \[\d+:\d+|\bit/s\b|s/it\b|\bstep \d{2,}",
        ("progress",),
    ),
    JobContext(
        "first_collective",
        "it is one of the first collectives",
        r"SeqNum=[1-9]\b|work sequence id: [1-9]\b|last enqueued work: [1-9]\b"
        r"|first (?:collective|barrier|all-?reduce)",
    ),
    JobContext(
        "late_collective",
        "thousands of collectives succeeded",
        r"SeqNum=\d{4,}|work sequence id: \d{4,}",
    ),
    JobContext(
        "one_element",
        "the collective is of one element",
        r"NumelIn=1\b",
    ),
    JobContext(
        "bucket",
        "the collective is of a whole bucket",
        r"OpType=ALLREDUCE, NumelIn=\d{5,}",
    ),
    JobContext(
        "usual_timeout",
        "the whole of the usual timeout passed",
        r"Timeout\(ms\)=(?:1800000|600000)\b",
    ),
    JobContext(
        "shards",
        "the collective gathers or scatters shards",
        r"ALLGATHER_BASE|REDUCE_SCATTER_BASE|\bFSDP\b|\bzero[-_ ]?(?:stage)?[ =:]*3\b",
    ),
    JobContext(
        "broadcast",
        "the collective is a broadcast",
        r"OpType=BROADCAST",
    ),
    JobContext(
        "gather",
        "the collective is a gather of objects",
        r"OpType=(?:ALL)?GATHER\b|all_gather_object|gather_object",
    ),
    JobContext(
        "point_to_point",
        "ranks send to and receive from each other",
        r"OpType=(?:SEND|RECV|COALESCED)|\bnccl(?:Send|Recv)\b|\bi(?:send|recv)\b"
        r"|(?:Send|Recv): opCount|pipeline.{0,12}(?:parallel|stage)|all-?to-?all"
        r"|batch_isend|\bP2POp\b",
    ),
    JobContext(
        "calls_listed",
        "NCCL lists its collectives",
        r"opCount [0-9a-f]+ sendbuff",
        ("nccl.op",),
    ),
    # ------------------------------------------------------------ phase
    JobContext(
        "at_save",
        "it is about a checkpoint",
        r"save_(?:state|pretrained|checkpoint|model)|saving|checkpoint",
    ),
    JobContext(
        "at_evaluation",
        "it is about an evaluation",
        r"\bevaluat|\bvalidat|\beval[_ ]|early.?stop|\bmetrics?\b",
    ),
    JobContext(
        "at_end",
        "it is at an end of training or of an epoch",
        r"end of (?:the )?epoch|max_epochs|last (?:batch|step)|Training completed"
        r"|at the end|epoch end",
    ),
    JobContext(
        "at_resume",
        "it is about a resumed run",
        r"\bresum|start_step|load_state|loading checkpoint",
    ),
    JobContext(
        "at_teardown",
        "it is about leaving",
        r"destroy_process_group|ncclCommDestroy|ncclCommAbort|commReclaim|teardown"
        r"|shut ?down|at exit",
    ),
    JobContext(
        "data",
        "it is about the data",
        r"dataset|data_?loader|num_workers|iterable|tokeniz|\bsampler|prefetch|drop_last",
    ),
    JobContext(
        "long_work",
        "one rank has long work",
        r"minutes? to (?:load|save)|tokeniz|preprocess|consolidat|download",
    ),
    # ------------------------------------------------------------ program
    JobContext(
        "main_process",
        "one rank does something alone",
        r"is_main|is_rank_zero|\brank ?== ?0|main process|only (?:on )?rank ?0|rank0_only",
    ),
    JobContext(
        "uneven",
        "ranks differ in what they have",
        r"different (?:number|length|path|size)|unused parameter|\bexperts?\b|\bMoE\b"
        r"|one batch more|some ranks?\b|uneven|per-rank",
    ),
    JobContext(
        "threads",
        "several threads or communicators at once",
        r"(?:two|multiple|several|each) (?:cuda )?(?:streams|threads|communicators|comms)"
        r"|concurrent|std::thread|\bThread \d+ \(Thread|simultaneous"
        r"|from (?:two|several) threads",
    ),
    JobContext(
        "graphs",
        "CUDA graphs or a compiler are used",
        r"cuda ?graph|graph capture|torch\.compile|\btriton\b|enforce_eager"
        r"|compil(?:ed|e cache)",
    ),
    JobContext(
        "device_choice",
        "the device of a rank is chosen",
        r"set_device|device_id|CUDA_VISIBLE|cuda:0\b|local_rank|device_ids|exclusive"
        r"|busy or unavailable",
    ),
    JobContext(
        "own_program",
        "a C or C++ program calls NCCL itself",
        r"ncclCommInit(?:Rank|All)\(|ncclGroup(?:Start|End)\b|NCCLCHECK|\bnvcc\b|\.cu:\d+",
    ),
    JobContext(
        "stack",
        "somebody took stacks",
        r"^#\d+ +(?:0x|\w+ )|py-spy|Thread 0x|\bgdb\b",
        ("stack",),
    ),
    # ------------------------------------------------------------ who runs it
    JobContext(
        "inference_server",
        "it is an inference server",
        r"v?llm\b|sglang|lmdeploy|text-generation|tensorrt|xinference|\bTGI\b",
    ),
    JobContext(
        "trainer",
        "Transformers or Accelerate trains",
        r"transformers|\baccelerate\b|\bTrainer\b|\btrl\b|llama.?factory|axolotl|unsloth",
    ),
    JobContext(
        "lightning",
        "Lightning trains",
        r"lightning|Trainer\.fit|GLOBAL_RANK",
    ),
    JobContext(
        "deepspeed",
        "DeepSpeed trains",
        r"deepspeed",
    ),
    JobContext(
        "mpi",
        "MPI or Horovod starts it",
        r"horovod|\bmpirun|\bmpiexec|\[1,\d+\]<|\bMPI_|open ?mpi",
    ),
    JobContext(
        "ray",
        "Ray starts it",
        r"\bray\b|RayWorker|\braylet",
    ),
    JobContext(
        "slurm",
        "Slurm starts it",
        r"\bsrun\b|slurm|\bsbatch\b",
        ("slurm.event",),
    ),
    JobContext(
        "other_framework",
        "it is no PyTorch",
        r"\bjax\b|\bxla\b|tensorflow|\bcaffe|\bpaddle|mxnet|\bcupy\b",
    ),
    JobContext(
        "nccl_tests",
        "it is nccl-tests",
        r"\b(?:all_reduce|alltoall|all_gather|sendrecv)_perf|nccl-tests|nThread \d",
        ("nccltests.table",),
    ),
    # ------------------------------------------------------------ what people say
    JobContext(
        "intermittent",
        "it does not happen every time",
        r"intermittent|sometimes|occasional|\bflaky|once in|not always|at random|randomly"
        r"|rarely|reproduced once",
    ),
    JobContext(
        "after_upgrade",
        "it depends on a version",
        r"downgrad|upgrad|regress|older version|previous version|roll(?:ed|ing)? ?back"
        r"|after updat|works with \d",
    ),
    JobContext(
        "host_memory",
        "it is about the memory of hosts",
        r"\bRAM\b|\bswap\b|host memory|\bOOM\b|memory leak|resident"
        r"|\d+ ?GB of (?:RAM|memory)|memory limit",
    ),
    JobContext(
        "limits",
        "it is about limits of a process",
        r"ulimit|memlock|nofile|too many open|cannot allocate|ENOMEM|unknown error -12",
    ),
    JobContext(
        "no_error",
        "no line says that anything failed",
        unsaid=True,
    ),
    # what helped: who has tried it says more than any symptom
    JobContext(
        "p2p_off_helps",
        "it works without peer-to-peer",
        remedy=r"NCCL_P2P_DISABLE\W{1,4}1|disable[-_ ]custom[-_ ]all[-_ ]reduce",
    ),
    JobContext(
        "ib_off_helps",
        "it works without InfiniBand",
        remedy=r"NCCL_IB_DISABLE\W{1,4}1",
    ),
    JobContext(
        "shm_off_helps",
        "it works without shared memory",
        remedy=r"NCCL_SHM_DISABLE\W{1,4}1|--ipc\W{1,4}host|--shm-size\S{0,12}",
    ),
    JobContext(
        "cumem_off_helps",
        "it works without CUDA's virtual memory",
        remedy=r"NCCL_CUMEM_(?:HOST_)?ENABLE\W{1,4}0",
    ),
    JobContext(
        "nvls_off_helps",
        "it works without NVLink SHARP",
        remedy=r"NCCL_NVLS_ENABLE\W{1,4}0",
    ),
    JobContext(
        "interface_helps",
        "it works with an interface chosen by hand",
        remedy=r"(?:NCCL|GLOO)_SOCKET_IFNAME",
    ),
    JobContext(
        "unused_helps",
        "it works where unused parameters are looked for",
        remedy=r"find_unused_parameters\W{1,4}True",
    ),
    JobContext(
        "timeout_helps",
        "it works with a longer timeout",
        remedy=r"(?:increas\w{1,4}|rais\w{1,4}|longer|larger|higher)"
        r" (?:the |a )?(?:\w{1,12} )?timeout",
    ),
    JobContext(
        "prepares_first",
        "one rank prepares while the others wait",
        r"main_process_first|rank_zero_first|distributed_zero_first",
    ),
    JobContext(
        "wrong_numbers",
        "numbers came out wrong",
        r"\bnan\b|wrong (?:value|result)|garbage|size (?:of )?0\b",
    ),
    JobContext(
        "peer_left",
        "a peer closed its connection",
        r"closed by|reset by peer|broken pipe|remote (?:process|error)|got 0 bytes",
        (
            "store.lost",
            "gloo.closed",
        ),
    ),
    JobContext(
        "code_system",
        "NCCL's return code is that of a system call",
        r"-> 2\b",
    ),
    JobContext(
        "code_internal",
        "NCCL's return code is an internal error",
        r"-> 3\b",
    ),
    JobContext(
        "code_remote",
        "NCCL's return code is that of a peer",
        r"-> 6\b",
    ),
    JobContext(
        "code_cuda",
        "NCCL's return code is a CUDA error",
        r"-> 1\b",
    ),
)
"""All contexts; each once, whatever words show it."""
HELPED = re.compile(
    r"\b(?:works?|worked|working|solve[sd]?|fix(?:es|ed)|helps|helped|resolve[sd]?|avoids"
    r"|succeeds|passes|workaround)\b",
    re.IGNORECASE,
)
"""Words of somebody who has tried a remedy."""
DENIED = re.compile(r"\b(?:not|no|neither|still|same|without)\b|n't\b", re.IGNORECASE)
"""Words by which a sentence may say that it did not help."""
BESIDE = 160
"""Characters before and after a remedy that may say that it helped."""
LINES = 3000
"""Distinct lines that are searched at most.

A context stands in the first of them or nowhere.
"""


def contexts() -> dict[str, JobContext]:
    """Every context by its name."""
    return {context.name: context for context in CONTEXTS}


def contexts_of(case: Case, lines: Iterable[tuple[str, Event]]) -> tuple[str, ...]:
    """Names of the contexts that these lines and the kinds of events show."""
    text = "\n".join(line for line, _ in list(lines)[:LINES])
    names = []
    for context in CONTEXTS:
        if _is_shown(context, case, text):
            names.append(context.name)
    return tuple(names)


def _is_shown(context: JobContext, case: Case, text: str) -> bool:
    if _has_kind(case, context.kinds):
        return True
    if context.unsaid:
        against = trouble(case)
        return not (against.errors or against.failures)
    if context.words and _compiled_pattern(context.words).search(text):
        return True
    return bool(context.remedy) and _helped(context.remedy, text)


def _helped(remedy: str, text: str) -> bool:
    """Whether a line says that a remedy helped."""
    for match in _compiled_pattern(remedy).finditer(text):
        before = text[max(0, match.start() - BESIDE) : match.start()].rpartition("\n")[2]
        after = text[match.end() : match.end() + BESIDE].partition("\n")[0]
        line = f"{before} {after}"
        if HELPED.search(line) and not DENIED.search(line):
            return True
    return False


def _has_kind(case: Case, kinds: Collection[str]) -> bool:
    return bool(kinds) and bool(case.of(*kinds))


@cache
def _compiled_pattern(words: str) -> re.Pattern[str]:
    return re.compile(words, re.IGNORECASE | re.MULTILINE)
