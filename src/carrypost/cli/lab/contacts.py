"""`carrypost lab contacts`."""

from __future__ import annotations

from typing import Annotated, Any

from carrypost.cli import _paths
from carrypost.cli._options import Engine, Json, OptionGroup, option, suggest_local
from carrypost.cli._output import line, table
from carrypost.cli._progress import DESCRIPTION, bar
from carrypost.cli._signals import orderly
from carrypost.errors import LocalError
from carrypost.model.times import MICROSECONDS

_SECONDS_MAX = 1e9


def _seconds(name: str, about: str) -> Any:  # noqa: ANN401 - typer's own type says nothing
    return option(name, about, "SECONDS")


class Search(OptionGroup, frozen=True):
    """The contacts that count, and what else is made of them."""

    range_m: Annotated[float, option("--range-m", "Range of the radio.", "METRES")]
    max_gap_s: Annotated[
        float, _seconds("--max-gap-s", "Do not interpolate between samples further apart than this.")
    ] = 600.0
    merge_gap_s: Annotated[
        float, _seconds("--merge-gap-s", "Merge contacts of a pair with no more than this between them.")
    ] = 0.0
    min_duration_s: Annotated[float, _seconds("--min-duration-s", "Then drop contacts shorter than this.")] = 0.0
    statistics: Annotated[
        bool, option("--statistics", "Also write DIR/statistics: durations, neighbours, activity.")
    ] = False
    window_s: Annotated[float, _seconds("--window-s", "Window of the means over time, with --statistics.")] = 60.0
    slab_s: Annotated[float | None, _seconds("--slab-s", "For tuning: changes the cost, never the result.")] = None


def contacts(
    positions: Annotated[
        _paths.PathText,
        _paths.argument("Folder or URI of a table of positions, or of its Parquet files.", "POSITIONS", _paths.place),
    ],
    *,
    out: Annotated[
        _paths.PathText,
        _paths.option("--out -o", "Folder or URI for the table of contacts.", "DIR", parser=_paths.place),
    ],
    search: Search,
    engine: Engine,
    json: Json = False,
) -> None:
    """Find when nodes were in range of each other: exact to the microsecond, on straight lines between samples.

    Writes DIR/contacts, sorted by start, and prints the number and durations of contacts. Scenarios are searched
    separately. The same positions give the same table with both engines.

    For example:

    * `carrypost lab contacts traces/city --range-m 50 --out traces/city`

    * `carrypost lab contacts traces/city --range-m 50 --max-gap-s 60 --merge-gap-s 5 --min-duration-s 1 --out near`

    * `carrypost lab contacts s3://bucket/big --range-m 100 --master spark://host:7077 --statistics --out s3://bucket/big`
    """
    options = engine.needed("lab contacts")
    from carrypost.lab import engines  # noqa: PLC0415
    from carrypost.lab.contacts.contacts_here import SAMPLES_HERE_MAX  # noqa: PLC0415
    from carrypost.lab.contacts.extract import Wanted, extract, samples  # noqa: PLC0415
    from carrypost.lab.objects import folder_of  # noqa: PLC0415
    from carrypost.traces.encounters import Rules  # noqa: PLC0415 - needed by this command only

    rules = Rules(
        range_m=search.range_m,
        max_gap_us=_microseconds("--max-gap-s", search.max_gap_s, least=1),
        merge_gap_us=_microseconds("--merge-gap-s", search.merge_gap_s),
        min_duration_us=_microseconds("--min-duration-s", search.min_duration_s),
    )
    wanted = Wanted(
        rules=rules,
        slab_us=None if search.slab_s is None else max(1, _microseconds("--slab-s", search.slab_s)),
        statistics=search.statistics,
        window_s=max(1, _microseconds("--window-s", search.window_s)) / MICROSECONDS,
    )
    source, home = folder_of(positions), folder_of(out)
    suggest_local(options, small=samples(source) <= SAMPLES_HERE_MAX)
    with orderly(), bar(f"searching {source}", "Spinner", DESCRIPTION, "TimeElapsed"), engines.opened(options) as on:
        found = extract(source, home, wanted, on)
    _show(found, json=json)


def _microseconds(option: str, seconds: float, *, least: int = 0) -> int:
    if not 0 <= seconds < _SECONDS_MAX or round(seconds * MICROSECONDS) < least:
        raise LocalError(
            f"{option} must be a number of seconds, {'above 0' if least else '0 or more'}, not {seconds!r}"
        )
    return round(seconds * MICROSECONDS)


def _show(found: list[dict[str, Any]], *, json: bool) -> None:
    if json:
        for each in found:
            line(each)
        return
    names = max(found, key=len, default={"scenario": "", "contacts": 0})
    rows = [[_shown(each[name]) if name in each else "–" for name in names] for each in found]
    table("", [name.replace("_s", " s") for name in names], rows, breakable=["scenario"])


def _shown(value: object) -> object:
    if isinstance(value, float):
        return f"{value:,.3f}"
    return f"{value:,}" if isinstance(value, int) else value
