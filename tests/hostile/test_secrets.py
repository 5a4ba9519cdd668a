"""No spelling of a secret reaches a case, a report or a terminal; what only looks like one stays."""

from __future__ import annotations

import gzip
import json
import random
import re
from pathlib import Path

import pytest

from ncclkit import evidence
from ncclkit.agent import redact
from ncclkit.core import secrets
from ncclkit.core.case import Case
from ncclkit.evidence import logs
from tests.hostile.secret_products import KINDS, named, over_lines
from tests.hostile.secrets import lines, torn

ROOT = Path(__file__).parents[2]
HIDDEN = re.compile(r"\[redacted\]")
SPELLINGS = list(lines())


def test_there_are_many_spellings():
    assert len(SPELLINGS) >= 300 and len({text for _, text, _ in SPELLINGS}) == len(SPELLINGS)


def test_no_spelling_is_shown():
    shown = {what: said for what, text, secret in SPELLINGS if secret in (said := secrets.text(text))}
    assert shown == {}


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=pytest.mark.slow if kind is named else ()) for kind in KINDS],
    ids=lambda kind: kind.__name__,
)
def test_no_product_of_spellings_is_shown(kind):
    """Names × languages × separators × quotes × carriers, commands × ways to write words, and so on: 110,000."""
    shown = {what: said for what, text, secret in kind() if secret in (said := secrets.text(text))}
    assert shown == {}


def test_the_products_are_large():
    assert sum(1 for kind in KINDS for _ in kind()) > 100_000


SOME = random.Random(41).sample([one for kind in KINDS for one in kind()], 3000)


def test_some_of_each_stay_replaced_and_keep_their_lines():
    for _, text, secret in SOME:
        once = secrets.text(text)
        assert secret not in once and secrets.text(once) == once
        assert once.count("\n") == text.count("\n") and once.count("\0") == text.count("\0")


def test_a_secret_over_lines_is_not_in_the_file_of_a_run(tmp_path):
    for number, (what, text, secret) in enumerate(over_lines()):
        log = tmp_path / f"{number}.log"
        log.write_text(f"before\n{text}\nafter\n")
        redact.file(str(log))
        cleaned = log.read_text()
        assert secret not in cleaned, what
        assert cleaned.startswith("before\n") and cleaned.endswith("\nafter\n"), what
        assert cleaned.count("\n") == text.count("\n") + 3, what


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
    spellings = [*SPELLINGS, *(row for row in SOME[:300] if "\0" not in row[1]), *over_lines()]
    said = [text for _, text, _ in spellings]
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
    assert [what for what, _, secret in spellings if secret in texts or secret.encode() in files] == []


def test_logs_of_others_lose_nothing():
    """Jobs that went well, and the questions of the exam: what looks like a secret there is told apart."""
    files = [*(ROOT / "tests" / "healthy").glob("*.json"), *(ROOT / "tests" / "exam").rglob("*.json")]
    texts = [json.loads(path.read_text())["log"] for path in files]
    touched = [line for text in texts for line in text.splitlines() if secrets.text(line) != line]
    assert len(texts) > 200 and touched == ["      POSTGRES_PASSWORD: example"]


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
Decode batch. #running-req: 4, #token: 4263, #new-token: 7, token usage: 0.01, time_per_token="24.9ms"
the eos_token is '<|endoftext|>', the pad token is 128009, the token is None, the secret is out, a key is missing
| key | value | | max_token | 131072 | tokens  131072 pass  1/3 token  count num_tokens: 8192 password  required
mistralai/Mixtral8x7B@main actions/Checkout4Deep2@v4 10.0.0.1@tcp:/scratch/Xy12Ab34 /home/a/Xy12Ab34@node-1 git@x:a/b
python serve.py --auth basic --key /etc/ssl/node-1.pem --key ~/x1.pem --cache-key v1 --auth-timeout 30 --pass-through
echo done 12 | tee log; echo 3 | sudo tee /proc/sys/vm/drop_caches; printf '1 2' | sort; sudo -S id <<< [redacted]
mysql -uroot -Druns; zip -r x.zip a; unzip x.zip; ldapsearch -x -b dc=x; smbclient -U alice //a/b; 7z a x.7z; 100%-3
('cuda', 'Float32') ['node-1', 'NVIDIA-H100-80GB'] ("gpt2", "GPT2LMHeadModel") ['python', 'train.py', '--lr', '0.1']
key: module.layer1.0.Conv2d_1a.weight key=worker0 for key: NCCLUniqueIdRank0Store keys: /default_pg key is model_3x3
docker run -p 8080:80 image; docker login registry.example; helm upload x -v 3; openssl version -a; vault status
<token>12</token> </s> name: worker value: 3 {"name": "lr", "value": 0.1} {"value": "abc", "name": "NCCL_DEBUG"}
login as alice from 10.0.0.1; account alice on node-1; password authentication failed; Senha; el has been; a parola.
密码错误 令牌过期 密钥长度 비밀번호를 입력하세요 mot de passe oublié hf_model_0001_0.pt api_org_settings
_ZN3c104cuda20CUDACachingAllocator9allocatedEi libtorch_cuda_abcdefghij1234567890abcdefghij1234567890.so.2
""".strip().splitlines()


@pytest.mark.parametrize("line", IDS)
def test_ids_and_options_stay(line):
    assert secrets.text(line) == line
