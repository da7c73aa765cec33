"""Columns as Arrow streams: answers of the pages' server about runs and campaigns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from starlette.responses import Response

METADATA = "carrypost"
"""Key of the JSON in the metadata of a stream."""
_ARROW = "application/vnd.apache.arrow.stream"
_TYPES = {"i": pa.int32(), "f": pa.float64(), "u": pa.int32(), "b": pa.bool_()}


def table(columns: Mapping[str, Any], metadata: Mapping[str, Any] | None = None) -> pa.Table:
    """Return columns, which are arrays of numpy or of Arrow, as a table with JSON in its metadata."""
    arrays = {
        name: pa.array(each, _TYPES[each.dtype.kind]) if isinstance(each, np.ndarray) else each
        for name, each in columns.items()
    }
    return pa.table(arrays).replace_schema_metadata({METADATA: msgspec.json.encode(metadata or {})})


def parts(schema: pa.Schema, tables: Iterator[pa.Table]) -> Iterator[bytes]:
    """Yield the bytes of a stream of tables, piece by piece."""
    sink = _Pieces()
    with pa.ipc.new_stream(pa.PythonFile(sink, "w"), schema) as writer:
        for each in tables:
            writer.write_table(each)
            yield sink.take()
    yield sink.take()


class _Pieces:
    """A file whose content is taken away while it is written."""

    closed = False

    def __init__(self) -> None:
        self._written: list[bytes] = []

    def write(self, content: bytes) -> int:
        self._written.append(bytes(content))
        return len(content)

    def flush(self) -> None:
        """Do nothing: what was written is there."""

    def take(self) -> bytes:
        found, self._written = b"".join(self._written), []
        return found


def columns_answer(found: pa.Table) -> Response:
    """Return a table as an answer."""
    return Response(b"".join(parts(found.schema, iter((found,)))), media_type=_ARROW)


def stream_headers(name: str) -> dict[str, str]:
    """Return the headers of a stream that a browser keeps as a file."""
    return {"Content-Type": _ARROW, "Content-Disposition": f'attachment; filename="{name}"'}
