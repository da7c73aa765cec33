"""Modulators: functions of consumers that filter or transform events in a broker (OVERLAY §2.1, §3.1).

A consumer names one by name, version and parameters (`Modulator.named`). A broker runs it if a class is registered in
its process under that name and version (`modulators.registry`). Or a consumer brings a
WebAssembly module (`Modulator.wasm`, `Modulator.wat`), which a broker runs within limits (`modulators.wasm`).

The one invariant: an exception in a modulator never leaves `Instance`. The event that it failed with is dropped and
counted. Then the instance is rebuilt from a saved state and the events since.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from operator import methodcaller
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

import msgspec

from carrypost.application.publishing import check_attributes
from carrypost.errors import LocalError
from carrypost.gossip.wire.pieces import Blank
from carrypost.model.headers import FAULT_MAX
from carrypost.overlay.modulators import programs
from carrypost.overlay.modulators.registry import (
    ABI,
    DIGEST_BYTES,
    FUEL_PER_US,
    NAME_MAX,
    VERSION_MAX,
    Event,
    Function,
    Metered,
    Program,
    Registered,
    Result,
    versions,
)
from carrypost.printing import raised

if TYPE_CHECKING:
    from carrypost.config import Limits

PARAMETERS_BYTES_MAX = 1024
Meter = Callable[[], int]
"""Function that returns the CPU time of this process so far, in microseconds."""
"""Characters of a fault that are kept."""
_SMOOTHED = 8
"""Divisor of the weight of the last event in the smoothed time, as for round trips in RFC 6298."""
_Answer = TypeVar("_Answer")
Results = tuple[Event | Result, ...]


class Modulator(msgspec.Struct, frozen=True, array_like=True):
    """The name of a modulator, its version and its parameters; or a WebAssembly module and its parameters."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_MAX)]
    version: Annotated[int, msgspec.Meta(ge=1, le=VERSION_MAX)]
    parameters: Annotated[bytes, msgspec.Meta(max_length=PARAMETERS_BYTES_MAX)]
    """Keyword arguments of the class, as a map of MessagePack; of a module, any bytes."""
    digest: Annotated[bytes, msgspec.Meta(max_length=DIGEST_BYTES)] = b""
    """SHA-256 of the module; empty: it is a registered class."""
    module: bytes = b""
    """The module itself. It does not travel with its name: brokers that need it ask for it."""

    @classmethod
    def named(cls, name: str, /, *, version: int | None = None, **parameters: object) -> Modulator:
        """Return a registered modulator, by default its latest version; raises `LocalError`.

        With a version it need not be registered in this process: the broker decides.
        """
        if version is None:
            version = max(versions(name))
        try:
            # One encoding for equal parameters: states are matched with modulators by a hash of
            # these bytes.
            encoded = msgspec.msgpack.encode(parameters, order="deterministic")
        except (TypeError, ValueError, OverflowError) as error:
            raise LocalError(f"parameters of a modulator must be strings, numbers, lists or maps: {error}") from None
        try:
            return msgspec.convert((name, version, encoded), cls)
        except msgspec.ValidationError as error:
            has = f"a name of 1 to {NAME_MAX} characters, a version of 1 to {VERSION_MAX:,} and parameters of at most"
            raise LocalError(f"a modulator has {has} {PARAMETERS_BYTES_MAX:,} bytes: {error}") from None

    @classmethod
    def wasm(cls, module: bytes, params: bytes = b"") -> Modulator:
        """Return the modulator of a WebAssembly module with these parameters; raises `LocalError`.

        Only brokers need `carrypost[wasm]`: nothing is compiled here.
        """
        if type(module) is not bytes or not module or type(params) is not bytes:
            raise LocalError("a module is bytes, and its parameters are bytes: read the file, or use Modulator.wat()")
        if len(params) > PARAMETERS_BYTES_MAX:
            raise LocalError(f"the parameters of a module have at most {PARAMETERS_BYTES_MAX:,} bytes: {len(params):,}")
        return cls("wasm", ABI, params, hashlib.sha256(module).digest(), module)

    @classmethod
    def wat(cls, text: str, params: bytes = b"") -> Modulator:
        """Return the modulator of a module in the WebAssembly text format; raises `LocalError`.

        It needs `carrypost[wasm]`, which translates the text.
        """
        return cls.wasm(programs.translated(text), params)

    @property
    def reference(self) -> Modulator:
        """The same modulator without its module, as it travels."""
        return msgspec.structs.replace(self, module=b"") if self.module else self


