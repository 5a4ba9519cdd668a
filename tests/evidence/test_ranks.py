"""Whose line it is, when it was said, and how often."""

from __future__ import annotations

import os
import time

import pytest

from ncclkit import evidence

INIT = "{host}:{pid}:1 [0] NCCL INFO comm 0x7f rank {rank} nranks {n} cudaDev 0 busId 1000 - Init COMPLETE\n"
WARN = "{host}:{pid}:9 [0] misc/socket.cc:49 NCCL WARN Connection closed by remote peer 10.0.0.{peer}<{port}>\n"


def test_init_lines_tie_processes_to_ranks(only):
    text = (
        INIT.format(host="n2", pid=7, rank=5, n=8)
        + INIT.format(host="n2", pid=7, rank=1, n=2)
        + WARN.format(host="n2", pid=7, peer=1, port=2)
    )
    (event,) = only("nccl.warn", text)
    assert event.rank == 5  # the largest communicator is the job, not the sub-group


def test_the_same_pid_on_two_hosts_is_two_processes(only):
    text = "".join(
        INIT.format(host=host, pid=7, rank=rank, n=2) + WARN.format(host=host, pid=7, peer=1, port=2)
        for host, rank in (("a", 0), ("b", 1))
    )
    assert [event.rank for event in only("nccl.warn", text)] == [0, 1]


def test_a_local_label_is_no_global_rank_on_many_hosts(only):
    warn = "[default0]:RuntimeError: boom\n"
    two_hosts = INIT.format(host="a", pid=1, rank=0, n=2) + INIT.format(host="b", pid=1, rank=1, n=2)
    assert [event.rank for event in only("python.exception", warn)] == [0]
    assert [event.rank for event in only("python.exception", two_hosts + warn)] == [None]


@pytest.mark.parametrize(
    "stamp",
    [
        "2024/04/30 00:42:42 ",
        "2024/04/30 00:42:42 INFO ",
        "00:42:42 ",
        "0:42:42.123456 ",
        "00:42:42:123 ",
        "2024-04-30T00:42:42 ",
        "[00:42:42]: ",
        "Apr 30 00:42:42 login1 python[77]: ",
        "3: 2024-04-30 00:42:42,5 ",
    ],
)
def test_a_time_of_day_is_no_host(only, stamp):
    (event,) = only("nccl.bootstrap", f"{stamp}node-1:123:456 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n")
    assert (event.host, event.pid) == ("node-1", 123)


@pytest.mark.parametrize("host", ["10.0.0.7", "42", "n-00"])
def test_a_host_of_digits_is_one(only, host):
    (event,) = only("nccl.network", f"00:42:42 {host}:123:456 [0] NCCL INFO Using network Socket\n")
    assert (event.host, event.pid) == (host, 123)


def test_srun_labels_count_where_most_lines_have_them(only):
    error = "3: RuntimeError: CUDA error: boom\n"
    labelled = "".join(f"{rank}: step {rank}\n" for rank in range(8)) + error
    assert [event.rank for event in only("cuda.error", labelled)] == [3]
    assert [
        event.rank for event in only("cuda.error", "starting\nloading data\nmodel ready\nwarming up\n" + error)
    ] == [None]


def test_file_names_tell_the_rank(read_text, tmp_path):
    for name in ("rank3.log", "out_rank_3.txt", "logs/rank-3.err", "worker.rank3.out"):
        assert [event.rank for event in read_text("ValueError: boom\n", name).events] == [3]
    assert read_text("ValueError: boom\n", "ranking2.log").events[0].rank is None


def test_floods_become_one_event_with_a_count(only):
    text = "".join(WARN.format(host="a", pid=1, peer=2, port=port) for port in range(5000)) + WARN.format(
        host="a", pid=1, peer=3, port=1
    )
    assert [(event.count, event.line) for event in only("nccl.warn", text)] == [(5000, 1), (1, 5001)]


def test_only_the_first_line_of_a_back_trace_stands(only):
    chain = "".join(
        f"a:1:9 [0] NCCL INFO {file}.cc:{line} -> 6\n" for line, file in enumerate(("socket", "bootstrap", "init"), 1)
    )
    assert [(event.data.file, event.count) for event in only("nccl.trace", chain + "\n" * 50 + chain)] == [
        ("socket.cc", 2)
    ]


def test_progress_keeps_the_last_word_of_each_rank(only):
    text = "".join(
        f"[rank{rank}]: step {step} loss 3.2\n" for step in range(300) for rank in (0, 1) if rank == 0 or step < 250
    )
    assert {event.rank: event.data.step for event in only("progress", text)} == {0: 299, 1: 249}


