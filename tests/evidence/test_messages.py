"""Every text of NCCL has a family, and what says nothing by itself decides nothing."""

import json
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path

import pytest

from ncclkit import evidence
from ncclkit.causes.engine import diagnose
from ncclkit.core.case import Case
from ncclkit.core.kinds import SAYS_NOTHING
from ncclkit.evidence.grammars import families
from ncclkit.evidence.grammars.families import classify
from ncclkit.evidence.logs import fill
from tests.bench import messages, nccl_texts
from tests.bench.nccl_texts import Text

TABLE = json.loads(messages.TABLE.read_text())
HEAD = "[2026-11-21 00:28:00] node-1:4711:4720 [3] {}:49 NCCL {} "


def test_the_committed_table_meets_the_aim():
    assert {"2.18.3", "2.31.2", "2.32.3"} <= TABLE.keys()
    for version, row in TABLE.items():
        assert messages.covered(row) >= messages.AIM, version
        assert row["warn"]["no_event"] == row["attn"]["no_event"] == row["attn"]["other"] == 0, version
        assert row["variables"]["unknown"] == 0, version


def test_the_table_holds_no_text_of_nccl():
    words = re.findall(r'"([^"]*)"', messages.TABLE.read_text())
    assert not [word for word in words if " " in word or "%" in word]


KNOWN = max(TABLE, key=messages.version_key)
"""The last release that was measured."""
WHEELS = ("nvidia-nccl-cu12", "nvidia-nccl-cu13")
OUT_OF_REACH = ("--index-url", "http://127.0.0.1:9/simple")


def asked_of_registry(package: str, *more: str) -> str:
    """What pip says of the releases of a package; "" where its registry does not answer."""
    command = [sys.executable, "-m", "pip", "index", "versions", package, "--retries", "0", "--timeout", "8", *more]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30).stdout
    except subprocess.TimeoutExpired:
        return ""


def newest_of(answers: Iterable[str]) -> str:
    """The newest release of NCCL that the registry names; "" where it names none."""
    found = [re.match(r"nvidia-nccl-cu\d+ \((\d+\.\d+\.\d+)", said) for said in answers]
    return max((match[1] for match in found if match), key=messages.version_key, default="")


def word_on(newest: str) -> str:
    """What is to be said of a release that is newer than the last one measured; "" of others."""
    if not newest or messages.version_key(newest) <= messages.version_key(KNOWN):
        return ""
    return f"NCCL {newest} is out, messages.json ends at {KNOWN}: python tests/bench/messages.py WHEEL --write"


def test_a_newer_release_than_the_last_one_measured_is_said():
    newest = newest_of(map(asked_of_registry, WHEELS))
    if not newest:
        pytest.skip("no registry of packages to ask for the newest NCCL")
    # a release of NVIDIA's is no defect of ours: it is said, and the tests still pass
    if word_on(newest):
        warnings.warn(word_on(newest), stacklevel=1)


@pytest.mark.parametrize(
    ("answers", "newest", "says"),
    [
        ((f"nvidia-nccl-cu12 ({KNOWN})\nAvailable versions: {KNOWN}", ""), KNOWN, ""),
        (("nvidia-nccl-cu12 (2.9.8)", f"nvidia-nccl-cu13 ({KNOWN}.post1)"), KNOWN, ""),
        (("nvidia-nccl-cu12 (2.28.9)", "nvidia-nccl-cu13 (99.0.1)"), "99.0.1", "NCCL 99.0.1 is out"),
        (("ERROR: No matching distribution found", ""), "", ""),
    ],
    ids=["no newer one", "an older one and one built anew", "a newer one, for one CUDA alone", "nothing"],
)
def test_what_is_said_of_the_newest_release(answers, newest, says):
    assert newest_of(answers) == newest
    assert word_on(newest).startswith(says) and bool(word_on(newest)) == bool(says)


def test_a_registry_out_of_reach_is_no_newer_release():
    assert newest_of([asked_of_registry(WHEELS[0], *OUT_OF_REACH)]) == ""


SOURCE = """
// WARN("in a comment's call %d", 1) counts, too: it does no harm
void f() {
  WARN("Ring %d of rank " "%d has" \\
       " no end, got " PRId64 " links", ring, rank, n);
  INFO(NCCL_INIT|NCCL_NET, "Using (really) %s", name);
  INFO(NCCL_ENV, "%s set by environment to %s", "NCCL_OWN", value);
  ncclGetEnv("NCCL_OWN"); WARN(format, 3);
}
NCCL_PARAM(Tea, "TEA_TIME", 4);
"""


