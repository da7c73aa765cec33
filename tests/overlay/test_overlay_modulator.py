"""Modulators: the conformance table, faults and bounds, and what misuse says."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from itertools import count

import pytest
from tests.support.modulators import LIMITS, STATE_BYTES_MAX, TABLE, A, Row, instance, play

from carrypost.errors import LocalError
from carrypost.model.headers import FAULT_MAX
from carrypost.overlay.modulators.modulator import Instance, Modulator
from carrypost.overlay.modulators.registry import Event, Result, modulator


@pytest.mark.parametrize("carried", [False, True], ids=["in one instance", "carried"])
@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_a_modulator_does_what_the_table_says_wherever_it_runs(row: Row, *, carried: bool) -> None:
    faults = sum(each is None for each in row.results)
    assert play(row, carried=carried) == (list(row.results), row.state, faults, row.cost_us)


def test_the_event_itself_is_told_from_one_that_is_equal() -> None:
    (row,) = (row for row in TABLE if row.name == "state")
    twin = Event(*A)
    at_work = instance(row.modulator)
    results = [at_work.process(each) for each in (A, twin)][1]
    assert results is not None
    assert results[0] is twin


# --- faults ------------------------------------------------------------------------------------------------


@modulator("hostile")
class Hostile:
    """Return or raise what the test says."""

    answer: object = None
    state: object = b""
    loads = True

    def process(self, event: Event) -> list[Event | Result]:
        if isinstance(self.answer, Exception):
            raise self.answer
        return [Event(*event)] if self.answer == "twin" else self.answer  # type: ignore[return-value]

    def save(self) -> bytes:
        return self.state  # type: ignore[return-value]

    def load(self, state: bytes) -> None:
        if not self.loads:
            raise ValueError(f"not mine: {state!r}")


LARGE = bytes(LIMITS.message_bytes_max + 1)
FAULTS: list[tuple[object, str]] = [
    (RuntimeError("no"), "RuntimeError: no"),
    (RecursionError("deep"), "RecursionError: deep"),
    (MemoryError(), "MemoryError: "),
    (ValueError("x" * 1_000), "ValueError: x"),
    (None, "process() returned a NoneType, not a list"),
    (b"bytes", "process() returned a bytes, not a list"),
    (iter([]), "not a list"),
    ([b"bytes"], "returned a list with a bytes, not the event or a Result"),
    ("twin", "returned a list with a Event"),
    ([Result("text")], "a payload must be bytes, not str"),  # type: ignore[arg-type]
    ([Result(LARGE)], f"at most {LIMITS.message_bytes_max:,} bytes"),
    ([Result(b"", {"a": [1]})], "value of attribute 'a' must be a bool, int, float or str"),  # type: ignore[dict-item]
    ([Result(b"", {"a": 2**64})], "does not fit into 64 bits"),
    ([Result(b"", {"": 1})], "the name of an attribute"),
    ([Result(b"", {str(each): 1 for each in range(LIMITS.attributes_max + 1)})], "attributes"),
    ([Result(b"", 7)], "TypeError"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("answer", "said"), FAULTS)
def test_a_fault_is_counted_told_and_contained(answer: object, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hostile, "answer", answer)
    at_work = instance(Modulator.named("hostile"))
    assert at_work.process(A) is None
    assert (at_work.events, at_work.faults) == (1, 1)
    assert said in at_work.fault
    assert len(at_work.fault) <= FAULT_MAX


@pytest.mark.parametrize("state", [bytes(STATE_BYTES_MAX + 1), "text", None])
def test_a_state_that_is_too_large_or_no_bytes_is_a_fault(state: object, monkeypatch: pytest.MonkeyPatch) -> None:
    at_work = instance(Modulator.named("hostile"))
    monkeypatch.setattr(Hostile, "state", bytes(STATE_BYTES_MAX))
    assert at_work.save() == bytes(STATE_BYTES_MAX)
    monkeypatch.setattr(Hostile, "state", state)
    assert at_work.save() is None
    assert f"at most {STATE_BYTES_MAX} bytes" in at_work.fault


def test_what_cannot_be_rebuilt_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hostile, "loads", False)
    at_work = instance(Modulator.named("hostile"))
    assert not at_work.rebuild(b"state")
    assert at_work.faults == 1
    assert re.fullmatch(r"ValueError: not mine: b'state' \(test_overlay_modulator\.py, line \d+\)", at_work.fault)
    # One that fails with what it processed before is no pure function.
    monkeypatch.setattr(Hostile, "loads", True)
    monkeypatch.setattr(Hostile, "answer", RuntimeError("sometimes"))
    assert not at_work.rebuild(b"state", [A])
    # A state for a modulator that has none.
    at_work = instance(Modulator.named("box", area=[0, 0, 1, 1]))
    assert not at_work.rebuild(b"state")
    assert at_work.rebuild(b"", [Event(b"")])


def test_results_wait_unless_the_modulator_says_otherwise() -> None:
    at_work = instance(Modulator.named("every-nth", n=1))
    assert at_work.keep(Result(b"3"), 99)
    assert not at_work.keep(Result(b"3"), 100)
    assert at_work.keep(Result(b"4"), 100)
    assert instance(Modulator.named("hostile")).keep(A, 10**9)


def test_execution_time_is_what_the_meter_says() -> None:
    moments = count(1_000, 250)
    at_work = Instance(Modulator.named("every-nth", n=1), LIMITS, 1, meter=lambda: next(moments))
    for event in (A, Event(b"fail"), A):
        at_work.process(event)
    assert at_work.busy_us == 750


# --- misuse ------------------------------------------------------------------------------------------------


class NoProcess:
    """Not a modulator."""


class SavesOnly(Hostile):
    load = None  # type: ignore[assignment]


NESTED = b"\x81\xa1n" + b"\x91" * 1_000 + b"\xc0"
MISUSE: list[tuple[Callable[[], object], str]] = [
    (lambda: Modulator.named("bxo"), r"no modulator 'bxo' is registered here: load the module .*; did you mean box\?"),
    (lambda: Modulator.named("zzzzzz"), r"registered here: load the module that registers it \(\[node\] plugins\)"),
    (lambda: Modulator.named("box", area=object()), "strings, numbers, lists or maps"),
    (lambda: Modulator.named("box", n=2**70), "strings, numbers, lists or maps"),
    (lambda: Modulator.named("selector", text="x" * 1_024), "parameters of at most 1,024 bytes"),
    (lambda: Modulator.named("", version=1), "a name of 1 to 64 characters"),
    (lambda: Modulator.named("other", version=0), "a version of 1 to 65,535"),
    (lambda: instance(Modulator.named("other", version=3)), "no modulator 'other' is registered here"),
    (lambda: instance(Modulator.named("box", version=2)), "modulator 'box' has version 1 here, not 2"),
    (lambda: instance(Modulator.named("box")), "'box' does not accept these parameters: .*'area'"),
    (lambda: instance(Modulator.named("box", area=[1, 2, 3])), r"area is \[left, top, right, bottom\]"),
    (lambda: instance(Modulator.named("box", area=5)), r"area is \[left, top, right, bottom\]"),
    (lambda: instance(Modulator.named("box", area=[5, 0, 5, 9])), r"area is \[left, top, right, bottom\]"),
    (lambda: instance(Modulator.named("box", area=[0, 0, 1.5, 2])), r"area is \[left, top, right, bottom\]"),
    (lambda: instance(Modulator.named("synthetic", ratio=5)), "ratio is 0 to 4"),
    (lambda: instance(Modulator.named("synthetic", cost_us=-1)), "cost_us a whole number from 0"),
    (lambda: instance(Modulator.named("selector", text="price >")), "does not accept these parameters"),
    (lambda: instance(Modulator("box", 1, b"\xc1")), "does not accept these parameters"),
    (lambda: instance(Modulator("box", 1, b"\x90")), "does not accept these parameters"),
    (lambda: instance(Modulator("box", 1, NESTED)), "does not accept these parameters"),
    (lambda: modulator("mine")(NoProcess), r"NoProcess must have process\(event\)"),  # type: ignore[type-var]
    (lambda: modulator("mine")(SavesOnly), "both or neither"),
    (lambda: modulator("hostile")(type("Other", (Hostile,), {})), "'hostile' of version 1 already: raise the version"),
    (lambda: modulator("mine", version=0)(Hostile), "the version of a modulator is 1 to 65,535, not 0"),
    (lambda: modulator("mine", version="1")(Hostile), "is 1 to 65,535, not '1'"),  # type: ignore[arg-type]
    (lambda: modulator("m" * 65)(Hostile), "the name of a modulator has 1 to 64 characters"),
]


@pytest.mark.parametrize(("misuse", "said"), MISUSE)
def test_misuse_raises_and_says_what_to_do(misuse: Callable[[], object], said: str) -> None:
    with pytest.raises(LocalError, match=said):
        misuse()


def test_the_latest_version_is_meant_unless_another_is_named() -> None:
    modulator("hostile", version=3)(Hostile)
    modulator("hostile", version=3)(Hostile)  # As a module that is loaded twice does.
    assert Modulator.named("hostile").version == 3
    assert instance(Modulator.named("hostile", version=1)).registered.kind is Hostile
    with pytest.raises(LocalError, match="version 1 and 3 here, not 2"):
        instance(Modulator.named("hostile", version=2))


def test_modulators_are_equal_if_name_version_and_parameters_are() -> None:
    one, other = Modulator.named("mine", version=1, a=1, b=2), Modulator.named("mine", version=1, b=2, a=1)
    assert one == other
    assert one != Modulator.named("mine", version=1, a=1, b=3)


def test_a_box_is_cut_by_rows_or_by_columns_with_the_same_result() -> None:
    chance = random.Random(3)
    for _ in range(50):
        columns, rows = chance.randint(1, 9), chance.randint(1, 9)
        left, top = chance.randrange(columns), chance.randrange(rows)
        right, bottom = chance.randint(left + 1, columns + 2), chance.randint(top + 1, rows + 2)
        cells = [chance.randbytes(8) for _ in range(columns * rows)]
        lines = [cells[at * columns : (at + 1) * columns][left:right] for at in range(rows)][top:bottom]
        at_work = instance(Modulator.named("box", area=[left, top, right, bottom]))
        (found,) = at_work.process(Event(b"".join(cells), {"columns": columns})) or ()
        assert found.payload == b"".join(each for line in lines for each in line)
