"""Records as lines of JSON, as real nodes write them, as Arrow tables.

A line that is no row of a record (no JSON, a column of another type, a kind that there is not, a time or a size that no
node has) is counted and passed over.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import pyarrow as pa

from carrypost.emu.records.files import ARROW_SCHEMA
from carrypost.emu.scenario.csvfiles import TIME_S_MAX
from carrypost.files import refusing
from carrypost.record import SCHEMA, Kind

SIZE_MAX = 1 << 53
_INT32 = 1 << 31
_TYPES: dict[str, Any] = {
    "string": str,
    "float64": Annotated[float, msgspec.Meta(ge=-TIME_S_MAX, le=TIME_S_MAX)],
    "int32": Annotated[int, msgspec.Meta(ge=-_INT32, lt=_INT32)],
    "int64": Annotated[int, msgspec.Meta(ge=-SIZE_MAX, le=SIZE_MAX)],
    "map<string, string>": dict[str, str],
}


def _field(name: str, kind: str, *, nullable: bool) -> tuple[str, Any] | tuple[str, Any, None]:
    known: Any = Kind if name == "kind" else _TYPES[kind]
    return (name, known | None, None) if nullable else (name, known)


_LINE = msgspec.defstruct("_LINE", [_field(each.name, each.type, nullable=each.nullable) for each in SCHEMA])


def read(path: Path) -> tuple[pa.Table, int]:
    """Return the rows of a file, of whatever runs, and how many lines are none."""
    columns: dict[str, list[Any]] = {each.name: [] for each in SCHEMA}
    appends = [(name, column.append) for name, column in columns.items()]
    decode, unreadable = msgspec.json.Decoder(_LINE).decode, 0
    with refusing(f"{path} cannot be read"), path.open("rb") as file:
        for text in file:
            if not text.strip():
                continue
            try:
                line = decode(text)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                unreadable += 1
                continue
            for name, append in appends:
                append(getattr(line, name))
    columns["attrs"] = [None if each is None else list(each.items()) for each in columns["attrs"]]
    return pa.table(columns, schema=ARROW_SCHEMA), unreadable