def test_carriage_returns_of_bars_hide_nothing(read_text):
    bars = "".join(f"\rTrain: {n}%|## | {n}/100 [00:01<00:02, 3.5it/s]" for n in range(50))
    events = {event.kind: event for event in read_text(bars + "RuntimeError: CUDA error: boom\nend\n").events}
    assert events["progress"].data.step == 49
    assert events["cuda.error"].line == 1


PREFIXES = [  # before the line, and what it tells of rank, host and process
    ("[default3]:", (3, "", None)),
    ("[trainer3|11]:", (11, "", None)),
    ("[trainer:3|11]: ", (11, "", None)),
    ("[node-9|trainer3|11]:", (11, "node-9", None)),
    ("[1,3]<stderr>:", (3, "", None)),
    ("Sat Nov 21 01:02:03 2026[1,3]<stderr>:", (3, "", None)),
    ("[prterun-n1-77@1,3][n2:4711]<stdout>: ", (3, "n2", 4711)),
    ("\x1b[36m(RayTrainWorker pid=4711, ip=10.0.0.7)\x1b[0m ", (None, "10.0.0.7", 4711)),
    ("(VllmWorker rank=3 pid=4711) ", (3, "", 4711)),
    ("(WorkerDict(policy) pid=4711) ", (None, "", 4711)),
    ("(pid=4711, ip=10.0.0.7) ", (None, "10.0.0.7", 4711)),
    ("(raylet, ip=10.0.0.7) ", (None, "10.0.0.7", None)),
    ("[pod/trainer-3/pytorch] ", (None, "trainer-3", None)),
    ("trainer-3  | ", (None, "trainer-3", None)),
    ("2026-11-21T01:02:03.5Z stderr F [default3]:", (3, "", None)),
    ("Nov 21 01:02:03 node-9.cluster python[4711]: ", (None, "node-9", 4711)),
    ("2026-11-21T01:02:03+0000 node-9 python[4711]: ", (None, "node-9", 4711)),
    ("[rank3]: ", (3, "", None)),
    ("[rank: 3] ", (3, "", None)),
    ("node-9: [rank3]: ", (3, "node-9", None)),
    ("[default0]:[rank3]: ", (3, "", None)),
    ("11/21/2026 01:02:03 - ERROR - __main__ - ", (None, "", None)),
]


@pytest.mark.parametrize(("prefix", "who"), PREFIXES, ids=[prefix.strip() for prefix, _ in PREFIXES])
def test_a_prefix_is_stripped_and_what_it_knows_is_kept(only, prefix, who):
    (event,) = only("cuda.error", f"{prefix}RuntimeError: CUDA error: device-side assert triggered\n")
    assert (event.rank, event.host, event.pid) == who
    assert event.data.error == "device-side assert triggered"


def test_a_line_that_mpirun_tagged_in_pieces_is_one_line(only):
    """Python writes an error in four pieces, and Open MPI 4.1 writes its tag before each of them."""
    tag = "[1,3]<stderr>:"
    (event,) = only("cuda.error", f"{tag}RuntimeError{tag}: {tag}CUDA error: boom{tag}\n")
    assert (event.rank, event.data.error) == (3, "boom")


@pytest.mark.parametrize("text", ["epoch_3 | step 12/100", "step-3 | iteration 12", "Train: 20% | step 12/100"])
def test_a_column_of_a_table_is_no_host(read_text, text):
    assert {event.host for event in read_text(text + "\n").events} <= {""}


KERNEL = {  # the clock and the host of the kernel's log
    "[ 1234.567890] ": ("", None),
    "[Sat Nov 21 01:02:03 2026] ": ("", (2026, 11, 21, 1, 2, 3)),
    "Nov 21 01:02:03 node-9 kernel: [ 1234.567890] ": ("node-9", (2026, 11, 21, 1, 2, 3)),
    "Nov  1 01:02:03 node-9.cluster kernel: ": ("node-9", (2026, 11, 1, 1, 2, 3)),
    "Dec 21 01:02:03 node-9 kernel: ": ("node-9", (2025, 12, 21, 1, 2, 3)),
}


@pytest.mark.parametrize("prefix", KERNEL)
@pytest.mark.parametrize(
    ("text", "kind", "pid"),
    [
        ("NVRM: Xid (PCI:0000:1b:00): 79, pid=4711, name=python, GPU has fallen off the bus.", "kernel.xid", 4711),
        ("Out of memory: Killed process 4711 (python) total-vm:99kB", "kernel.oom", 4711),
        ("mlx5_core 0000:17:00.0 ens1f0np0: Link down", "kernel.link", None),
        ("DMAR: [DMA Write NO_PASID] Request device [17:00.0] fault addr 0x1000", "kernel.iommu", None),
        ("python[4711]: segfault at 10 ip 7f sp 7e error 4 in libnccl.so.2[7f+1]", "kernel.segfault", 4711),
    ],
)
def test_the_kernel_speaks_in_many_clothes(tmp_path, prefix, text, kind, pid):
    path = tmp_path / "dmesg.txt"
    path.write_text(prefix + text + "\n")
    os.utime(path, (seconds(2026, 11, 22, 0, 0, 0),) * 2)
    (event,) = [event for event in evidence.read([path]).events if event.kind == kind]
    host, clock = KERNEL[prefix]
    assert (event.host, event.pid, event.time) == (host, pid, clock and seconds(*clock))