def test_texts_and_variables_of_a_source_tree(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "ring.cc").write_text(SOURCE)
    (tmp_path / "version.mk").write_text("NCCL_MAJOR   := 9\nNCCL_MINOR   := 8\nNCCL_PATCH   := 7\n")
    release = nccl_texts.read_release(tmp_path)
    assert release.version == "9.8.7"
    assert Text("WARN", "Ring %d of rank %d has no end, got ld links", "src/ring.cc") in release.texts
    assert Text("INFO", "Using (really) %s", "src/ring.cc") in release.texts
    assert (release.variables, release.defaults) == (
        {"NCCL_OWN", "NCCL_TEA_TIME"},
        {"NCCL_TEA_TIME": 4},
    )


LIBRARY = """
enum ncclDebugLogLevel { NONE, VERSION, WARN_, INFO_, ABORT, TRACE, ATTN_ };
void ncclDebugLog(ncclDebugLogLevel level, unsigned long flags, const char* file, int line, const char* text, ...);
long ncclLoadParam(const char* name, long unset, long uninitialized, long* cache);
long cache;
extern "C" long tea_time() { return ncclLoadParam("NCCL_TEA_TIME", 4, 1l << 63, &cache); }
extern "C" long milk() { return 3 * ncclLoadParam("NCCL_MILK", 0, 1l << 63, &cache); }
__attribute__((cold)) long sugar() { return 3 * ncclLoadParam("NCCL_SUGAR", -1, 1l << 63, &cache); }
extern "C" long cups(long n) { return ncclLoadParam("NCCL_CUPS", 2 * n, 1l << 63, &cache); }
const char* own = "NCCL version 9.8.7+cuda";
extern "C" int one(int n) {
  if (n > 3) ncclDebugLog(WARN_, ~0ul, "a.cc", 12, "Tea of rank %d is cold", n);
  else ncclDebugLog(WARN_, ~0ul, "a.cc", 14, "Tea of rank %d is gone", n);
  ncclDebugLog(INFO_, 1, "one", 15, "Tea is served");
  ncclDebugLog(ATTN_, ~0ul, "a.cc", 16, "Tea is late");
  ncclDebugLog(TRACE, 1, "one", 17, "Tea is traced");
  return n;
}
"""


@pytest.mark.skipif(not (shutil.which("g++") and shutil.which("objdump")), reason="no g++ and objdump here")
def test_texts_of_a_library_are_read_from_its_calls(tmp_path):
    source, library = tmp_path / "a.cc", tmp_path / "libnccl.so.2"
    source.write_text(LIBRARY)
    build = ["g++", "-O2", "-fPIC", "-shared", "-o", str(library), str(source)]
    subprocess.run(build, check=True, timeout=60)
    release = nccl_texts.read_release(library)
    assert release.texts == {
        Text("WARN", "Tea of rank %d is cold", "a.cc"),
        Text("WARN", "Tea of rank %d is gone", "a.cc"),
        Text("INFO", "Tea is served", "one"),
        Text("ATTN", "Tea is late", "a.cc"),
    }
    names = {"NCCL_TEA_TIME", "NCCL_MILK", "NCCL_SUGAR", "NCCL_CUPS"}
    assert (release.version, release.variables) == ("9.8.7", names)
    # at a jump where a function ends, at a call, with all bits set; of a number that is computed nothing is known
    assert release.defaults == {"NCCL_TEA_TIME": 4, "NCCL_MILK": 0, "NCCL_SUGAR": -1}


def test_a_row_counts_what_is_missed_by_its_hash_alone():
    texts = frozenset({Text("WARN", "Tea of rank %d is cold", "a.cc"), Text("WARN", "%s", "a.cc")})
    release = nccl_texts.Release("9.8.7", texts, frozenset({"NCCL_TEA_TIME", "NCCL_DEBUG"}), {})
    row = messages.row_of(release, list(messages.read_texts(texts)))
    assert row["warn"] == {"texts": 1, "no_event": 0, "other": 1, "says_nothing": 0, "named": 0}
    assert len(row["warn_missed"]) == 1 and "Tea" not in json.dumps(row)
    assert row["variables"] == {"asked": 2, "unknown": 1} and messages.covered(row) == 0


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("Call to %s failed: %s", "Call to recv failed: Invalid argument"),
        ("%d%% of %-8.3f at %p", "3% of 0.5 at 0x7f10"),
        ("rank %*d of %llx", "rank 3 of 1b000"),
    ],
)
def test_conversions_get_values(text, filled):
    assert messages.fill_format(text) == filled


