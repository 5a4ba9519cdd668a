"""Secrets as products: names × languages × separators × quotes × carriers, and more such.

Each yields (what it is, text, what of it must never be shown).  None is a real secret.
"""

from __future__ import annotations

import json
import shlex
import string
from collections.abc import Callable, Iterator
from itertools import cycle, product

from tests.hostile.secrets import LOWER, P, W, _body

Spelling = tuple[str, str, str]
PLAIN = "correcthorse"
NAMES = (
    *(
        "password",
        "Password",
        "passwd",
        "DB_PASSWORD",
        "db.password",
        "PGPASSWORD",
        "passphrase",
        "MYSQL_PWD",
    ),
    *(
        "api_key",
        "apiKey",
        "api-key",
        "API_KEY",
        "WANDB_API_KEY",
        "secret_access_key",
        "Fernet key",
        "encryption_key",
    ),
    *(
        "token",
        "HF_TOKEN",
        "authToken",
        "access_token",
        "client_secret",
        "SECRET",
        "credentials",
        "otp",
        "jwt",
    ),
)
LANGUAGES = {
    "Chinese": ("密码", "密碼", "口令", "访问令牌", "密钥"),
    "Japanese": ("パスワード", "トークン"),
    "Korean": ("비밀번호", "암호"),
    "Russian": ("пароль", "Пароль"),
    "Greek": ("κωδικός",),
    "Arabic": ("كلمة المرور",),
    "Hebrew": ("סיסמה",),
    "Hindi": ("पासवर्ड",),
    "Thai": ("รหัสผ่าน",),
    "German": ("Kennwort", "Passwort", "API-Schlüssel", "Zugangsschlüssel"),
    "French": ("mot de passe", "mot_de_passe", "clé API", "clé secrète"),
    "Spanish": ("contraseña", "contrasena", "clave secreta"),
    "Portuguese": ("senha", "chave de API"),
    "Italian": ("parola",),
    "Dutch": ("wachtwoord",),
    "Polish": ("hasło", "haslo"),
    "Turkish": ("şifre", "sifre"),
    "Swedish": ("lösenord",),
    "Danish": ("adgangskode",),
    "Norwegian": ("passord",),
    "Finnish": ("salasana",),
    "Czech": ("heslo",),
    "Hungarian": ("jelszó",),
    "Indonesian": ("kata sandi",),
    "Vietnamese": ("mật khẩu",),
}
SEPARATORS = ("=", " = ", ":", ": ", " : ", ":  ", " := ", " => ", " == ", "＝", "：", " ： ")
QUOTES = {
    "bare": "{}",
    "single": "'{}'",
    "double": '"{}"',
    "backtick": "`{}`",
    "curly": "“{}”",
    "corner": "「{}」",
    "bytes": "b'{}'",
    "raw": 'r"{}"',
    "three double": '"""{}"""',
    "three single": "'''{}'''",
    "SecretStr": "SecretStr('{}')",
    "a call": 'pydantic.SecretBytes(b"{}")',
}


def _json(times: int) -> Callable[[str], str]:
    def carry(text: str) -> str:
        for _ in range(times):
            text = json.dumps({"message": text}, ensure_ascii=False)
        return text

    return carry


CARRIERS: dict[str, Callable[[str], str]] = {
    "alone": str,
    "an error": "[rank3]: ValueError: cannot log in with {} (attempt 2)".format,
    "a log line": "2026-11-23 10:00:00,123 - INFO - train.py:3 - {}, lr=0.1".format,
    "syslog": "Nov 21 01:02:03 node-1 python[4711]: {}".format,
    "YAML": "  - {}".format,
    "a comment": "# {}".format,
    "Python": lambda text: repr([text, "PATH=/bin"]),
    "words with NUL": "python\0train.py\0{}\0--lr\00.1".format,
    "JSON": _json(1),
    "JSON in JSON": _json(2),
    "JSON, three times": _json(3),
}


