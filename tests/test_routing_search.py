"""Random networks of routing hosts: frames that are lost, doubled and reordered, contacts that end, crashes."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples

from carrypost import testing
from carrypost.events import Delivered, Dropped, Event, Published, Reason, Received

NODES = "abcd"
SIZES = (10, 3_000, 40_000)
_PAIRS = st.sampled_from([(a, b) for a in NODES for b in NODES if a < b])
_ACTIONS = st.one_of(
    st.tuples(st.just("publish"), st.permutations(NODES).map(lambda names: tuple(names[:2])), st.sampled_from(SIZES)),
    st.tuples(st.just("link"), _PAIRS, st.sampled_from((0.0, 0.02, 0.1, 0.3, 1.0, 5.0))),
    st.tuples(st.just("unlink"), _PAIRS, st.sampled_from((0.0, 5.0, 20.0))),
    st.tuples(st.just("crash"), st.sampled_from(NODES), st.sampled_from((0.0, 1.0, 5.0))),
)


class Copies:
    """The hosts with a copy of each message, by what they report."""

    def __init__(self, net: testing.Network) -> None:
        self.holders: dict[str, set[str]] = {}
        self.carried: Counter[str] = Counter()
        self.recipient: dict[str, str] = {}
        self.delivered: set[str] = set()
        net.watch(self._note)

    def _note(self, _t: float, node: str, event: Event) -> None:
        if isinstance(event, Published):
            self.holders[event.descriptor.label] = {node}
            (self.recipient[event.descriptor.label],) = event.descriptor.listed
        elif isinstance(event, Received):
            for each in event.receptions:
                label = each.descriptor.label
                self.holders[label].add(node)
                self.carried[label] += node != self.recipient[label]
        elif isinstance(event, Delivered):
            self.delivered.update(each.descriptor.label for each in event.deliveries)
        elif isinstance(event, Dropped):
            for descriptor in event.descriptors:
                self.holders[descriptor.label].discard(node)
                assert event.reason in {Reason.FORWARDED, Reason.PURGED, Reason.INCOMPLETE}


def play(net: testing.Network, actions: list[tuple[str, Any, Any]]) -> Copies:
    """Do all that; at the end all hosts are up, and some time has passed."""
    copies = Copies(net)
    for number, (action, where, what) in enumerate(actions):
        match action:
            case "publish":
                author, recipient = where
                net.publish(author, "news", testing.Blank(what), label=f"m{number}", recipients=[recipient])
            case "link":
                if not net.linked(*where):
                    net.link(*where)
                net.advance(what)
            case "unlink":
                if net.linked(*where):
                    net.unlink(*where)
                net.advance(what)
            case _:
                net.kill(where)
                net.advance(what)
                net.restart(where)
    net.advance(5)
    return copies


def network(strategy: str, noise: tuple[float, ...], **settings: Any) -> testing.Network:  # noqa: ANN401
    loss, duplicate, reorder, disk_delay_s = noise
    return testing.network(
        *NODES, strategy=strategy, loss=loss, duplicate=duplicate, reorder=reorder, delay_s=0.01,
        disk_delay_s=disk_delay_s, **settings
    )  # fmt: skip


_NOISE = st.sampled_from([
    (0.0, 0.0, 0.0, 0.0), (0.2, 0.0, 0.0, 0.0), (0.1, 0.2, 0.3, 0.0), (0.0, 0.0, 0.0, 0.4), (0.1, 0.2, 0.3, 0.05)
])  # fmt: skip
"""Shares of frames that are lost, doubled and reordered, and the seconds that a disk takes."""


@given(st.lists(_ACTIONS, max_size=30), _NOISE, st.booleans())
@examples(20)
def test_first_contact_never_loses_a_message(actions: list[Any], noise: tuple[float, ...], keep: bool) -> None:
    with network("first-contact", noise, keep_partials=keep) as net:
        for node in NODES:
            net.subscribe(node, "news")
        copies = play(net, actions)
        assert [label for label, found in copies.holders.items() if not found and label not in copies.delivered] == []


@given(st.lists(_ACTIONS, max_size=30), _NOISE, st.integers(1, 5), st.booleans())
@examples(20)
def test_tickets_never_become_more(actions: list[Any], noise: tuple[float, ...], tickets: int, binary: bool) -> None:
    with network("spray-and-wait", noise, spray_copies=tickets, spray_binary=binary) as net:
        for node in NODES:
            net.subscribe(node, "news")
        copies = play(net, actions)
        assert max(copies.carried.values(), default=0) < tickets


@given(st.lists(_ACTIONS, max_size=30), _NOISE, st.sampled_from((1, 4_096)))
@examples(10)
def test_tables_are_always_sound(actions: list[Any], noise: tuple[float, ...], most: int) -> None:
    with network("prophet", noise, limits={"encounters_max": most}) as net:
        for node in NODES:
            net.subscribe(node, "news")
        play(net, actions)
        refused = sum((Counter(net.host(node).overview().refused) for node in NODES), Counter[str]())
        assert not refused.keys() & {"frame", "encounters"}
