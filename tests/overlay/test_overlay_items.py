"""Items of relocations: decoded items equal encoded ones, anything else is refused, and a table lists the senders."""

from __future__ import annotations

import typing

import msgspec
import pytest

from carrypost.model.headers import ORIGIN_BYTES_MAX
from carrypost.model.ids import NodeId
from carrypost.overlay import items
from carrypost.overlay.items import (
    AUTHORS,
    ITEMS,
    Attach,
    Attached,
    Detour,
    Detoured,
    Handoff,
    Item,
    Moving,
    Progress,
    Ready,
    Report,
    Role,
    Sent,
    State,
    may_say,
)
from carrypost.overlay.modulators.modulator import Modulator
from carrypost.overlay.relocation import HandoffId

H = HandoffId(NodeId("A"), 4, 2**24 + 1)
SAID: list[tuple[Item, list[object]]] = [
    (Attached(Role.CONSUMER, "flood", 1, "moved", 5), ["h", 2, "flood", 1, "moved", 5]),
    (Report("flood", 1, (("B", 1), ("C", 255)), placed=True), ["R", "flood", 1, [["B", 1], ["C", 255]], True]),
    (Moving("flood", 1, 4, "B"), ["m", "flood", 1, 4, "B", "nearer"]),
    (Handoff(H), ["o", ["A", 4, 2**24 + 1]]),
    (Ready(H, "seats"), ["y", ["A", 4, 2**24 + 1], "seats", None]),
    (Ready(H, last=(("p", 7),)), ["y", ["A", 4, 2**24 + 1], "", [["p", 7]]]),
    (Detour(H, "flood", "B"), ["d", ["A", 4, 2**24 + 1], "flood", "B"]),
    (Detoured(H, (("p", 7), ("q", 0))), ["D", ["A", 4, 2**24 + 1], [["p", 7], ["q", 0]]]),
    (State(H), ["S", ["A", 4, 2**24 + 1]]),
    (Sent("flood", (("p", 7),), 5, 3, ((3, 4),)), ["n", "flood", [["p", 7]], 5, 3, [[3, 4]]]),
    (Progress("flood", (("p", 7),), 1), ["G", "flood", [["p", 7]], 1]),
]


@pytest.mark.parametrize(("item", "wire"), SAID)
def test_items_travel_as_short_arrays(item: Item, wire: list[object]) -> None:
    sent = msgspec.msgpack.decode(ITEMS.encode([item]))
    assert sent[0][: len(wire)] == wire
    assert ITEMS.is_readable(item)


@pytest.mark.parametrize(
    "nonsense",
    [
        ["o", ["A", -1, 1]], ["o", ["A", 1]], ["o", ["A", 1, 2**60]], ["y", ["A", 1, 1], "r" * 33],
        ["D", ["A", 1, 1], [["p", -1]]], ["D", ["A", 1, 1], [["p", 1]] * 65], ["R", "flood", 1, "B", 256, 1],
        ["R", "flood", 1, "B", 1, 1, False, [["C", 1]] * 4], ["m", "flood", 1, 4, ""], ["d", ["A", 1, 1], "flood", ""],
        ["a", 2, "flood", 1, True, 1, 1, 0, [], None, "best"],
    ],
)  # fmt: skip
def test_what_breaks_a_bound_is_not_read(nonsense: list[object]) -> None:
    class Sent(typing.NamedTuple):
        headers: object

    control = msgspec.msgpack.encode([nonsense])
    headers = type("Headers", (), {"control": control})()
    assert ITEMS.items_of(Sent(headers)) == ([], 1)  # type: ignore[arg-type]


def test_the_table_says_of_every_kind_who_may_say_it_to_one_node() -> None:
    kinds = set(typing.get_args(Item))
    assert set(AUTHORS) == kinds
    broker, other = NodeId("B"), NodeId("x")
    for item, _ in SAID:
        known = may_say(item, broker, to_all=False, eligible=(), known=(broker,))
        stranger = may_say(item, other, to_all=False, eligible=(other,), known=(broker,))
        assert (known, stranger) == (True, isinstance(item, Progress | Report | Sent))
        assert not may_say(item, broker, to_all=True, eligible=(broker,), known=(broker,))


def test_an_attach_fits_into_a_message_that_passes_it_on() -> None:
    cursors = tuple((f"{number:052}", 2**40) for number in range(64))
    long = Attach(Role.CONSUMER, "flood", 1, cursors=cursors, modulator=Modulator("box", 1, bytes(1_024)))
    short = items.shortened(long)
    assert 0 < len(short.cursors) < 64
    assert short.cursors == cursors[-len(short.cursors) :]
    signed_bytes = 300
    assert ITEMS.encoded_size(short) + signed_bytes < ORIGIN_BYTES_MAX
    few = Attach(Role.CONSUMER, "flood", 1, cursors=cursors[:5])
    assert items.shortened(few) is few


def test_an_attach_has_as_many_of_the_latest_cursors_as_fit() -> None:
    cursors = tuple((f"{number:026}", number) for number in range(100))
    short = items.shortened(Attach(Role.CONSUMER, "flood", 1, cursors=cursors))
    assert short.cursors == cursors[-len(short.cursors) :]
    assert ITEMS.encoded_size(short) <= items.ATTACH_BYTES_MAX
    longer = msgspec.structs.replace(short, cursors=cursors[-len(short.cursors) - 1 :])
    assert ITEMS.encoded_size(longer) > items.ATTACH_BYTES_MAX