def named() -> Iterator[Spelling]:
    """A telling name, in each language, before a value."""
    names = [("English", name) for name in NAMES]
    names += [(language, name) for language, known in LANGUAGES.items() for name in known]
    shapes = product(names, SEPARATORS, QUOTES.items(), CARRIERS.items())
    # behind a name even a plain word is a secret
    for ((language, name), separator, (quoting, quote), (carrier, carry)), secret in zip(
        shapes, cycle((P, PLAIN))
    ):
        text = carry(f"{name}{separator}{quote.format(secret)}")
        yield f"{language} {name!r}{separator!r}{quoting} in {carrier}", text, secret


def encoded() -> Iterator[Spelling]:
    """The same in a URL, in HTML and in JSON that escapes what HTML needs."""
    equals = ("%3D", "%3d", "%253D", "%3A", "%3A%20", "\\u003d", "&#61;")
    quotes = ("{}", "%22{}%22", "%27{}%27", "&quot;{}&quot;")
    for name, equal, quote in product(("token", "api_key", "password", "HF_TOKEN"), equals, quotes):
        if equal == "%3A%20" and quote == "{}":
            continue  # a blank between, as nobody encodes it alone
        yield f"{name}{equal}{quote}", f"GET /login?next=a%26{name}{equal}{quote.format(P)}%26x", P
    for name in ("token", "password"):
        for quote in ("&quot;", "&#34;", "&#39;"):
            yield f"{name} {quote}", f"<pre>{quote}{name}{quote}: {quote}{P}{quote}</pre>", P


FLAGS = (
    *(
        "--hf-token",
        "--password",
        "--wandb_api_key",
        "--api-key",
        "--client-secret",
        "--auth-token",
        "--passphrase",
    ),
    *(
        "--pw",
        "--pwd",
        "--pass",
        "--auth",
        "--key",
        "--otp",
        "--pat",
        "-password",
        "-token",
        "--kennwort",
    ),
    *("--db.password", "--mot_de_passe", "--trainer.hub-token"),
)
PROGRAMS = (
    ("docker", "login", "-u", "alice", "-p"),
    ("ldapsearch", "-x", "-D", "cn=admin", "-w"),
    ("ldapmodify", "-H", "ldap://x", "-w"),
    ("ipmitool", "-I", "lanplus", "-U", "admin", "-P"),
    ("zip", "-r", "-P"),
    ("unzip", "-P"),
    ("sqlcmd", "-S", "db", "-U", "sa", "-P"),
    ("bcp", "runs", "out", "x", "-P"),
    ("mosquitto_pub", "-h", "broker", "-u", "alice", "-P"),
    ("sshpass", "-p"),
    ("redis-cli", "-h", "cache", "-a"),
    ("mongosh", "-u", "alice", "-p"),
    ("cqlsh", "-u", "alice", "-p"),
    ("htpasswd", "-b", "users", "alice"),
    ("htpasswd", "-nb", "alice"),
    ("htpasswd", "-c", "-b", "users", "alice"),
    ("rabbitmqctl", "add_user", "alice"),
    ("wpa_passphrase", "lab"),
    ("vault", "login"),
    ("openssl", "enc", "-aes-256-cbc", "-k"),
)
ATTACHED = (
    ("mysql", "-u", "root", "-p{}"),
    ("7z", "a", "-p{}", "x.7z"),
    ("rar", "a", "-hp{}", "x.rar"),
    ("unzip", "-P{}", "x.zip"),
    ("smbclient", "-U", "alice%{}", "//files/x"),
    ("smbget", "-U", "corp/alice%{}", "smb://files/x"),
    ("curl", "-u", "alice:{}", "https://x"),
    ("curl", "-ualice:{}", "https://x"),
    ("openssl", "rsa", "-passin", "pass:{}"),
    ("python", "train.py", "--pw={}"),
    ("python", "train.py", "--key={}"),
    ("python", "train.py", "--auth={}"),
    ("sqlplus", "scott/{}@db"),
    ("env", "HF_TOKEN={}", "python"),
)
WORDS: dict[str, Callable[[list[str]], str]] = {
    "a shell": shlex.join,
    "quoted": lambda words: " ".join(word if word[0] == "-" else f'"{word}"' for word in words),
    "a list": repr,
    "a tuple": lambda words: repr(tuple(words)),
    "JSON": lambda words: json.dumps({"argv": words}),
    "JSON in JSON": lambda words: json.dumps({"line": json.dumps({"argv": words})}),
    "JSON, three times": lambda words: json.dumps(
        [json.dumps({"line": json.dumps({"argv": words})})]
    ),
    "NUL": "\0".join,
    "NUL, written out": r"\x00".join,
    "NUL in JSON": lambda words: json.dumps("\0".join(words)),
    "ps": lambda words: "alice  4711  0.0  0.1 ?  S  10:00  0:00 " + " ".join(words),
}


