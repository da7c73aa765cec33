"""The first row of a record: the mode of the emulator that made its run, and what that leaves unknown.

A run of population mode has no rows of hosts: no frames were sent, and no neighbours were found. Families made of such
rows have nothing of it, which is remarked wherever they are shown.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from carrypost.emu.scenario.tables import POPULATION
from carrypost.lab.metrics import families as f
from carrypost.lab.metrics.records import RunFiles
from carrypost.lab.schemas import Table
from carrypost.log.files import refused

NEEDS = {
    f.TRAFFIC: "traffic", f.REGISTRIES: "registry", f.REGISTRY_SIZES: "registry", f.PATH_LENGTHS: "path",
    f.BROKER_TRAFFIC: "registry", f.LOAD: "load",
}  # fmt: skip
"""Families made of rows that only hosts write, and these rows."""


class Origin(NamedTuple):
    """Origin of a run."""

    mode: str
    """Empty: not known, or real nodes."""
    calibration: str
    """Of population mode: the origin of its delays."""
    counted: bool
    """True if rows were not kept, so that only its counts are known."""

    @property
    def of_population(self) -> bool:
        """True if no hosts ran."""
        return self.mode == POPULATION


def first_row(record: Path) -> dict[str, str]:
    """Return the attributes of the first row of a record; none where there is no such file."""
    try:
        batch = next(pq.ParquetFile(record).iter_batches(batch_size=1, columns=["attrs"]), None)
    except FileNotFoundError:  # Metrics may have been taken elsewhere without the records.
        return {}
    except (OSError, pa.ArrowException) as error:
        raise refused(f"{record} cannot be read as a record", error) from None
    return {} if batch is None or not batch.num_rows else dict(batch["attrs"][0].as_py() or ())


def origin(first: dict[str, str]) -> Origin:
    """Return what made the run that begins with this row."""
    try:
        table = tomllib.loads(first.get("defaults", "")).get(POPULATION, {})
    except tomllib.TOMLDecodeError:  # Written by a version of another kind.
        table = {}
    return Origin(first.get("mode", ""), first.get("calibration", ""), table.get("rows") == "none")


def remarks(origins: Iterable[Origin], wanted: Iterable[Table]) -> list[str]:
    """Return remarks about runs of population mode: what they are, and which families know nothing of them."""
    found = [each for each in origins if each.of_population]
    if not found:
        return []
    many = f"{len(found):,} runs are" if len(found) > 1 else "one run is"
    named = "; ".join(dict.fromkeys(each.calibration for each in found))
    remarks = [f"{many} of population mode, calibrated by: {named}"]
    if lacking := [f"{table.name} (rows `{NEEDS[table]}`)" for table in wanted if table in NEEDS]:
        remarks.append(f'{", ".join(lacking)} need rows that only mode = "faithful" has')
    if counted := sum(each.counted for each in found):
        many = f"{counted:,} of them have" if counted > 1 else "one of them has"
        remarks.append(f'{many} counts only (population.rows = "none"): see `carrypost emu show`')
    return remarks


def origin_of(of: RunFiles) -> Origin:
    """Return what made a run; a file of several runs has the first row of only one of them at its beginning."""
    return origin({} if of.shared else first_row(Path(of.files[0])))
