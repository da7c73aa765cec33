"""Recipients that are struck off, permanently and independently of the copy; with the last one the copy is dropped."""

from __future__ import annotations

import random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.gossip.test_addressed import Receptions
from tests.gossip.test_purged import Drops, notice, refused
from tests.support.examples import examples
from tests.support.one_node import OneNode

from carrypost import testing
from carrypost.gossip.holdings import recipients
from carrypost.gossip.holdings.cache import CopyState
from carrypost.gossip.holdings.memories import Purged
from carrypost.gossip.holdings.recipients import Recipients
from carrypost.gossip.outputs import Journal
from carrypost.gossip.transfers.arrivals_and_removals import strike
from carrypost.log.events import Dropped, Reason
from carrypost.log.journal import STRUCK
from carrypost.model.descriptor import Descriptor, PayloadCodec
from carrypost.model.headers import Headers
from carrypost.model.ids import MessageId, NodeId

ROADS = "topic/roads"
S = 1_000_000
B, C, D, MALLORY = (NodeId(name) for name in ("b", "c", "d", "mallory"))
LARGE = random.Random(1).randbytes(100_000)


def left(net: testing.Network, at: str, message: MessageId) -> list[str]:
    """Return the remaining recipients of a message, as one node knows them."""
    holdings = net.host(at)._host_context.holdings  # noqa: SLF001 - as `carrypost status` will
    copy = holdings.cache.get(message)
    assert copy is not None
    return [str(node) for node in holdings.recipients.left(copy.descriptor)]


# --- one after the other -------------------------------------------------------------------------------------


def test_with_the_last_recipient_the_copy_goes_at_the_author_and_at_carriers() -> None:
    with testing.network("a", "carrier", "b", "c", seed=1, altruistic=True) as net:
        drops, came = Drops(net), Receptions(net)
        net.link("a", "carrier")
        sent = net.publish("a", ROADS, b"x", label="x", recipients=["b", "c"])
        net.advance(10)
        for node in ("a", "carrier"):
            notice(net, node, sent, by=C)
            assert left(net, node, sent) == ["b"]
            notice(net, node, sent, by=C)
        net.advance(60)
        assert drops.found == []
        for node in ("a", "carrier"):
            notice(net, node, sent, by=B)
        net.advance(200)
        assert drops.found == [("a", Reason.PURGED), ("carrier", Reason.PURGED)]
        assert [net.host(node).state_of(sent) for node in ("a", "carrier")] == [CopyState.DONE] * 2
        assert came.at("carrier") == ["x"]
        assert refused(net, "carrier") == {}


def test_only_recipients_are_struck_off() -> None:
    with testing.network("a", "b", "c", seed=1) as net:
        drops = Drops(net)
        sent = net.publish("a", ROADS, b"x", recipients=["b", "c"])
        for node in (NodeId("a"), MALLORY):
            notice(net, "a", sent, by=node)
        net.advance(1)
        assert left(net, "a", sent) == ["b", "c"]
        assert (refused(net, "a"), drops.found) == ({"purge-authority": 2}, [])


def test_the_last_one_left_keeps_its_copy_to_itself() -> None:
    with testing.network("a", "b", "c", seed=1, altruistic=True) as net:
        net.link("a", "b")
        sent = net.publish("a", ROADS, b"x", recipients=["b", "c"])
        net.advance(10)
        net.unlink("a", "b")
        net.add("d")
        notice(net, "b", sent, by=C)
        net.link("b", "d")
        net.advance(60)
        assert left(net, "b", sent) == ["b"]
        assert net.host("d").state_of(sent) is CopyState.UNKNOWN


@pytest.mark.parametrize("payload", [b"x", LARGE], ids=["small", "large"])
def test_what_was_said_before_the_message_came_counts_when_it_comes(payload: bytes) -> None:
    with testing.network("a", "b", "c", "d", seed=1, altruistic=True, compress=False) as net:
        some = net.publish("a", ROADS, payload, recipients=["b", "c"])
        all_ = net.publish("a", ROADS, payload, recipients=["b", "c"])
        notice(net, "d", some, all_, by=B)
        notice(net, "d", all_, by=C)
        notice(net, "d", some, by=MALLORY)
        net.link("a", "d")
        net.advance(60)
        assert net.host("d").state_of(some) is CopyState.WHOLE
        assert left(net, "d", some) == ["c"]
        assert net.host("d").state_of(all_) is CopyState.DONE
        assert refused(net, "d") == {"purged": 1}


