"""Facts of a host.

One small reader per facet, each fact with where it was read, never an exception.

    collect(torch=True, paths={"work": "."})   the facts, as dicts, one by one

docs/facts.md lists every fact with its unit and source.
"""

from .gather import collect

__all__ = ["collect"]
