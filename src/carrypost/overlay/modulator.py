"""Modulators: functions of consumers that filter or transform events in a broker (OVERLAY §2.1, §3.1).

A consumer names one by name, version and parameters (`Modulator.named`). A broker runs it if a class is registered in
its process under that name and version, by a module of `[node] plugins`. Code is never shipped. A modulator is a pure
function of its state and the event, without clock or chance, so that a broker that repeats the same events gets the
same state and the same results.

The one invariant: an exception in a modulator never leaves `Instance`. The event that it failed with is dropped and
counted. Then the instance is rebuilt from a saved state and the events since.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import methodcaller
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Protocol, TypeVar

import msgspec

from carrypost.config.rules import nearest
from carrypost.errors import LocalError
from carrypost.gossip.wire.pieces import Blank
from carrypost.local.publishing import check_attributes

if TYPE_CHECKING:
    from carrypost.config import Limits
    from carrypost.model.properties import AttributeValue

PARAMETERS_BYTES_MAX = 1024
NAME_MAX = 64
VERSION_MAX = 65_535
Meter = Callable[[], int]
"""Function that returns the CPU time of this process so far, in microseconds."""
FAULT_MAX = 200
"""Characters of a fault that are kept."""
_Kind = TypeVar("_Kind", bound="type[Function]")
_Answer = TypeVar("_Answer")


class Event(NamedTuple):
    """A channel event, as modulators see it."""

    payload: bytes | Blank
    """Its payload; in emulations without payloads, a `Blank` of its size."""
    attributes: Mapping[str, AttributeValue] = {}
    fields: Mapping[str, AttributeValue | None] | None = None
    """Header fields and attributes, as selectors see them; None: the attributes alone."""


class Result(NamedTuple):
    """A message that a modulator makes of an event."""

    payload: bytes | Blank
    attributes: Mapping[str, AttributeValue] | None = None
    """None: those of the event."""


Results = tuple[Event | Result, ...]


class Modulator(msgspec.Struct, frozen=True, array_like=True):
    """The name of a modulator, its version and its parameters."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_MAX)]
    version: Annotated[int, msgspec.Meta(ge=1, le=VERSION_MAX)]
    parameters: Annotated[bytes, msgspec.Meta(max_length=PARAMETERS_BYTES_MAX)]
    """Keyword arguments of the class, as a map of MessagePack."""

    @classmethod
    def named(cls, name: str, /, *, version: int | None = None, **parameters: object) -> Modulator:
        """Return a registered modulator, by default its latest version; raises `LocalError`.

        With a version it need not be registered in this process: the broker decides.
        """
        if version is None:
            version = max(_versions(name))
        try:
            encoded = msgspec.msgpack.encode(parameters, order="deterministic")
        except (TypeError, ValueError, OverflowError) as error:
            raise LocalError(f"parameters of a modulator are texts, numbers, lists and maps: {error}") from None
        return _checked(name, version, encoded)


def _checked(name: str, version: int, parameters: bytes) -> Modulator:
    try:
        return msgspec.convert((name, version, parameters), Modulator)
    except msgspec.ValidationError as error:
        has = f"a name of 1 to {NAME_MAX} characters, a version of 1 to {VERSION_MAX:,} and parameters of at most"
        raise LocalError(f"a modulator has {has} {PARAMETERS_BYTES_MAX:,} bytes: {error}") from None


class Function(Protocol):
    """An object of a registered class. It may have `save`, `load`, `keep` and `cost_us`, too."""

    def process(self, event: Event, /) -> list[Event | Result]:
        """Return the event itself, unchanged, results, or nothing."""


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
        _checked(name, version, b"")
        if _registered.get(name, {}).get(version, (kind,))[0] is not kind:
            raise LocalError(f"there is a modulator {name!r} of version {version} already: raise the version")
        _registered.setdefault(name, {})[version] = Registered(kind, cost_us, payload)
        return kind

    return register


def _versions(name: str) -> dict[int, Registered]:
    if not (found := _registered.get(name)):
        missing = f"no modulator {name!r} is registered here: load the module that registers it ([node] plugins)"
        raise LocalError(missing + nearest(name, _registered))
    return found


