"""One fact, as the wire carries it: name, value, unit, source, and why where the value is None."""

from __future__ import annotations

from typing import Any, Callable

from .machine import Unread

Fact = dict[str, Any]

BROKEN = (ValueError, KeyError, IndexError, TypeError, AttributeError)
"""What a reader raises when a source has another form than documented."""


def known(name: str, value: Any, unit: str = "", source: str = "") -> Fact:
    """A fact that was read."""
    return {"name": name, "value": value, "unit": unit, "source": source, "why": ""}


def unread(name: str, why: object, unit: str = "", source: str = "") -> Fact:
    """A fact that was looked for and could not be read."""
    return {"name": name, "value": None, "unit": unit, "source": source, "why": str(why)}


def attempt(name: str, get: Callable[[], Any], unit: str = "", source: str = "") -> Fact:
    """The fact that `get()` returns, or the reason why it could not be read; never raises for a bad source."""
    try:
        return known(name, get(), unit, source)
    except Unread as why:
        return unread(name, why, unit, source)
    except BROKEN as error:
        form = "%s has an unexpected form (%s: %s)" % (source or name, type(error).__name__, error)
        return unread(name, form, unit, source)