def commands() -> Iterator[Spelling]:
    """The words of a command in a shell, in a list, and as the kernel keeps them."""
    given = [("python", "train.py", flag, P, "--lr", "0.1") for flag in FLAGS]
    given += [(*words, P) for words in PROGRAMS]
    given += [tuple(word.format(P) for word in words) for words in ATTACHED]
    for words, (writing, write) in product(given, WORDS.items()):
        yield f"{' '.join(words[:3])} as {writing}", write(list(words)), P


def pairs() -> Iterator[Spelling]:
    """Two values in brackets, of which the second is a secret."""
    key = "AKIA" + _body("pair", 16, string.ascii_uppercase + "234567")
    for before, user in product(
        ("auth=", "auth = ", '"auth": ', "HTTPBasicAuth", "login", "credentials=", "client.login"),
        ("alice", "a@b.org"),
    ):
        for left, right in ("()", "[]"):
            if before.isalpha() and left == "[":
                continue
            for quote in "'\"":
                text = f"{before}{left}{quote}{user}{quote}, {quote}{P}{quote}{right}"
                yield text, text, P
                yield f"{text} in JSON", json.dumps({"message": text}), P
    for text in (
        f"Session('{key}', '{P}')",
        f'boto3.client("s3", "{key}", "{P}")',
        f"Session('{key}', aws_secret='{P}')",
        f"s3 = ('{key}','{P}')",
        f"('alice', '{P}')",
        f'["alice", "{P}"]',
        f"connect('db', ('alice', '{P}'))",
    ):
        yield text, text, P
        yield f"{text} in JSON", json.dumps(json.dumps({"message": text})), P


def tables() -> Iterator[Spelling]:
    """A name in one column, its value in the next."""
    names = (
        "WANDB_API_KEY",
        "HF_TOKEN",
        "api_key",
        "db_password",
        "client_secret",
        "aws_secret_access_key",
    )
    rows = (
        *(
            "| {} | {} |",
            "│ {} │ {} │",
            "┃ {} ┃ {} ┃",
            "{}  {}",
            "{}\t{}",
            "{}          {}",
            "|{}|{}|",
        ),
        *(
            "{} | {}",
            "[rank0]: {}   {}",
            "  {}    {}  # set by the user",
            "{},{}",
            "{};{}",
            '"{}","{}"',
        ),
    )
    for name, row, (_, secret) in product(names, rows, (("P", P), ("W", W))):
        yield f"{row.format(name, '…')} {len(secret)}", row.format(name, secret), secret


def sentences() -> Iterator[Spelling]:
    """What people write to each other."""
    names = (
        "password",
        "passphrase",
        "secret access key",
        "API key",
        "token",
        "access token",
        "secret",
        "otp",
    )
    verbs = (" is ", " is: ", " was ", " is set to ", " equals ")
    quotes = ("{}", "'{}'", '"{}"', "`{}`", "“{}”")
    for before, name, verb, quote in product(("the ", "my ", "Your new "), names, verbs, quotes):
        text = f"{before}{name}{verb}{quote.format(P)}."
        yield text, text, P
    for language in (
        f"das Passwort ist {P}",
        f"das Kennwort ist {P}",
        f"le mot de passe est {P}",
        f"la senha é {P}",
    ):
        yield language, language, P
    for language in (
        f"密码是{P}",
        f"密码为：{P}",
        f"パスワードは {P}",
        f"비밀번호는 {P}",
        f"пароль это {P}",
    ):
        yield language, language, P
    for frame in (
        "scott/{}@db",
        "user scott/{}@db.corp:1521/x",
        "sqlplus -s scott/{}@//db/x",
        "x: SecretStr('{}')",
    ):
        yield frame, frame.format(P), P


