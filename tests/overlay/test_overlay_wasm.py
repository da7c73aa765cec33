"""WebAssembly modulators: the conformance table, hostile modules, and what misuse says."""

from __future__ import annotations

import random
import re
import struct
import sys
from array import array
from contextlib import nullcontext

import pytest
from examples.modulators.runoff import Runoff, packed, slopes
from tests.support.modulators import SQUARE, TABLE, A, B, Row, doubles, grid, instance, named, play
from tests.support.wasm_modules import (
    ABI,
    ALLOC,
    ENDLESS,
    LOAD,
    MEMORY,
    OPEN,
    PROCESS,
    SAVE,
    example,
    module,
    numbers,
    process,
)

from carrypost.config import Limits
from carrypost.errors import LocalError
from carrypost.gossip.wire.pieces import Blank
from carrypost.overlay.modulators import programs, registry
from carrypost.overlay.modulators.modulator import Modulator
from carrypost.overlay.modulators.registry import Event, Result
from carrypost.overlay.modulators.wasm import RESULTS_MAX

pytest.importorskip("wasmtime", reason="WebAssembly modulators need the extra: pip install '.[wasm]'")


def double(value: float) -> Event:
    return Event(struct.pack("<d", value), {"unit": "mm"})


RED, BLUE, BOTH = Event(b"r", {"colour": "red"}), Event(b"b", {"colour": "blue"}), Event(b"", {"a": 1, "colour": "red"})
TWINS = {
    row.name: row._replace(modulator=twin, cost_us=0)
    for name, twin in {
        "state": example("every_nth", b"\2"),
        "state that grows": example("hoard"),
    }.items()
    for row in TABLE
    if row.name == name
}
"""Rows of the table that a module in another language has to do, too."""
WASM_TABLE = [
    *TWINS.values(),
    Row("match", example("match", b"\xa6colour\xa3red"), [RED, BLUE, A, BOTH], [(RED,), (), (), (BOTH,)]),
    Row("box", example("box", numbers(4, 1, 2, 3, 4)), [SQUARE, Event(grid(4, 2))],
        [(Result(doubles(9, 10, 13, 14)),), ()]),
    Row("box of no array", example("box", numbers(4, 0, 0, 1, 1)), [Event(b"seven!!"), SQUARE],
        [None, (Result(doubles(0)),)]),
    Row("box, emulated", example("box", numbers(100, 10, 10, 42, 42)), [Event(Blank(80_000))],
        [(Result(bytes(8_192)),)]),
    Row("sum", example("sum"), [double(1), double(2.5), Event(b"")],
        [(Result(doubles(1)),), (Result(struct.pack("<d", 3.5)),), None],
        state=struct.pack("<d", 3.5)),
]  # fmt: skip


@pytest.mark.parametrize("carried", [False, True], ids=["in one instance", "carried"])
@pytest.mark.parametrize("row", WASM_TABLE, ids=lambda row: row.name)
def test_a_module_does_what_the_table_says_wherever_it_runs(row: Row, *, carried: bool) -> None:
    faults = sum(each is None for each in row.results)
    results, state, found, _ = play(row, carried=carried)
    assert (results, state, found) == (list(row.results), row.state, faults)


@pytest.mark.parametrize("rough", [False, True], ids=["even", "terrain"])
@pytest.mark.parametrize("seed", range(3))
def test_the_runoff_of_a_storm_is_the_same_in_both_languages(seed: int, *, rough: bool) -> None:
    rng = random.Random(seed)
    rain = Event(array("d", [max(0.0, rng.gauss(0.5, 1)) for _ in range(42 * 30)]).tobytes(), {"hour": seed})
    terrain = slopes([[rng.random() for _ in range(11)] for _ in range(8)]) if rough else b""
    module = instance(example("runoff", packed(0.4, 42, [5, 10, 25, 50], terrain)))
    plain = Runoff(0.4, 42, [5, 10, 25, 50], terrain)
    found = module.process(rain)
    assert found == tuple(plain.process(rain))
    assert found is not None
    assert len(found[0].payload) == 20 * 20 * 8  # type: ignore[arg-type]
    assert module.process(Event(b"seven!!")) is None
    rows = Event(bytes(33 * 42 * 8))  # The terrain has 32.
    assert (module.process(rows) is None) == rough
    with pytest.raises(ValueError, match="more than the terrain") if rough else nullcontext():
        plain.process(rows)


def test_fuel_is_the_execution_time_where_nothing_measures_it() -> None:
    costs = []
    for _ in range(2):
        at_work = instance(example("box", numbers(100, 0, 0, 90, 100)))
        at_work.process(Event(bytes(80_000)))
        costs.append(at_work.busy_us)
    assert costs[0] == costs[1] > 70


# --- hostile modules ---------------------------------------------------------------------------------------


