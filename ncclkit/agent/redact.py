"""Secrets never leave: by the name they stand under, by what they look like, and by what this environment holds.

What is replaced keeps its lines: every newline of a secret stays, so that line numbers still point to the same place.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from typing import Any, Callable, Union

REDACTED = "[redacted]"

# "key" alone would hide NCCL_IB_PKEY (an InfiniBand partition) and its kin, which a diagnosis needs.
_PLAIN = re.compile(
    r"(?i)(?<![a-z])[pmrl]keys?(?![a-z])|key(?:board|pad|point|stone|word)|tokeniz\w*|(?<![a-z])tokens(?![a-z])"
)
_NAME = re.compile(
    r"(?i)token|passw|passphrase|pwd|secret|credential|creds?(?![a-z])|auth|cookie|key|bearer|jwt|session|signature"
    r"|private|conn(?:ection)?_?str|(?<![a-z])(?:pass|pw|pat|sas|sig|otp|dsn|webhook|kubeconfig)(?![a-z])"
)

Instead = Union[str, Callable[["re.Match[str]"], str]]

_GAP = (
    r"\\?[\"']?\]?\s{0,4}(?:: ?(?:str|bytes)(?: \| None)? ?=|:=|=>|=(?!>)|:(?!=))\s{0,2}[ \t]{0,60}"
    r"(?:[bBrRuU]{1,2}(?=\\?[\"']))?"
)
"""Between a name and its value: ``=``, ``: ``, ``=>``, ``: str =``, the quote that ends a name, the b of a literal."""
_BARE = r"(?!\[redacted)(?:[^\s\"',;&<>)\]}\\]|\\(?![\"']))+"
_VALUE = (
    r"(?P<value>\\\"(?:(?!\\\")[^\n])*|\"(?:\\.|[^\"\\\n])*|'(?:\\.|[^'\\\n])*"
    rf"|(?!(?i:true|false|none|null)\b){_BARE})"
)
"""A value without the quote that ends it, so that JSON stays JSON."""


def _blank(match: re.Match[str]) -> str:
    return REDACTED + "\n" * match.group().count("\n")


def _named(match: re.Match[str]) -> str:
    value = match["value"]
    return match[1] + value[: 2 if value[0] == "\\" else value[0] in "\"'"] + REDACTED


def _pair(match: re.Match[str]) -> str:
    return match[1] + REDACTED if is_secret(match[1][2:].partition(match[2])[0]) else match.group()


def _if_secret(match: re.Match[str]) -> str:
    return match[1] + REDACTED if is_secret(match[2]) else match.group()


_KEYS = (
    r"(?:api|access|secret|private|account|shared|master|ssh|encryption|signing|auth|license|storage|subscription|client"
    r"|wandb|comet)[ _-]?key"
)
_SECRET_NAME = r"(?:token|passwo?r?d|pass|passphrase|secret|credentials?|%s)" % _KEYS
"""The end of a name that a secret stands under, whatever is before it."""
_STRANGE = r"(?=[^\s\"',;]*\d)(?=[^\s\"',;]*[A-Z])(?=[^\s\"',;]{8})" + _BARE
"""A value behind a word that is also plain English must look random."""
_NUMBERED = r"(?=[^\s\"',;]*\d)(?=[^\s\"',;]{6})" + _BARE
"""One that no word of a sentence is."""


# (literals, one of which stands in the text in lower case; pattern; what replaces it)
_RULES: tuple[tuple[tuple[str, ...], re.Pattern[str], Instead], ...] = (
    # a private key, whole or torn; JSON writes its newlines as \n
    (
        ("private key",),
        re.compile(
            r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
            r"(?:(?:(?!-----).){0,16000}-----END [A-Z ]{1,60}-----|(?:(?:\s|\\[nr]){0,4}[A-Za-z0-9+/=]{16,})*)",
            re.S,
        ),
        _blank,
    ),
    # scheme://user:password@host, where the password may hold @ and /
    (
        ("://",),
        re.compile(r"(?<=://)(?:[^/\s:@\"'<>]{0,256}:(?!\d+/)[^\s\"'<>]{1,512}@|[^/\s\"'<>]{1,512}@)"),
        REDACTED + "@",
    ),
    # what a URL carries in its path: web hooks, conda channels
    (
        ("://",),
        re.compile(
            r"(?i)(://[^\s/\"']{1,250}/(?:t/|bot(?=\d)|api/webhooks/)|://hooks\.slack\.com/\w{1,20}/"
            r"|://[\w.-]{1,200}webhook\.office\.com/|://[^\s\"']{1,200}/(?:webhookb?\d?|hooks/catch/\d{1,20}|v\d/hook|with/key)/"
            r"|://[^\s\"']{1,300}[?&]key=)[\w:./@-]{8,}"
        ),
        r"\1" + REDACTED,
    ),
    # Authorization: <scheme> <credentials>     Cookie: a=b; c=d        all of it, up to a quote or the end of the line
    (
        ("authorization", "cookie"),
        re.compile(rf"(?i)((?:authorization|cookie){_GAP}(?:\\?[\"'])?)(?!\s|\[redacted)(?:[^\"'\r\n\\]|\\(?![\"']))+"),
        r"\1" + REDACTED,
    ),
    (("bearer", "basic"), re.compile(r"(?i)\b(bearer:?|basic)\s+[a-z0-9+/=._~-]{8,}"), r"\1 " + REDACTED),
    # a telling name and its value: --password=x, "token": "x", ?sig=x, AccountKey=x
    (
        ("token", "passw", "passp", "pwd", "secret", "credential", "key", "auth", "sig=", 'sig"', "signature", "jwt"),
        re.compile(
            r"(?i)((?:token|passw\w{0,20}|passphrase|(?<![a-z])pwd|secret|credentials?|auth|jwt"
            rf"|(?<![a-z0-9_])sig|signature|{_KEYS}(?:[_-](?:id|data))?|accesskeyid|(?-i:[A-Z0-9]_KEY)"
            rf"){_GAP}){_VALUE}"
        ),
        _named,
    ),
    # DB_PASS=x, 'GH_PAT': 'x', ADMIN_PW: x; pass=x and "the password is x" where x looks random
    (("pass", "_pat", "pw"), re.compile(rf"(\b(?:[A-Z0-9]{{1,40}}_){{1,8}}(?:PASS|PAT|PW){_GAP}){_VALUE}"), _named),
    (
        ("pass", "pw", "token is", "secret is"),
        re.compile(
            rf"((?i:\b(?:pass|pw){_GAP}|\b(?:passw(?:or)?d|passphrase|token|secret)\s{{1,4}}is:?\s{{1,4}}"
            rf"|\bpassw(?:or)?d\s{{1,4}})[\"']?){_STRANGE}"
        ),
        r"\1" + REDACTED,
    ),
    # Password for user: x, and a key in hexadecimal, whoever's it is
    (
        ("password for ", "passphrase for "),
        re.compile(rf"(?i)(\bpass(?:word|phrase) for [^:\n]{{1,200}}:[ \t]{{1,4}}){_NUMBERED}"),
        r"\1" + REDACTED,
    ),
    (
        ("key",),
        re.compile(
            r"(?i)(\bkey(?: is)?(?::| =)?[ \t]{1,4}[\"']?)(?=[0-9a-f]{0,64}\d)(?=\d{0,64}[a-f])[0-9a-f]{32,64}\b"
        ),
        r"\1" + REDACTED,
    ),
    # {"name": "DB_PASSWORD", "value": "x"}, ('DB_PASSWORD', 'x'), setenv DB_PASSWORD x
    (
        ("value",),
        re.compile(
            r"(\bname\\?[\"']?\s{0,4}[:=]\s{0,4}\\?[\"']?([A-Za-z]\w{1,80})\b[^{}\n]{0,120}?\bvalue\\?[\"']?\s{0,4}[:=]\s{0,4}"
            rf"\\?[\"']?){_BARE}"
        ),
        _if_secret,
    ),
    (
        ("('", '("', "['", '["'),
        re.compile(r"([(\[]([\"'])(?![a-z]{1,80}[\"'])[A-Za-z]\w{1,80}\2, {0,4}([\"']))(?:(?!\3)[^\n]){1,4000}"),
        _pair,
    ),
    (
        ("set ", "setenv ", "env "),
        re.compile(
            r"(\b(?:setenv|set(?: -\w{1,3})?|ENV)\s{1,4}([A-Za-z]\w{1,80}_\w{1,80})\s{1,4})(?!set |to )"
            rf"({_BARE})"
        ),
        _if_secret,
    ),
    # --token x, '--token', 'x', --user name:x, login name password x
    (
        ("--", "-u", "password"),
        re.compile(
            rf"(?i)((?<![\w-])--?[\w-]{{0,40}}{_SECRET_NAME}(?:[\"'],\s{{0,4}}|\s{{1,4}})"
            r"|(?<![\w-])(?:-u ?|--user[ =]|--proxy-user[ =]|-U )[\w.@-]{1,60}:|\blogin\s+\S{1,80}\s+password\s+)"
            rf"(\\?[\"']?)(?!-|\d+(?:\.\d+)?(?![\w.])){_BARE}"
        ),
        r"\1\2" + REDACTED,
    ),
    # docker login -p x, mysql -px, sshpass -p x, redis-cli -a x, mc alias set name url user x, wandb login x
    (
        ("login", "upload", "sshpass", "mysql", "redis-cli", "mc alias"),
        re.compile(
            r"((?:\b(?:docker|podman|nerdctl|skopeo|helm|oras|az|twine)\s(?:\w{1,20}\s)?(?:login|upload)\b[^\n|;]{0,200}?"
            r"\s-p\s{1,4}"
            r"|\bsshpass\s{1,4}-p\s{0,4}|\bmysql\w{0,10}\b[^\n|;]{0,200}?\s-p(?=[^\s-])"
            r"|\bredis-cli\b[^\n|;]{0,200}?\s(?:-a|--pass)\s{1,4}"
            r"|\bmc alias set(?:\s{1,4}[^\s]{1,200}){3}\s{1,4})[\"']?)"
            rf"{_BARE}"
        ),
        r"\1" + REDACTED,
    ),
    (
        ("login",),
        re.compile(r"(?i)(\bwandb(?: {1,4}|\.)login\b[^\n]{0,200}?)(?<![0-9a-f])(?:local-)?[0-9a-f]{40}(?![0-9a-f])"),
        r"\1" + REDACTED,
    ),
    # NCCL_X set by environment to y
    (
        (" set to ", " set by env"),
        re.compile(r"((\b[A-Z][A-Z0-9_]{1,80}) set (?:by environment )?to )[^\"\n]+"),
        _if_secret,
    ),
    # what says itself that it is one: Hugging Face, GitHub, GitLab, OpenAI, Slack, NVIDIA, Docker, AWS, Google, …
    (
        (
            *("hf_", "ghp_", "gho_", "ghs_", "ghu_", "ghr_", "github_pat_", "glsa_", "sk-", "sk_live", "xox", "xapp-"),
            *("npm_", "pypi-", "nvapi-", "dckr_", "dop_v1", "akia", "asia", "aiza", "ya29.", "gsk_", "r8_"),
            *("glpat-", "gldt-", "glft-", "glrt-", "glcbt-", "glptt-", "glsoat-", "glagent-"),
            *("akc", "dapi", "sg.", "hvs.", "hvb.", "gaaaaa", "dp.pt.", "lin_api_", "nrak-", "shpat_"),
        ),
        re.compile(
            r"(?<![A-Za-z0-9])(?:(?:hf_|gh[opsur]_|github_pat_|gl(?:pat|dt|ft|rt|cbt|ptt|soat|agent)-|glsa_|sk-|sk_live_"
            r"|xox[abeprs]-|xapp-|npm_|pypi-|nvapi-|dckr_pat_|dop_v1_|gsk_|r8_|lin_api_|dp\.pt\.)"
            r"(?=[a-z_-]{0,80}[A-Z0-9])[A-Za-z0-9_-]{10,}"
            r"|(?:AKIA|ASIA|AIza)[A-Za-z0-9_-]{10,}|AKC[A-Za-z0-9]{20,}|ya29\.[A-Za-z0-9_-]{10,}|dapi[0-9a-f]{32}(?:-\d)?|shpat_[0-9a-f]{32}"
            r"|SG\.[\w-]{16,64}\.[\w-]{16,128}|hv[sb]\.[\w-]{20,}|gAAAAA[\w=-]{60,}|NRAK-[A-Z0-9]{27})"
        ),
        REDACTED,
    ),
    (("age-secret-key-1",), re.compile(r"AGE-SECRET-KEY-1[A-Z0-9]{20,}"), REDACTED),
    (("munge:",), re.compile(r"MUNGE:[A-Za-z0-9+/]{16,}={0,2}:?"), REDACTED),
    # JSON web token
    (("eyj",), re.compile(r"\beyJ[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)?"), REDACTED),
)

# The middle of a key whose first line is elsewhere: a line of base64 as openssl and ssh-keygen break it.
_TORN = re.compile(
    r"(?m)(?<![^\s>:\]|])(?=[A-Za-z0-9+/]{64})(?=[A-Z0-9+/]*[a-z])(?=[a-z0-9+/]*[A-Z])(?=[A-Za-z+/]*[0-9])"
    r"[A-Za-z0-9+/]{64}(?:[A-Za-z0-9+/]{6}){0,2}$"
)


def is_secret(name: str) -> bool:
    """Whether the name of a variable or field says that its value is a secret (errs on the safe side)."""
    spaced = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name)
    return bool(_NAME.search(_PLAIN.sub("", spaced)))


def _own() -> list[str]:
    """Values of this process's variables that are secrets by their names, and their single lines, the longest first.

    Paths and words that anything may contain are no secrets, whatever their variable is called.
    """
    plain = [value for name, value in os.environ.items() if is_secret(name)]
    plain += [line for value in plain for line in value.splitlines()]
    values = {*plain, *(json.dumps(value)[1:-1] for value in plain)}
    random = re.compile(r"(?=.*\d)(?=.*[A-Za-z]).{8,}|.{16,}", re.S)
    return sorted((v for v in values if random.fullmatch(v) and v[0] not in "/~."), key=len, reverse=True)


OWN = _own()
_SIGNS = tuple(dict.fromkeys([*(sign for signs, _, _ in _RULES for sign in signs), *map(str.lower, OWN)]))


def text(value: str) -> str:
    """The text with every secret in it replaced; costs microseconds where there is none."""
    if len(value) >= 64:
        value = _TORN.sub(REDACTED, value)
    lower = value.lower()
    for sign in _SIGNS:  # most texts end here
        if sign in lower:
            break
    else:
        return value
    for signs, pattern, instead in _RULES:
        if any(sign in lower for sign in signs):
            value = pattern.sub(instead, value)
    for secret in OWN:
        value = value.replace(secret, REDACTED + "\n" * secret.count("\n"))
    return value


def texts(value: Any, change: Callable[[str], str] = text) -> Any:
    """The nested value with `change` applied to every text in it, whatever its key."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {texts(key, change): texts(inner, change) for key, inner in value.items()}
    return type(value)(texts(inner, change) for inner in value) if isinstance(value, (list, tuple)) else value


