"""No secret leaves the agent, and nothing that a diagnosis needs is hidden."""

import json
import os
import subprocess
import sys

import pytest

from ncclkit.agent import redact
from tests.planted import MARK, PLANTED

SECRET = "s3cr3tPl4nt3d"
NAMES = """
    HF_TOKEN TORCH_HUB_TOKEN SLURM_JWT NCCL_API_KEY NCCL_APIKEY TORCH_AccessKey MASTER_PASSWORD MASTER_PASSWD NCCL_PASS
    FI_PASSPHRASE GLOO_SECRET gloo_secret_value UCX_CREDENTIALS UCX_CREDS TORCH_AUTH SLURM_AUTHORIZATION NCCL_COOKIE
    TORCH_SESSION_ID TORCH_PRIVATE_PEM FI_PAT FI_SAS TORCH_DSN NCCL_WEBHOOK_URL SLURM_BEARER db_pwd TORCH_SSHKEY
    wandbApiKey clientSecret NCCL_ENCRYPTION_KEYS TORCH_AWS_SECRET_ACCESS_KEY MASTER_KEY SLURM_OTP
""".split()
VALUES = [
    "https://user:{}@host/x",
    "https://{}@host",
    "redis://:{}@10.0.0.1:6379/0",
    "--password={}",
    "--api-key={} --lr=1",
    '{{"token": "{}"}}',
    "token:{}",
    "https://host/a?sig={}&x=1",
    "https://host/?access_key={}",
    "Bearer {}",
    "Authorization: Bearer {}",
    "hf_{}",
    "ghp_{}",
    "github_pat_{}",
    "sk-{}",
    "glpat-{}",
    "xoxb-{}",
    "AKIA{}",
    "eyJhbGciOiJI.{}.abc",
    "-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----",
]
HARMLESS = {
    "NCCL_IB_PKEY": "0x7fff",
    "NCCL_SOCKET_IFNAME": "^docker,lo",
    "NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1",
    "UCX_TLS": "rc",
    "NCCL_PROXY_DUMP_SIGNAL": "10",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
    "NCCL_TOPO_FILE": "/etc/topo.xml",
    "LD_LIBRARY_PATH": "/opt/nccl/lib:/usr/lib",
    "MASTER_ADDR": "node-1.cluster",
    "SLURM_JOB_NODELIST": "node-[1-8]",
    "TORCH_CUDA_ARCH_LIST": "9.0a",
    "storage": "10.0.0.1@tcp:10.0.0.2@tcp:/scratch",
    "CUDA_VISIBLE_DEVICES": "0,1",
    "frameworks": {"tokenizers": "0.22.1", "transformers": "4.57"},
}
ORDINARY = """
node-1:7186:7190 [3] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer node-2.cluster<43210>
node-1:7186:7186 [3] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth0.
wait timeout after 300000ms, keys: /default_pg/0//cuda//tcp_store
Timed out in store based barrier on rank: 1, for key: store_based_barrier_key:1 (world_size=2)
RuntimeError: torch::get(key: default_pg/0//0, timeout: 300s)
step 10 loss=2.31 tokens/s: 41234 tokens=4096 num_tokens: 8192
self._close(death_sig=death_sig, timeout=timeout)
auth=None token=false password: null
tcp://10.0.0.1:29500 https://github.com/pytorch/pytorch/issues/1#x file:///tmp/rdzv@2 git+ssh pip @ file
train.py --tokenizer /data/llama --tokens 4096 --user alice --sk-learn
hf_transformer_engine disk-1234567890 sk-learn-contrib /t/longer/path/than/ten
""".strip().splitlines()
CONTEXTS = [
    "ValueError: bad setting {}={} in config.yaml",
    "  File \"train.py\", line 3, in <module>: os.environ['{}'] = '{}'",
    'docker run -e {}="{}" image',
]


@pytest.mark.parametrize("name", NAMES)
def test_names(name):
    assert len(NAMES) >= 30
    assert redact.clean(SECRET, name) == "[redacted]"
    assert redact.clean({name: [SECRET]}) == {name: ["[redacted]"]}


@pytest.mark.parametrize("value", VALUES)
def test_values(value):
    assert SECRET not in redact.clean(value.format(SECRET), "NCCL_DEBUG_FILE")


@pytest.mark.parametrize("name", PLANTED)
def test_spellings_of_real_clusters(name):
    value = PLANTED[name]
    assert MARK not in str(redact.clean({name: value}))
    assert MARK not in str(redact.clean([{"name": f"env.{name}", "value": value}]))
    assert MARK not in json.dumps(redact.clean({"nested": [{"environ": {name: value}}]}))


