"""`carrypost lab metrics`: the tables of the papers out of records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

from carrypost.cli import _paths
from carrypost.cli._options import Engine, Json, option, suggest_local
from carrypost.cli._output import line, say, table
from carrypost.cli._progress import progress
from carrypost.cli._signals import orderly
from carrypost.printing import many

if TYPE_CHECKING:
    from carrypost.lab.metrics.objects import FilesToObjects, ObjectSources
    from carrypost.lab.metrics.plugins import Plugin
    from carrypost.lab.metrics.records import Source
    from carrypost.lab.objects import Folder
    from carrypost.lab.schemas import Table

PluginOption = Annotated[
    list[Path], _paths.option("--plugin", "Python file with metrics of your own; may be repeated.", "FILE.py")
]

_RATIO = "delivery_ratio"
_SHOWN = {name: name for name in ("run", "published", "received", "delivered", _RATIO)} | {"delivery_delay_s": "delay"}
"""Figures that fit into 80 columns, and their heads; JSON has all."""


def metrics(
    folder: Annotated[
        _paths.PathText,
        _paths.argument("Folder or URI in which `lab campaign` wrote `records`, or one record.", "DIR", _paths.place),
    ],
    *,
    family: Annotated[list[str], option("--family -f", "Only these families; default: all.", "NAME")] = [],  # noqa: B006 - typer makes a new list
    window_s: Annotated[float, option("--window-s", "Width of the windows of counts over time.", min=0.001)] = 60.0,
    merge_runs: Annotated[
        bool, option("--merge-runs", "Treat the records of all real nodes as one run, with delays across nodes.")
    ] = False,
    out: Annotated[
        _paths.PathText | None,
        _paths.option("--out -o", "Folder or URI for the tables; default: DIR/metrics.", "FOLDER", parser=_paths.place),
    ] = None,
    plugin: PluginOption = [],  # noqa: B006 - typer makes a new list
    engine: Engine,
    json: Json = False,
) -> None:
    """Compute the papers' metrics from records: one table per family, in DIR/metrics.

    Prints, for each run, the outcome of its messages and their mean delays.

    For example:

    * `carrypost lab metrics campaign`

    * `carrypost lab metrics records.parquet --family processing --family delays --out tables`

    * `carrypost lab metrics node-records --merge-runs` for a folder of records of real nodes

    * `carrypost lab metrics campaign --engine local` for records of some megabytes

    * `carrypost lab metrics campaign --plugin my_metrics.py` with metrics of your own
    """
    options = engine.needed("lab metrics")
    from carrypost.lab import engines  # noqa: PLC0415 - needed by this command only
    from carrypost.lab.metrics import families_of, making  # noqa: PLC0415
    from carrypost.lab.metrics.plugins import families_with  # noqa: PLC0415
    from carrypost.lab.objects import folder_of  # noqa: PLC0415

    plugins = read_plugins(plugin)
    tables = families_of(family, families_with(plugins))
    to = None if out is None else folder_of(out)
    wanted = making.Wanted(
        tables=tables, out=to if isinstance(to, Path) else None, window_s=window_s, merge_runs=merge_runs,
        plugins=plugins,
    )  # fmt: skip
    with sources_of(folder, to) as (source, shown):
        suggest_local(options, small=source.nbytes <= making.SMALL_BYTES)
        with orderly(), engines.opened(options) as on, progress("metrics", "runs") as move:
            home = making.make(
                on, source, wanted, on_progress=lambda done, total: move(done, total, ""),
                unreadable=lambda count: say(f"{many(count, 'line')} without a row of a record skipped"),
                remark=say,
            )  # fmt: skip
        _show(home, {each.name for each in tables}, json=json)
        say(f"{many(len(tables), 'family is', 'families are')} in {shown or home}")


@contextmanager
def sources_of(
    text: str | Path, out: Folder | None = None
) -> Iterator[tuple[Source | ObjectSources | FilesToObjects, str]]:
    """Yield the records that a text names, and the place of their tables if that is a folder of objects."""
    from carrypost.lab.metrics.objects import FilesToObjects, ObjectSources  # noqa: PLC0415 - needs the extra
    from carrypost.lab.metrics.records import Source  # noqa: PLC0415
    from carrypost.lab.objects import ObjectFolder, folder_of  # noqa: PLC0415

    place = folder_of(str(text))
    if isinstance(place, Path) and not isinstance(out, ObjectFolder):
        yield Source.find(place), ""
        return
    with TemporaryDirectory(prefix="carrypost-metrics-") as scratch:
        home = Path(scratch)
        if isinstance(place, Path):
            assert isinstance(out, ObjectFolder)
            yield FilesToObjects(Source.find(place), home, out), str(out)
        elif isinstance(out, Path):
            yield ObjectSources(place, home), ""
        else:
            yield ObjectSources(place, home, out), str(out or place / "metrics")


def read_plugins(paths: Sequence[Path]) -> tuple[Plugin, ...]:
    """Return the plugins in these files."""
    from carrypost.lab.metrics.plugins import Plugin  # noqa: PLC0415 - needs the extra

    return tuple(map(Plugin.read, paths))


def _show(home: Path, made: set[str], *, json: bool) -> None:
    """Show the fates of messages by run, as far as they were asked for."""
    names, rows = _found(home, made)
    if json:
        for run in sorted(rows):
            line({name: rows[run][name] for name in names if name in rows[run]})
    elif rows:
        _print(rows, [name for name in names if any(name in row for row in rows.values())])


def _found(home: Path, made: set[str]) -> tuple[list[str], dict[str, dict[str, object]]]:
    """Return the names of all figures of a summary, and by run those that were made."""
    from carrypost.lab import folders  # noqa: PLC0415 - needs the extra
    from carrypost.lab.metrics import families  # noqa: PLC0415 - needs the extra

    counts, delays = families.COUNT_WORDS, {name: f"{word}_s" for name, word in families.DELAY_WORDS.items()}
    rows: dict[str, dict[str, object]] = {}
    sources: tuple[tuple[Table, Callable[[dict[str, Any]], dict[str, object]]], ...] = (
        (families.PROCESSING, lambda row: {word: _received(row).get(name, row[name]) for name, word in counts.items()}),
        (families.DELIVERY_RATIO, lambda row: {_RATIO: row["ratio"]}),
        (families.DELAY_SPREAD, lambda row: {delays[row["metric"]]: row["avg_s"]}),
    )
    for table_, figures in sources:
        for row in folders.read_arrow(home, table_).to_pylist() if table_.name in made else ():
            rows.setdefault(str(row["run"]), {"run": row["run"]}).update(figures(row))
    return ["run", *counts.values(), _RATIO, *delays.values()], rows


def _received(row: dict[str, Any]) -> dict[str, object]:
    """Return the number of received messages that were delivered; the family counts own messages, too, as its paper."""
    return {"codlvd": row["rcvd"] - row["expd"] - row["left"]}


def _print(rows: Mapping[str, Mapping[str, object]], names: Sequence[str]) -> None:
    """Print a short table for people, which fits into 80 columns if names of runs are short."""
    from carrypost.lab.report.times import share, shown  # noqa: PLC0415 - needs the extra

    def cell(name: str, value: object) -> str:
        if isinstance(value, float):
            return shown(value) if name.endswith("_s") else share(value)
        return "–" if value is None else str(value)

    names = [name for name in names if name in _SHOWN]
    heads = [_SHOWN[name] for name in names]
    body = [[cell(name, rows[run].get(name)) for name in names] for run in sorted(rows)]
    table("", heads, body, breakable=heads[1:])