@pytest.mark.parametrize("zone", ["+0000", "Z", "+00:00", ".000000+00:00"])
def test_the_journal_tells_its_zone(only, zone):
    (event,) = only("kernel.xid", f"2026-11-21T01:02:03{zone} node-9 kernel: NVRM: Xid (PCI:0000:1b:00): 79, x\n")
    assert (event.host, event.time) == ("node-9", 1795222923)


def seconds(*clock):
    return time.mktime((*clock, 0, 0, -1))


def test_time_stamps(tmp_path):
    path = tmp_path / "job.log"
    path.write_text(
        "[2026-11-21 00:28:00] a:1:9 [0] x.cc:49 NCCL WARN one\n"
        "[rank1]:[E1121 23:59:01.500000000 x.cpp:1] Could not acquire GIL within 300 ms\n"
        "[rank2]:[E131 00:00:01.5 x.cpp:1] Could not acquire GIL within 300 ms\n"
        "2026-11-21T01:02:03.25Z stderr F ValueError: boom\n"
        "OSError: [Errno 28] No space left on device\n"
    )
    changed = seconds(2027, 1, 15, 0, 0, 0)
    os.utime(path, (changed, changed))
    times = {
        event.text.split()[-1]: event.time for event in evidence.read([path]).events if event.kind != "system.error"
    }
    told = [event.time for event in sorted(evidence.read([path]).events, key=lambda e: e.line)]
    assert told[0] == seconds(2026, 11, 21, 0, 28, 0)
    assert told[1] == seconds(2026, 11, 21, 23, 59, 1) + 0.5  # the year is the file's, or the one before
    assert told[2] == seconds(2026, 1, 31, 0, 0, 1) + 0.5
    assert told[3] == 1795222923.25
    assert times["device"] is None


@pytest.mark.parametrize(
    ("prefix", "rank", "pid"),
    [
        ("(Worker_TP3 pid=77) ", 3, 77),
        ("(VllmWorker TP3 pid=77) ", 3, 77),
        ("(Worker_TP3_EP3 pid=77) ", 3, 77),
        ("(Worker_DP1_TP3 pid=77) ", None, 77),  # the place in a group of some is no rank
        ("(WorkerDict pid=77) ", None, 77),
        ("[2026-11-21 01:02:03 TP3] ", 3, None),
        ("[2026-11-21 01:02:03 TP3 EP3] ", 3, None),
        ("[2026-11-21 01:02:03 DP1 TP3] ", None, None),
    ],
)
def test_servers_name_their_workers(read_text, prefix, rank, pid):
    events = read_text(f"{prefix}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n").events
    assert {(event.rank, event.pid) for event in events} == {(rank, pid)}


@pytest.mark.parametrize(
    ("prefix", "rank", "worker"),
    [
        ("(Worker_TP3 pid=77) ", 3, "TP3"),
        ("(VllmWorker TP3 pid=77) ", 3, "TP3"),
        ("(VllmWorker rank=3 pid=77) ", 3, "pid 77"),
        ("(Worker_TP3_EP3 pid=77) ", 3, "TP3 EP3"),
        ("(Worker_DP1_TP3 pid=77) ", None, "DP1 TP3"),
        ("(Worker_PP1_TP0 pid=77) ", None, "PP1 TP0"),
        ("(Worker_DP1_PP0_TP3_EP7 pid=77) ", None, "DP1 PP0 TP3 EP7"),
        ("(DP0_EP1 pid=77) ", None, "DP0 EP1"),
        ("(Worker pid=77) ", None, "pid 77"),
        ("(EngineCore_DP0 pid=77) ", None, ""),
        ("(EngineCore_0 pid=77) ", None, ""),
        ("(WorkerDict pid=77) ", None, ""),
        ("(APIServer pid=77) ", None, ""),
        ("(pid=77) ", None, ""),
    ],
)
def test_an_error_names_the_worker_as_its_server_does(read_text, prefix, rank, worker):
    (event,) = read_text(f"{prefix}ERROR 11-02 12:00:00 [multiproc_executor.py:597] ValueError: no such scaling\n").events
    assert (event.rank, event.data.worker) == (rank, worker)
