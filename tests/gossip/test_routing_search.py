"""Random networks of routing hosts: frames that are lost, doubled and reordered, contacts that end, crashes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.gossip.test_routing import KINDS
from tests.support.examples import examples

from carrypost import testing
from carrypost.gossip.holdings.cache import CopyState
from carrypost.gossip.wire.frames import Tickets
from carrypost.log.events import Delivered, Dropped, Event, Published, Reason, Received, Stored
from carrypost.model.ids import MessageId

NODES = "abcd"
HERE = {CopyState.WHOLE, CopyState.WAITING, CopyState.PINNED, CopyState.UNSENT, CopyState.FINISHED}
SIZES = (10, 3_000, 40_000)
_PAIRS = st.sampled_from([(a, b) for a in NODES for b in NODES if a < b])
_ACTIONS = st.one_of(
    st.tuples(st.just("publish"), st.permutations(NODES).map(lambda names: tuple(names[:2])), st.sampled_from(SIZES)),
    st.tuples(st.just("link"), _PAIRS, st.sampled_from((0.0, 0.02, 0.1, 0.3, 1.0, 5.0))),
    st.tuples(st.just("unlink"), _PAIRS, st.sampled_from((0.0, 5.0, 20.0))),
    st.tuples(st.just("crash"), st.sampled_from(NODES), st.sampled_from((0.0, 1.0, 5.0))),
    st.tuples(st.just("break off"), _PAIRS, st.integers(0, 60).map(lambda twentieths: twentieths / 20)),
)


class Copies:
    """The messages that were published, and what became of them."""

    def __init__(self, net: testing.Network) -> None:
        self._net = net
        self.carried: Counter[MessageId] = Counter()
        """Numbers of hosts that received a message for another one."""
        self.recipient: dict[MessageId, str] = {}
        self._stored: set[MessageId] = set()
        self._delivered: set[MessageId] = set()
        net.watch(self._note)

    def lost(self) -> list[MessageId]:
        """Return the messages that their authors stored, that were not delivered, and that no host has."""
        host = self._net.host
        waiting = self._stored - self._delivered
        return [each for each in waiting if not any(host(node).state_of(each) in HERE for node in NODES)]

    def tickets(self) -> Counter[MessageId]:
        """Return the number of tickets of each message at all hosts that carry it for others."""
        found = Counter[MessageId]()
        for node in NODES:
            context = self._net.host(node)._host_context  # noqa: SLF001 - nothing shows tickets
            ledger = context.links.handlers[Tickets].__self__.tickets  # type: ignore[attr-defined]
            for copy in context.holdings.at(context.holdings.cache.whole):
                if self.recipient[copy.id] != node:
                    found[copy.id] += ledger.of(copy.slot)
        return found

    def _note(self, _t: float, node: str, event: Event) -> None:
        if isinstance(event, Published):
            (self.recipient[event.descriptor.id],) = event.descriptor.listed
        elif isinstance(event, Stored):
            self._stored.add(event.message)
        elif isinstance(event, Received):
            for each in event.receptions:
                self.carried[each.descriptor.id] += node != self.recipient[each.descriptor.id]
        elif isinstance(event, Delivered):
            self._delivered.update(each.message for each in event.deliveries)
        elif isinstance(event, Dropped):
            assert event.reason in {Reason.FORWARDED, Reason.PURGED, Reason.INCOMPLETE}


def join(net: testing.Network, pair: tuple[str, str]) -> None:
    if not net.linked(*pair):
        net.link(*pair)


def part(net: testing.Network, pair: tuple[str, str]) -> None:
    if net.linked(*pair):
        net.unlink(*pair)


def play(net: testing.Network, actions: list[tuple[str, Any, Any]]) -> Copies:
    """Do all that; at the end all hosts are up, no two are in contact, and some time has passed."""
    copies = Copies(net)
    for number, (action, where, what) in enumerate(actions):
        match action:
            case "publish":
                author, recipient = where
                net.publish(author, "news", testing.Blank(what), label=f"m{number}", recipients=[recipient])
            case "link":
                join(net, where)
                net.advance(what)
            case "unlink":
                part(net, where)
                net.advance(what)
            case "break off":
                join(net, where)
                net.advance(what)
                net.kill(where[number % 2])
                part(net, where)
                net.restart(where[number % 2])
            case _:
                net.kill(where)
                net.advance(what)
                net.restart(where)
    for pair in combinations(NODES, 2):
        part(net, pair)
    net.advance(30)
    return copies


@contextmanager
def network(noise: tuple[float, ...], *kinds: str, **settings: Any) -> Iterator[testing.Network]:  # noqa: ANN401
    """Yield hosts of one strategy, or each of its own."""
    loss, duplicate, reorder, disk_delay_s = noise
    with testing.network(
        loss=loss, duplicate=duplicate, reorder=reorder, delay_s=0.01, disk_delay_s=disk_delay_s, **settings
    ) as net:
        for node, kind in zip(NODES, kinds * (len(NODES) // len(kinds)), strict=True):
            net.add(node, **KINDS[kind])
            net.subscribe(node, "news")
        yield net


_NOISE = st.sampled_from([
    (0.0, 0.0, 0.0, 0.0), (0.2, 0.0, 0.0, 0.0), (0.1, 0.2, 0.3, 0.0), (0.0, 0.0, 0.0, 0.4), (0.1, 0.2, 0.3, 0.05)
])  # fmt: skip
"""Shares of frames that are lost, doubled and reordered, and the seconds that a disk takes."""


@given(st.lists(_ACTIONS, max_size=30), _NOISE, st.booleans())
@examples(15)
def test_first_contact_never_loses_a_message(actions: list[Any], noise: tuple[float, ...], keep: bool) -> None:
    with network(noise, "first-contact", keep_partials=keep) as net:
        assert play(net, actions).lost() == []


@given(st.lists(_ACTIONS, max_size=30), _NOISE, st.tuples(*[st.sampled_from(sorted(KINDS))] * (len(NODES) - 1)))
@examples(15)
def test_nor_does_first_contact_lose_one_among_hosts_with_other_strategies(
    actions: list[Any], noise: tuple[float, ...], others: tuple[str, ...]
) -> None:
    with network(noise, "first-contact", *others) as net:
        assert play(net, actions).lost() == []


@given(st.lists(_ACTIONS, max_size=30), _NOISE, st.integers(1, 5), st.booleans())
@examples(20)
def test_tickets_never_become_more(actions: list[Any], noise: tuple[float, ...], tickets: int, binary: bool) -> None:
    with network(noise, "spray-and-wait", spray_copies=tickets, spray_binary=binary) as net:
        copies = play(net, actions)
        assert max(copies.carried.values(), default=0) < tickets
        assert max(copies.tickets().values(), default=0) <= tickets


@given(st.lists(_ACTIONS, max_size=30), _NOISE, st.sampled_from((1, 4_096)))
@examples(10)
def test_tables_are_always_sound(actions: list[Any], noise: tuple[float, ...], most: int) -> None:
    with network(noise, "prophet", limits={"encounters_max": most}) as net:
        play(net, actions)
        refused = sum((Counter(net.host(node).overview().refused) for node in NODES), Counter[str]())
        assert not refused.keys() & {"frame", "encounters"}