def _size(payload: object) -> int:
    if type(payload) is not bytes and type(payload) is not Blank:
        raise TypeError(f"a payload is bytes, not a {type(payload).__name__}")
    return payload.size if isinstance(payload, Blank) else len(payload)


class Instance:
    """One modulator at work for one subscription."""

    def __init__(self, modulator: Modulator, limits: Limits, state_bytes_max: int, meter: Meter | None = None) -> None:
        """Make it; raises `LocalError` if it is not registered, or does not take the parameters.

        Without a meter, the declared cost of an event is its execution time.
        """
        versions = _versions(modulator.name)
        if modulator.version not in versions:
            here = " and ".join(map(str, sorted(versions)))
            raise LocalError(f"modulator {modulator.name!r} has version {here} here, not {modulator.version}")
        self.registered = versions[modulator.version]
        self.events = self.faults = self.busy_us = 0
        self.fault = ""
        """The last fault, for people."""
        self._modulator, self._meter = modulator, meter
        self._limits, self._state_bytes_max = limits, state_bytes_max
        try:
            self._function = self._made()
            self._cost_us = int(getattr(self._function, "cost_us", self.registered.cost_us))
        except Exception as error:
            raise LocalError(f"modulator {modulator.name!r} does not take these parameters: {error}") from error

    def _made(self) -> Function:
        parameters = msgspec.msgpack.decode(self._modulator.parameters, type=dict[str, Any])
        return self.registered.kind(**parameters)

    def process(self, event: Event) -> Results | None:
        """Run it on one event. Returns None after a fault: the caller drops the event, and calls `rebuild`."""
        before_us = self._meter() if self._meter is not None else 0
        results = self._guarded(self._results, event)
        self.events += 1
        self.busy_us += self._cost_us if self._meter is None else self._meter() - before_us
        return results

    def _results(self, event: Event) -> Results:
        found = self._function.process(event)
        if type(found) is not list:
            raise TypeError(f"process() returned a {type(found).__name__}, not a list of the event or of Result")
        for each in found:
            if each is not event:
                self._check(each)
        return tuple(found)

    def _check(self, result: object) -> None:
        if type(result) is not Result:
            raise TypeError(f"process() returned a list with a {type(result).__name__}, not the event or a Result")
        if (size := _size(result.payload)) > self._limits.message_bytes_max:
            raise ValueError(f"a result has at most {self._limits.message_bytes_max:,} bytes, not {size:,}")
        if result.attributes is not None:
            check_attributes(result.attributes, self._limits)

    def save(self) -> bytes | None:
        """Return the state; empty: that of a new instance. Returns None if that fails, or it is too large."""
        return self._guarded(self._state)

    def _state(self) -> bytes:
        state: bytes = getattr(self._function, "save", bytes)()
        if type(state) is not bytes or len(state) > self._state_bytes_max:
            raise ValueError(f"save() returns at most {self._state_bytes_max:,} bytes")
        return state

    def rebuild(self, state: bytes, events: Sequence[Event] = ()) -> bool:
        """Begin anew with a saved state, and repeat the events since.

        Returns False if the state does not load, or the modulator fails with one of them. Then the instance is new.
        """
        if self._guarded(self._restored, state, events):
            return True
        self._guarded(self._restored, b"", ())
        return False

    def _restored(self, state: bytes, events: Sequence[Event]) -> bool:
        self._function = self._made()
        if state:
            methodcaller("load", state)(self._function)
        for event in events:
            self._results(event)
        return True

    def keep(self, result: Event | Result, age_us: int) -> bool:
        """Return False if a result need not wait for its consumer any longer. Without a rule all wait."""
        rule = getattr(self._function, "keep", None)
        return rule is None or self._guarded(rule, result, age_us) is not False

    def _guarded(self, call: Callable[..., _Answer], *arguments: object) -> _Answer | None:
        try:
            return call(*arguments)
        except Exception as error:  # noqa: BLE001 - A program's code, which must not stop the host in the middle of a step.
            self.faults += 1
            self.fault = f"{type(error).__name__}: {error}"[:FAULT_MAX]
            return None