def test_the_names_of_those_that_say_nothing_are_those_of_the_list():
    rows = Path(families.__file__).with_name("says_nothing.txt").read_text().splitlines()
    listed = {row.partition(" | ")[0] for row in rows if not row.startswith("#")}
    assert listed == SAYS_NOTHING <= {name for name, _ in families.FAMILIES}


def judged(tmp_path, *lines):
    log = tmp_path / "job.log"
    log.write_text("".join(f"{line}\n" for line in lines))
    case = Case()
    fill(case, evidence.read([log]))
    return diagnose(case)


NOTHING = [
    ("own_check", "NET/Socket : unable to allocate requests", "transport/net_socket.cc"),
    ("own_check", "ncclSocketConnect: pass NULL socket", "misc/socket.cc"),
    ("own_check", "RAS diagnostics ECC check received malformed data size 12", "ras/diagnostics_gpu.cc"),
    ("own_check", "CollNet head rank 3 is on node 1, expected node 0", "transport/coll_net.cc"),
    ("relayed", "bootstrapSend: an earlier asynchronous send to peer 3 failed", "bootstrap.cc"),
    ("teardown", "commReclaim: comm 0x7f10 (rank = 3) in abort, error 6", "init.cc"),
]


@pytest.mark.parametrize(("family", "text", "file"), NOTHING, ids=[text[:30] for _, text, _ in NOTHING])
def test_what_says_nothing_by_itself_decides_no_cause(tmp_path, family, text, file):
    assert classify(text, file)["family"] == family
    assert judged(tmp_path, HEAD.format(file, "WARN") + text).verdict == "unexplained"


def test_a_consequence_beside_a_closed_connection_hides_no_exception(tmp_path):
    """What a rank says while it gives up is no reason of its own (`rank_exception`)."""
    closed = HEAD.format("misc/socket.cc", "WARN") + "socketProgress: Connection closed by remote peer 10.0.0.2<4>"
    given_up = HEAD.format("init.cc", "WARN") + NOTHING[-1][1]
    alone, both = judged(tmp_path, closed), judged(tmp_path, closed, given_up)
    assert [finding.cause for finding in alone.findings[:1]] == [finding.cause for finding in both.findings[:1]]
    assert alone.verdict == both.verdict


@pytest.mark.parametrize(
    ("mask", "degraded", "troubles"),
    [
        ("0xaa", False, []),
        ("0x1aa", False, []),
        ("0x0", False, []),
        ("0x1a9", True, []),
        ("0x5aa", False, ["too few NVLinks"]),
        ("0x19a", False, ["an unhealthy route"]),
        ("0x4666", False, ["route recovery", "recovery of a timed-out access", "GPU firmware that does not fit"]),
    ],
)
def test_the_health_of_a_fabric_is_decoded(only, mask, degraded, troubles):
    line = "node-1:42:43 [0] NCCL INFO MNNVL busId 0x1b000 fabric UUID 5d1.77a cliqueId 0x7ffe state 3 healthMask "
    (event,) = only("nccl.fabric", f"{line}{mask} degradedBw unknown\n")
    assert (event.data.bus, event.data.state, event.data.degraded) == ("0x1b000", 3, degraded)
    assert event.data.troubles == troubles


def test_a_mask_of_a_gpu_that_has_not_registered_says_nothing(tmp_path):
    line = "node-1:42:43 [0] NCCL INFO MNNVL busId 0x1b000 fabric UUID 0.0 cliqueId 0x0 state 0 healthMask 0x5aa"
    assert not [f for f in judged(tmp_path, line).findings if f.cause == "nvswitch_fabric" and f.strength == "likely"]


DIAG = "node-1:4711 NCCL DIAG [INFO] "


