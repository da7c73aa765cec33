"""Modulators that every broker has: `selector`, `box`, `synthetic`."""

from __future__ import annotations

from array import array
from math import ceil, isqrt
from typing import TYPE_CHECKING

from carrypost.gossip.wire.pieces import Blank
from carrypost.model.selector import Selector
from carrypost.overlay.modulators.registry import Event, Result, modulator

if TYPE_CHECKING:
    from collections.abc import Sequence

_DOUBLE = 8
_RATIO_MAX = 4.0


@modulator("selector", cost_us=5, payload=False)
class SelectorModulator:
    """Pass on events that a JMS selector selects."""

    def __init__(self, text: str) -> None:
        self._selector = Selector(text)

    def process(self, event: Event) -> list[Event | Result]:
        """Return the event if it is selected."""
        return [event] if self._selector.matches(event.attributes if event.fields is None else event.fields) else []


@modulator("box", cost_us=20)
class Box:
    """Cut a bounding box out of a two-dimensional array of doubles, as the flood watch does.

    A payload has the rows one after the other. The attribute `columns` is the length of a row; without it the array is
    square. `area` is the first column, the first row, and the column and row after the last ones. A result says where
    it begins (`column`, `row`) and how long its rows are (`columns`). Arrays outside the area give none.
    """

    def __init__(self, area: Sequence[int]) -> None:
        fits = isinstance(area, list | tuple) and [type(each) for each in area] == [int] * 4
        if not fits or not (0 <= area[0] < area[2] and 0 <= area[1] < area[3]):
            raise ValueError(f"area is [left, top, right, bottom], whole numbers, right and bottom larger: {area}")
        self._area = area[0], area[1], area[2], area[3]

    def process(self, event: Event) -> list[Event | Result]:
        """Return the part of the array that is inside; the event itself if all of it is."""
        payload, (left, top, right, bottom) = event.payload, self._area
        cells, rest = divmod(payload.size if isinstance(payload, Blank) else len(payload), _DOUBLE)
        columns = event.attributes.get("columns", isqrt(cells) or 1)
        if type(columns) is not int or columns <= 0:
            raise ValueError(f"columns is a whole number from 1, not {columns!r}")
        rows = cells // columns
        if rest or rows * columns != cells or ("columns" not in event.attributes and rows not in {0, columns}):
            raise ValueError(f"{cells} doubles and {rest} bytes do not fill an array of {columns} columns")
        right, bottom = min(right, columns), min(bottom, rows)
        if left >= right or top >= bottom:
            return []
        if (right - left, bottom - top) == (columns, rows):
            return [event]
        width, height = right - left, bottom - top
        if isinstance(payload, Blank):
            cut: bytes | Blank = Blank(width * height * _DOUBLE)
        else:
            cut = _cut(payload, range(top * columns + left, bottom * columns, columns), width)
        return [Result(cut, {**event.attributes, "columns": right - left, "column": left, "row": top})]


def _cut(payload: bytes, starts: range, width: int) -> bytes:
    """Return `width` doubles from each of these places on, by rows or by columns, whichever are fewer."""
    # The area and the form of the array are of strangers. Row by row, a million rows of one double
    # each would keep the broker busy for a third of a second.
    if len(starts) <= width:
        return b"".join([payload[start * _DOUBLE : (start + width) * _DOUBLE] for start in starts])
    cells, found = array("Q", payload), array("Q", bytes(len(starts) * width * _DOUBLE))
    for column in range(width):
        found[column::width] = cells[starts.start + column : starts.stop : starts.step]
    return found.tobytes()


@modulator("synthetic")
class Synthetic:
    """Turn an event into `ratio` times its bytes, at a declared cost. For experiments: the bytes mean nothing."""

    def __init__(self, cost_us: int = 0, ratio: float = 1.0) -> None:
        if not 0 <= ratio <= _RATIO_MAX or type(cost_us) is not int or cost_us < 0:
            raise ValueError(f"ratio is 0 to {_RATIO_MAX}, cost_us a whole number from 0: {ratio!r}, {cost_us!r}")
        self.cost_us, self._ratio = cost_us, ratio

    def process(self, event: Event) -> list[Event | Result]:
        """Return a result of that size; none if the ratio is 0, the event itself if it is 1."""
        payload, ratio = event.payload, self._ratio
        if ratio in {0, 1}:
            return [event] if ratio else []
        if isinstance(payload, Blank):
            return [Result(Blank(round(payload.size * ratio)))]
        return [Result((payload * ceil(ratio))[: round(len(payload) * ratio)])]
