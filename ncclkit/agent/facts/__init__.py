"""Facts of a host: one small reader per facet, each fact with where it was read, never an exception.

    collect(torch=True, paths={"work": "."}, root="/")   the facts, as dicts, one by one
    record(folder)                                       capture this machine, so that collect(root=folder) replays it

docs/facts.md lists every fact with its unit and source.
"""

from .gather import collect, record

__all__ = ["collect", "record"]