@pytest.mark.parametrize(
    ("text", "xid", "host"),
    [
        (f"{DIAG}Xid 79 detected at least 3 times on host node-2. For the response, see", 79, "node-2"),
        (f"{DIAG}Xid 48 detected 1 time on host gpu-7.cluster.", 48, "gpu-7.cluster"),
        ("Xid 79 detected on GPU 3", 79, ""),
    ],
)
def test_an_xid_that_is_told_in_words_is_hardware(only, tmp_path, text, xid, host):
    (event,) = only("kernel.xid", text + "\n")
    assert (event.data.xid, event.host) == (xid, host)
    finding = judged(tmp_path, text).findings[0]
    assert (finding.cause, finding.strength) == ("gpu_hardware_error", "proven")


@pytest.mark.parametrize(
    ("line", "gpu"),
    [
        ("Xid 79 detected on GPU 3", "GPU 3"),
        ("Xid 79 detected on GPU 0000:1b:00.0", "GPU 0000:1b:00.0"),
        ("NVRM: Xid (PCI:0000:1b:00): 79, pid=4711, name=python, GPU has fallen off the bus.", "GPU 0000:1b:00"),
        (f"{DIAG}Xid 79 detected 1 time on host node-2. For the response, see", ""),
    ],
)
def test_an_xid_names_the_gpu_that_its_line_names(tmp_path, line, gpu):
    finding = judged(tmp_path, line).findings[0]
    assert finding.cause == "gpu_hardware_error"
    assert finding.culprits.get("gpus", ()) == ((gpu.removeprefix("GPU "),) if gpu else ())
    assert (gpu or "A GPU on node-2") in finding.say
    assert "test each GPU" in finding.advice[0].do or gpu in finding.advice[0].do


def test_a_start_of_giving_up_is_read_with_either_spelling(only):
    for ranks in ("nranks", "nRanks"):
        text = f"node-1:42:43 [0] NCCL INFO comm 0x7f10 rank 3 {ranks} 8 cudaDev 3 busId 5d000 commId 0x9a - Revoke START\n"
        (event,) = only("nccl.destroy", text)
        assert (event.data.rank, event.data.how, event.data.phase) == (3, "revoke", "start")


def test_an_sxid_is_as_fatal_as_nccl_says(only):
    head = f"{DIAG}SXid 20034 detected 2 times (NVSwitch driver reported "
    (fatal,) = only("kernel.sxid", head + "Fatal, link(s) {30}) on host node-2. See\n")
    (other,) = only("kernel.sxid", head + "Non-fatal, link(s) {30}) on host node-2. No action\n")
    assert (fatal.data.fatal, other.data.fatal, fatal.host) == (True, False, "node-2")


ATTN = "[2026-11-26 19:22:09] node-1:42:43 [0] misc/param.cc:100 (ncclLoadParam) NCCL ATTN "


def test_the_level_attn_is_read(only):
    (event,) = only("nccl.attn", ATTN + "Invalid value abc for NCCL_SOCKET_RCVBUF, using default -1.\n")
    assert (event.host, event.pid, event.data.file, event.data.line) == (
        "node-1",
        42,
        "misc/param.cc",
        100,
    )
    assert (event.data.func, event.data.dev, event.data.family) == ("ncclLoadParam", 0, "setting")
    assert event.time and not only("nccl.warn", event.text)


def test_a_value_that_nccl_refuses_at_level_attn_is_named(tmp_path):
    found = judged(tmp_path, ATTN + "Invalid value abc for NCCL_SOCKET_RCVBUF, using default -1.")
    assert (found.findings[0].cause, found.findings[0].strength) == ("bad_env_value", "likely")
    assert "NCCL_SOCKET_RCVBUF" in found.findings[0].say


def test_a_job_that_ends_well_is_healthy_though_strangers_knocked(tmp_path):
    """A scanner on NCCL's port is refused, and says nothing of the job."""
    init = "node-1:42:43 [0] NCCL INFO comm 0x7f10 rank 0 nranks 1 cudaDev 0 busId 5d000 - {} COMPLETE"
    knocked = "Peer 10.0.0.9<4711> closed before socket hello, discarding"
    steps = [f"train: step {n} loss 1.{n}" for n in (10, 20)]
    found = judged(
        tmp_path,
        init.format("Init"),
        *steps,
        ATTN + knocked,
        "train: step 30 loss 1.0",
        init.format("Destroy"),
    )
    assert (found.verdict, found.findings) == ("healthy", ())