def returns(results: bytes, size: int | None = None) -> str:
    """Return a module that returns these bytes, or says that there are more of them."""
    text = "".join(f"\\{each:02x}" for each in results)
    return process(f"(i64.const {size or len(results)})", f'(data (i32.const 0) "{text}")')


def one(attributes: bytes, payload: bytes = b"") -> bytes:
    return numbers(1, len(attributes), len(payload)) + attributes + payload


UNCHANGED = 0xFFFFFFFF
FUEL = r"used up its fuel of [\d,]+ \(limits.fuel_per_event\)"
FAULTS = {
    "endless process": (process(ENDLESS + "(unreachable)"), r"process\(\) " + FUEL),
    "endless alloc": (
        module(ALLOC.replace("(i32.const 4096)", ENDLESS + "(unreachable)")), r"does not start: alloc\(\) " + FUEL),
    "unreachable": (process("(unreachable)"), "failed: unreachable"),
    "recursion": (process("(call $process (local.get 0) (local.get 1))"), "failed: stack overflow"),
    "division": (process("(i64.div_u (i64.const 1) (i64.const 0))"), "integer division by zero"),
    "memory that grows": (
        process("(loop $l (drop (memory.grow (i32.const 1))) (br $l))" + "(unreachable)"), r"process\(\) " + FUEL),
    "memory that is full": (
        process("(loop $l (br_if $l (i32.ge_s (memory.grow (i32.const 1)) (i32.const 0))))"
                "(i64.load (i32.const 0x3ffff9))"), "memory out of bounds"),
    "memory that is filled": (
        process("(loop $l (memory.fill (i32.const 0) (i32.const 7) (i32.const 65536)) (br $l)) (unreachable)"), FUEL),
    "references": (
        process("(loop $l (drop (ref.func $process)) (br $l)) (unreachable)", "(elem declare func $process)"), FUEL),
    "load out of bounds": (process("(i64.load (i32.const -8))"), "memory out of bounds"),
    "table out of bounds": (
        process("(call_indirect (result i64) (i32.const 9))", "(table 1 funcref)"), "table out of bounds"),
    "table of nothing": (
        process("(call_indirect (result i64) (i32.const 0))", "(table 1 funcref)"), "indirect call to null"),
    "table that grows": (
        process("(loop $l (br_if $l (i32.ge_s (table.grow (ref.null func) (i32.const 64)) (i32.const 0))))"
                "(i64.extend_i32_u (i32.div_u (table.size) (i32.sub (table.size) (i32.const 8192))))",
                "(table 0 funcref)"), "division by zero"),
    "wrong type behind a table": (
        process("(call_indirect (i32.const 0))", "(table funcref (elem $process))").replace(
            "(call_indirect", "(call_indirect (result i64)"), "bad signature"),
    "results outside": (process("(i64.const 0x7fffffff00000010)"), "a place outside of the memory"),
    "results across the end": (process("(i64.const 0x7fff800000010)"), "a place outside of the memory"),
    "results larger than memory": (process("(i64.const 0xffffffff)"), "returned 4,294,967,295 bytes"),
    "results that wrap around": (process("(i64.const -1)"), "returned 4,294,967,295 bytes"),
    "count alone": (returns(numbers(1)), "cut short"),
    "no count": (returns(b"xx"), "cut short"),
    "many results": (returns(numbers(17) + numbers(0, 0) * 17), "returned 17 results, more than 16"),
    "count without end": (returns(numbers(UNCHANGED)), "returned 4,294,967,295 results"),
    "payload cut short": (returns(numbers(1, 0, 9) + b"eight..."), "cut short"),
    "attributes cut short": (returns(numbers(1, 99, 0)), "cut short"),
    "attributes that are no map": (returns(one(b"\x93\1\2\3")), "as a MessagePack map"),
    "attributes that are no MessagePack": (returns(one(b"\xc1")), "as a MessagePack map"),
    "attributes in attributes": (returns(one(b"\x81\xa1a\x91\1")), "as a MessagePack map"),
    "attributes without end": (returns(one(b"\x91" * 2_000)), "as a MessagePack map"),
    "attributes without names": (returns(one(b"\x81\xa0\1")), "the name of an attribute"),
    "many attributes": (
        returns(one(b"\xde\0\xff" + b"".join(b"\xa2%02x\1" % each for each in range(255)))), "attributes, not 255"),
    "attributes that claim to be more": (returns(one(b"\xdf\0\1\0\0\xa1a\1")), "attributes, not 65,536"),
    "attributes that are too large": (returns(numbers(1, 524_000, 0), 524_012), "returned 524,008 bytes, more than"),
    "amplification": (returns(numbers(1, 0, 65_500), 65_512), ""),  # Allowed, of any event.
    "amplification by sixteen": (returns(numbers(16) + numbers(0, UNCHANGED) * 16), "more than 4 times the event"),
    "state of a length that it has not": (module(SAVE.replace("0x40000000001", "0x7ffff00000040"), LOAD), "outside"),
    "state that is too large": (module(SAVE.replace("0x40000000001", "0x41"), LOAD), r"save\(\) returned 65 bytes"),
    "endless save": (
        module(f'(func (export "save") (result i64) {ENDLESS} (unreachable))', LOAD), r"save\(\) " + FUEL),
    "endless load": (
        module(f'(func (export "load") (param i32 i32) (result i32) {ENDLESS} (unreachable))', SAVE),
        r"load\(\) used up its fuel"),
    "state that does not load": (
        module(LOAD.replace("(i32.const 0)", "(i32.const 3)"), SAVE), "refused the state: it returned 3"),
    "no room": (module('(func (export "alloc") (param i32) (result i32) '
                       "(select (i32.const 1024) (i32.const 0) (i32.lt_u (local.get 0) (i32.const 999))))"),
                r"alloc\(\) found no room for 131,072 bytes"),
    "room outside": (module(ALLOC.replace("4096", "500000")), r"alloc\(\) returned a place outside"),
    "endless keep": (
        module(f'(func (export "keep") (param i32 i32 i32) (result i32) {ENDLESS} (unreachable))'),
        r"keep\(\) " + FUEL),
}  # fmt: skip
"""Modules that start, or not, and the text of their first fault."""
LARGE = Event(bytes(130_000), {"a": 1})