def _size(payload: object) -> int:
    if type(payload) is not bytes and type(payload) is not Blank:
        raise TypeError(f"a payload must be bytes, not {type(payload).__name__}")
    return payload.size if isinstance(payload, Blank) else len(payload)


def _registered(modulator: Modulator) -> Registered:
    """Return the class of a modulator; raises `LocalError` if there is none of its name and version."""
    here = versions(modulator.name)
    if modulator.version not in here:
        known = " and ".join(map(str, sorted(here)))
        raise LocalError(f"modulator {modulator.name!r} has version {known} here, not {modulator.version}")
    return here[modulator.version]


class Instance:
    """One modulator at work for one subscription."""

    def __init__(
        self, modulator: Modulator, limits: Limits, state_bytes_max: int, meter: Meter | None = None,
        program: Program | None = None,
        *, speed: float = 1.0,
    ) -> None:  # fmt: skip
        """Make an instance; raises `LocalError` if the class is not registered or rejects the parameters.

        `program`: of a module. Without a meter, the execution time of an event is its fuel, or the declared cost, on a
        processor of this speed.
        """
        self.registered = _registered(modulator) if program is None else Registered(program.start, 0, payload=True)
        self.program = program
        self.events = self.faults = self.busy_us = 0
        self.fault = ""
        """The last fault, for people."""
        self._modulator, self._meter, self._speed = modulator, meter, speed
        self._limits, self._state_bytes_max = limits, state_bytes_max
        try:
            self._function = self._made()
            self._cost_us = int(getattr(self._function, "cost_us", self.registered.cost_us))
        except Exception as error:
            what = "does not accept these parameters" if program is None else "does not start"
            raise LocalError(f"modulator {modulator.name!r} {what}: {error}") from error
        self.event_us = 0.0 if program is not None else self._cost_us / speed
        """Smoothed execution time of an event."""

    def _made(self) -> Function:
        if self.program is not None:
            return self.program.start(self._modulator.parameters, self._limits, self._state_bytes_max)
        parameters = msgspec.msgpack.decode(self._modulator.parameters, type=dict[str, Any])
        return self.registered.kind(**parameters)

    @property
    def has_state(self) -> bool:
        """True if it has a state that is saved."""
        return hasattr(self._function, "save")

    def process(self, event: Event) -> Results | None:
        """Process one event. Returns None after a fault: the caller drops the event, and calls `rebuild`."""
        before_us = self._meter() if self._meter is not None else 0
        results = self._guarded(self._results, event)
        self.events += 1
        if self._meter is None:
            took_us = self.event_us = self._declared_us() / self._speed
        else:
            took_us = self._meter() - before_us
            self.event_us += (took_us - self.event_us) / (1 if self.events == 1 else _SMOOTHED)
        self.busy_us += round(took_us)
        return results

    @property
    def has_keep(self) -> bool:
        """True if it decides which results wait for a consumer that cannot be reached."""
        return callable(getattr(self._function, "keep", None)) and getattr(self._function, "has_keep", True)

    def keep(self, result: Event | Result, age_us: int) -> bool:
        """Return False if a result need not wait for its consumer any longer; True without a rule, or after a fault."""
        if not self.has_keep:
            return True
        before = self.spent // FUEL_PER_US if self._meter is None else self._meter()
        kept = self._guarded(self._function.keep, result, age_us)  # type: ignore[attr-defined]
        self.busy_us += (self.spent // FUEL_PER_US if self._meter is None else self._meter()) - before
        return kept is not False

    @property
    def spent(self) -> int:
        """Fuel of a module since the last event began, or since its start; 0 for a registered class."""
        return 0 if self.program is None else cast("Metered", self._function).spent

    def _declared_us(self) -> int:
        return self._cost_us if self.program is None else self.spent // FUEL_PER_US

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
        """Return the state, empty for that of a new instance; None if saving fails or the state is too large."""
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

    def _guarded(self, call: Callable[..., _Answer], *arguments: object) -> _Answer | None:
        try:
            return call(*arguments)
        except Exception as error:  # noqa: BLE001 - A program's code, which must not stop the host in the middle of a step.
            self.faults += 1
            # Of a WebAssembly module the line would be one of ours.
            self.fault = (
                raised(error, FAULT_MAX) if self.program is None else f"{type(error).__name__}: {error}"[:FAULT_MAX]
            )
            return None