def test_what_there_was_no_room_for_is_remembered_with_who_is_left() -> None:
    with testing.network("a", "b", "c", seed=1) as net:
        net.add("d", cache_messages_max=1, altruistic=True)
        net.link("a", "d")
        sent = net.publish("a", ROADS, b"x", recipients=["b", "c"], priority=1)
        net.advance(10)
        other = net.publish("a", "topic/other", b"x", priority=9, recipients=["b"])
        net.advance(10)
        assert net.host("d").state_of(sent) is CopyState.DECLINED
        notice(net, "d", sent, by=C)
        notice(net, "d", other, by=B)
        net.advance(100)
        assert net.host("d").state_of(sent) is CopyState.WHOLE
        assert left(net, "d", sent) == ["b"]
        notice(net, "d", sent, by=B)
        assert net.host("d").state_of(sent) is CopyState.DONE


@pytest.mark.parametrize("here", [True, False])
def test_it_is_known_after_a_crash_whether_the_copy_was_here_or_not(here: bool) -> None:
    with testing.network("a", "b", "c", seed=1) as net:
        net.add("d", altruistic=True)
        net.link("a", "d")
        some = net.publish("a", ROADS, b"x", recipients=["b", "c"], lifetime_s=3_600)
        all_ = net.publish("a", ROADS, b"x", recipients=["b", "c"], lifetime_s=3_600)
        net.advance(10)
        notice(net, "d", some, all_, by=C)
        notice(net, "d", all_, by=B)
        if not here:
            net.host("d").payload_gone(some, round(net.now * S))
        net.unlink("a", "d")
        net.advance(10)
        net.kill("d")
        net.restart("d")
        net.link("a", "d")
        net.advance(30)
        assert left(net, "d", some) == ["b"]
        assert net.host("d").state_of(some) is CopyState.WHOLE
        assert net.host("d").state_of(all_) is CopyState.DONE
        assert refused(net, "d") == {"purged": 1}


# --- the store -----------------------------------------------------------------------------------------------


def struck_rows(node: OneNode) -> int:
    return sum(kind == STRUCK for kind, _, _ in node.disk)


def say(node: OneNode, message: MessageId, by: NodeId) -> None:
    with node.host.step(node.now):
        strike(node.host._host_context, [message], by, node.now + 3_600 * S)  # noqa: SLF001 - as messaging does


def test_a_copy_whose_end_was_not_written_does_not_come_back() -> None:
    node = OneNode()
    sent = node.host.publish(ROADS, b"x", now=node.now, recipients=["b"])
    node.write()
    kept = dict(node.disk)
    say(node, sent, B)
    node.write()
    node.disk |= {key: value for key, value in kept.items() if key[1] == sent}  # All but its deletion was written.
    node.events.clear()
    node.crash()
    assert node.host.state_of(sent) is not CopyState.FINISHED
    assert node.host.copies == 0
    assert [event.reason for event in node.events if isinstance(event, Dropped)] == [Reason.PURGED]
    assert (STRUCK, sent, 0) in node.disk


def listing(number: int, *, deadline_us: int | None = None) -> Descriptor:
    headers = Headers(recipients=("b", "c"))
    fields = (0, deadline_us, ROADS, 0, 0, PayloadCodec.PLAIN, b"", 1024)
    return Descriptor("a", 1, number, *fields, headers=headers)


def test_what_is_unknown_is_bounded_and_what_is_known_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipients, "ABSENT_MAX", 50)
    journal, known = Journal([]), {listing(number).id for number in range(20)}
    register = Recipients(NodeId("h"), journal, Purged(), lambda message: object() if message in known else None)  # type: ignore[arg-type,return-value]
    for number in range(1_000):
        register.strike(listing(number), B, number)
    assert len(register.struck) <= 20 + 3 * 50 + 20
    assert all(register.left(listing(number)) == ["c"] for number in (*range(20), *range(960, 1_000)))
    assert len(journal.puts) == len(register.struck)