def faults_of(text: str) -> str:
    """Return the fault of a module that starts, gets a large event, saves, loads, and decides which results to keep."""
    try:
        at_work = instance(Modulator.wat(text))
    except LocalError as error:
        return str(error)
    if at_work.process(LARGE) is not None and (state := at_work.save()) is not None:
        at_work.rebuild(state)
        at_work.keep(Result(b"r"), 1)
    faults = at_work.fault
    assert at_work.rebuild(b"") or "alloc" in faults
    assert at_work.faults < 4
    return faults


@pytest.mark.parametrize("count", [100, 127, 128, 255, 256, 70_000, 2**31])
def test_the_example_counts_further_than_a_byte(count: int) -> None:
    at_work = instance(example("every_nth", b"\1"))
    assert at_work.rebuild((count - 1).to_bytes(4, "little"))
    assert at_work.process(A) == (A, Result(str(count).encode(), {"count": count}))
    assert at_work.save() == count.to_bytes(4, "little")


def test_all_results_of_an_event_are_kept_or_not_within_the_fuel_of_one() -> None:
    rounds = "(local $n i32) (loop $l (br_if $l (i32.lt_u (local.tee $n (i32.add (local.get $n) (i32.const 1)))"
    slow = f'(func (export "keep") (param i32 i32 i32) (result i32) {rounds} (i32.const 40000)))) (i32.const 0))'
    at_work = instance(Modulator.wat(module(slow)))
    assert at_work.process(A) is not None
    kept = [at_work.keep(Result(b"r"), 1) for _ in range(RESULTS_MAX)]
    assert not kept[0]
    assert kept[-1]
    assert at_work.spent <= Limits().fuel_per_event
    assert "keep() used up its fuel of 750,000 (limits.fuel_per_event)" in at_work.fault


@pytest.mark.parametrize(("text", "said"), FAULTS.values(), ids=FAULTS)
def test_a_hostile_module_is_a_fault_and_harms_nobody(text: str, said: str) -> None:
    honest = instance(example("every_nth", b"\1"))
    found = faults_of(text)
    assert re.search(said, found), found
    assert bool(found) is bool(said)
    assert honest.process(A) == (A, Result(b"1", {"count": 1}))


