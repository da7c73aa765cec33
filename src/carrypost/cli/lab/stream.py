"""`carrypost lab stream`: records of real nodes, as they arrive."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from carrypost.cli._exit import INTERRUPTED, orderly
from carrypost.cli._options import (
    PathText,
    Spark,
    StreamJson,
    needs_engine,
    option,
    path_argument,
    path_option,
    path_or_uri,
)
from carrypost.cli._output import blank, cell, duration, line, say, size
from carrypost.errors import LocalError
from carrypost.printing import many

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from carrypost.lab.stream import Live

_OUT = "Folder for tables and checkpoint, or URI for tables; default: DIR-live."
_NODES_MAX = 30
_NAME_MAX = 8
_MILLISECONDS = 1e3


def stream(
    source: Annotated[
        PathText,
        path_argument("Folder or URI with the records of nodes; subfolders are read, too.", "DIR", path_or_uri),
    ],
    *,
    out: Annotated[PathText | None, path_option("--out -o", _OUT, parser=path_or_uri)] = None,
    once: Annotated[bool, option("--once", "Read what is there, and stop.")] = False,
    every_s: Annotated[float, option("--every-s", "How often to look for new rows.", min=1.0)] = 5.0,
    window_s: Annotated[float, option("--window-s", "Length of the windows of the timeline.")] = 60.0,
    watermark_s: Annotated[
        float, option("--watermark-s", "Rows that arrive later than this are left out of the timeline.")
    ] = 120.0,
    horizon_s: Annotated[float, option("--horizon-s", "Delays longer than this are not counted.")] = 3_600.0,
    skew_s: Annotated[float, option("--skew-s", "How much the clocks of nodes may differ.")] = 60.0,
    cluster: Spark,
    json: StreamJson = False,
) -> None:
    """Follow the records that real nodes write (`record.folder` in their settings), until Ctrl-C.

    Keeps a summary on the terminal, and tables in Parquet under `--out`: nodes, metrics/timeline, metrics/delays,
    metrics/delay_cdf. Started again with the same `--out`, it continues where it stopped.

    For example:

    * `carrypost lab stream records --out live`

    * `carrypost lab stream records --out live --once` reads what is there, and stops
    """
    needs_engine("spark")
    from carrypost.lab.folders import folder_of  # noqa: PLC0415
    from carrypost.lab.spark.session import session  # noqa: PLC0415 - needed by this command only
    from carrypost.lab.stream import StreamOptions, begin, copies, follow  # noqa: PLC0415

    options = StreamOptions(window_s=window_s, watermark_s=watermark_s, horizon_s=horizon_s, skew_s=skew_s)
    records = folder_of(source)
    into = records.with_name(f"{records.name}-live") if out is None else folder_of(out)
    asked = cluster.options("lab stream")
    if not (isinstance(records, Path) and isinstance(into, Path)) and not asked.on_this_machine:
        raise LocalError(f"a stream of objects keeps its state here, so Spark must be here, too, not {asked.master}")
    with orderly(), copies(records, into) as here:
        begin(here.source, here.out, options)
        try:
            with session(asked) as spark, _shown(json=json) as show:

                def news(live: Live) -> None:
                    here.publish()
                    show(live)

                follow(
                    spark, here.source, here.out, options, every_s=None if once else every_s, on_news=news,
                    refresh=here.refresh,
                )  # fmt: skip
        except KeyboardInterrupt:
            say(f"stopped; {into} has the rows so far, and the same command continues from there")
            if once:
                raise typer.Exit(INTERRUPTED) from None


@contextmanager
def _shown(*, json: bool) -> Iterator[Callable[[Live], None]]:
    """Yield a function to call when there is news: it updates a table in place, or prints lines of JSON."""
    if json:
        yield _report
        return
    from rich.live import Live as Screen  # noqa: PLC0415 - loaded only where a table is shown

    with Screen(auto_refresh=False) as screen:

        def show(live: Live) -> None:
            screen.update(_tables(live), refresh=True)

        yield show


def _report(live: Live) -> None:
    from carrypost.lab.metrics.families import DELAY_WORDS  # noqa: PLC0415 - needs the extra

    line(
        {
            "nodes": sum(node != "?" for node in live.nodes["node"].to_pylist()),
            **{name: sum(live.nodes[name].to_pylist()) for name in live.nodes.column_names[2:]},
            "delays": {
                DELAY_WORDS[each.pop("metric")]: each for each in live.delays().drop_columns(["run"]).to_pylist()
            },
        }
    )


def _tables(live: Live) -> Group:
    from rich.console import Group  # noqa: PLC0415 - loaded only where a table is shown

    from carrypost.lab.metrics.families import DELAY_WORDS  # noqa: PLC0415 - needs the extra

    def headed(title: str, *columns: str) -> Table:
        made = blank(title)
        for number, name in enumerate(columns):
            made.add_column(name, justify="right" if number else "left", no_wrap=True)
        return made

    counts = ("published", "received", "delivered", "expired", "dropped", "refused")
    known = [row for row in live.nodes.to_pylist() if row["node"] != "?"]
    title = f"{many(len(known), 'node')} at {time.strftime('%H:%M:%S')}"
    nodes = headed(title, "node", "ago", *counts, "sent")
    latest = sorted(known, key=lambda row: -row["last"])
    for row in latest[:_NODES_MAX]:
        ago = duration(max(0.0, time.time() - row["last"])) if row["last"] else "–"
        who = cell(row["node"])
        who.truncate(_NAME_MAX, overflow="ellipsis")
        nodes.add_row(who, ago, *(f"{row[each]:,}" for each in counts), size(row["bytes_sent"]))
    shares = ("p50_s", "p90_s", "p95_s", "p99_s")
    delays = headed("delays", "", "count", "mean", *(each.removesuffix("_s") for each in shares), "most")
    for row in live.delays().to_pylist():
        values = (row["avg_s"], *(row[each] for each in shares), row["max_s"])
        delays.add_row(DELAY_WORDS[row["metric"]].replace("_", " "), f"{row['count']:,}", *map(_seconds, values))
    unreadable, ahead = (sum(live.nodes[name].to_pylist()) for name in ("unreadable", "ahead"))
    more = [many(len(known) - _NODES_MAX, "more node")] if len(known) > _NODES_MAX else []
    more += [many(ahead, "row with a time in the future", "rows with times in the future")] if ahead else []
    more += [f"{many(unreadable, 'line')} without a row of a record"] if unreadable else []
    return Group(nodes, *more, delays)


def _seconds(seconds: float) -> str:
    return f"{seconds * _MILLISECONDS:.0f} ms" if abs(seconds) < 1 else duration(seconds)
