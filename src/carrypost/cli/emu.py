"""Commands of the emulator: run a scenario, show what a record tells, search for rare faults; population mode."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from carrypost.cli import _paths
from carrypost.cli._emulating import Latest, emulating
from carrypost.cli._extras import needs_emulator
from carrypost.cli._groups import Commands
from carrypost.cli._options import Json, ScenarioChanges, Seed, option
from carrypost.cli._options import Scenario as ScenarioFile
from carrypost.cli._output import figures, say
from carrypost.cli._signals import INTERRUPTED, orderly
from carrypost.cli.population import calibrate, compare
from carrypost.errors import FileError, LocalError
from carrypost.files import staged
from carrypost.model.times import MICROSECONDS

if TYPE_CHECKING:
    from carrypost.emu.scenario.scenario import Scenario

emu = Commands("emu", help="Emulate thousands of real hosts in one process, in virtual time.")


@emu.command("run")
def run_scenario(
    scenario: ScenarioFile,
    *,
    seed: Seed = "1",
    out: Annotated[
        Path | None,
        _paths.option(
            "--out -o",
            "Write the record here: Parquet, or JSON lines if the name ends in .jsonl.",
            parser=_paths.ending_in(".parquet", ".jsonl", ".ndjson"),
        ),
    ] = None,
    changes: ScenarioChanges = [],  # noqa: B006 - typer makes a new list
    mode: Annotated[
        str | None, option("--mode", "Override the scenario's mode: faithful, ideal or population.")
    ] = None,
    export_one: Annotated[
        Path | None, _paths.option("--export-one", "Also write the contacts, as connection events of The ONE.")
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
    from carrypost.emu.scenario.scenario import Scenario  # noqa: PLC0415 - needed by this command only

    overrides = [*changes, *([f"mode={mode}"] if mode is not None else [])]
    _play(Scenario.load(scenario, overrides), seed, out, export_one, encoded=encoded, json=json)


@orderly()
def _play(
    scenario: Scenario, seed: str, out: Path | None, export_one: Path | None, *, encoded: bool, json: bool
) -> None:
    from carrypost.emu.runs import prepare  # noqa: PLC0415 - likewise
    from carrypost.emu.traces.contacts import write_one  # noqa: PLC0415 - needs the extra
    from carrypost.gossip.discovery.places import places  # noqa: PLC0415 - likewise

    prepared = prepare(scenario, seed, encoded=encoded)
    if export_one is not None:
        with staged(export_one) as partial:
            text = "".join(f"{each}\n" for each in write_one(prepared.contacts()))
            partial.write_text(text, encoding="utf-8", newline="\n")
    begun, started_s = time.process_time(), time.monotonic()
    latest = Latest()
    try:
        with emulating(scenario.name, latest):
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
    if crowded := prepared.crowded:
        say(
            f"{crowded:,} of {prepared.nodes:,} nodes had more nodes in range than places for neighbours "
            f"({places(scenario.settings):,}, by limits.heard_max, limits.neighbours_max and mtu_bytes); the "
            "nodes without a place had to wait for a turn, which the record shows as refusals, `neighbours`"
        )
    figures(found if json or out else found | {"record": "not kept"}, json=json)


@emu.command()
def show(
    records: Annotated[list[Path], _paths.argument("Records, as `emu run --out` writes them.", "RECORDS")],
    *,
    json: Json = False,
) -> None:
    """Summarise runs: nodes, contacts, messages, delays, drops by reason, bytes, share of the flood bound.

    For example: `carrypost emu show records.parquet`, `carrypost emu show first.parquet second.parquet --json`
    """
    needs_emulator()
    from carrypost.emu.records import files, log, summary  # noqa: PLC0415 - needed by this command only
    from carrypost.record import Kind  # noqa: PLC0415

    for path in records:
        for table in log.runs(files.read(path)):
            if table["kind"][0].as_py() != Kind.RUN:
                raise FileError(
                    f"{path} is not a complete record: the row that describes the run is missing at its start. The "
                    "file was cut, or is a later one of the files that a node wrote"
                )
            try:
                found = summary.summarise(table)
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
        _paths.option("--out", "Folder for the scenarios that fail; default: the current folder.", "FOLDER"),
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
    from carrypost.emu.verify import drawing  # noqa: PLC0415 - needed by this command only
    from carrypost.emu.verify import soak as search  # noqa: PLC0415

    given = {drawing.ORDER: order, drawing.MESSAGING: messaging, drawing.ADDRESSED: addressed}
    given[drawing.CHANNELS] = channels
    chosen = [family for family, is_given in given.items() if is_given]
    if len(chosen) > 1:
        raise LocalError(f"--{chosen[0]} and --{chosen[1]} exclude each other: choose one kind of scenario")
    family = chosen[0] if chosen else drawing.PLAIN
    with orderly():
        raise typer.Exit(search.main(seeds, first, family, jobs=jobs, json=json, out=out))


emu.command()(calibrate)
emu.command()(compare)