REFUSED = {
    "endless start": (
        module(f"(func $start {ENDLESS}) (start $start)"), "does not start: start " + FUEL),
    "start that fails": (module("(func $start (unreachable)) (start $start)"), "start failed: unreachable"),
    "endless open": (
        module(f'(func (export "open") (param i32 i32) (result i32) {ENDLESS} (unreachable))'), r"open\(\) " + FUEL),
    "parameters that do not fit": (module(OPEN.replace("const 0", "const 7")), "the parameters: it returned 7"),
    "another ABI": (module(ABI.replace("const 1", "const 2")), r"abi\(\) returned 2, and brokers run ABI 1"),
    "data outside": (module('(data (i32.const 524287) "xx")'), "start failed: .*out of bounds"),
    "large memory": (module('(memory (export "memory") 65)'), "start failed: .*memory minimum size"),
    "no memory": (f"(module {ABI} {ALLOC} {OPEN} {PROCESS})", "must export its memory"),
    "memory that is none": (
        f'(module (func (export "memory")) {ABI} {ALLOC} {OPEN} {PROCESS})', "must export its memory"),
    "no process": (f"(module {MEMORY} {ABI} {ALLOC} {OPEN})", r"export process\(i32, i32\) -> i64"),
    "process of another type": (module(PROCESS.replace("i64", "i32")), r"export process\(i32, i32\) -> i64"),
    "save alone": (module(SAVE), r"export load\(i32, i32\) -> i32, which this one does not \(save and load"),
    "load alone": (module(LOAD), r"export save\(\) -> i64, which"),
    "keep of another type": (module('(func (export "keep"))'), r"export keep\(i32, i32, i32\) -> i32"),
    "a clock": (
        '(module (import "wasi_snapshot_preview1" "clock_time_get" (func (param i32 i64 i32) (result i32))))',
        "must not import anything, but this one imports wasi_snapshot_preview1.clock_time_get"),
    "a memory of others": ('(module (import "env" "memory" (memory 1)))', "imports env.memory"),
    "two memories": (module("(memory 1)"), "does not compile: .*multi"),
    "shared memory": (module("(memory 1 1 shared)").replace(MEMORY, ""), "does not compile: .*threads"),
    "vectors": (module("(func (drop (v128.const i64x2 0 0)))"), "does not compile: .*SIMD"),
    "64 bits": (f'(module (memory (export "memory") i64 1) {ABI})', "does not compile: .*memory64"),
    "tail calls": (module("(func $f (return_call $f))"), "does not compile: .*tail calls"),
}  # fmt: skip
"""Modules that do not start."""


@pytest.mark.parametrize(("text", "said"), REFUSED.values(), ids=REFUSED)
def test_a_module_that_does_not_start_is_refused_with_a_reason(text: str, said: str) -> None:
    with pytest.raises(LocalError, match=said):
        instance(Modulator.wat(text))


GOOD = Modulator.wat(module()).module
JUNK = {
    "nothing but the magic": (b"\0asm", "must begin with the header"),
    "text": (module().encode(), "must begin with the header"),
    "a component": (b"\0asm\x0d\0\1\0", "must begin with the header"),
    "cut short": (GOOD[:-3], "does not compile"),
    "more than all": (GOOD + b"\xff\xff", "does not compile"),
    "a section that is too long": (b"\0asm\1\0\0\0\1\xff\xff\xff\xff\x0f", "does not compile"),
}


@pytest.mark.parametrize(("junk", "said"), JUNK.values(), ids=JUNK)
def test_what_is_no_module_is_refused(junk: bytes, said: str) -> None:
    with pytest.raises(LocalError, match=said):
        instance(Modulator.wasm(junk))


def test_results_may_be_as_large_as_the_limits_say() -> None:
    at_work = instance(Modulator.wat(returns(numbers(4) + numbers(0, UNCHANGED) * 4)))
    small, large = Event(b"x" * 16_000), Event(b"x" * 200_000)
    assert at_work.process(small) == (Result(small.payload, {}),) * 4
    assert at_work.process(large) is None  # Attributes count, too.
    at_work = instance(Modulator.wat(returns(numbers(3) + numbers(0, UNCHANGED) * 3)))
    assert at_work.process(large) == (Result(large.payload, {}),) * 3


# --- misuse ------------------------------------------------------------------------------------------------


def test_a_module_is_named_by_its_digest() -> None:
    first, again = Modulator.wasm(GOOD, b"p"), Modulator.wat(module(), b"p")
    assert first == again
    assert first.reference.module == b""
    assert first.reference != Modulator.wasm(GOOD + b"\0\1\0").reference
    assert len(first.digest) == registry.DIGEST_BYTES
    assert named("selector", text="x").reference is not None


@pytest.mark.parametrize(
    ("misuse", "said"),
    [
        (lambda: Modulator.wasm("text"), "a module is bytes"),  # type: ignore[arg-type]
        (lambda: Modulator.wasm(b""), "a module is bytes"),
        (lambda: Modulator.wasm(GOOD, bytes(1_025)), "at most 1,024 bytes: 1,025"),
        (lambda: Modulator.wat("(module"), "invalid module in the WebAssembly text format"),
        (lambda: instance(example("every_nth")), r"open\(\) refused the parameters: it returned 1"),
    ],
)
def test_misuse_of_modules_says_what_to_do(misuse: object, said: str) -> None:
    with pytest.raises(LocalError, match=said):
        misuse()  # type: ignore[operator]


def test_without_the_extra_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wasmtime", None)
    monkeypatch.delitem(sys.modules, "carrypost.overlay.modulators.wasm")
    with pytest.raises(LocalError, match=r"pip install 'carrypost\[wasm\]'"):
        Modulator.wat(module())
    assert not programs.is_installed()
    assert Modulator.wasm(GOOD).module == GOOD  # Only brokers need it.
    assert instance(named("every-nth", n=1)).process(B) is not None
