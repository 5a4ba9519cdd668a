"""Secrets as logs, commands, settings and messages spell them: (what it is, text, what of it must never be shown).

The spellings were written down from the documentation of the programs, none is a real secret.
"""

from __future__ import annotations

import hashlib
import json
import string
from collections.abc import Iterator

LOWER, MIXED = string.digits + "abcdef", string.ascii_letters + string.digits


def _body(seed: str, length: int, alphabet: str = MIXED) -> str:
    """Characters that look random and are the same in every run."""
    stream = b"".join(hashlib.sha256(f"{seed} {turn}".encode()).digest() for turn in range(length // 32 + 1))
    return "".join(alphabet[byte % len(alphabet)] for byte in stream[:length])


FORMS = {
    "Hugging Face": "hf_" + _body("hf", 34),
    "GitHub": "ghp_" + _body("gh", 36),
    "GitHub, fine-grained": "github_pat_" + _body("ghf", 22) + "_" + _body("ghg", 59),
    "GitLab": "glpat-" + _body("gl", 20),
    "GitLab, deploy": "gldt-" + _body("gld", 20),
    "GitLab, runner": "glrt-" + _body("glr", 20),
    "OpenAI": "sk-proj-" + _body("oa", 48),
    "Anthropic": "sk-ant-api03-" + _body("an", 90) + "AA",
    "Slack, bot": "xoxb-" + _body("s1", 12, string.digits) + "-" + _body("s2", 24),
    "NVIDIA NGC": "nvapi-" + _body("ngc", 60),
    "Docker": "dckr_pat_" + _body("dk", 27),
    "PyPI": "pypi-AgEIcHlwaS5vcmc" + _body("pp", 120),
    "npm": "npm_" + _body("npm", 36),
    "AWS, key id": "AKIA" + _body("aws", 16, string.ascii_uppercase + "234567"),
    "Google": "AIza" + _body("goo", 35),
    "Google, refreshed": "ya29." + _body("gor", 80),
    "Databricks": "dapi" + _body("db", 32, LOWER),
    "SendGrid": f"SG.{_body('sg', 22)}.{_body('sh', 43)}",
    "Vault": "hvs." + _body("hv", 90),
    "Vault, batch": "hvb." + _body("hb", 120),
    "age": "AGE-SECRET-KEY-1" + _body("age", 58, "QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L"),
    "Fernet token": "gAAAAAB" + _body("fn", 93),
    "MUNGE credential": "MUNGE:" + _body("mu", 160, MIXED + "+/") + "==:",
    "JSON web token": f"eyJ{_body('j1', 30)}.eyJ{_body('j2', 40)}.{_body('j3', 43)}",
    "Stripe": "sk_live_" + _body("st", 24),
    "Stripe, restricted": "rk_live_" + _body("sr", 24),
    "Square": "sq0csp-" + _body("sq", 43),
    "Mailchimp": _body("mc", 32, LOWER) + "-us17",
    "Telegram bot": _body("tg", 9, "123456789") + ":" + _body("th", 35),
    "Twilio": "SK" + _body("tw", 32, LOWER),
    "Artifactory": "AKC" + _body("ak", 70),
    "Replicate": "r8_" + _body("r8", 37),
    "Groq": "gsk_" + _body("gq", 52),
    "DigitalOcean": "dop_v1_" + _body("do", 64, LOWER),
    "Grafana": "glsa_" + _body("gf", 32) + "_" + _body("gg", 8, LOWER),
    "Doppler": "dp.pt." + _body("dp", 43),
    "Linear": "lin_api_" + _body("li", 40),
    "New Relic": "NRAK-" + _body("nr", 27, string.ascii_uppercase + string.digits),
    "Shopify": "shpat_" + _body("sp", 32, LOWER),
    "Comet or W&B in a netrc": "machine api.wandb.ai\n  login user\n  password " + _body("nt", 40, LOWER),
}
"""What a key looks like where nothing beside it says that it is one."""

W, P = _body("wandb", 40, LOWER), "hunter2Zq9vX"
SPELLINGS = f"""
Password for user: {P}
Enter passphrase for key '/home/alice/.ssh/id_ed25519': {P}
kaggle key: {W[:32]}
my wandb key is {W}
wandb login {W}
'password': b'{P}'
password=b'{P}'
self.token = rb"{P}"
api_token: str = "{P}"
hub_token: str | None = '{P}'
login as alice with password {P}
wandb login --relogin {W}
wandb login --host=https://wandb.corp.example {W}
wandb.login(key="{W}")
wandb.login(anonymous="never", key='{W}')
wandb.login("{W}")
login(token="{P}")
huggingface-cli login --token {P}
hf auth login --token={P}
python train.py --wandb_api_key {W}
python train.py --wandb-api-key {W}
python train.py --wandb_key {W}
python train.py --hub_token {P} --lr 0.1
python train.py --hf_token={P}
python train.py --use_auth_token {P}
docker login -u alice -p {P} registry.example
docker login --username alice --password {P}
docker login --password "{P}" registry.example
podman login -u alice -p '{P}' quay.example
apptainer remote login --password={P} library
helm registry login -u alice -p {P} registry.example
mysql -u root -p{P} runs
mysql --user=root --password={P} runs
mysqldump -uroot -p{P} runs
psql "host=db user=alice password={P} dbname=runs"
PGPASSWORD={P} psql -h db
redis-cli -a {P} ping
redis-cli -h cache --pass {P}
mongosh --username alice --password {P}
sshpass -p {P} ssh node-1
sshpass -p'{P}' ssh node-1
sudo -S <<< "password: {P}"
curl -u alice:{P} https://example.org
curl -ualice:{P} https://example.org
curl --user alice:{P} https://example.org
curl --user=alice:{P} https://example.org
curl --proxy-user alice:{P} https://example.org
curl -U alice:{P} https://example.org
curl -H "Authorization: Bearer {P}" https://example.org
curl -H 'X-Api-Key: {P}' https://example.org
curl -H "PRIVATE-TOKEN: {P}" https://gitlab.example
curl -H "X-Vault-Token: {P}" https://vault.example
curl -H "X-Auth-Token:{P}" https://swift.example
wget --password={P} ftp://alice@example.org/x
wget --http-password={P} https://example.org/x
wget --header="Authorization: token {P}" https://example.org
aws configure set aws_secret_access_key {P}
aws_secret_access_key = {P}
aws_session_token={P}
az login --service-principal -u app -p {P} --tenant t
az storage blob list --account-key {P}
az storage blob list --sas-token "{P}"
gsutil -o "Credentials:gs_secret_access_key={P}" ls
mc alias set store https://minio.example alice {P}
rclone config create s3 s3 secret_access_key={P}
s3cmd --secret_key={P} ls
kubectl config set-credentials me --token={P}
kubectl create secret generic db --from-literal=password={P}
kubectl create secret docker-registry r --docker-password={P}
export DB_PASS={P}
export DB_PASS="{P}"
DB_PASSWORD='{P}'
export GH_PAT={P}
export GITHUB_PAT="{P}"
export AZURE_DEVOPS_EXT_PAT={P}
export WANDB_API_KEY={W}
export COMET_API_KEY={P}
export NEPTUNE_API_TOKEN={P}
export CLEARML_API_SECRET_KEY={P}
export MLFLOW_TRACKING_PASSWORD={P}
export KAGGLE_KEY={P}
export HF_TOKEN={P}
export HUGGING_FACE_HUB_TOKEN={P}
export OPENAI_API_KEY={P}
export NGC_CLI_API_KEY={P}
export RAY_AUTH_TOKEN={P}
export SLURM_JWT={P}
export JUPYTER_TOKEN={P}
export VAULT_TOKEN={P}
export ANSIBLE_VAULT_PASSWORD={P}
export SMTP_PASS={P}
export AZURE_CLIENT_SECRET={P}
export ARM_CLIENT_SECRET={P}
export LDAP_BIND_PW={P}
export ADMIN_PW={P}
setenv DB_PASS {P}
setenv WANDB_API_KEY {W}
set -x HF_TOKEN {P}
ENV DB_PASS {P}
#SBATCH --export=ALL,WANDB_API_KEY={W}
srun --export=ALL,HF_TOKEN={P} python train.py
docker run -e WANDB_API_KEY={W} image
docker run --env HF_TOKEN={P} image
docker run --build-arg TOKEN={P} image
enroot import docker://$oauthtoken:{P}@nvcr.io#nvidia/pytorch
git clone https://alice:{P}@git.example/x.git
git clone https://oauth2:{P}@gitlab.example/x.git
git clone https://{P}@github.com/x/y.git
pip install --index-url https://me:{P}@pypi.example/simple x
pip install --extra-index-url=https://__token__:{P}@pypi.example/simple x
Looking in indexes: https://me:{P}@pypi.example/simple
conda config --add channels https://conda.example/t/{P}/main
twine upload -u __token__ -p {P} dist/x.whl
jupyter lab --IdentityProvider.token={P}
jupyter lab --NotebookApp.token='{P}'
    http://node-1:8888/lab?token={P}
http://127.0.0.1:8888/?token={P}
http://127.0.0.1:6006/?access_token={P}&run=1
https://store.example/b?X-Amz-Signature={P}&X-Amz-Date=1
https://store.example/b?sv=2022&sig={P}
https://api.example/v1?api_key={P}
https://api.example/v1?apikey={P}
https://api.example/v1?key={P}
https://api.example/v1?client_secret={P}
https://example.org/reset?code=1&password={P}
POST https://hooks.slack.com/services/T01ABCDEF/B01ABCDEF/{P}
POST https://discord.com/api/webhooks/123456789012345678/{P}
POST https://outlook.office.com/webhook/{P}
POST https://corp.webhook.office.com/webhookb2/{P}
POST https://api.telegram.org/bot123456789:{P}/sendMessage
POST https://open.feishu.cn/open-apis/bot/v2/hook/{P}
POST https://oapi.dingtalk.com/robot/send?access_token={P}
POST https://qyapi.weixin.qq.com/cgi-bin/webhook/send?key={P}
POST https://maker.ifttt.com/trigger/done/with/key/{P}
POST https://hooks.zapier.com/hooks/catch/123456/{P}
POST https://chat.googleapis.com/v1/spaces/A/messages?key=a&token={P}
password:                 {P}
password: {P}
Password : {P}
passwd={P}
password is {P}
password = "{P}"
password => '{P}'
password := {P}
the password is: {P}
Enter password: {P}
pass: {P}
passphrase: {P}
pw={P}
pwd={P}
secret: {P}
client_secret: {P}
secret_key={P}
secretKey: "{P}"
apikey: {P}
api-key: {P}
api key: {P}
API KEY = {P}
apiToken: {P}
access_token={P}
refresh_token: "{P}"
id_token={P}
auth_token: {P}
authToken={P}
bearer {P}
Bearer: {P}
Authorization: Basic {P}
Authorization: token {P}
authorization: "Digest {P}"
Proxy-Authorization: Basic {P}
Cookie: session={P}; theme=dark
Set-Cookie: _xsrf={P}; Path=/
X-Amz-Security-Token: {P}
x-api-key={P}
//registry.npmjs.org/:_authToken={P}
_auth = {P}
machine git.example login alice password {P}
machine api.wandb.ai login user password {W}
DefaultEndpointsProtocol=https;AccountName=x;AccountKey={P}==;EndpointSuffix=y
Endpoint=sb://x.servicebus.example/;SharedAccessKeyName=k;SharedAccessKey={P}=
Server=db;Database=runs;User Id=alice;Password={P};
Server=db;Uid=alice;Pwd={P};
jdbc:postgresql://db/runs?user=alice&password={P}
postgresql://alice:{P}@db:5432/runs
postgresql+psycopg2://alice:{P}@db/runs
mysql+pymysql://alice:{P}@db/runs
mongodb+srv://alice:{P}@cluster.example/x
redis://:{P}@cache:6379/0
rediss://default:{P}@cache:6380
amqp://alice:{P}@queue:5672/v
ftp://alice:{P}@files.example/x
smb://corp;alice:{P}@files/x
ldap://cn=admin:{P}@ldap.example
https://{P}@o1.ingest.sentry.example/2
AccessKeyId: {P}
encryption_key={P}
signing-key: {P}
ssh_key = {P}
private_key_id: {P}
license_key: {P}
storage_key={P}
master key: {P}
""".strip("\n").splitlines()
"""A line each: the text, in which `P` or `W` is the secret."""

LISTS = ("--hf-token", "--password", "--wandb_api_key", "--api-key", "--client-secret", "--auth-token", "--passphrase")
NAMES = (
    "DB_PASSWORD",
    "WANDB_API_KEY",
    "GH_PAT",
    "SMTP_PASS",
    "clientSecret",
    "HF_TOKEN",
    "SLURM_JWT",
    "AWS_SECRET_ACCESS_KEY",
)


def lines() -> Iterator[tuple[str, str, str]]:
    """Every secret in one line: alone, in the message of a log, and named by lists and objects of settings."""
    for text in SPELLINGS:
        yield text, text, W if W in text else P
    for kind, key in FORMS.items():
        for frame in (
            "got {} from the environment",
            "[rank3]: ValueError: '{}' was refused",
            '{{"message": "using {}"}}',
        ):
            yield f"{kind}: {frame}", frame.format(key.replace("\n", " ")), key.split()[-1].strip(":=")
    for option in LISTS:
        yield f"a list, {option}", f"command: ['python', 'train.py', '{option}', '{P}', '--lr', '0.1']", P
        yield f"a list in JSON, {option}", json.dumps({"argv": ["train.py", option, P, "--lr"]}), P
        yield f"quoted, {option}", f'srun python train.py {option} "{P}" --lr 0.1', P
    for name in NAMES:
        yield f"a row, {name}", json.dumps({"name": name, "value": P}), P
        yield f"a row of YAML, {name}", f"- {{name: {name}, value: {P}}}", P
        yield f"a row with more, {name}", json.dumps({"name": name, "type": "plain", "value": P}), P
        yield f"environ, {name}", f"environ({{'PATH': '/bin', {name!r}: {P!r}}})", P
        yield f"a pair, {name}", f"[({name!r}, {P!r}), ('PATH', '/bin')]", P


def torn() -> Iterator[tuple[str, list[str], str]]:
    """A secret over several lines of a file, each with the prefix of a launcher: (what it is, lines, what must go)."""
    body = [_body(f"line {n}", 64, MIXED + "+/") for n in range(6)]
    for kind in ("RSA PRIVATE KEY", "OPENSSH PRIVATE KEY", "EC PRIVATE KEY", "PRIVATE KEY"):
        for prefix in ("", "[rank3]: ", "3: ", "node-1: ", "[1,3]<stdout>:", "2026-11-23 10:00:00,123 - INFO - "):
            key = [f"-----BEGIN {kind}-----", *body, f"-----END {kind}-----"]
            yield f"{kind} after {prefix!r}", [prefix + line for line in key], "|".join(body)
