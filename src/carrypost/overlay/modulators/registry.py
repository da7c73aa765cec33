"""The registry of modulators: classes that brokers of this process can run, by name and version.

A module of `[node] plugins` registers its own with `modulator`. A modulator is a pure function of its state and the
event, without clock or chance, so that a broker that repeats the same events gets the same state and the same results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from carrypost.config.rules import nearest
from carrypost.errors import IllegalArgumentException, LocalError

if TYPE_CHECKING:
    from carrypost.config import Limits
    from carrypost.gossip.wire.pieces import Blank
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
