"""Which family an NCCL warning belongs to.

The texts are those of NCCL 2.4 to 2.32; `tests/bench/messages.py` measures how many of a release
have a family.  The order matters: first what names a fault of the machine or the network, then what
names a part of NCCL, last what says nothing by itself (`says_nothing.txt`).
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from ncclkit.evidence.grammars.grammar import parse_int

NAMED: tuple[tuple[str, str], ...] = (
    (
        "fd",
        (
            r"Too many open files|Accept failed|accept failed|EMFILE|Could not receive type from"
            r" localRank"
        ),
    ),
    ("no_ib_library", r"Failed to open libibverbs"),
    (
        "driver",
        r"CUDA Driver version found|driver version is insufficient|invalid device function|no"
        r" kernel image"
        r"|unsupported toolchain|cuda driver is a stub|forward compatibility"
        r"|cannot be captured in a graph",
    ),
    ("duplicate_gpu", r"Duplicate GPU detected|Multiple Ranks are using the same GPU"),
    (
        "version",
        r"Mismatched NCCL (?:git )?version|NCCL version mismatch|undefined symbol"
        r"|compiled with (?:too old version of |)NCCL",
    ),
    # a structure that the program hands over without initializing it, which has a magic, too
    (
        "usage",
        r"ncclCollConfig_t|must be initialized via|not initialized via|config->algSelection"
        r"|Comm config netName|FP8 reduction",
    ),
    # what a part of NCCL says of itself, with the word of a fault in it
    (
        "own_check",
        r"wc->opcode ==|unable to allocate (?:requests|subtasks|socket RMA)|CollNet (?:head|sizes)"
        r"|Invalid (?:CollNet|UDS)|Unknown device code"
        r"|GetFd: pass NULL|arena (?:failed|divergence)|retired range|exceeds slice|NVLS MC group"
        # its diagnostics stumbled over themselves: what they find of the job are `NCCL DIAG` lines
        r"|\bRAS diagnostics\b",
    ),
    ("fallback", r"disabling CollNet"),
    ("registration", r"(?:failed to|deregister) (?:IPC|NET|NVLS|COLLNET) |[Dd]eregister: "),
    ("setting", r"MNNVL is not supported|NCCL_NVLS_ENABLE has been set"),
    ("topology", r"NVLS graph|TOPO/NET|NET/TOPO"),
    ("window", r"\bCFT\b|\bLSA\b|[Mm]ulticast support requested"),
    ("side_plugin", r"(?:env|profiler|tuner) plugin \S+ is|Profiler init failed"),
    ("one_sided", r"\b(?:GIN|RMA) (?:VA|plugin|strong|backend|v\d)|\b(?:gin|rma)Plugin|GIN/Plugin"),
    ("ib_device", r"NET/MLX5"),
    ("net_mismatch", r"mixed local (?:Net|CollNet) device counts"),
    (
        "no_interface",
        r"no socket interface found|no interface found|[Nn]o usable listening"
        r" interface|NCCL_OOB_NET_IFNAME"
        r"|Socket creation failed : Address family"
        r"|is neither AF_INET|No interface found in the same subnet|has no IP address",
    ),
    (
        "bootstrap_mismatch",
        r"mismatch in (?:rank count|info) from procs|has already checked in|Message truncated :"
        r" received"
        r"|Invalid rank requested|Failed to determine local ranks",
    ),
    (
        "size_mismatch",
        r"message truncated : receiving|collective mismatch error|posted incorrect receive info",
    ),
    (
        "foreign",
        r"wrong magic|wrong type|magic mismatch|Wrong socket type|[Hh]andshake receive"
        r"|closed before (?:socket hello|magic handshake)",
    ),
    ("ib_completion", r"Got completion (?:from|with)|=IBV_WC_|retry count exceeded"),
    (
        "ib_async",
        r"[Aa]sync (?:fatal )?(?:error )?event|non-fatal async|GID table changed"
        r"|communicator encountered a fatal error|marked as failed",
    ),
    (
        "ib_pkey",
        r"not found in PKey table",
    ),
    (
        "ib_setup",
        r"ibv_\w+|Unable to (?:open|query) (?:device|port)|incompatible devices|different"
        r" link_layer"
        r"|ncclIbRoceGetVersionNum|NET/IB : (?:Unable|Failed|read failed)|NET/IB: read failed",
    ),
    ("nvls", r"NVLink SHARP|NVLS|[Mm]ulticast|nvls\.cc|MNNVL"),
    (
        "shm",
        (
            r"shared memory|/dev/shm|failed to extend|posix_fallocate|Could not"
            r" map|shm_open|shmutils\.cc|ftruncate"
        ),
    ),
    ("p2p", r"P2P is disabled|failed to peer with device|peer access"),
    ("plugin", r"^NET/(?!IB\b|Socket\b)\w"),  # an external network says what its own calls came to
    ("proxy", r"Failed to set CUDA device"),
    ("uds", r"UDS|ncclProxyClientGetFd|Binding to socket|IpcSocket"),
    ("socket_connect", r"[Cc]onnect to \S+ failed"),
    (
        "socket_closed",
        r"Connection closed by remote peer|Call to (?:recv|send)\b|Connection reset|Socket recv"
        r" failed"
        r"|socket progress error"
        r"|Broken pipe|Software caused connection abort",
    ),
    (
        "socket_connect",
        r"[Cc]onnect(?:ing)? to .{0,300} (?:failed|returned)|connect returned"
        r"|exceeded (?:error )?retr|exceeded .{0,300}timeouts"
        r"|Connection refused|No route to host|Network is unreachable",
    ),
    (
        "cuda",
        r"Cuda failure|CUDA failure|cudaIpc|CUDA (?:host |)[mc]?alloc|CUDA error",
    ),
    ("memory", r"malloc\(|Allocation failed|Unrecoverable error|Failed to malloc"),
    (
        "plugin",
        r"NET/Plugin|NET/OFI|plugin|PLUGIN|libfabric|[Tt]cpx|SHARP coll|NET/FasTrak|NET/GPUDirect",
    ),
    (
        "algorithm",
        r"[Nn]o algorithm/protocol|no symmetric kernel available|algSelection|CollNet"
        r"|No transport found|NCCL_ALGO|NCCL_PROTO",
    ),
    (
        "usage",
        r"argument is NULL|invalid (?:type|root|reduction)|mismatchs with NCCL device|is not a"
        r" valid pointer"
        r"|not in a group call"
        r"|locking and nonblocking|Streams given|Trying to (?:send|recv)|before the previous"
        r" operation|was revoked"
        r"|corrupted comm"
        r"|Invalid NCCL_COMM_ID|Invalid config",
    ),
    ("ras", r"\bRAS\b"),
    ("proxy", r"\[Proxy Service|\[Service thread\]|Proxy Call to rank|abort state|[Pp]roxy"),
    # ---- what names a part of NCCL, and so where to look
    (
        "failover",
        r"[Rr]esiliency|[Pp]ort recovery|functional device|replacement QP|error is fatal"
        r"|Failed QP index|GoToPrevState|alive message",
    ),
    (
        "ib_device",
        r"NET/IB ?:.{0,200}(?:virtual (?:NIC|device)|vNic|[Mm]erge|physical device|link type"
        r"|IP interface|mlx5dv|properties for|OOO RQ|SUBNET_PREFIX|Ip address|unknown event|GID)"
        r"|remote FLID|mlx5dv_",
    ),
    (
        "one_sided",
        r"\bRMA\b|\bGIN\b|GDAKI|DOCA|doca_|nccl(?:Put|Wait|)Signal|Signal index|DevComm\b"
        r"|ordering_semantic|NCCL_GIN_|active_mtu|\bGin\b|NET/IB/GIN|gdaki",
    ),
    (
        "window",
        r"\b[Ww]indow\b|\bLSA\b|lsaRank|\bCFT\b|hostCftMode|[Mm]ultimem"
        r"|[Ss]ymmetric (?:memory|register|registration)|symmetric_sched|COUNTED|UC team|MC team"
        r"|communicator properties|Dev comm|MCBasePtr|cuMem segments|\bsegments?\b|team boundar",
    ),
    ("memory_manager", r"MemManager|Memory (?:suspend|resume)"),
    ("encryption", r"ncclCrypt|\bTLS\b|ncclSetEncryption|encryption mode"),
    ("gdrcopy", r"\bgdr_\w+\(|gdr_pin_buffer|GDRCOPY|DMA-BUF (?:fd|mapping)|gdrwrap"),
    ("nvml", r"nvml\w{1,60}\(|libnvidia-ml|NVML device handle"),
    (
        "library",
        r"dlv?sym failed|OsDlsym failed|missing symbol|PFN functions|Failed to find CUDA library"
        r"|^Retrieve \S|cuDriverGetVersion|lib wrapper not initialized",
    ),
    (
        "graph_capture",
        r"[Cc]aptured|strong stream|graph id|[Ll]aunch-completion|graphStreamOrdering=",
    ),
    (
        "setting",
        r"NCCL_\w{1,60}(?:=\S{1,60}|) (?:is (?:too|being|greater|larger)|has invalid|exceeds)"
        r"|value # is too big|maximum allowed|Invalid value|unknown value|not a valid value"
        r"|upper limit|larger than maxCTAs|Invalid \S+ # \(m|User asked for a m"
        r"|must have a prefix|Unrecognized (?:element|prefix) token|config->|CTAPolicy"
        r"|Ignoring SHM locality|netDevs policy|policy MAX|Invalid NCCL_|NCCL_\w{1,60}' is too"
        r"|'NCCL_\w{1,60}=\S{1,60}' is too|Invali[gd] config|network \S+ not found",
    ),
    (
        "topology",
        r"\bXML\b|TOPO/NET|ncclTopo|GetXml|FuseXmls|not dumping topology|\brails?\b|plane ID"
        r"|MLOPart|netMasks|NET devices from|fused NIC|Fusing NET|KV Convert|Attribute \S+ of node"
        r"|[Cc]ould not find (?:NET|any local|a path|gpu|id|intermediate|local GPU|net id|node|rev "
        r"|real path|CPU|DEV|GPU|PCI)|reverse path|No path computed|Path has|Error : ring "
        r"|tree already has|Topo links|nodes of type|store found nodes|requires NIC|topology node"
        r"|network properties snapshot|name \S+ too long|value \S+ too long|find GPU/CPU"
        r"|hostHash|Set CPU affinity",
    ),
    ("registration", r"registration already|memory registration size|failed to register userbuff"),
    (
        "usage",
        r"ncclRedOp|reduction operation|improper usage|ncclCommGrow|ncclCommGetUniqueId should"
        r"|[Ii]nvalid device\b|exceeds ndev|Either none or all|Child comms|Split shares"
        r"|Data type supplied|pointer check|Invalid group|diviser of",
    ),
    ("address", r"^Net : |getting address info"),
    (
        "system_call",
        r"[Cc]all to \w|Thread (?:creation|join) failed|sched_[gs]etaffinity|close failed"
        r"|Socket creation failed|poll\(\) (?:failed|returned)|random_device|waiting for pthread_",
    ),
    ("kernel_launch", r"maxSharedMem|hostStreamPlanCallback"),
    ("monitor", r"progress counter monitor"),
)
"""Names of families and what their texts hold, the first that fits; in our words, by meaning."""
_LISTED = [
    tuple(cell.strip() for cell in row.split("|", 1))
    for row in Path(__file__).with_name("says_nothing.txt").read_text("utf-8").splitlines()
    if row and not row.startswith("#")
]
FAMILIES: tuple[tuple[str, str], ...] = (*NAMED, *((name, pattern) for name, pattern in _LISTED))
_FAMILIES = tuple((name, re.compile(pattern)) for name, pattern in FAMILIES)

# transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<4791> with \
#   status=12 opcode=0 len=0 vendor err 129
# … status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) … vendor_err=129
# … Got completion with error 12, opcode 0, len 0, vendor err 129
COMPLETION = re.compile(
    r"(?:status=(?:IBV_WC_\w{1,60}\()?|with error |error )(?P<status>\d{1,9})"
    r".{0,400}?vendor[ _]err[ =]{0,9}(?P<vendor>\d{1,9})"
)
# localGid ::ffff:10.0.0.1 remoteGids::ffff:10.0.0.2 hca mlx5_4: both ends use RoCE v2 entries \
#   with IPv4 addresses
ROUTED = re.compile(r"localGid ::ffff:[\d.]+ remoteGids?[ :]*ffff:[\d.]+")
# Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_0:1 …
# Call to ibv_reg_mr failed with error Cannot allocate memory
# Call to ibv_reg_mr failed : Bad address
CALL = re.compile(
    r"(?:Call to )?(?P<call>ibv_\w+)(?:\(\))? (?:failed|returned(?: -?\d+)?)"
    r"(?:(?: with (?:error )?| : )(?:(?P<errno>\d+) )?(?P<error>[^,]+?))?"
    r"(?: errno (?P<errno2>\d+))?(?:,|$)"
)
# Call to ibv_poll_cq() returned -1
# Cuda failure 1 'invalid argument'       Cuda failure 'out of memory'
CUDA = re.compile(r"C(?:uda|UDA) failure (?:(?P<code>\d+) )?'(?P<error>[^']*)'")
# on dev mlx5_0:1, curr state …       (mlx5_1) … hca mlx5_bond_0
DEVICE = re.compile(
    r"\b(?P<device>(?:mlx\d_\w+|bnxt_re\w*|efa_\d+|hfi1_\d+|rdmap\w+|irdma\w*)(?::\d+)?)"
)


def classify(message: str, file: str = "") -> dict[str, Any]:
    """``{"family": …}`` of one warning, and the numbers that its family carries.

    `message` is the text after ``NCCL WARN``; `file` is the NCCL source file that printed it, which
    settles texts such as ``Cuda failure`` in ``transport/nvls.cc``.
    """
    data: dict[str, Any] = {"family": _family_of_text(_NUMBERS.sub("#", f"{message} ({file})"))}
    if data["family"] == "ib_completion" and (match := COMPLETION.search(message)):
        data |= {"status": parse_int(match["status"]), "vendor": parse_int(match["vendor"])}
        data |= {"routed": True} if ROUTED.search(message) else {}
    if data["family"] == "ib_setup" and (match := CALL.search(message)):
        number = match["errno"] or match["errno2"]
        data |= {"call": match["call"], "errno": parse_int(number), "error": match["error"] or ""}
    match = CUDA.search(message)
    if match:
        data |= {"error": match["error"]}
    match = DEVICE.search(message)
    if match:
        data |= {"device": match["device"]}
    return data


_NUMBERS = re.compile(r"\b\d[\d.]*\b|0x[0-9a-f]+")


@lru_cache(4096)
def _family_of_text(text: str) -> str:
    """The first family that fits.

    No family depends on a number, so floods are decided once.
    """
    return next((name for name, pattern in _FAMILIES if pattern.search(text)), "other")


INFO_FAMILIES: tuple[tuple[str, str, str], ...] = (
    # NET/Plugin : No plugin found (libnccl-net.so), using internal implementation
    ("no_plugin", "No plugin found", r"No plugin found"),
    # NET/Plugin: Could not find: libnccl-net.so.
    # NET/Plugin: Failed to find ncclNetPlugin_v7 symbol.
    ("no_plugin", "Could not find", r"Could not find:? libnccl"),
    ("no_plugin", "Failed to find ncclNetPlugin", r"Failed to find ncclNetPlugin"),
    # NET/Plugin : Plugin load (libnccl-net.so) returned 2 : libnccl-net.so: cannot open shared \
    #   object file
    # NET/Plugin : Plugin load (libnccl-net.so) returned 2 : …/libfabric.so.1: version \
    #   `FABRIC_1.6' not found
    (
        "plugin",
        "Plugin load ",
        r"Plugin load .{0,200} returned 2 ?: .{0,300}(?:version `|undefined symbol)",
    ),
    ("no_plugin", "Plugin load ", r"Plugin load .{0,200} returned 2"),
    # Successfully loaded external network plugin /opt/…/libnccl-net.so
    # Failed to initialize NET plugin X
    ("plugin", "loaded external", r"loaded external .{0,300}plugin"),
    (
        "plugin",
        " plugin ",
        r"Failed to initialize|Loaded net plugin|Initialized NET plugin|Assigned NET plugin",
    ),
    # NET/Plugin: dlopen failed for libnccl-net.so: undefined symbol
    ("plugin", "dlopen", r"lugin.{0,200}dlopen|dlopen.{0,200}lugin"),
    # TUNER/Plugin: libnccl-tuner.so: cannot open shared object file
    ("plugin", "cannot open shared object", r"[Pp]lugin.{0,300}cannot open"),
    # NET/OFI Initializing aws-ofi-nccl 1.7.4
    ("plugin", "NET/OFI", r"NET/OFI"),
    # P2P is disabled between connected GPUs 1 and 0. You can repress this message with \
    #   NCCL_IGNORE_DISABLED_P2P=1.
    ("p2p_disabled", "P2P is disabled", r"P2P is disabled"),
    # NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'
    # GPU Direct RDMA Disabled for GPU 5 / HCA 0 (distance 7 > 5), read 0
    ("gdr_disabled", "GPU Direct RDMA Disabled", r"GPU Direct RDMA Disabled"),
    # cuMem host allocations do not appear to be working; falling back to a /dev/shm/ based \
    #   implementation
    ("cumem", "cuMem host allocations", r"do not appear to be working"),
    # CUMEM imported shareable host buffer from proxyRank 2 size 4096 …
    # MMAP imported shareable host buffer /dev/shm/nccl-Ab …
    ("cumem", "imported shareable host buffer", r"(?:CUMEM|MMAP) imported shareable host buffer"),
    # NVLS multicast support is not available on dev 0
    ("nvls", "NVLS multicast support is", r"NVLS multicast support is not available"),
    # Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : … Proceeding without \
    #   NVLS support
    ("nvls", "without NVLS", r"without NVLS"),
    ("nvls", "ailed to bind NV", r"[Ff]ailed to bind NV"),
    # Call to ibv_modify_qp failed with 110 Connection timed out … retrying 3/34 after 300 msec of \
    #   sleep
    ("retry", "msec of sleep", r"retrying \d+/\d+"),
    # ncclMaxSharedMem 82240 exceeds device/fn maxSharedMem 79856
    ("block_memory", "exceeds device/fn maxSharedMem", r"exceeds device/fn maxSharedMem"),
    # Could not get speed from /sys/class/net/eth0/speed. Defaulting to 10 Gbps.
    ("speed_unknown", "Could not get speed", r"Could not get speed"),
    # KV Convert to int : could not find value of '' in dictionary, falling back to 60
    ("speed_unknown", "falling back to 60", r"falling back to 60"),
    # NET/IB : mlx5_0:1 speed change detected: 400000 -> 200000 Mbps
    ("speed_change", "speed change detected", r"speed change detected"),
    # HINT: …
    ("hint", "HINT: ", r"HINT: "),
    # Failed to open libibverbs.so[.1]
    ("no_ib_library", "Failed to open libibverbs", r"Failed to open libibverbs"),
    # socketFinalizeAccept from 10.0.0.9<4711>: socket magic mismatch (peer 0x5448202f20544547 != \
    #   expected 0x1), discarding peer connection
    ("foreign", "magic mismatch", r"magic mismatch"),
    # socketFinalizeAccept: peer 10.0.0.9<4711> closed before magic handshake, discarding
    # socketFinalizeAccept: handshake receive from 10.0.0.9<4711> failed, discarding peer connection
    ("foreign", ", discarding", r", discarding"),
    # Stack size limit (unlimited) is unsafe; will use 8192KB for newly launched threads
    ("stack_size", "Stack size limit", r"Stack size limit"),
    # Receiver got a completion for a CTS but retrieved an 'unused' request (2.29+): may hang \
    #   silently
    ("unused_request", "'unused' request", r"'unused' request"),
    # Invalid value fast for NCCL_NTHREADS, using default -2.
    ("bad_value", "Invalid value ", r"Invalid value .{0,200} for NCCL_\w+, using default"),
    # Continuing in spite of a RAS initialization error
    ("ras", "RAS initialization error", r"RAS initialization error"),
    # Could not find real path of /sys/class/net/…
    # Topology detection : could not read PATH, ignoring
    ("topology", "Could not find real path", r"Could not find real path"),
    ("topology", "Topology detection", r"Topology detection ?: could not read"),
)
"""family, literal anchor, pattern of the INFO lines that matter to a cause."""
