"""No spelling of a secret reaches a case, a report or a terminal; what only looks like one stays."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from ncclkit import evidence
from ncclkit.agent import redact
from ncclkit.core import secrets
from ncclkit.core.case import Case
from ncclkit.evidence import logs
from tests.hostile.secrets import lines, torn

ROOT = Path(__file__).parents[2]
HIDDEN = re.compile(r"\[redacted\]")
SPELLINGS = list(lines())


def test_there_are_many_spellings():
    assert len(SPELLINGS) >= 300 and len({text for _, text, _ in SPELLINGS}) == len(SPELLINGS)


def test_no_spelling_is_shown():
    shown = {what: said for what, text, secret in SPELLINGS if secret in (said := secrets.text(text))}
    assert shown == {}


def test_what_is_replaced_stays_replaced_and_keeps_its_line():
    for _, text, _ in SPELLINGS:
        once = secrets.text(text)
        assert secrets.text(once) == once and once.count("\n") == text.count("\n")


@pytest.mark.parametrize(
    ("what", "key", "parts"), list(torn()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_key_over_several_lines_is_not_shown_in_part(tmp_path, what, key, parts):
    """Neither where the whole key is at hand nor where a line of it is quoted alone."""
    (tmp_path / "log").write_text("before\n" + "\n".join(key) + "\nafter\n")
    redact.file(str(tmp_path / "log"))
    cleaned = (tmp_path / "log").read_text()
    assert not re.search("|".join(map(re.escape, parts.split("|"))), cleaned)
    assert cleaned.startswith("before\n") and cleaned.endswith("\nafter\n") and cleaned.count("\n") == len(key) + 2
    assert [line for line, part in zip(key[1:], parts.split("|"), strict=False) if part in secrets.text(line)] == []


def test_a_case_of_such_lines_holds_none(tmp_path):
    """Each spelling in an error of a rank, a warning of NCCL and a traceback: all is cited, none is shown."""
    said = [text for _, text, _ in SPELLINGS]
    (tmp_path / "train.log").write_text(
        "".join(f"[rank0]: RuntimeError: NCCL error: unhandled system error: {text}\n" for text in said)
        + "".join(f"node-1:7186:7190 [0] NCCL WARN Call to connect failed: {text}\n" for text in said)
        + "".join(f"Traceback (most recent call last):\n  File 'x.py', line 1\nOSError: {text}\n" for text in said)
    )
    case = Case.open(tmp_path / "case")
    logs.fill(case, evidence.read([tmp_path / "train.log"]))
    case.save()
    assert len(case.events) > len(said)
    texts = "\n".join(f"{event.text} {event.data}" for event in case.events)
    files = b"".join(path.read_bytes() for path in (tmp_path / "case").rglob("*") if path.is_file())
    assert [what for what, _, secret in SPELLINGS if secret in texts or secret.encode() in files] == []


def test_healthy_logs_lose_nothing():
    """Hashes of commits, digests of images, ids of communicators and GPUs stay: one line in 2,000 is the most."""
    plain = [path for path in (ROOT / "tests" / "specimens").rglob("*") if path.is_file()]
    packed = (ROOT / "ncclkit" / "evidence" / "samples").rglob("*.gz")
    texts = [*(path.read_bytes() for path in plain), *(gzip.decompress(path.read_bytes()) for path in packed)]
    own = {line for text in texts for line in text.decode(errors="replace").splitlines()}
    touched = [line for line in own if HIDDEN.search(secrets.text(line)) and not HIDDEN.search(line)]
    assert len(own) > 5_000 and len(touched) <= len(own) / 2_000, touched[:20]


IDS = """
commit 4b825dc642cb6eb9a060e54bf8d69288fbee4904 (HEAD -> main, origin/main)
wandb: run abc1def2, git commit 4b825dc642cb6eb9a060e54bf8d69288fbee4904
sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855 nvcr.io/nvidia/pytorch:25.09-py3
GPU-8b6d0a3c-1f2e-4d5c-9b7a-0123456789ab NVIDIA H200 (UUID: GPU-8b6d0a3c-1f2e-4d5c-9b7a-0123456789ab)
ncclCommInitRank comm 0x55d5c8a7b2f0 rank 0 nranks 2 cudaDev 0 busId 1b000 commId 0x9f3c2a1b4d5e6f70 - Init COMPLETE
node-1:7186:7190 [0] NCCL INFO Channel 00/32 : 0 1 2 3 4 5 6 7
forward pass: 12.5 ms, backward pass=24.1 ms, pass: 1/3, passes=3 path=/data/a password_file=None
python train.py --sort-key loss --cache-key v1 --max-token 4096 --tokens 4096 --pass-rate 0.5 --text_key content
MLX5_0 port_guid 0x946dae0300d0f8b2 gid fe80:0000:0000:0000:946d:ae03:00d0:f8b2 pkey 0xffff
srun: job 12345 queued and waiting for resources [me@login ~]$ srun -p gpu2 -N1 hostname
Password for user root: authentication failed
fatal: could not read Password for 'https://github.com': terminal prompts disabled
store: set store_based_barrier_key to 3; the token is invalid; the password is wrong
_ZN3c104cuda20CUDACachingAllocator9allocatedEi libtorch_cuda_abcdefghij1234567890abcdefghij1234567890.so.2
""".strip().splitlines()


@pytest.mark.parametrize("line", IDS)
def test_ids_and_options_stay(line):
    assert secrets.text(line) == line