def test_what_is_out_of_date_is_forgotten_after_a_while() -> None:
    journal = Journal([])
    register = Recipients(NodeId("h"), journal, Purged(), lambda _: None)
    register.strike(listing(1, deadline_us=10 * S), B, 0)
    register.strike(listing(2), B, 120 * S)
    assert list(register.struck) == [listing(2).id]


# --- in any order --------------------------------------------------------------------------------------------

NODES = ("b", "c", "d")


class Striking(RuleBasedStateMachine):
    """A carrier with a small cache: it meets the author now and then, crashes, and hears that recipients are done."""

    @initialize(lists=st.lists(st.sets(st.sampled_from(NODES), min_size=1), min_size=1, max_size=3))
    def begin(self, lists: list[set[str]]) -> None:
        self.net = testing.network("a", *NODES, seed=1).__enter__()
        self.net.add("h", altruistic=True, cache_messages_max=2, limits={"seen_max": 3})
        self.messages: dict[MessageId, tuple[str, ...]] = {}
        self.struck: dict[MessageId, set[str]] = {}
        self.linked = False
        for named in lists:
            self.publish(named, 4)
        self.meet()

    def teardown(self) -> None:
        if hasattr(self, "net"):
            self.net.__exit__(None, None, None)

    @precondition(lambda self: len(self.messages) < 5)
    @rule(named=st.sets(st.sampled_from(NODES), min_size=1), priority=st.integers(0, 9))
    def publish(self, named: set[str], priority: int) -> None:
        """One more message, which may displace others at the carrier."""
        sent = self.net.publish("a", ROADS, b"x", recipients=sorted(named), priority=priority)
        self.messages[sent] = tuple(sorted(named))
        self.struck[sent] = set()
        self.net.advance(4)

    @rule()
    def meet(self) -> None:
        (self.net.unlink if self.linked else self.net.link)("a", "h")
        self.linked = not self.linked
        self.net.advance(8)

    @rule(data=st.data(), written=st.integers(0, 4), mallory=st.integers(0, 5))
    def strike(self, data: st.DataObject, written: int, mallory: int) -> None:
        message = data.draw(st.sampled_from(sorted(self.messages)))
        node = data.draw(st.sampled_from(self.messages[message])) if mallory else "mallory"
        known = self.net.host("h").state_of(message) is not CopyState.UNKNOWN
        notice(self.net, "h", message, by=NodeId(node))
        if not written:
            self.restart()  # The batch was not taken, so nothing of it is known any more.
        elif known and mallory:
            self.struck[message].add(node)
        self.net.advance(1)

    @rule()
    def restart(self) -> None:
        self.net.kill("h")
        self.net.restart("h")
        self.net.advance(4)

    @rule()
    def lose(self) -> None:
        """Lose the copies, as if the disk had lost them: then they are not remembered, and come again."""
        host = self.net.host("h")
        for message in self.messages:
            host.payload_gone(message, round(self.net.now * S))
        self.net.advance(4)

    @invariant()
    def nobody_is_listed_again(self) -> None:
        for message, struck in self.struck.items() if hasattr(self, "struck") else ():
            state = self.net.host("h").state_of(message)
            if state is not CopyState.UNKNOWN:
                assert not set(left(self.net, "h", message)) & struck
            if struck == set(self.messages[message]):
                assert state not in (CopyState.WHOLE, CopyState.PARTIAL, CopyState.DECLINED)


TestStriking = Striking.TestCase
TestStriking.settings = examples(20, stateful_step_count=20)


def test_a_message_has_one_row_which_is_gone_after_its_deadline() -> None:
    node = OneNode()
    sent = node.host.publish(ROADS, b"x", now=node.now, recipients=["b", "c", "d"], lifetime_us=600 * S)
    node.write()
    assert struck_rows(node) == 0
    for each in (B, C):
        say(node, sent, each)
        node.write()
    assert struck_rows(node) == 1
    node.crash()
    say(node, sent, D)
    node.write()
    assert node.host.state_of(sent) is CopyState.DONE
    assert struck_rows(node) == 1
    node.now += 600 * S
    node.crash()
    node.write()
    assert struck_rows(node) == 0
