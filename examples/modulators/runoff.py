"""Runoff on ground that falls to the right and down, as the flood watch computes it from precipitation and terrain.

`runoff.wat` is the same as a WebAssembly module: others' brokers run it, and it is much faster. Name this module in
`[node] plugins` of a broker to have it as `Modulator.named("runoff", loss=0.5, columns=100, area=[10, 10, 42, 42])`.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence

import carrypost
from carrypost.overlay.modulators.registry import Event

BLOCK = 4
"""Cells of one byte of the terrain, in each direction."""


def slopes(heights: Sequence[Sequence[float]]) -> bytes:
    """Return the terrain of these heights, one for each block: water runs where the ground falls more."""
    parts = bytearray()
    for row, below in zip(heights, [*heights[1:], heights[-1]], strict=True):
        for here, right, down in zip(row, [*row[1:], row[-1]], below, strict=True):
            falls = max(here - right, 0.0), max(here - down, 0.0)
            parts.append(min(int(256 * falls[0] / sum(falls)), 255) if any(falls) else 128)
    return bytes(parts)


def packed(loss: float, columns: int, area: Sequence[int], terrain: bytes = b"") -> bytes:
    """Return the same parameters as the module takes them."""
    return struct.pack("<d5I", loss, columns, *area) + terrain


@carrypost.modulator("runoff", cost_us=4_000)
class Runoff:
    """Replace precipitation by runoff, inside of a box.

    An event is an array of doubles, the rain on each cell, whose rows follow each other. Of the water on a cell, rain
    and what runs to it from the left and from above, `loss` seeps away. Of the rest some runs to the right and some
    down, half of it each without `terrain`. The result is that rest.

    `terrain` has a byte for every 4 × 4 cells, row by row: how many of 256 parts run to the right. `slopes` makes it
    of heights.
    """

    def __init__(self, loss: float, columns: int, area: Sequence[int], terrain: bytes = b"") -> None:
        self.loss, self.columns, self.terrain = loss, columns, terrain
        self.left, self.top, self.right, self.bottom = area
        if not (0 <= self.left < self.right <= columns and 0 <= self.top < self.bottom):
            raise ValueError(f"area is [left, top, right, bottom], inside of {columns} columns: {area}")

    def process(self, event: Event) -> list[Event | carrypost.Result]:
        """Return the runoff."""
        assert isinstance(event.payload, bytes)
        water, columns, loss = array("d", event.payload), self.columns, self.loss
        size = len(water)
        if size % columns:
            raise ValueError(f"{size} doubles do not fill an array of {columns} columns")
        wide = (columns + BLOCK - 1) // BLOCK
        if self.terrain and size > len(self.terrain) // wide * BLOCK * columns:
            raise ValueError(f"{size // columns} rows are more than the terrain has")
        shares = [0.5] * columns
        for row in range(0, size, columns):
            has_row_below, last = row + columns < size, row + columns - 1
            if self.terrain:
                at = row // columns // BLOCK * wide
                shares = [part / 256 for part in self.terrain[at : at + wide] for _ in range(BLOCK)]
            for cell, share in enumerate(shares[:columns], row):
                rest = water[cell] - loss
                if not rest > 0.0:  # Also what is no number.
                    water[cell] = 0.0
                    continue
                water[cell] = rest
                right = rest * share
                if cell < last:
                    water[cell + 1] += right
                if has_row_below:
                    water[cell + columns] += rest - right
        rows = range(self.top * columns, min(self.bottom * columns, size), columns)
        found = b"".join(water[row + self.left : row + self.right].tobytes() for row in rows)
        return [carrypost.Result(found)] if found else []
