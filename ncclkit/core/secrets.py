"""Secrets in what the workbook reads.

They are found by the agent's rules, then by the forms of keys that detect-secrets knows.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from ncclkit.agent import redact

KINDS = ("Discord", "Mailchimp", "Square OAuth", "Stripe", "Telegram", "Twilio")
"""What detect-secrets calls the keys that are known by their form alone; what a name gives away is
the agent's."""
_SIGN = re.compile(
    r"[0-9a-z]{32}-us\d|sq0csp|k_live_|\d{8}:[\w-]{35}|(?:AC|SK)[a-z0-9]{32}"
    r"|[\w-]{20}\.[\w-]{6}\.[\w-]{27}",
    re.ASCII,
)
"""What stands in every one of those keys, and in next to nothing else: the library costs 0.2 s to
import."""


def text(value: str) -> str:
    """The text with every secret in it replaced.

    It does as `ncclkit.agent.redact.text`, and knows the forms of more keys.
    """
    value = redact.text(value)
    if _SIGN.search(value):
        for form in _forms_of_secrets():
            value = form.sub(redact.REDACTED, value)
    return value


@cache
def _forms_of_secrets() -> tuple[re.Pattern[str], ...]:
    from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class

    plugins: dict[str, Any] = get_mapping_from_secret_type_to_class()
    found = []
    for name, plugin in plugins.items():
        if name.startswith(KINDS):
            for form in plugin.denylist:
                found.append(form)
    return tuple(found)
