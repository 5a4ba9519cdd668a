"""Names of hosts, users and addresses give way, each to the same word everywhere; what only looks like one stays."""

import socket

import pytest

from ncclkit.agent.anonymize import Aliases
from ncclkit.lab.faults import recording

HOSTS = ["node-7.hpc.example.org", "node-10", "gpu1", "login.cluster", "10.0.0.1", "localhost"]
CASES = {
    "gpu1 login node-7 node-10": "host-1 host-2 host-3 host-4",
    "node-7.hpc.example.org:7186:7190 [3] NCCL INFO": "host-3:7186:7190 [3] NCCL INFO",
    "node-7-ib0 job_node-7.log node-7.cluster.local": "host-3-ib0 job_host-3.log host-3",
    "node-70x mynode-7 localhost gpu0 GPU1": "node-70x mynode-7 localhost gpu0 GPU1",
    "node-8 met node-9, node-8 died": "host-5 met host-6, host-5 died",
    "node-[7-10,12] gpu[1-3]": "host-[3-4,5] host-[1-6]",
    "db.hpc.example.org login.cluster": "host-5 host-2",
    "10.1.2.3 10.1.2.4/24 10.1.2.3:29500 10.1.3.3": "10.0.0.1 10.0.0.2/24 10.0.0.1:29500 10.0.1.1",
    "eth0:192.168.1.1<43210> ::ffff:192.168.1.1.": "eth0:10.0.0.1<43210> ::ffff:10.0.0.1.",
    "127.0.0.1 0.0.0.0 255.255.240.0 ::1": "127.0.0.1 0.0.0.0 255.255.240.0 ::1",
    "cudnn==9.1.0.70 version 9.1.0.70 1.2.3.4.5": "cudnn==9.1.0.70 version 9.1.0.70 1.2.3.4.5",
    "fe80::506b:4bff:fef4:1%eth0 2001:db8::7 fd12::1/64": "fe80::1%eth0 fd00::2 fd00::3/64",
    "fe80:0000:0000:0000:506b:4b03:00f4:1234": "fe80::1",
    "c10d::Add( std::vector 12:34:56 0000:3b:00.0": "c10d::Add( std::vector 12:34:56 0000:3b:00.0",
    "ec:0d:9a:12:34:56 EC:0D:9A:12:34:56": "02:00:00:00:00:01 02:00:00:00:00:01",
    "506b:4b03:00f4:1234 node_guid 0x506b4b0300f41234": "0000:0000:0000:0001 node_guid 0x0000000000000001",
    "commId 0x506b4b0300f41234": "commId 0x506b4b0300f41234",
    "GPU-1b5c0e6a-0b1c-4d5e-8f90-123456789abc": "GPU-00000000-0000-0000-0000-000000000001",
    "/home/alice/x /scratch/alice malice alice@host": "/home/user-1/x /scratch/user-1 malice user-1@host",
    "/root/x /home/ubuntu/y": "/root/x /home/ubuntu/y",
}


@pytest.mark.parametrize("text", CASES)
def test_one_text(text):
    assert Aliases(HOSTS, ["alice", "root"])(text) == CASES[text]


def test_the_same_name_is_the_same_word_in_every_text():
    aliases = Aliases(HOSTS)
    assert aliases("node-99 10.9.9.9") == aliases("node-99 10.9.9.9") == "host-5 10.0.0.1"
    assert aliases("10.9.9.8 node-98") == "10.0.0.2 host-6"


def test_who_has_a_home_is_known_elsewhere():
    aliases = Aliases()
    aliases.learn("File /home/bob/train.py")
    assert aliases("/scratch/bob of bob, not bobby") == "/scratch/user-1 of user-1, not bobby"


def test_a_thousand_hosts_of_one_network_keep_their_numbers():
    names = [f"n{number:04}" for number in range(1, 1001)]
    aliases = Aliases(names)
    assert aliases("n0001 n0997 n[0001-0997]") == "host-1 host-997 host-[1-997]"
    addresses = [aliases(f"10.{number // 250}.7.{number % 250 + 1}") for number in range(1000)]
    assert len(set(addresses)) == 1000


def test_nothing_known_changes_nothing():
    assert Aliases()("node-1 of 8 ranks failed") == "node-1 of 8 ranks failed"


def test_recordings_use_the_same_words(tmp_path):
    clean, host = recording.cleaner(tmp_path), socket.gethostname().partition(".")[0]
    assert clean(f"{tmp_path}/rank0.log 10.1.2.3") == "/case/run/rank0.log 10.0.0.1"
    word = host if host == "localhost" else "host-1"
    assert clean(f"{host}:7186 and {host}") == f"{word}:7186 and {word}"


LOOKS = {
    "gpunode17:123:456 [0] NCCL WARN no GPUNODE-18": "host-2:123:456 [0] NCCL WARN no host-1",
    "trainer.acme-corp.com<29500> refused it": "host-1<29500> refused it",
    "compute-0-17 nid001234 dgx-a12-03 login03.cluster": "host-1 host-4 host-2 host-3",
    "/data/users/alice/x.py of alice, /data/users/bob": "/data/users/user-1/x.py of user-1, /data/users/user-2",
    "/lustre/acme/vision/x.py /work/train.py": "/lustre/folder-1/folder-2/x.py /work/train.py",
    "/mnt/acme/env/lib/torch/x.py": "/mnt/folder-1/env/lib/torch/x.py",
    "s3://acme-models/a gs://acme_data/b": "s3://bucket-1/a gs://bucket-2/b",
    "https://acme-logs.s3.us-east-1.amazonaws.com/a": "https://bucket-1.s3.us-east-1.amazonaws.com/a",
    "ask a.person@acme-corp.com": "ask user-1@host",
    "hdfs://nn1.acme.net:8020/a tcp://node7.acme.net:29500": "hdfs://host-1:8020/a tcp://host-2:29500",
}
"""What only messages name, and what a report shows instead."""
STAYS = """
gpu0 GPU 3 node1 rank3 worker12 n_gpus8 nodes2 nnodes=2 gpus_per_node8 sm90 H100 mlx5_0 bond0.100 step100
torch.nn.parallel.distributed libnccl.so.2.28.9 train.py:67 misc/socket.cc:49 python3.11/site-packages/torch/x.py
https://pytorch.org/docs https://github.com/pytorch/pytorch/issues/1 git@github.com nvcr.io/nvidia/pytorch:25.09-py3
ncclkit-0.2.0.dev1+cu128 NCCL version 2.28.9+cuda12.9 /opt/conda/lib/x.py /usr/lib/libc.so.6 self.host.net(x)
Recording tables_on_gpu_0
""".strip().splitlines()


@pytest.mark.parametrize("text", LOOKS)
def test_what_looks_like_a_name_goes(text):
    aliases = Aliases()
    aliases.learn(text)
    assert aliases(text) == LOOKS[text]
    assert aliases.replaced and not any(name in LOOKS[text].split() for name in aliases.replaced)


@pytest.mark.parametrize("text", STAYS)
def test_what_a_job_counts_and_what_everybody_knows_stays(text):
    aliases = Aliases()
    aliases.learn(text)
    assert aliases(text) == text


def test_a_name_in_capitals_is_the_same_host():
    assert Aliases(["atlas17"])("ATLAS17 and atlas17") == "host-1 and host-1"
