"""Runoff on a slope that falls to the right and down, as the flood watch computes it from precipitation.

`runoff.wat` is the same as a WebAssembly module: brokers of others run it, and it is much faster. Name this module in
`[node] plugins` of a broker to have it as `Modulator.named("runoff", loss=0.5, columns=100, area=[10, 10, 42, 42])`.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import carrypost
from carrypost.overlay.registry import Event


@carrypost.modulator("runoff", cost_us=4_000)
class Runoff:
    """Replace precipitation by runoff, inside of a box.

    An event is an array of doubles, the rain on each cell, whose rows follow each other. Of the water on a cell, rain
    and what runs to it from the left and from above, `loss` seeps away; of the rest each half runs to the right and
    down. The result is that rest.
    """

    def __init__(self, loss: float, columns: int, area: Sequence[int]) -> None:
        self.loss, self.columns = loss, columns
        self.left, self.top, self.right, self.bottom = area
        if not (0 <= self.left < self.right <= columns and 0 <= self.top < self.bottom):
            raise ValueError(f"area is [left, top, right, bottom], inside of {columns} columns: {area}")

    def process(self, event: Event) -> list[Event | carrypost.Result]:
        """Return the runoff."""
        assert isinstance(event.payload, bytes)
        water, columns, loss = array("d", event.payload), self.columns, self.loss
        size = len(water)
        if size % columns:
            raise ValueError(f"{size} doubles are no array of {columns} columns")
        for row in range(0, size, columns):
            has_row_below, last = row + columns < size, row + columns - 1
            for cell in range(row, row + columns):
                rest = water[cell] - loss
                if rest <= 0.0:
                    water[cell] = 0.0
                    continue
                water[cell] = rest
                half = rest * 0.5
                if cell < last:
                    water[cell + 1] += half
                if has_row_below:
                    water[cell + columns] += half
        rows = range(self.top * columns, min(self.bottom * columns, size), columns)
        found = b"".join(water[row + self.left : row + self.right].tobytes() for row in rows)
        return [carrypost.Result(found)] if found else []
