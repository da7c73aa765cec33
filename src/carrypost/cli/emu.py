"""Commands of the emulator: run a scenario, show what a record tells, search for rare faults; population mode."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from carrypost.cli._exit import INTERRUPTED, orderly
from carrypost.cli._options import (
    Commands,
    Json,
    ScenarioChanges,
    Seed,
    ending_in,
    needs_emulator,
    option,
    path_argument,
    path_option,
)
from carrypost.cli._options import Scenario as ScenarioFile
from carrypost.cli._output import DESCRIPTION, bar, duration, figures, line, say, table
from carrypost.config.document import assigned
from carrypost.errors import FileError, LocalError
from carrypost.log.files import refusing, staged
from carrypost.model.times import MICROSECONDS
from carrypost.printing import many

if TYPE_CHECKING:
    from carrypost.emu.engine.world import Progress
    from carrypost.emu.scenario import Scenario

emu = Commands("emu", help="Emulate thousands of real hosts in one process, in virtual time.")
_COLUMNS = (DESCRIPTION, "Bar", "TaskProgress", "{task.fields[state]}", "TimeRemaining")


class _Latest:
    """The last report of a run: virtual time, contacts and receptions; and the bar that shows it on a terminal."""

    def __init__(self) -> None:
        self.t_us = self.contacts = self.receptions = 0
        self.update: Callable[..., None] | None = None
        self._begun_s = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        """Take a report."""
        self.t_us, self.contacts, self.receptions = progress.t_us, progress.contacts, progress.receptions
        if self.update is not None:
            seconds = progress.t_us / MICROSECONDS
            speed = f"{seconds / max(time.monotonic() - self._begun_s, 1e-3):,.0f} s/s"
            state = (
                f"{duration(seconds)}, {speed}, {many(self.contacts, 'contact')}, {many(self.receptions, 'reception')}"
            )
            self.update(completed=progress.t_us / progress.end_us, state=state)


@contextmanager
def _emulating(name: str, latest: _Latest) -> Iterator[None]:
    """Show a bar on a terminal while a run lasts."""
    with bar(name, *_COLUMNS, total=1.0) as latest.update:
        yield


@emu.command("run")
def run_scenario(
    scenario: ScenarioFile,
    *,
    seed: Seed = "1",
    out: Annotated[
        Path | None,
        path_option(
            "--out -o",
            "Write the record here: Parquet, or JSON lines if the name ends in .jsonl.",
            parser=ending_in(".parquet", ".jsonl", ".ndjson"),
        ),
    ] = None,
    changes: ScenarioChanges = [],  # noqa: B006 - typer makes a new list
    mode: Annotated[
        str | None, option("--mode", "Override the scenario's mode: faithful, ideal or population.")
    ] = None,
    export_one: Annotated[
        Path | None, path_option("--export-one", "Also write the contacts, as connection events of The ONE.")
    ] = None,
    encoded: Annotated[bool, option("--encoded", "Encode and decode every frame; the record is the same.")] = False,
    json: Json = False,
) -> None:
    """Emulate a scenario. The same scenario and seed give the same record, byte for byte.

    Ctrl-C ends a run early; the record has the rows up to then.

    For example:

    * `carrypost emu run three.toml --seed 1 --out records.parquet`

    * `carrypost emu run three.toml --set workload.0.lifetime_s=600 --set radio.loss=0.1 --out lossy.parquet`

    * `carrypost emu run three.toml --mode ideal --export-one contacts.txt` for a cross-check with The ONE

    * `carrypost emu run city.toml --mode population --set population.delays=delays.json` for 100,000 nodes
    """
    needs_emulator()
    from carrypost.emu.scenario import Scenario  # noqa: PLC0415 - needed by this command only

    overrides = [*changes, *([f"mode={mode}"] if mode is not None else [])]
    _play(Scenario.load(scenario, overrides), seed, out, export_one, encoded=encoded, json=json)


@orderly()
def _play(
    scenario: Scenario, seed: str, out: Path | None, export_one: Path | None, *, encoded: bool, json: bool
) -> None:
    from carrypost.emu.runs import prepare  # noqa: PLC0415 - likewise
    from carrypost.gossip.discovery.neighbour import places  # noqa: PLC0415 - likewise
    from carrypost.traces.contacts import write_one  # noqa: PLC0415 - needs the extra

    prepared = prepare(scenario, seed, encoded=encoded)
    if export_one is not None:
        with staged(export_one) as partial:
            text = "".join(f"{each}\n" for each in write_one(prepared.contacts()))
            partial.write_text(text, encoding="utf-8", newline="\n")
    begun, started_s = time.process_time(), time.monotonic()
    latest = _Latest()
    try:
        with _emulating(scenario.name, latest):
            records = prepared.run(out, latest, keep=False)
    except KeyboardInterrupt:
        where = f"; {out} has the rows up to then" if out is not None else ""
        say(f"interrupted at {latest.t_us / MICROSECONDS:,.0f} s of virtual time{where}")
        raise typer.Exit(INTERRUPTED) from None
    found: dict[str, object] = {
        "run": prepared.name,
        "duration_s": scenario.run.duration_s,
        "nodes": prepared.nodes,
        "contacts": latest.contacts,
        "receptions": latest.receptions,
        "crowded": prepared.crowded,
        "rows": len(records),
        "cpu_s": round(time.process_time() - begun, 3),
        "elapsed_s": round(time.monotonic() - started_s, 3),
        "record": None if out is None else str(out),
    }
    if ignored := prepared.ignored_events:
        say(
            f"ignored: {ignored:,} events of the contacts that bring up a connected pair, or down an unconnected one; "
            "to count them: --set contacts.overlaps=true"
        )
    if crowded := prepared.crowded:
        say(
            f"{crowded:,} of {prepared.nodes:,} nodes had more nodes in range than places for neighbours "
            f"({places(scenario.settings):,}, by limits.heard_max, limits.neighbours_max and mtu_bytes); the "
            "nodes without a place had to wait for a turn, which the record shows as refusals, `neighbours`"
        )
    figures(found if json or out else found | {"record": "not kept"}, json=json)


@emu.command()
def show(
    records: Annotated[list[Path], path_argument("Records, as `emu run --out` writes them.", "RECORDS")],
    *,
    json: Json = False,
) -> None:
    """Summarise runs: nodes, contacts, messages, delays, drops by reason, bytes, share of the flood bound.

    For example: `carrypost emu show records.parquet`, `carrypost emu show first.parquet second.parquet --json`
    """
    needs_emulator()
    from carrypost.emu.records import read  # noqa: PLC0415 - needed by this command only
    from carrypost.emu.rows import runs  # noqa: PLC0415
    from carrypost.emu.summary import summarise  # noqa: PLC0415
    from carrypost.log.record import Kind  # noqa: PLC0415

    for path in records:
        for run in runs(read(path)):
            if run["kind"][0].as_py() != Kind.RUN:
                raise FileError(
                    f"{path} is not a complete record: the row that describes the run is missing at its start. The "
                    "file was cut, or is a later one of the files that a node wrote"
                )
            try:
                found = summarise(run)
            except LocalError as error:
                raise FileError(f"{path} cannot be read as a record: {error}") from None
            typer.echo(found.json() if json else found.text())


@emu.command()
def soak(
    *,
    seeds: Annotated[int, option("--seeds", "Number of random scenarios.", min=1)] = 100,
    first: Annotated[int, option("--first", "The first seed.", min=0)] = 1,
    jobs: Annotated[int, option("--jobs", "Number of scenarios that run at the same time.", min=1)] = 1,
    out: Annotated[
        Path | None,
        path_option("--out", "Folder for the scenarios that fail; default: the current folder.", "FOLDER"),
    ] = None,
    order: Annotated[
        bool, option("--order", "Hours of topics with causal order, instead of a minute of plain topics.")
    ] = False,
    messaging: Annotated[
        bool, option("--messaging", "Programs on the nodes use messaging, on plain and causal topics.")
    ] = False,
    addressed: Annotated[bool, option("--addressed", "Messages list their recipients, and buffers are small.")] = False,
    channels: Annotated[bool, option("--channels", "Brokers, and producers and consumers of event channels.")] = False,
    json: Json = False,
) -> None:
    """Run random scenarios with faults and check every record; for each failure, print the seed and how to repeat it.

    For example: `carrypost emu soak --seeds 5000 --jobs 4`, `carrypost emu soak --order --seeds 1 --first 77`
    """
    needs_emulator()
    from carrypost.emu.verify import random_scenarios  # noqa: PLC0415 - needed by this command only
    from carrypost.emu.verify import soak as search  # noqa: PLC0415

    given = {
        random_scenarios.ORDER: order,
        random_scenarios.MESSAGING: messaging,
        random_scenarios.ADDRESSED: addressed,
    }
    given[random_scenarios.CHANNELS] = channels
    chosen = [family for family, is_given in given.items() if is_given]
    if len(chosen) > 1:
        raise LocalError(f"--{chosen[0]} and --{chosen[1]} exclude each other: choose one kind of scenario")
    family = chosen[0] if chosen else random_scenarios.PLAIN
    with orderly():
        raise typer.Exit(search.main(seeds, first, family, jobs=jobs, json=json, out=out))


# --- population mode -------------------------------------------------------------------------------------------------


@emu.command()
def calibrate(
    scenario: ScenarioFile,
    *,
    out: Annotated[Path, path_option("--out -o", "File for the delays.", "DELAYS")],
    duration_s: Annotated[float, option("--for", "Length of the run in seconds of virtual time.", min=1.0)] = 1800.0,
    seed: Seed = "1",
    changes: ScenarioChanges = [],  # noqa: B006 - typer makes a new list
    json: Json = False,
) -> None:
    """Measure the two delays of population mode in a faithful run, and store them.

    The delays are valid for scenarios with the same `[radio]`, the same `[settings]` and messages that are no larger.
    Measure them with a seed other than those of the runs.

    For example:

    * `carrypost emu calibrate town.toml --for 1800 --seed 2 --out delays.json`

    * `carrypost emu run town.toml --mode population --set population.delays=delays.json --out records.parquet`
    """
    needs_emulator()
    from carrypost.emu.population.calibration import calibrate as run  # noqa: PLC0415 - needed by this command only
    from carrypost.emu.population.delays import QUANTILES  # noqa: PLC0415 - as well

    with refusing(f"{out} cannot be written"), tempfile.TemporaryFile(dir=out.absolute().parent):
        pass  # Told before the run, not after it.
    begun_s, latest = time.process_time(), _Latest()
    with orderly(), _emulating(f"calibrating {scenario.stem}", latest):
        found = run(scenario, seed, duration_s, dict(map(assigned, changes)), latest)
    found.write(out)
    figures(
        {
            "delays": str(out),
            "contacts": found.contacts,
            "censored": found.censored,
            "hops": found.hops,
            "discovery_median_s": found.discovery_s[QUANTILES // 2],
            "published_median_s": found.published_s[QUANTILES // 2],
            "relayed_median_s": found.relayed_s[QUANTILES // 2],
            "awaited_median_s": found.awaited_s[QUANTILES // 2],
            "fingerprint": found.fingerprint,
            "cpu_s": round(time.process_time() - begun_s, 3),
        },
        json=json,
    )


@emu.command()
def compare(
    scenario: ScenarioFile,
    *,
    delays: Annotated[Path, path_option("--delays", "File that `emu calibrate` wrote, from another seed.", "DELAYS")],
    seed: Annotated[list[str], option("--seed", "May be given several times.")] = ["1"],  # noqa: B006
    duration_s: Annotated[float, option("--for", "Length of the run in seconds of virtual time.", min=1.0)] = 3600.0,
    ideal: Annotated[bool, option("--ideal", "Also run ideal mode.")] = False,
    changes: ScenarioChanges = [],  # noqa: B006 - typer makes a new list
    json: Json = False,
) -> None:
    """Run a scenario in faithful and in population mode, and compare their results and their cost.

    KS is the Kolmogorov-Smirnov distance of the delays. Processor time is that of the runs, without finding contacts.

    For example:

    * `carrypost emu compare town.toml --delays delays.json --seed 1 --seed 3`

    * `carrypost emu compare scenarios/ostermalm.toml --delays delays.json --set workload.0.ordering=none --ideal`
    """
    needs_emulator()
    from carrypost.emu.population.calibration import compared  # noqa: PLC0415 - needed by this command only

    given = {**dict(map(assigned, changes)), "duration_s": duration_s}
    rows: list[dict[str, object]] = []
    latest = _Latest()
    with orderly(), _emulating(f"comparing {scenario.stem}", latest):
        for each in seed:
            found = list(compared(scenario, each, delays, given, ideal=ideal, watch=lambda _, so_far: latest(so_far)))
            rows += [figure.beside(found[0]) for figure in found]
    if json:
        for row in rows:
            line(row)
        return
    heads = ("mode", "seed", "receptions", "mean delay, s", "mean hops", "KS", "CPU s", "receptions per CPU s")
    table("", heads, [_shown(row) for row in rows], breakable=heads[1:])


def _shown(row: dict[str, object]) -> tuple[str, ...]:
    def off(name: str, form: str) -> str:
        value, difference = row[name], row[f"{name}_off"]
        note = f" ({difference:+.2%})" if isinstance(difference, float) and row["mode"] != "faithful" else ""
        return f"{value:{form}}{note}"

    receptions, cpu_s, ks = row["receptions"], row["cpu_s"], row["ks"]
    assert isinstance(receptions, int)
    assert isinstance(cpu_s, float)
    means = off("delay_mean_s", ",.2f"), off("hops_mean", ".2f")
    far = "–" if ks is None or row["mode"] == "faithful" else f"{ks:.3f}"
    per_s = f"{receptions / max(cpu_s, 1e-9):,.0f}"
    return str(row["mode"]), str(row["seed"]), off("receptions", ","), *means, far, f"{cpu_s:,.3f}", per_s