def standard_input() -> Iterator[Spelling]:
    """A secret that another program reads."""
    readers = (
        *(
            "sudo -S make install",
            "sudo -kS id",
            "docker login -u alice --password-stdin",
            "kinit alice",
        ),
        *(
            "gh auth login --with-token",
            "sudo passwd --stdin alice",
            "gpg --batch --passphrase-fd 0 -d x",
        ),
        *(
            "openssl enc -d -pass stdin",
            "cryptsetup open /dev/sdb x",
            "helm registry login --password-stdin",
        ),
    )
    for reader, writer in product(
        readers, ("echo {}", "echo '{}'", 'echo -n "{}"', "printf '{}\\n'", "printf {}")
    ):
        text = f"{writer.format(P)} | {reader}"
        yield text, text, P
        yield f"{text} in JSON", json.dumps({"cmd": text}), P
    for text in (
        f"echo alice:{P} | chpasswd",
        f"sudo -S id <<< {P}",
        f'docker login --password-stdin <<< "{P}"',
    ):
        yield text, text, P


_D, _U = string.digits, string.ascii_uppercase
NEW_FORMS = {
    "Hugging Face, small letters": "hf_" + _body("n0", 34, string.ascii_lowercase),
    "Hugging Face, organisation": "api_org_" + _body("n1", 34, string.ascii_letters),
    "OpenAI, service": "sk-svcacct-" + _body("n2", 70),
    "OpenAI, admin": "sk-admin-" + _body("n3", 70),
    "OpenRouter": "sk-or-v1-" + _body("n4", 64, LOWER),
    "DeepSeek": "sk-" + _body("n5", 32, LOWER),
    "Anthropic, admin": "sk-ant-admin01-" + _body("n6", 90),
    "Anthropic, OAuth": "sk-ant-oat01-" + _body("n7", 90),
    "xAI": "xai-" + _body("n8", 80),
    "Perplexity": "pplx-" + _body("n9", 48),
    "Cerebras": "csk-" + _body("n10", 48, LOWER),
    "Tavily": "tvly-dev-" + _body("n11", 32),
    "Pinecone": "pcsk_" + _body("n12", 6) + "_" + _body("n13", 60),
    "Jina": "jina_" + _body("n14", 32) + "_" + _body("n15", 20),
    "Together": "tgp_v1_" + _body("n16", 43),
    "RunPod": "rpa_" + _body("n17", 44),
    "LangSmith": "lsv2_pt_" + _body("n18", 32, LOWER) + "_" + _body("n19", 10, LOWER),
    "Langfuse": "sk-lf-" + _body("n20", 8, LOWER) + "-1b2c-4d5e-8f90-" + _body("n21", 12, LOWER),
    "Supabase": "sbp_" + _body("n22", 40, LOWER),
    "Supabase, secret": "sb_secret_" + _body("n23", 31),
    "Vercel": "vcp_" + _body("n24", 56),
    "Notion": "ntn_" + _body("n25", 46),
    "Figma": "figd_" + _body("n26", 40),
    "Sentry": "sntrys_" + _body("n27", 60),
    "Grafana, cloud": "glc_" + _body("n28", 60),
    "PostHog": "phx_" + _body("n29", 43),
    "SonarQube": "sqp_" + _body("n30", 40, LOWER),
    "Prefect": "pnu_" + _body("n31", 36),
    "Pulumi": "pul-" + _body("n32", 40, LOWER),
    "PlanetScale": "pscale_tkn_" + _body("n33", 43),
    "Neon": "napi_" + _body("n34", 64, LOWER),
    "Tailscale": "tskey-auth-" + _body("n35", 12) + "-" + _body("n36", 32),
    "Brevo": "xkeysib-" + _body("n37", 64, LOWER),
    "Mailgun": "key-" + _body("n38", 32, LOWER),
    "Stripe, web hook": "whsec_" + _body("n39", 32),
    "Docker, organisation": "dckr_oat_" + _body("n40", 32),
    "RubyGems": "rubygems_" + _body("n41", 48, LOWER),
    "Buildkite": "bkua_" + _body("n42", 40, LOWER),
    "W&B of 2025": "wandb_v1_" + _body("n43", 70),
    "Kaggle of 2025": "KGAT_" + _body("n44", 32, LOWER),
    "1Password": "ops_eyJ" + _body("n45", 200),
    "Atlassian": "ATATT3xFfGF0" + _body("n46", 180),
    "Postman": "PMAK-" + _body("n47", 24, LOWER) + "-" + _body("n48", 34, LOWER),
    "Google, OAuth": "GOCSPX-" + _body("n49", 28),
    "Google, refresh": "1//0" + _body("n50", 60),
    "Google, Vertex": "AQ.Ab8" + _body("n51", 45),
    "Azure": _body("n52", 3) + "8Q~" + _body("n53", 34),
    "Alibaba": "LTAI5t" + _body("n54", 18),
    "AWS, Bedrock": "ABSK" + _body("n55", 120),
    "Vault, recovery": "hvr." + _body("n56", 90),
    "Shopify": "shpss_" + _body("n57", 32, LOWER),
    "a certificate in base64": "LS0tLS1CRUdJTi" + _body("n58", 200),
}
"""Keys of which nothing beside them says that they are one, as of 2025 and 2026, and some forms older than that."""
FRAMES = (
    *(
        "got {} from the environment",
        "[rank3]: ValueError: '{}' was refused",
        "{}",
        "(key {})",
        "x={}&y=1",
        "{}\n",
    ),
    *(
        '{{"message": "using {}"}}',
        '{{"message": "{{\\"a\\": \\"{}\\"}}"}}',
        "a\0{}\0b",
        "| {} |",
        "`{}`",
        "<{}>",
    ),
)


