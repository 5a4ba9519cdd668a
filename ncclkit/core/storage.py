"""How records are kept in files: JSON Lines, JSON and Parquet, each file replaced whole and atomically."""

from __future__ import annotations

import io
import json
import os
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from ncclkit.core.model import Advice, Event, Experiment, Finding, NcclkitError, cite, from_dict, to_json

T = TypeVar("T")


def write(path: Path, text: str | bytes) -> None:
    """Replace `path` atomically: a reader sees the old file or the new one, never half."""
    name = path.parent / f".{path.name}.{secrets.token_hex(6)}"
    handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)  # less what the user's umask takes away
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(text.encode() if isinstance(text, str) else text)
            out.flush()
            os.fsync(out.fileno())
        os.replace(name, path)
    except BaseException:
        name.unlink(missing_ok=True)
        raise


def write_records(path: Path, records: Iterable[Any]) -> None:
    """One record a line, as JSON."""
    write(path, "".join(to_json(record) + "\n" for record in records))


def read_records(cls: type[T], path: Path) -> Iterator[T]:
    """The records of a JSON Lines file, none where it does not exist; NcclkitError names the line that is none."""
    if not path.exists():
        return
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            yield from_dict(cls, json.loads(line))
        except (ValueError, TypeError, AttributeError) as error:
            raise NcclkitError(
                f"{path}:{number} is no {cls.__name__} record; move the file away and the case opens without it."
            ) from error


def read_json(path: Path, default: Any) -> Any:
    """The value in a JSON file, `default` where it does not exist."""
    if not path.exists():
        return default
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise NcclkitError(
            f"{path} is not JSON ({error}); move the file away and the case opens without it."
        ) from error


def write_events(path: Path, events: list[Event]) -> None:
    """Events as Parquet; `data` as JSON text, since every kind has its own fields."""
    import pandas as pd  # half a second: only those who save pay

    rows = [asdict(event) | {"data": json.dumps(dict(event.data), default=str)} for event in events]
    frame = pd.DataFrame(rows, columns=list(Event.__dataclass_fields__))
    buffer = io.BytesIO()
    frame.astype({"pid": "Int64", "rank": "Int64", "time": "float64"}).to_parquet(buffer, index=False)
    write(path, buffer.getvalue())


def read_events(path: Path) -> list[Event]:
    """The reverse of `write_events`; none where the file does not exist."""
    if not path.exists():
        return []
    import pyarrow.parquet as pq

    try:
        rows = pq.read_table(path).to_pylist()
    except (OSError, ValueError) as error:
        raise NcclkitError(
            f"{path} is not a readable Parquet file; move it away and the case opens without it."
        ) from error
    return [from_dict(Event, row | {"data": json.loads(row["data"])}) for row in rows]


def write_findings(path: Path, findings: Iterable[Finding]) -> None:
    """Findings as JSON, their evidence as ``{path, line, text}``."""
    rows = [asdict(finding) | {"evidence": [cite(piece) for piece in finding.evidence]} for finding in findings]
    write(path, json.dumps(rows, indent=1, default=str))


def read_findings(path: Path) -> list[Finding]:
    """The reverse of `write_findings`; evidence comes back as events of kind ``cited``."""
    return [_finding(row) for row in read_json(path, [])]


def _finding(row: dict[str, Any]) -> Finding:
    cited = [Event("cited", text=e["text"], path=e["path"], line=e["line"]) for e in row.get("evidence", ())]
    nested = {
        "evidence": tuple(cited),
        "missing": tuple(row.get("missing", ())),
        "culprits": {key: tuple(value) for key, value in row.get("culprits", {}).items()},
        "advice": tuple(from_dict(Advice, advice) for advice in row.get("advice", ())),
        "next": from_dict(Experiment, row["next"]) if row.get("next") else None,
    }
    return from_dict(Finding, row | nested)
