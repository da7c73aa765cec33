"""WebAssembly programs of modulators: compiled modules, their instances and their limits (ABI 1).

A module imports nothing, so it has neither clock nor chance nor files, and NaNs are canonical: the same events give the
same bytes on every processor. It exports, with all numbers as unsigned 32 bits, little-endian::

    memory                       its one memory
    abi() -> i32                 1
    alloc(n) -> ptr              room for n bytes, which the broker writes to; 0: there is none
    open(ptr, len) -> i32        the parameters; 0: fine
    process(ptr, len) -> i64     an event; ptr << 32 | len of the results, 0: none
    save() -> i64                the state, likewise           } both or neither
    load(ptr, len) -> i32        a state; 0: fine              }
    keep(ptr, len, age_ms) -> i32    optional: 0 for a result that need not wait any longer

An event: length of the attributes, attributes (a map of MessagePack), payload. Results: their number, then for each the
length of the attributes, the length of the payload, attributes, payload; a length of 0xFFFFFFFF: those of the event.

The one invariant: nothing that a module does or returns costs more fuel, memory or bytes than the limits say, and
whatever it does wrong raises. Fuel counts instructions, not time: the slowest ones (`ref.func`, `memory.grow`) take
40 ns per unit, most take less than 1 ns. `limits.fuel_per_event` is chosen for the slowest: a module runs for 30 ms at
most for an event, which leaves 20 ms of a turn of the node's loop for everything else. Its results cost no fuel, so
their limits are checked before they are decoded.

Nothing else imports wasmtime.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import wasmtime

from carrypost.errors import LocalError
from carrypost.gossip.wire.pieces import Blank
from carrypost.overlay.modulators.registry import ABI, Event, Result

if TYPE_CHECKING:
    from collections.abc import Mapping

    from carrypost.config import Limits
    from carrypost.model.properties import AttributeValue

RESULTS_MAX = 16
"""Results that a module may make of one event."""
RESULT_RATIO_MAX = 4
"""Bytes of the results of one event divided by the bytes of the event."""
RESULT_BYTES = 64 * 1024
"""Bytes of results that an event may have, however small it is."""
_MAGIC = b"\0asm\1\0\0\0"
_UNCHANGED = 0xFFFFFFFF
_STACK_BYTES = 256 * 1024
_TABLE_ELEMENTS_MAX = 8_192
_ROOM_MIN = 256
"""Least number of bytes that a module is asked to make room for."""
_ENGINES = 4
_U32 = struct.Struct("<I")
_LENGTHS = struct.Struct("<II")
_OFF = (
    "wasm_threads", "wasm_simd", "wasm_relaxed_simd", "wasm_memory64", "wasm_multi_memory", "wasm_exceptions",
    "wasm_gc", "wasm_tail_call", "wasm_function_references", "gc_support",
)  # fmt: skip
_MAP, _MAPS = 0x8, {0xDE: 2, 0xDF: 4}
"""First bits of a short map in MessagePack; first bytes of longer ones, and the bytes of their lengths."""
_I32, _I64 = "i32", "i64"
_REQUIRED = {
    "abi": ((), (_I32,)),
    "alloc": ((_I32,), (_I32,)),
    "open": ((_I32, _I32), (_I32,)),
    "process": ((_I32, _I32), (_I64,)),
}
_STATE = {"save": ((), (_I64,)), "load": ((_I32, _I32), (_I32,))}
_OPTIONAL = {"keep": ((_I32, _I32, _I32), (_I32,))}
_attributes = msgspec.msgpack.Decoder(dict[str, bool | int | float | str]).decode
_encode = msgspec.msgpack.Encoder().encode


class WasmFault(Exception):  # noqa: N818 - A fault of the module, as faults of modulators are called.
    """A module broke a rule of the interface, or exceeded a limit."""


@functools.lru_cache(_ENGINES)
def _engine(memory_bytes_max: int) -> wasmtime.Engine:
    """Return the engine of this process for one size of memories. It is made on first use, so after a fork."""
    config = wasmtime.Config()
    config.consume_fuel = True
    config.cranelift_nan_canonicalization = True
    config.parallel_compilation = False
    config.max_wasm_stack = _STACK_BYTES
    config.memory_reservation = memory_bytes_max  # The default reserves 4 GiB of addresses for every instance.
    config.memory_reservation_for_growth = config.memory_guard_size = 0
    config.memory_may_move = False
    for proposal in _OFF:
        setattr(config, proposal, False)
    return wasmtime.Engine(config)


def translated(text: str) -> bytes:
    """Return the module that a text in the WebAssembly text format (WAT) stands for; raises `LocalError`."""
    try:
        return bytes(wasmtime.wat2wasm(text))
    except wasmtime.WasmtimeError as error:
        where = " ".join(str(error).split("|", 1)[0].split())
        raise LocalError(f"invalid module in the WebAssembly text format: {where}"[:200]) from None


def compiled(module: bytes, memory_bytes_max: int) -> bytes:
    """Return the machine code of a module, for `Program` with the same memory limit; raises `LocalError`.

    Compiling is not metered: a module of 24 kB can take 13 s (`node.modules`). Compile modules of other nodes in a
    process that can be ended.
    """
    if not module.startswith(_MAGIC):
        raise LocalError("a module must begin with the header of WebAssembly, version 1; components are not accepted")
    try:
        return bytes(wasmtime.Module(_engine(memory_bytes_max), module).serialize())
    except wasmtime.WasmtimeError as error:
        raise LocalError(f"the module does not compile: {_cause(error)}") from None


class Program:
    """A compiled module that has the exports of ABI 1, and no imports."""

    def __init__(self, code: bytes, memory_bytes_max: int) -> None:
        """Load machine code that `compiled` returned; raises `LocalError` unless the exports are those of ABI 1."""
        self._engine, self._memory_bytes_max = _engine(memory_bytes_max), memory_bytes_max
        self._module = wasmtime.Module.deserialize(self._engine, code)
        if self._module.imports:
            names = ", ".join(f"{each.module}.{each.name}" for each in self._module.imports[:3])
            raise LocalError(f"a module must not import anything, but this one imports {names}"[:200])
        self.exports = tuple(sorted(str(each.name) for each in self._module.exports))
        self._check({str(each.name): each.type for each in self._module.exports})

    def _check(self, exports: Mapping[str, object]) -> None:
        if not isinstance(exports.get("memory"), wasmtime.MemoryType):
            raise LocalError("a module must export its memory as 'memory'")
        self.has_state = any(name in exports for name in _STATE)
        self.has_keep = "keep" in exports
        wanted = _REQUIRED | (_STATE if self.has_state else {}) | (_OPTIONAL if self.has_keep else {})
        for name, (parameters, results) in wanted.items():
            kind = exports.get(name)
            found = None
            if isinstance(kind, wasmtime.FuncType):
                found = tuple(map(str, kind.params)), tuple(map(str, kind.results))
            if found != (parameters, results):
                form = f"{name}({', '.join(parameters)}) -> {results[0]}"
                both = " (save and load: both or neither)" if name in _STATE else ""
                raise LocalError(f"a module must export {form}, which this one does not{both}")

    def start(self, parameters: bytes, limits: Limits, state_bytes_max: int) -> WasmFunction:
        """Return an instance that has opened these parameters; raises `WasmFault`."""
        store = wasmtime.Store(self._engine)
        store.set_limits(self._memory_bytes_max, _TABLE_ELEMENTS_MAX, 1, 1, 1)
        bounds = _Bounds(limits.fuel_per_event, state_bytes_max, limits.attributes_max)
        return WasmFunction(self, self._module, store, parameters, bounds)


class _Bounds(NamedTuple):
    """Limits of one instance."""

    fuel: int
    state_bytes_max: int
    attributes_max: int


class WasmFunction:
    """One instance of a program: a modulator at work for one subscription.

    After a fault it may be in any state, and has to be replaced by another one.
    """

    def __init__(
        self, program: Program, module: wasmtime.Module, store: wasmtime.Store, parameters: bytes, bounds: _Bounds
    ) -> None:
        self._store, self._bounds, self._program = store, bounds, program
        self._room = self._room_at = 0
        self._refuel(bounds.fuel // 2)  # The other half is for a second try, after a state that did not load.
        try:
            exports = wasmtime.Instance(store, module, []).exports(store)
        except (wasmtime.Trap, wasmtime.WasmtimeError) as error:
            raise self._fault("start", error) from None
        self._functions = {name: each for name, each in exports.items() if isinstance(each, wasmtime.Func)}
        memory = exports["memory"]
        assert isinstance(memory, wasmtime.Memory)  # `Program` checked it.
        self._memory = memory
        # The address is good for as long as the instance lives: memories grow into what was reserved for them.
        self._base = ctypes.addressof(memory.data_ptr(store).contents)
        self._memory_bytes = memory.data_len(store)
        if (abi := self._call("abi")) != ABI:
            raise WasmFault(f"abi() returned {abi}, and brokers run ABI {ABI}")
        if code := self._call("open", *self._written(parameters)):
            raise WasmFault(f"open() refused the parameters: it returned {code}")

    # --- what brokers call ---------------------------------------------------------------------------------

    def process(self, event: Event) -> list[Event | Result]:
        """Return the results of an event, the event itself where neither attributes nor payload changed."""
        self._refuel(self._bounds.fuel)
        payload = event.payload
        place = self._written(*_packed(event.attributes, payload))
        found = self._returned_bytes("process", *place, bytes_max=self._memory_bytes)
        size = payload.size if isinstance(payload, Blank) else len(payload)
        return self._results(found, event, size) if found else []

    def save(self) -> bytes:
        """Return the state, with the fuel that the event has left; empty if the module has none."""
        return self._returned_bytes("save", bytes_max=self._bounds.state_bytes_max) if self._program.has_state else b""

    def load(self, state: bytes) -> None:
        """Load a state that an instance of the same program saved."""
        if not self._program.has_state:
            raise WasmFault("the module must export load(), because there is a state to restore")
        if code := self._call("load", *self._written(state)):
            raise WasmFault(f"load() refused the state: it returned {code}")

    def keep(self, result: Event | Result, age_us: int) -> bool:
        """Return False if a result need not wait for its consumer any longer; for programs that export `keep`.

        It has the fuel that the event has left. With fuel of its own for each of `RESULTS_MAX` results, one event could
        keep the broker busy for that many times as long.
        """
        place = self._written(*_packed(result.attributes or {}, result.payload))
        return bool(self._call("keep", *place, min(age_us // 1_000, 2**31 - 1)))

    @property
    def has_keep(self) -> bool:
        """True if the module decides which results wait."""
        return self._program.has_keep

    @property
    def spent(self) -> int:
        """Fuel that was spent since the last event began, or since the start."""
        left: int = self._store.get_fuel()
        return self._given - left

    # --- calls ---------------------------------------------------------------------------------------------

    def _refuel(self, fuel: int) -> None:
        self._given = fuel
        self._store.set_fuel(fuel)

    def _call(self, name: str, *arguments: int) -> int:
        try:
            found: int = self._functions[name](self._store, *arguments)
        except (wasmtime.Trap, wasmtime.WasmtimeError) as error:
            raise self._fault(f"{name}()", error) from None
        return found

    def _fault(self, where: str, error: Exception) -> WasmFault:
        code = error.trap_code if isinstance(error, wasmtime.Trap) else None
        if code is wasmtime.TrapCode.OUT_OF_FUEL:
            return WasmFault(f"{where} used up its fuel of {self._given:,} (limits.fuel_per_event)")
        return WasmFault(f"{where} failed: {code.name.lower().replace('_', ' ') if code else _cause(error)}")

    def _written(self, *parts: bytes) -> tuple[int, int]:
        """Write bytes to where the module wants them; returns the place."""
        size = sum(map(len, parts))
        if size > self._room or not self._room_at:
            self._room = max(_ROOM_MIN, 1 << size.bit_length())
            self._room_at = self._call("alloc", self._room) % 2**32
            if not self._room_at:
                raise WasmFault(f"alloc() found no room for {self._room:,} bytes")
            self._check_place("alloc", self._room_at, self._room)
        at = self._base + self._room_at
        for part in parts:
            ctypes.memmove(at, part, len(part))
            at += len(part)
        return self._room_at, size

    def _returned_bytes(self, name: str, *arguments: int, bytes_max: int) -> bytes:
        """Return the bytes whose place a function returns."""
        place = self._call(name, *arguments) % 2**64
        at, size = place >> 32, place % 2**32
        if not size:
            return b""
        if size > bytes_max:
            raise WasmFault(f"{name}() returned {size:,} bytes, more than {bytes_max:,}")
        self._check_place(name, at, size)
        return ctypes.string_at(self._base + at, size)

    def _check_place(self, name: str, at: int, size: int) -> None:
        if at + size > self._memory_bytes:
            self._memory_bytes = self._memory.data_len(self._store)
            if at + size > self._memory_bytes:
                raise WasmFault(f"{name}() returned a place outside of the memory: {size:,} bytes at {at:,}")

    def _results(self, found: bytes, event: Event, size: int) -> list[Event | Result]:
        """Return the results that are in bytes. Nothing is decoded before it is known to be within the limits."""
        bounds = self._bounds
        try:
            (count,) = _U32.unpack_from(found)
            if count > RESULTS_MAX:
                raise WasmFault(f"process() returned {count:,} results, more than {RESULTS_MAX}")
            parts, nbytes = _cut(found, count)
        except struct.error:
            raise WasmFault("process() returned results that are cut short") from None
        nbytes += sum(size for _, payload in parts if payload is None)
        if nbytes > max(RESULT_BYTES, RESULT_RATIO_MAX * size):
            most = f"{RESULT_RATIO_MAX} times the event, or {RESULT_BYTES:,}"
            raise WasmFault(f"process() returned {nbytes:,} bytes, more than {most}")
        return [
            event if attributes is payload is None
            else Result(
                event.payload if payload is None else payload,
                None if attributes is None else _decoded(attributes, bounds.attributes_max),
            )
            for attributes, payload in parts
        ]  # fmt: skip


def _packed(attributes: Mapping[str, AttributeValue], payload: bytes | Blank) -> tuple[bytes, bytes, bytes]:
    """Return the parts of an event, which are not joined: payloads may be large."""
    encoded = _encode(dict(attributes))
    body = bytes(payload.size) if isinstance(payload, Blank) else payload
    return _U32.pack(len(encoded)), encoded, body


def _cut(found: bytes, count: int) -> tuple[list[tuple[bytes | None, bytes | None]], int]:
    """Return the encoded attributes and the payload of each result, None for those of the event; and their bytes."""
    parts, at = [], _U32.size
    for _ in range(count):
        lengths, at = _LENGTHS.unpack_from(found, at), at + _LENGTHS.size
        cut: list[bytes | None] = []
        for length in lengths:
            if length == _UNCHANGED:
                cut.append(None)
            elif at + length > len(found):
                raise WasmFault("process() returned results that are cut short")
            else:
                cut.append(found[at : at + length])
                at += length
        parts.append((cut[0], cut[1]))
    return parts, at - _U32.size


def _decoded(encoded: bytes, most: int) -> Mapping[str, AttributeValue]:
    """Return the attributes of a result."""
    if not encoded:
        return {}
    # The head of the map says how many there are: to decode 64 KiB of them takes longer than an
    # event may.
    count = encoded[0] & 0x0F if encoded[0] >> 4 == _MAP else 0
    if encoded[0] in _MAPS:
        count = int.from_bytes(encoded[1 : 1 + _MAPS[encoded[0]]], "big")
    if count > most:
        raise WasmFault(f"process() must return at most {most:,} attributes, not {count:,} (limits.attributes_max)")
    try:
        return _attributes(encoded)
    except (msgspec.DecodeError, RecursionError) as error:
        raise WasmFault(f"process() must return attributes as a MessagePack map: {error}") from None


def _cause(error: Exception) -> str:
    """Return the innermost cause of an error of wasmtime, which is its last line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:160] if lines else type(error).__name__