def known_forms() -> Iterator[Spelling]:
    """What a key looks like, wherever it stands."""
    for (kind, key), frame in product(NEW_FORMS.items(), FRAMES):
        yield f"{kind}: {frame}", frame.format(key), key


PREFIXES = (
    "",
    "[rank3]: ",
    "3: ",
    "node-1: ",
    "[1,3]<stdout>:",
    "2026-11-23 10:00:00,123 - INFO - ",
    "trainer-3  | ",
)


def over_lines() -> Iterator[Spelling]:
    """A secret that only several lines together tell, each after what a launcher puts there."""
    shapes = {
        "YAML": ("- name: DB_PASSWORD", "  value: {}"),
        "YAML, quoted": ('- name: "WANDB_API_KEY"', '  value: "{}"'),
        "netrc": ("machine git.example", "  login alice", "  password {}"),
        "netrc, short": ("login alice", "password {}"),
        "netrc, account": ("machine x login alice", "  password {}"),
        "XML": ("<name>fs.s3a.secret.key</name>", "<value>{}</value>"),
        "TOML": ('password = """', '{}"""'),
    }
    for (kind, shape), prefix in product(shapes.items(), PREFIXES):
        if kind == "TOML" and prefix:
            continue  # no program reads it so
        yield f"{kind} after {prefix!r}", "\n".join(prefix + line.format(P) for line in shape), P
    body = [_body(f"certificate {n}", 64, string.ascii_letters + _D + "+/") for n in range(6)]
    for kind, prefix in product(
        ("CERTIFICATE", "CERTIFICATE REQUEST", "PGP MESSAGE", "PKCS7"), PREFIXES
    ):
        lines = [f"-----BEGIN {kind}-----", *body, "aBc=", f"-----END {kind}-----"]
        text = "\n".join(prefix + line for line in lines)
        yield f"{kind} after {prefix!r}", text, body[2]
    whole = "\n".join(["-----BEGIN CERTIFICATE-----", *body, "-----END CERTIFICATE-----"])
    yield "a certificate in JSON", json.dumps({"ca": whole}), body[2]


KINDS: tuple[Callable[[], Iterator[Spelling]], ...] = (
    *(named, encoded, commands, pairs, tables, sentences, standard_input, known_forms, over_lines),
)