@pytest.mark.parametrize("name", [name for name in PLANTED if " " not in PLANTED[name] and "{" not in PLANTED[name]])
@pytest.mark.parametrize("context", CONTEXTS)
def test_in_the_middle_of_a_text(context, name):
    line = redact.text(context.format(name, PLANTED[name]))
    assert MARK not in line and line[:6] == context[:6]


@pytest.mark.parametrize("name", PLANTED)
def test_what_is_replaced_keeps_lines_and_json_and_stays_replaced(name):
    value = PLANTED[name]
    document = json.dumps({name: value, "command": f'run --token {value.split()[0]} "{value}" x'})
    once = redact.text(document)
    assert set(json.loads(once)) == {name, "command"}
    assert redact.text(once) == once
    assert redact.text(value).count("\n") == value.count("\n")


def test_harmless_settings_stay():
    assert redact.clean(HARMLESS) == HARMLESS


@pytest.mark.parametrize("line", ORDINARY)
def test_ordinary_lines_stay(line):
    assert redact.text(line) == line


def test_a_private_key_that_was_torn_goes_as_far_as_it_reaches():
    body = ("A" * 60 + "\n") * 20
    assert redact.text(f"a\n-----BEGIN RSA PRIVATE KEY-----\n{body}b").split("\n")[-1] == "b"
    assert "AAAA" not in redact.text(f"-----BEGIN PRIVATE KEY-----\n{body}")


def test_what_this_environment_holds_is_known_wherever_it_turns_up():
    """By its value alone; a path, a number and a plain word are no secrets whatever their variable is called."""
    own = {"MY_TOKEN": "vX9qTeLm2", "TWO_KEYS": "first7line8\nsecond7line8"}
    words = {"XDG_SESSION_ID": "12", "AUTH_HOST": "localhost", "SSH_AUTH_SOCK": "/tmp/ssh-1/agent.17"}
    code = "import sys; from ncclkit.agent import redact; print(redact.text(sys.stdin.read()))"
    said = "got vX9qTeLm2, second7line8\n12 localhost /tmp/ssh-1/agent.17"
    env = os.environ | own | words
    run = subprocess.run([sys.executable, "-c", code], env=env, input=said, capture_output=True, text=True)
    assert run.stdout == "got [redacted], [redacted]\n12 localhost /tmp/ssh-1/agent.17\n", run.stderr


def test_a_file_keeps_its_lines_and_all_else(tmp_path):
    clean, dirty = b"a\r\n\xff\x00 b\n", f"x\npassword={MARK}\n{PLANTED['TLS_KEY_PEM']}\ny".encode()
    for name, raw in (("clean", clean), ("dirty", clean + dirty)):
        (tmp_path / name).write_bytes(raw)
        redact.file(str(tmp_path / name))
    assert (tmp_path / "clean").read_bytes() == clean
    cleaned = (tmp_path / "dirty").read_bytes()
    assert MARK.encode() not in cleaned and cleaned.startswith(clean) and cleaned.endswith(b"\ny")
    assert cleaned.count(b"\n") == (clean + dirty).count(b"\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clean", "dirty"]


def test_hostile_text_costs_no_more_than_its_length():
    """What nearly matches, very often: a pattern that starts over each time would not end before the deadline."""
    for piece in (
        "://a:",
        "-----BEGIN PRIVATE KEY-----",
        "token=" + '"' * 3,
        "cookie: ",
        "--" + "x" * 50,
        "A_KEY set to ",
    ):
        redact.text(piece * 20_000)


def test_nothing_planted_in_the_environment_comes_out(tmp_path):
    """A real agent in a real process: facts and recording, searched as bytes."""
    planted = dict.fromkeys(NAMES, SECRET) | {f"NCCL_X{n}": v.format(SECRET) for n, v in enumerate(VALUES)}
    code = (
        "import json, sys; from ncclkit.agent import facts\n"
        "for fact in facts.collect(torch=False, paths={'work': '.'}): print(json.dumps(fact))\n"
        "from tests.record.machine import record; record(sys.argv[1], torch=False)"
    )
    command, env = [sys.executable, "-c", code, str(tmp_path / "m")], os.environ | planted
    run = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True)
    names = {json.loads(line)["name"] for line in run.stdout.splitlines()}
    assert {"env.SLURM_JWT", "env.NCCL_X0"} <= names and "env.HF_TOKEN" not in names
    written = [path.read_text() for path in (tmp_path / "m").rglob("*") if path.is_file()]
    assert SECRET not in run.stdout + run.stderr + "".join(written)
