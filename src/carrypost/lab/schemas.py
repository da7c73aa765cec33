"""The tables of the laboratory: their names, their columns, and the meanings of these.

A table is defined once, for Spark, Arrow and the documents. Times are seconds, places metres on a plane, names texts;
contacts and activities are half-open. Inputs and outputs of functions are these tables, which `conform` enforces.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from carrypost.errors import LocalError
from carrypost.log.record import SCHEMA

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


class Column(NamedTuple):
    """A column of a table; types as Arrow calls them."""

    name: str
    type: str
    meaning: str
    nullable: bool = False


@dataclass(frozen=True)
class Table:
    """The name, purpose and columns of a table."""

    name: str
    meaning: str
    columns: tuple[Column, ...]

    @classmethod
    def of(cls, name: str, meaning: str, *columns: Column) -> Table:
        """Make a table of these columns."""
        return cls(name, meaning, columns)

    @property
    def names(self) -> list[str]:
        """Names of the columns, in order."""
        return [column.name for column in self.columns]

    @property
    def spark(self) -> StructType:
        """The columns for Spark."""
        from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415 - documents are made without it

        return from_arrow_schema(self.arrow)

    @cached_property
    def arrow(self) -> pa.Schema:
        """The columns for Arrow."""
        import pyarrow as pa  # noqa: PLC0415 - documents are made without it

        def type_of(name: str) -> pa.DataType:
            return pa.map_(pa.string(), pa.string()) if name.startswith("map") else pa.type_for_alias(name)

        return pa.schema([pa.field(column.name, type_of(column.type), column.nullable) for column in self.columns])

    def conform(self, frame: DataFrame) -> DataFrame:
        """Return the columns of this table from a frame, in order and with their types; a missing one is an error."""
        from pyspark.sql import functions as F  # noqa: N812, PLC0415 - as everybody calls it

        if missing := [name for name in self.names if name not in frame.columns]:
            raise LocalError(f"{self.name} has no column {missing[0]!r}; it needs {', '.join(self.names)}")
        return frame.select(*(F.col(each.name).cast(each.dataType) for each in self.spark))


POSITIONS = Table.of(
    "positions",
    "positions of nodes; between two of them a node moves in a straight line",
    Column("scenario", "string", "name of the trace"),
    Column("node", "string", "name of the node"),
    Column("t", "float64", "time in seconds"),
    Column("x", "float64", "metres east"),
    Column("y", "float64", "metres north"),
)
CONTACTS = Table.of(
    "contacts",
    "times at which two nodes are in range of each other, half open; contacts of one pair never overlap",
    Column("scenario", "string", "name of the trace"),
    Column("a", "string", "the node with the lower name"),
    Column("b", "string", "the other node"),
    Column("start", "float64", "start in seconds"),
    Column("end", "float64", "end in seconds, exclusive"),
)
_MEANINGS = {
    "run": "scenario/settings/seed; real nodes: node/NAME",
    "t": "time in seconds, in whole microseconds",
    "kind": "kind of the event",
    "node": "node at which it happened",
    "peer": "the other node",
    "message": "label of the message if it has one, else its id",
    "source": "author of the message",
    "hops": "number of hops; 1: directly from the author",
    "size": "number of bytes, or of entries of a registry",
    "detail": "further information, depending on the kind",
    "attrs": "further values, by name",
}
RECORDS = Table.of(
    "records",
    "the events of runs, one row each, in the order in which they happened within each run",
    *(Column(each.name, each.type, _MEANINGS[each.name], each.nullable) for each in SCHEMA),
)
RUNS = Table.of(
    "runs",
    "the runs of a campaign, one row each",
    Column("run", "string", "scenario/settings/seed"),
    Column("scenario", "string", "name of the scenario"),
    Column("settings", "string", "name of the settings"),
    Column("seed", "string", "seed of the random numbers"),
    Column("status", "string", "`done` or `failed`"),
    Column("version", "string", "version of carrypost"),
    Column("rows", "int64", "rows of its record", nullable=True),
    Column("cpu_s", "float64", "CPU time of the run", nullable=True),
    Column("elapsed_s", "float64", "elapsed time of the run", nullable=True),
    Column("record", "string", "file in `records`", nullable=True),
    Column(
        "set", "map<string, string>", "keys that its settings and the sweep change, with their values", nullable=True
    ),
)
FAILURES = Table.of(
    "failures",
    "the runs of a campaign that failed; a run that succeeds when it is repeated is removed",
    *RUNS.columns[:6],
    Column("error", "string", "the error, in one sentence"),
    Column("traceback", "string", "the Python traceback"),
)
