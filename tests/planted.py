"""Secrets in the spellings that clusters really hold, to be planted in an environment; none may come out anywhere."""

from __future__ import annotations

MARK = "pL4nt3d"
"""Stands in every secret, followed by two digits that tell which one leaked."""

_PEM = "-----BEGIN {0}PRIVATE KEY-----\n{1}AAAAB3NzaC1yc2EAAAADAQABAAAB\n{1}Zm9vYmFyYmF6\n-----END {0}PRIVATE KEY-----"
_SPELLINGS = {
    "WANDB_API_KEY": "{}0123456789abcdef0123456789abcdef",
    "HF_TOKEN": "hf_{}AbCdEfGhIjKlMnOpQrSt",
    "HUGGING_FACE_HUB_TOKEN": "hf_{}AbCdEfGhIjKlMnOpQrSt",
    "AWS_ACCESS_KEY_ID": "AKIA{}IOSFODNN7",
    "AWS_SECRET_ACCESS_KEY": "{}/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "AWS_SESSION_TOKEN": "FwoGZXIvYXdzE{}//////////wEaDA==",
    "GITHUB_TOKEN": "ghp_{}AbCdEfGhIjKlMnOpQrSt",
    "GITHUB_PAT": "github_pat_{}_AbCdEfGhIjKlMn",
    "CI_JOB_TOKEN": "glcbt-64_{}",
    "OPENAI_API_KEY": "sk-proj-{}-AbCdEf",
    "NGC_API_KEY": "nvapi-{}-AbCdEf",
    "SLURM_JWT": "eyJhbGciOiJIUzI1NiJ9.{}eyJzdWIiOiIx.c2lnbmF0dXJl",
    "PGPASSWORD": "{} with spaces",
    "MYSQL_PWD": "{}",
    "DATABASE_URL": "postgresql://trainer:{}@db-1.example.org:5432/runs?sslmode=require",
    "REDIS_URL": "redis://:{}@10.1.2.3:6379/0",
    "MONGO_DSN": "mongodb+srv://user:p@ss/{}@cluster0.example.net/db",
    "AZURE_STORAGE_CONNECTION_STRING": "DefaultEndpointsProtocol=https;AccountName=x;AccountKey={}==;EndpointSuffix=y",
    "AZURE_STORAGE_SAS": "?sv=2022-11-02&ss=b&srt=sco&se=2027-01-01T00:00:00Z&sig={}%3D",
    "PIP_INDEX_URL": "https://__token__:{}@pypi.example.org/simple",
    "PIP_EXTRA_INDEX_URL": "https://{}@gitlab.example.org/api/v4/projects/1/packages/pypi/simple",
    "CONDA_CHANNEL": "https://conda.example.org/t/xy-{}/channel",
    "KUBE_TOKEN": "eyJhbGciOiJSUzI1NiIsImtpZCI6Ik.{}.c2lnbmF0dXJl",
    "SSH_PRIVATE_KEY": _PEM.format("OPENSSH ", "{}"),
    "TLS_KEY_PEM": _PEM.format("RSA ", "{}"),
    "GOOGLE_SERVICE_JSON": '{{"type": "service_account", "private_key_id": "{0}", "private_key": '
    '"-----BEGIN PRIVATE KEY-----\\nMIIE{0}\\n-----END PRIVATE KEY-----\\n"}}',
    "DOCKER_AUTH_CONFIG": '{{"auths": {{"registry.example.org": {{"auth": "{}"}}}}}}',
    "SLACK_WEBHOOK": "https://hooks.slack.com/services/T0000000/B0000000/{}",
    "SENTRY_DSN": "https://{}@o1.ingest.sentry.example.org/2",
    "JUPYTER_COOKIE": "_xsrf=2|{}|abc; username-8888={}",
    "NCCL_NET_PLUGIN_SOURCE": "https://user:{}@artifacts.example.org/libnccl-net.so",
    "NCCL_X_SIGNED": "https://bucket.s3.amazonaws.com/a?X-Amz-Credential=AKIA{0}&X-Amz-Security-Token={0}&X-Amz-Signature={0}",
    "FI_X_HEADER": "Authorization: Basic dXNlcjp{}",
    "UCX_X_HEADER": "Authorization: ApiKey {}",
    "TORCH_X_ARGS": "--lr 0.1 --hf-token {} --password={} -u name:{}",
    "SLURM_X_NETRC": "machine git.example.org login me password {}",
    "GLOO_X_JSON": '{{"wandb": {{"api_key": "{}", "entity": "me"}}}}',
    "NCCL_X_REPR": "Namespace(hf_token='{}', lr=0.1)",
    "FI_X_YAML": "client-key-data: {}",
    "UCX_X_COOKIE": "Set-Cookie: session={}; Path=/",
    "NCCL_X_ESCAPED": '{{\\"token\\": \\"{}\\"}}',
    "TORCH_X_EXPORT": 'export WANDB_API_KEY="{}"',
}


def _filled(pattern: str, number: int) -> str:
    secret = f"{MARK}{number:02}"
    return pattern.format(*[secret] * 3)


PLANTED = {name: _filled(pattern, number) for number, (name, pattern) in enumerate(_SPELLINGS.items())}
"""Variable → value with a secret in it; some are secrets by their names, the others only by what they look like."""
