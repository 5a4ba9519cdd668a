"""Facts of a host.

In: this host, and paths whose storage is looked at.  Out: facts as dicts, each with where it was
read, never an exception; docs/facts.md lists every one with its unit and source.
Begin with `gather.collect`: ``collect(torch=True, paths={"work": "."})``.  One small reader per
facet stands beside it.
"""

from .gather import collect

__all__ = ["collect"]
