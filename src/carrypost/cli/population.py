"""`carrypost emu calibrate` and `carrypost emu compare`: the delays of population mode, and how well they do."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Annotated

from carrypost.cli import _paths
from carrypost.cli._emulating import Latest, emulating
from carrypost.cli._extras import needs_emulator
from carrypost.cli._options import Json, Scenario, ScenarioChanges, Seed, option
from carrypost.cli._output import figures, line, table
from carrypost.cli._signals import orderly
from carrypost.config.document import assigned
from carrypost.files import refusing


def calibrate(
    scenario: Scenario,
    *,
    out: Annotated[Path, _paths.option("--out -o", "File for the delays.", "DELAYS")],
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
    from carrypost.emu.population.calibrate import calibrate as run  # noqa: PLC0415 - needed by this command only
    from carrypost.emu.population.delays import QUANTILES  # noqa: PLC0415 - as well

    with refusing(f"{out} cannot be written"), tempfile.TemporaryFile(dir=out.absolute().parent):
        pass  # Told before the run, not after it.
    begun_s, latest = time.process_time(), Latest()
    with orderly(), emulating(f"calibrating {scenario.stem}", latest):
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


def compare(
    scenario: Scenario,
    *,
    delays: Annotated[Path, _paths.option("--delays", "File that `emu calibrate` wrote, from another seed.", "DELAYS")],
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
    from carrypost.emu.population.compare import compared  # noqa: PLC0415 - needed by this command only

    given = {**dict(map(assigned, changes)), "duration_s": duration_s}
    rows: list[dict[str, object]] = []
    latest = Latest()
    with orderly(), emulating(f"comparing {scenario.stem}", latest):
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
