"""The registry of modulators: classes that brokers of this process can run, by name and version.

A module of `[node] plugins` registers its own with `modulator`. A modulator is a pure function of its state and the
event, without clock or chance, so that a broker that repeats the same events gets the same state and the same results.
The modulators that every broker has are at the end.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from math import ceil, isqrt
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from carrypost.config.rules import nearest
from carrypost.errors import IllegalArgumentException, LocalError
from carrypost.gossip.wire.pieces import Blank
from carrypost.model.selector import Selector

if TYPE_CHECKING:
    from collections.abc import Sequence

    from carrypost.config import Limits
    from carrypost.model.properties import AttributeValue

ABI = 1
"""Version of the interface between brokers and modules."""
DIGEST_BYTES = 32
FUEL_PER_US = 1_000
"""Fuel that counts as a microsecond of work where nothing measures it."""
NAME_MAX = 64
VERSION_MAX = 65_535
_Kind = TypeVar("_Kind", bound="type[Function]")


class Event(NamedTuple):
    """A channel event, as modulators see it."""

    payload: bytes | Blank
    """Bytes of the event; in emulations without payloads, a `Blank` of its size."""
    attributes: Mapping[str, AttributeValue] = {}
    fields: Mapping[str, AttributeValue | None] | None = None
    """Header fields and attributes, as selectors see them; None: the attributes alone."""


class Result(NamedTuple):
    """A message that a modulator makes of an event."""

    payload: bytes | Blank
    attributes: Mapping[str, AttributeValue] | None = None
    """None: those of the event."""


class Function(Protocol):
    """An object of a registered class. It may have `save`, `load`, `keep` and `cost_us`, too."""

    def process(self, event: Event, /) -> list[Event | Result]:
        """Return the event itself, unchanged, results, or nothing."""


class Metered(Function, Protocol):
    """A function that counts its instructions."""

    @property
    def spent(self) -> int:
        """Fuel that was spent since the last event began, or since the start."""


class Program(Protocol):
    """A compiled module."""

    exports: tuple[str, ...]

    def start(self, parameters: bytes, limits: Limits, state_bytes_max: int) -> Metered:
        """Return an instance that has opened these parameters; raises if the module rejects them."""


class Registered(NamedTuple):
    """A class that runs as a modulator."""

    kind: Callable[..., Function]
    cost_us: int
    """Declared time for one event, unless the object says so itself. Emulations count it."""
    payload: bool
    """True if it reads payloads; False if it sees empty ones, which saves the broker reading them."""


_registered: dict[str, dict[int, Registered]] = {}


def modulator(name: str, *, version: int = 1, cost_us: int = 0, payload: bool = True) -> Callable[[_Kind], _Kind]:
    """Register the decorated class as a modulator of this name, on all nodes of this process; raises `LocalError`.

    The class is made with the parameters. `process(event)` returns a list of the event itself, unchanged, or of
    `Result`. Optional, both or neither: `save()` returns the state as bytes, and `load(state)` takes it. Optional:
    `keep(result, age_us)` returns False for a result that need not wait for its consumer any longer.
    """

    def register(kind: _Kind) -> _Kind:
        has = {each for each in ("process", "save", "load") if callable(getattr(kind, each, None))}
        if "process" not in has or len(has) == 2:  # noqa: PLR2004 - one of save and load alone
            raise LocalError(f"{kind.__name__} must have process(event), and save() and load(state) both or neither")
        if not 1 <= len(name) <= NAME_MAX:
            raise LocalError(f"the name of a modulator has 1 to {NAME_MAX} characters, not {name!r}")
        if version not in range(1, VERSION_MAX + 1):
            raise LocalError(f"the version of a modulator is 1 to {VERSION_MAX:,}, not {version!r}")
        if _registered.get(name, {}).get(version, (kind,))[0] is not kind:
            raise LocalError(f"there is a modulator {name!r} of version {version} already: raise the version")
        _registered.setdefault(name, {})[version] = Registered(kind, cost_us, payload)
        return kind

    return register


def is_registered(name: str, version: int) -> bool:
    """Return True if a class of this name and version is registered here."""
    return version in _registered.get(name, {})


def registered() -> dict[str, dict[int, Registered]]:
    """Return all registered classes, by name and version."""
    return {name: dict(found) for name, found in sorted(_registered.items())}


def versions(name: str) -> dict[int, Registered]:
    """Return the registered classes of a name, by version; raises `LocalError` if there are none."""
    if not (found := _registered.get(name)):
        missing = f"no modulator {name!r} is registered here: load the module that registers it ([node] plugins)"
        raise IllegalArgumentException(missing + nearest(name, _registered))
    return found


# --- modulators of every broker ----------------------------------------------------------------------------

# Modulators that every broker has: `selector`, `box`, `synthetic`.


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
