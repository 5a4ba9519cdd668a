"""No secret leaves the agent, and nothing that a diagnosis needs is hidden."""

import json
import os
import subprocess
import sys

import pytest

from ncclkit.agent.facts import redact

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
}


@pytest.mark.parametrize("name", NAMES)
def test_names(name):
    assert len(NAMES) >= 30
    assert redact.clean(SECRET, name) == "[redacted]"
    assert redact.clean({name: [SECRET]}) == {name: ["[redacted]"]}


@pytest.mark.parametrize("value", VALUES)
def test_values(value):
    assert SECRET not in redact.clean(value.format(SECRET), "NCCL_DEBUG_FILE")


def test_harmless_settings_stay():
    assert redact.clean(HARMLESS) == HARMLESS


def test_nothing_planted_in_the_environment_comes_out(tmp_path):
    """A real agent in a real process: facts and recording, searched as bytes."""
    planted = dict.fromkeys(NAMES, SECRET) | {f"NCCL_X{n}": v.format(SECRET) for n, v in enumerate(VALUES)}
    code = (
        "import json, sys; from ncclkit.agent import facts\n"
        "for fact in facts.collect(torch=False, paths={'work': '.'}): print(json.dumps(fact))\n"
        "facts.record(sys.argv[1], torch=False)"
    )
    command, env = [sys.executable, "-c", code, str(tmp_path / "m")], os.environ | planted
    run = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True)
    names = {json.loads(line)["name"] for line in run.stdout.splitlines()}
    assert {"env.SLURM_JWT", "env.NCCL_X0"} <= names and "env.HF_TOKEN" not in names
    written = [path.read_text() for path in (tmp_path / "m").rglob("*") if path.is_file()]
    assert SECRET not in run.stdout + run.stderr + "".join(written)
