"""Secrets never leave the agent: one rule for names, one for what stands inside a text."""

from __future__ import annotations

import re
from typing import Any

REDACTED = "[redacted]"

# "key" alone would hide NCCL_IB_PKEY (an InfiniBand partition) and its kin, which a diagnosis needs.
_PLAIN = re.compile(r"(?i)(?<![a-z])[pmrl]keys?(?![a-z])|key(?:board|pad|point|stone|word)")
_NAME = re.compile(
    r"(?i)token|passw|passphrase|pwd|secret|credential|creds?(?![a-z])|auth|cookie|key|bearer|jwt|session"
    r"|private|(?<![a-z])(?:pass|pat|sas|sig|otp|dsn|webhook)(?![a-z])"
)
_TEXT = (
    # scheme://user:password@host
    (re.compile(r"(?<=://)[^/\s@\"']+@"), REDACTED + "@"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[a-z0-9+/=._~-]{8,}"), r"\1 " + REDACTED),
    # --password=x, "token": "x", ?sig=x: a telling name, then its value
    (
        re.compile(
            r"(?i)((?:token|passw\w*|passphrase|secret|credential\w*|api[_-]?key|access[_-]?key|auth\w*|cookie|sig"
            r"|private[_-]?key)[\"']?\s*[=:]\s*[\"']?)[^\s\"',;&]+"
        ),
        r"\1" + REDACTED,
    ),
    # self-identifying forms: Hugging Face, GitHub, GitLab, OpenAI, Slack, AWS, Google, JSON web token, PEM
    (
        re.compile(
            r"\b(?:hf_|gh[opsur]_|github_pat_|glpat-|sk-|xox[abprs]-|npm_|pypi-|AKIA|ASIA|AIza)[A-Za-z0-9_-]{10,}"
        ),
        REDACTED,
    ),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)?"), REDACTED),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*-----|\Z)", re.S), REDACTED),
)


def is_secret(name: str) -> bool:
    """Whether the name of a variable or field says that its value is a secret (errs on the safe side)."""
    spaced = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name)
    return bool(_NAME.search(_PLAIN.sub("", spaced)))


def text(value: str) -> str:
    """The text with every secret in it replaced: user info in URLs, ``token=…``, well-known key formats."""
    for pattern, instead in _TEXT:
        value = pattern.sub(instead, value)
    return value


def clean(value: Any, name: str = "") -> Any:
    """A plain JSON value with every secret in it replaced; `name` is the key it stands under."""
    if value and isinstance(value, str):
        return REDACTED if is_secret(name) else text(value)
    if isinstance(value, dict):
        return {key: clean(inner, str(key)) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean(inner, name) for inner in value]
    return value
