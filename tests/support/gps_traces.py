"""GPS traces in the layouts in which KAIST's and cabspotting's were published, with their known contents."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

Sample = tuple[int, float, float]
"""Microseconds, then how far east and north."""


class GpsTrace(NamedTuple):
    """Files, one for each node, and their contents."""

    paths: list[Path]
    places: dict[str, list[Sample]]
    """By node; in metres, or degrees east and north."""
    degrees: bool

    def motion(self, origin: Mapping[str, float]) -> dict[str, list[Sample]]:
        """In metres, east and north of this latitude and longitude."""
        if not self.degrees:
            return self.places
        north_m = math.pi / 180 * 6_371_000.0
        east_m = north_m * math.cos(math.radians(origin["lat"]))
        return {
            node: [
                (t_us, (lon - origin["lon"]) * east_m, (lat - origin["lat"]) * north_m) for t_us, lon, lat in samples
            ]
            for node, samples in self.places.items()
        }

    def median(self, axis: int) -> float:
        """Return the median of all places."""
        return statistics.median(sample[axis] for samples in self.places.values() for sample in samples)


def kaist(folder: Path, seed: int) -> GpsTrace:
    """As ``KAIST_30sec_001.txt``: no header; time, x and y in seconds and metres, every 30 s, parted by tabs."""
    chance = random.Random(seed)
    made = GpsTrace([], {}, degrees=False)
    for number in range(1, 7):
        x, y = chance.uniform(-80, 80), chance.uniform(-80, 80)
        samples = []
        for step in range(chance.randrange(30, 40)):
            samples.append((30_000_000 * step, x, y))
            x, y = x + chance.uniform(-40, 40), y + chance.uniform(-40, 40)
        made.paths.append(folder / f"KAIST_30sec_{number:03}.txt")
        lines = [f"{t_us / 1e6:.16e}\t{x:.16e}\t{y:.16e}\r\n" for t_us, x, y in samples]
        made.paths[-1].write_text("".join(lines), encoding="utf-8", newline="")
        made.places[f"KAIST_30sec_{number:03}"] = samples
    return made


def cabspotting(folder: Path, seed: int) -> GpsTrace:
    """As ``new_abboip.txt``: no header; latitude, longitude, whether there is a fare, time; latest first."""
    chance = random.Random(seed)
    made = GpsTrace([], {}, degrees=True)
    for name in ("abboip", "abcoij", "ojumna", "udwadla", "yiftha"):
        lat, lon, t = 37.7513, -122.3949, 1_213_000_000 + chance.randrange(600)
        samples = made.places.setdefault(f"new_{name}", [])
        for _ in range(40):
            samples.append((t * 1_000_000, round(lon, 5), round(lat, 5)))
            lat, lon = 37.7513 + chance.uniform(-0.004, 0.004), -122.3949 + chance.uniform(-0.004, 0.004)
            t += chance.choice([11, 30, 60, 61, 61, 95, 700])
        made.paths.append(folder / f"new_{name}.txt")
        lines = [f"{y:.5f} {x:.5f} {chance.randrange(2)} {t_us // 1_000_000}\n" for t_us, x, y in reversed(samples)]
        made.paths[-1].write_text("".join(lines), encoding="utf-8")
    return made
