"""Secrets in what the workbook reads: the agent's rules, then the forms of keys that detect-secrets knows."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from ncclkit.agent import redact

KINDS = ("Discord", "GitLab", "Mailchimp", "SendGrid", "Square OAuth", "Stripe", "Telegram", "Twilio")
"""What detect-secrets calls the keys that are known by their form alone; what a name gives away is the agent's."""
_RANDOM = re.compile(r"(?<![\w-])(?=[A-Za-z_-]*\d)[\w.:-]{28,}", re.ASCII)
"""What every one of those keys holds; most texts hold no such thing and cost no import."""


def text(value: str) -> str:
    """The text with every secret in it replaced, as `ncclkit.agent.redact.text`, and by the forms of more keys."""
    value = redact.text(value)
    if _RANDOM.search(value):
        for form in _forms():
            value = form.sub(redact.REDACTED, value)
    return value


@cache
def _forms() -> tuple[re.Pattern[str], ...]:
    from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class

    plugins: dict[str, Any] = get_mapping_from_secret_type_to_class()
    return tuple(form for name, plugin in plugins.items() if name.startswith(KINDS) for form in plugin.denylist)
