"""Places of nodes: from a file, from the movement that the run's scenario and seed give, or a layout of who meets whom.

Movement is checked against the record: where contacts begin, both nodes must be in range. So a record whose scenario or
seed was changed, or whose files are not the same any more, is not shown at places where its nodes never were.
"""

from __future__ import annotations

import math
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from carrypost.arrays import Codes, Flags, Floats, Ints
from carrypost.emu.records.log import MISSING
from carrypost.emu.scenario.checks import check_seed, seed_of
from carrypost.emu.scenario.scenario import Scenario
from carrypost.errors import CarrypostError, LocalError
from carrypost.mobility.traces import Trace
from carrypost.model.times import MICROSECONDS
from carrypost.traces.tracks import Tracks
from carrypost.web.replay import layout
from carrypost.web.replay.scan import Scan

CHECKED = 200
"""Number of contacts at whose start the distance is checked."""
SLACK_M = 0.01
_CHUNK_ROWS = 60_000
_CHUNKS_MAX = 2_000


@dataclass(frozen=True, eq=False)
class Places:
    """The movement of a run's nodes: straight lines between samples, which are ordered by node and time.

    A sample whose place is not a number lies within a gap: there is no line on either side of it.
    """

    source: Literal["file", "mobility", "layout"]
    why: str
    """Reason for a layout, as a sentence."""
    node: Codes
    t: Floats
    x: Floats
    y: Floats
    range_m: float | None = None

    @property
    def box(self) -> list[float]:
        """The least and the greatest x and y: left, bottom, right, top."""
        there = np.isfinite(self.x)
        if not there.any():
            return [0.0, 0.0, 1.0, 1.0]
        x, y = self.x[there], self.y[there]
        return [float(x.min()), float(y.min()), float(x.max()), float(y.max())]

    def within(self, start: float, end: float) -> Ints:
        """Return the samples that are needed for all places from start to end."""
        t, one = self.t, self.node[1:] == self.node[:-1]
        kept: Flags = (t >= start) & (t <= end)
        kept[:-1] |= one & (t[:-1] < start) & (t[1:] > start)
        kept[1:] |= one & (t[1:] > end) & (t[:-1] < end)
        return np.flatnonzero(kept)

    def at(self, node: int, t: float) -> tuple[float, float] | None:
        """Return the place of a node at an instant; None: it is nowhere."""
        low, high = np.searchsorted(self.node, [node, node + 1])
        place = int(low + np.searchsorted(self.t[low:high], t, side="right")) - 1
        if place < low or (place == high - 1 and t > self.t[place]):
            return None
        x, y = float(self.x[place]), float(self.y[place])
        if t > self.t[place]:
            part = (t - self.t[place]) / (self.t[place + 1] - self.t[place])
            x, y = x + part * (float(self.x[place + 1]) - x), y + part * (float(self.y[place + 1]) - y)
        return None if math.isnan(x + y) else (x, y)


