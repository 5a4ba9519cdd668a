"""What programs and tools print between the lines of the libraries: shares, phases, printed records."""

from __future__ import annotations

from ncclkit.core.model import fields_of
import pytest

PLAIN = [
    ("[rank3]: steps per epoch: 98", "job.share", {"count": 98}),
    ("[rank3]: len(val_loader)=12", "job.share", {"count": 12}),
    ("[rank3]: early stopping at epoch 4", "job.alone", {}),
    ("[rank3]: non-finite loss, skipping this batch", "job.alone", {}),
    ("Map (num_proc=4):  10%|#   | 100/1000 [00:10<01:30, 10.0 examples/s]", "job.phase", {"what": "data"}),
    ("Capturing CUDA graph shapes:  5%|", "job.phase", {"what": "compile"}),
    (" > building shuffle index with split [0, 9) and [9, 9) ...", "job.phase", {"what": "data"}),
    ("Skipping the first 400 batches", "job.phase", {"what": "skip"}),
    ("4711.0   COMPLETED   0:0   812K", "job.done", {}),
    ("ls: cannot access '/dev/infiniband': No such file or directory", "system.error", {"what": "no_verbs"}),
    ("mlx5_core 0000:9a:00.0 mlx5_2: Port: 1 Link ACTIVE", "kernel.link", {"device": "mlx5_2", "state": "up"}),
    ("bond0: (slave ens1f0): link status definitely down, disabling", "kernel.link", {"device": "ens1f0"}),
    ("bond0: link status definitely up for interface ens1f0", "kernel.link", {"device": "ens1f0", "state": "up"}),
    ("tg3 0000:01:00.0 eno1: Link is down", "kernel.link", {"device": "eno1", "state": "down"}),
    (" 2  /usr/lib/libnccl.so.2(ncclGroupEnd+0x1a2) [0x7f23]", "system.error", {"what": "nccl_frame"}),
    ("=>> PBS: job killed: walltime 61 exceeded limit 60", "slurm.event", {"what": "time_limit"}),
    ("TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.", "slurm.event", {"what": "oom"}),
    ("MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD", "elastic.exit", {"exitcode": 1}),
    ("rank 2 ('1', 'tp') nccl:all_gather seq 7 sizes [[4]] started", "flight.entry", {"desc": "tp", "seq": 7}),
    (
        "{'profiling_name': 'nccl:recv 1<-0', 'p2p_seq_id': 3, 'state': 'scheduled'}",
        "flight.entry",
        {"peer": 0, "seq": 3},
    ),
    ("[rank1]: in_splits: [4, 2], out_splits: [3, 3]", "printed.splits", {"inputs": [4, 2], "outputs": [3, 3]}),
    ("set_mempolicy: Operation not permitted", "system.denied", {"call": "set_mempolicy"}),
    (
        "$ ping -c 3 -M do -s1440 node-2 | tail\n--- node-2 ping statistics ---\n"
        "3 packets transmitted, 0 received, 100% packet loss, time 2043ms",
        "net.ping",
        {"address": "node-2", "bytes": 1440, "sent": 3, "received": 0},
    ),
    (
        "$ ping -s 900 node-2\nPING node-2 (10.0.0.2) 900(928) bytes of data.\n908 bytes from 10.0.0.2: icmp_seq=1",
        "net.ping",
        {"address": "10.0.0.2", "bytes": 900, "sent": None, "received": 1},
    ),
    (
        "--- node-2 ping statistics ---\n100 packets transmitted, 93 received, 7% packet loss, time 99112ms",
        "net.ping",
        {"address": "node-2", "bytes": None, "sent": 100, "received": 93},
    ),
    (
        "ESTAB 0 512 10.0.0.1:5221 10.0.0.2:418\n\t cubic rto:5427 backoff:8 rtt:8.1/0.2 retrans:1/11 lost:1",
        "net.tcp",
        {"peer": "10.0.0.2", "queued": 512, "backoff": 8, "retrans": 1, "resent": 11, "lost": 1, "rto_ms": 5427.0},
    ),
    ("Initializing distributed: GLOBAL_RANK: 1, MEMBER: 2/8", "job.member", {"number": 1, "world": 8}),
    ("| distributed init (rank 3): env://, gpu 3", "job.member", {"number": 3, "world": None}),
    ("Setting up process group for: env:// [rank=1, world_size=4]", "job.member", {"number": 1, "world": 4}),
    ("Process rank: 2, device: cuda:2, n_gpu: 1, distributed training: True", "job.member", {"number": 2}),
    ("Num processes: 8", "job.member", {"number": None, "world": 8}),
    ("Process index: 3\nLocal process index: 3", "job.member", {"number": 3}),
    ("#  Rank  1 Group  0 Pid  3309 on  n-1 device  1 [0x07] NVIDIA A100", "job.member", {"number": 1}),
    ("Future for ProcessGroup abort timed out after 600000 ms", "c10d.monitor", {"what": "abort"}),
]
DULL = [
    "steps per epoch: 98",
    "early stopping patience: 5",
    "nccl:all_reduce         0.00%       0.000us",
    "workspace/2.4.1/works.py",
    "ping node-2 works",
    "rank 3 fails every time",
    "all steps take 3 s",
    "$ ping -s 8972 b\nping: local error\n--- b ping statistics ---\n3 packets transmitted, 0 received, +3 errors",
    "ESTAB 0 0 10.0.0.1:22 10.0.0.2:41873",
]


@pytest.mark.parametrize(("text", "kind", "fields"), PLAIN, ids=[line[0][:40] for line in PLAIN])
def test_a_line_becomes_its_event(only, text, kind, fields):
    (event,) = only(kind, text + "\n")
    assert {key: fields_of(event)[key] for key in fields} == fields


@pytest.mark.parametrize("text", DULL)
def test_what_no_rank_says_of_itself_is_no_event(read_text, text):
    assert read_text(text + "\n").events == []


def test_a_verdict_of_torchfrtrace_names_who_is_missing(only):
    text = (
        "Not all ranks joining collective, sequence number: 41\ninternal record id: 40\ngroup info: 7:tp\n"
        "collective: nccl:all_reduce\nmissing ranks: {1, 3}\nexpected ranks: {0, 1, 2, 3}\ncollective state: started\n"
    )
    (event,) = only("flight.missing", text)
    data = event.data
    assert (data.seq, data.group, data.desc, data.op) == (41, "7", "tp", "all_reduce")
    assert (data.missing, data.waiting) == ([1, 3], [0, 2])


@pytest.mark.parametrize(
    ("error", "field", "value"),
    [
        (
            "COLLECTIVE_TYPE_MISMATCH, Expected collective type: 'a' does not match found collective type: 'b'",
            "op",
            "b",
        ),
        (
            "SIZE_OR_SYNTAX_MISMATCH, Expected input sizes: '[[8]]' does not match found input sizes: '[[4]]'",
            "sizes",
            "[[4]]",
        ),
    ],
)
def test_a_verdict_of_torchfrtrace_names_the_odd_rank(only, error, field, value):
    said = f"error msg: Culprit rank 2; Error type: {error}\n"
    text = f"Collective sequence number: 4 has errors\nexpected ranks: {{0, 1, 2}}\n{said}"
    (event,) = only("flight.mismatch", text)
    assert event.data.field == field and event.data.odd == [{"value": value, "ranks": [2]}]
    assert event.data.majority["ranks"] == [0, 1]