def clean(value: Any, name: str = "") -> Any:
    """A plain JSON value with every secret in it replaced; `name` is the key it stands under."""
    if value and isinstance(value, str):
        return REDACTED if is_secret(name) else text(value)
    if isinstance(value, dict):
        variable = str(value.get("name", "")).replace("env.", "", 1) if "value" in value else ""
        hidden = variable.isidentifier() and is_secret(variable)  # a row {"name": "HF_TOKEN", "value": …}
        names = {key: "secret" if hidden and key == "value" else str(key) for key in value}
        return {texts(key): clean(inner, names[key]) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean(inner, name) for inner in value]
    return value


def file(path: str) -> None:
    """Replace the secrets in a text file; one that holds none is not touched.  Raises OSError."""
    with _opened(path) as source:
        found = any(lines != cleaned for lines, cleaned in _blocks(source))
    if found:
        with _opened(path) as source, _opened(path + ".part", "w") as out:
            out.writelines(cleaned for _, cleaned in _blocks(source))
        os.replace(path + ".part", path)


def _opened(path: str, mode: str = "r") -> Any:
    return open(path, mode, encoding="utf-8", errors="surrogateescape", newline="")


def _blocks(source: Any) -> Iterable[tuple[str, str]]:
    """(as it is, without secrets) of a file's text, about a MiB of lines at a time."""
    while lines := source.readlines(1 << 20):
        whole = "".join(lines)
        yield whole, text(whole) if "PRIVATE KEY" in whole else "".join(map(text, lines))