def chunk_s(scan: Scan, places: Places) -> float:
    """Return the length of the parts in which pages load tracks and contacts."""
    much = len(places.t) + len(scan.spans["contact"]) + len(scan.spans["seen"])
    parts = min(_CHUNKS_MAX, max(1, -(-much // _CHUNK_ROWS)))
    return max((scan.end - scan.start) / parts, 1e-3)


def find(scan: Scan, positions: Path | None, scenario: Path | None) -> Places:
    """Return the places of a run's nodes."""
    if positions is not None:
        duration_us = round((scan.end - scan.start) * MICROSECONDS)
        tracks = Trace(file=str(positions), start_s=scan.start).move(0, duration_us).tracks
        return _placed(scan, "file", tracks, start=scan.start)
    try:
        return _moved(scan, scenario)
    except CarrypostError as error:
        why = str(error)
    node, t, x, y = layout.tracks(scan)
    return Places("layout", why, node, t, x, y)


def _moved(scan: Scan, given: Path | None) -> Places:
    """Return the places by the scenario's mobility; raises `CarrypostError` if that is not possible."""
    reason = "there is no such file"
    for scenario in _scenarios(scan.attributes, scan.source.path, given):
        if scenario.mobility is None:
            raise LocalError("the scenario of this run has no [mobility]")
        try:
            movement = scenario.mobility.move(_seed(scan.attributes.get("seed", "1")), scenario.duration_us)
        except CarrypostError as error:
            reason = str(error)
            continue
        gap_us = getattr(scenario.mobility, "max_gap_us", None)
        found = _placed(scan, "mobility", movement.tracks, gap_us=gap_us, range_m=scenario.radio.range_m)
        if (wrong := _out_of_range(scan, found)) is None:
            return found
        reason = wrong
    raise LocalError(reason)


def _scenarios(attributes: Mapping[str, str], path: Path, given: Path | None) -> Iterator[Scenario]:
    """Yield the run's scenario with each folder that may have its files."""
    text = attributes.get("scenario")
    if text is None:
        if given is None:
            raise LocalError("the record does not say where nodes were")
        yield Scenario.load(given)
        return
    try:
        file = tomllib.loads(text).get("mobility", {}).get("file", "")
    except (tomllib.TOMLDecodeError, AttributeError):
        raise LocalError("the scenario in the record cannot be read") from None
    name = Path(file).name if isinstance(file, str) else ""
    if (content := attributes.get(f"text:{name}")) is not None and name:
        with tempfile.TemporaryDirectory(prefix="carrypost-web-") as folder:
            Path(folder, "movement").write_text(content, encoding="utf-8")
            yield Scenario.parse(text, folder, overrides={"mobility.file": "movement"})
    for beside in dict.fromkeys([path.parent, *([] if given is None else [given.parent])]):
        yield Scenario.parse(text, beside)


def _seed(text: str) -> int | str:
    check_seed(text)
    return seed_of(text)


def _placed(
    scan: Scan, source: Literal["file", "mobility"], tracks: Tracks, *, start: float = 0.0, gap_us: int | None = None,
    range_m: float | None = None,
) -> Places:  # fmt: skip
    """Return tracks as places of the nodes in the record; a node that lost its store moves as before."""
    places = {name: number for number, name in enumerate(tracks.nodes)}
    first = np.searchsorted(tracks.node, np.arange(len(tracks.nodes) + 1))
    of = [places.get(name, places.get(name.rpartition(".")[0], MISSING)) for name in scan.names.texts]
    rows = [np.arange(first[each], first[each + 1]) if each >= 0 else np.arange(0) for each in of]
    node = np.repeat(np.arange(len(of)), [len(each) for each in rows])
    row = np.concatenate([np.arange(0), *rows])
    t_us, x, y = tracks.t_us[row], tracks.x[row], tracks.y[row]
    if gap_us is not None:
        gaps = np.flatnonzero((node[1:] == node[:-1]) & (np.diff(t_us) > gap_us)) + 1
        t_us = np.insert(t_us, gaps, (t_us[gaps] + t_us[gaps - 1]) // 2)
        node, x, y = np.insert(node, gaps, node[gaps]), np.insert(x, gaps, math.nan), np.insert(y, gaps, math.nan)
    return Places(source, "", node.astype(np.int32), t_us / MICROSECONDS + start, x, y, range_m)


def _out_of_range(scan: Scan, found: Places) -> str | None:
    """Return how the movement contradicts the record's contacts; None: it does not."""
    contacts, lives = scan.spans["contact"], scan.spans["presence"]
    # A contact that begins as one of the two joins may be in the middle of a longer one, which bridges a gap.
    joined = set(zip(lives.a.tolist(), lives.start.tolist(), strict=True))
    pairs = list(zip(contacts.a.tolist(), contacts.b.tolist(), contacts.start.tolist(), strict=True))
    free = [each for each in pairs if (each[0], each[2]) not in joined and (each[1], each[2]) not in joined] or pairs
    if not free:
        return "the record has no contacts to check the scenario's movement by"
    for a, b, t in free[:: -(-len(free) // CHECKED)]:
        one, two = found.at(a, t), found.at(b, t)
        names = f"{scan.names.shown[a]} and {scan.names.shown[b]}"
        if one is None or two is None:
            return f"{names} met at {t:,.1f} s, and by the scenario and seed one of them was nowhere then"
        if (far := math.dist(one, two)) > (found.range_m or 0.0) + SLACK_M:
            return f"{names} met at {t:,.1f} s, and by the scenario and seed they were {far:,.0f} m apart then"
    return None
