"""Acknowledgements by recipients: they reach all nodes, purge copies that no node needs, and survive restarts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from typing import Any

import pytest
from tests.support.programs import Program

from carrypost import testing
from carrypost.gossip.acked import known_acks
from carrypost.gossip.acked.acked import Acked
from carrypost.gossip.acked.known_acks import ALL_PARTS, UNKNOWN, KnownAcks, _pages, part_of
from carrypost.gossip.holdings.cache import CopyState
from carrypost.gossip.transfers import signed
from carrypost.gossip.wire.frames import AckRecord, packed, unpacked
from carrypost.log.events import Acknowledged
from carrypost.model.address import queue
from carrypost.model.ids import MessageId
from carrypost.security.identity import Identity

LEVELS = pytest.mark.parametrize("security", ["off", "signed"])


def acknowledge(
    net: testing.Network, node: str, *messages: MessageId, seconds: float = 3_600, pause_s: float = 6
) -> None:
    """Let a host acknowledge messages, as messaging does, with a row that this follows from."""
    host, now = net.host(node), round(net.now * 1e6)
    with host.step(now):
        for message in messages:
            host._holdings.acknowledge(message, now + round(seconds * 1e6))  # noqa: SLF001 - as messaging does
        host._outputs.journal.put(("mom", b"X", 0), b"")  # noqa: SLF001
    net.advance(pause_s)


@contextmanager
def crowd(*names: str, **settings: object) -> Iterator[testing.Network]:
    """Hosts without messaging that carry everything, out of reach of each other."""
    with testing.network(*names, seed=1, altruistic=True, **settings) as net:  # type: ignore[arg-type]
        yield net


def send(net: testing.Network, node: str, to: str) -> MessageId:
    return net.publish(node, queue("x", net.host(to).node), b"for one")


def holders(net: testing.Network, message: MessageId, names: str = "abcd") -> str:
    """Return which of these hosts have a copy."""
    here = (CopyState.WHOLE, CopyState.FINISHED)
    return "".join(name for name in names if net.host(name).state_of(message) in here)


def give(net: testing.Network, node: str, identity: Identity, *messages: MessageId, seconds: float = 3_600) -> None:
    """Hand an acknowledgement to a host, as if any neighbour had brought it."""
    host, now = net.host(node), round(net.now * 1e6)
    identity = identity if host._host_context.identity.signed else Identity.plain(identity.node)  # noqa: SLF001
    made = known_acks.signed_record(identity, now + round(seconds * 1e6), messages)
    with host.step(now):
        acked(net, node)._keep(signed.fingerprint(made), made, set())  # noqa: SLF001 - as if a neighbour had brought it


def listed(net: testing.Network, node: str) -> int:
    """Return how many records of acknowledgements a host has."""
    return len(acked(net, node).known)


def acked(net: testing.Network, node: str) -> Acked:
    (found,) = [each for each in net.host(node)._layers._all if isinstance(each, Acked)]  # noqa: SLF001
    return found


@LEVELS
def test_an_acknowledgement_purges_all_copies_along_a_chain(security: str) -> None:
    with crowd(*"abcd", security=security) as net:
        for one, other in ("ab", "bc", "cd"):
            net.link(one, other)
        message, other_message = send(net, "a", "d"), send(net, "a", "b")
        net.advance(20)
        assert holders(net, message) == holders(net, other_message) == "abcd"
        acknowledge(net, "d", message)
        net.advance(60)
        assert holders(net, message) == "d"  # Who has it decides about its own copy.
        assert holders(net, other_message) == "abcd"


@LEVELS
def test_who_was_elsewhere_hears_of_it_when_a_contact_begins(security: str) -> None:
    with crowd(*"abcd", security=security) as net:
        net.link("a", "b")
        net.link("c", "d")
        message = send(net, "a", "d")
        net.advance(20)
        acknowledge(net, "d", message)
        net.advance(20)
        net.unlink("c", "d")
        net.link("b", "c")
        net.advance(20)
        assert holders(net, message) == ""


def test_networks_without_acknowledgements_send_nothing_about_them() -> None:
    with crowd(*"abc") as net:
        net.link("a", "b")
        net.link("b", "c")
        send(net, "a", "c")
        net.advance(300)
        assert not any(net.sent(name).frames[kind] for name in "abc" for kind in ("AckList", "AckRecord"))


@LEVELS
def test_a_contact_with_nothing_new_costs_an_xor_each_way(security: str) -> None:
    with crowd(*"ab", security=security) as net:
        net.link("a", "b")
        for _ in range(3):
            acknowledge(net, "b", send(net, "a", "b"))
        net.advance(200)
        assert listed(net, "a") == listed(net, "b") == 3
        net.unlink("a", "b")
        net.advance(30)
        frames = {name: net.sent(name).frames["AckList"] for name in "ab"}
        net.link("a", "b")
        net.advance(30)
        assert {name: net.sent(name).frames["AckList"] - frames[name] for name in "ab"} == {"a": 1, "b": 1}


@LEVELS
@pytest.mark.parametrize("count", [3, 70, 150])
def test_lists_become_equal_whatever_each_side_has(security: str, count: int) -> None:
    with crowd(*"ab", security=security, acked_s=0.1) as net:
        net.link("a", "b")
        net.advance(10)
        one, other = Identity.derived(1, "one"), Identity.derived(1, "other")
        net.unlink("a", "b")
        net.advance(30)
        for name, identity, numbers in (("a", one, range(count)), ("b", other, range(count // 3, count // 2))):
            for number in numbers:
                give(net, name, identity, MessageId(b"%s:1:%d" % (name.encode(), number)))
        assert (listed(net, "a"), listed(net, "b")) == (count, count // 2 - count // 3)
        net.link("a", "b")
        net.advance(60)
        assert listed(net, "a") == listed(net, "b") == count + count // 2 - count // 3
        assert acked(net, "a").known.xors == acked(net, "b").known.xors


def test_lists_that_overflow_become_equal_and_are_silent_then() -> None:
    names = [f"n{number}" for number in range(21)]
    with crowd(*"ab", *names, acked_s=0.1, limits={"acked_max": 8}) as net:
        net.link("a", "b")
        message = net.publish("a", "topic/news", b"x", persistent=True, recipients=names)
        net.advance(30)
        net.unlink("a", "b")
        net.advance(30)
        for number, name in enumerate(names[:20]):
            give(net, "ab"[number % 2], Identity.plain(name), message, seconds=1_000 + number)
        net.link("a", "b")
        net.advance(60)
        lists = [acked(net, node).known for node in "ab"]
        sent = [net.sent(node).frames["AckRecord"] for node in "ab"]
        assert lists[0].in_parts(ALL_PARTS) == lists[1].in_parts(ALL_PARTS)
        assert len(lists[0]) == 8
        net.advance(300)
        assert [net.sent(node).frames["AckRecord"] for node in "ab"] == sent


@pytest.mark.parametrize("loss", [0.3, 0.5])
def test_frames_may_get_lost(loss: float) -> None:
    with crowd(*"abcd", loss=loss, acked_s=1.0) as net:
        for one, other in ("ab", "bc", "cd"):
            net.link(one, other)
        messages = [send(net, "a", "d") for _ in range(20)]
        net.advance(120)
        for message in messages:
            acknowledge(net, "d", message)
        net.advance(300)
        assert {holders(net, message) for message in messages} == {"d"}
        assert len({listed(net, name) for name in "abcd"}) == 1


def test_lists_that_differ_are_compared_until_they_are_equal() -> None:
    """Three comparisons in a row fail now and then; a host that knows that one failed goes on."""
    with crowd(*"ab", loss=0.3, acked_s=1.0) as net:
        net.link("a", "b")
        net.advance(10)
        for number in range(12):
            give(net, "ab"[number % 2], Identity.derived(number, "author"), MessageId(bytes(16)), seconds=80_000)
            net.advance(600)
            assert (listed(net, "a"), listed(net, "b")) == (number + 1, number + 1)


@LEVELS
def test_a_neighbour_that_missed_the_broadcast_hears_of_it_while_the_contact_lasts(security: str) -> None:
    with crowd(*"ab", security=security) as net:
        net.link("a", "b")
        message = send(net, "a", "b")
        net.advance(30)
        met = net.host("a").overview().neighbours[0].since_us
        net.unlink("a", "b")  # For so short a time that neither notices.
        acknowledge(net, "b", message, pause_s=1)
        assert net.sent("b").frames["AckRecord"] == 1
        net.link("a", "b")
        net.advance(30)
        assert holders(net, message, "a") == "a"
        net.advance(60)
        assert holders(net, message, "a") == ""
        assert net.host("a").overview().neighbours[0].since_us == met


@LEVELS
def test_records_last_over_restarts_and_count_again(security: str) -> None:
    with crowd(*"abcd", security=security) as net:
        net.link("b", "c")
        net.link("c", "d")
        message = send(net, "a", "d")
        acknowledge(net, "d", message)
        net.advance(20)
        assert listed(net, "b") == 1
        net.kill("b")
        net.unlink("b", "c")
        net.advance(5)
        net.restart("b")
        net.link("a", "b")
        net.advance(20)
        assert listed(net, "b") == listed(net, "a") == 1
        assert holders(net, message) == ""


def test_records_end_with_their_time_and_their_rows_with_them() -> None:
    with crowd(*"ab") as net:
        net.link("a", "b")
        acknowledge(net, "b", send(net, "a", "b"), seconds=60)
        assert listed(net, "a") == 1
        net.advance(60)
        assert listed(net, "a") == listed(net, "b") == 0
        for name in "ab":
            net.kill(name)
            net.restart(name)
            net.advance(1)
            assert listed(net, name) == 0


def test_new_ones_are_broadcast_together_at_most_every_so_often() -> None:
    with crowd(*"ab", acked_s=30) as net:
        net.link("a", "b")
        messages = [send(net, "a", "b") for _ in range(41)]
        net.advance(10)
        for message in messages:
            acknowledge(net, "b", message)
        sent = net.sent("b").frames["AckRecord"]
        assert 8 <= sent <= 10  # In 246 seconds: the first at once, then one every 30.
        net.advance(60)
        assert holders(net, messages[-1], "ab") == "b"
        assert listed(net, "a") == net.sent("b").frames["AckRecord"]


def test_who_hears_each_other_is_told_by_one_broadcast_and_others_by_those_between() -> None:
    with crowd(*"abcde") as net:
        for one, other in combinations("abcd", 2):
            net.link(one, other)
        net.link("d", "e")
        net.advance(20)
        message = send(net, "a", "b")
        net.advance(10)
        acknowledge(net, "b", message)
        sent = {name: net.sent(name).frames["AckRecord"] for name in "abcde"}
        assert sent == {"a": 0, "b": 1, "c": 0, "d": 1, "e": 0}
        assert holders(net, message, "abcde") == "b"


def test_a_record_names_at_most_32_messages_and_fits_into_a_datagram() -> None:
    ids = [MessageId(b"%16d" % number) for number in range(100)]
    pages = list(known_acks.pages(ids, 1_200))
    assert [len(page) for page in pages] == [32, 32, 32, 4]
    assert [each for page in pages for each in page] == ids
    long = [MessageId(b"n" * 90 + b":1:%d" % number) for number in range(10, 60)]
    for page in known_acks.pages(long, 576):
        assert len(known_acks.to_row(known_acks.signed_record(Identity.derived(1, "a"), 1, page))) <= 560
    assert sum(len(page) for page in known_acks.pages(long, 576)) == 50


# ---------------------------------------------------------------------------------------- several recipients


def told(net: testing.Network, node: str) -> list[tuple[str, tuple[str, ...]]]:
    """Collect a host's reports of recipients that have its messages, from now on."""
    found: list[tuple[str, tuple[str, ...]]] = []
    net.watch(
        lambda _, name, event: (
            found.append((net.name(event.recipient), tuple(map(net.name, event.left))))
            if name == node and isinstance(event, Acknowledged)
            else None
        )
    )
    return found


@LEVELS
@pytest.mark.parametrize("strategy", [{}, {"paper_mode": True}])
def test_each_recipient_is_struck_off_and_told_once_and_with_the_last_one_all_copies_go(
    security: str, strategy: dict[str, Any]
) -> None:
    with crowd(*"abcd", security=security, **strategy) as net:
        heard = told(net, "a")
        for name in "bd":
            net.subscribe(name, "news")
        net.link("a", "b")
        message = net.publish("a", "news", b"x", persistent=True, recipients=["b", "d"])
        net.advance(30)
        assert heard == [("b", ("d",))]
        assert holders(net, message) == "ab"
        assert net.host("a").awaited() == {message: [net.host("d").node]}
        assert (net.host("b").awaited(), net.host("b").overview().acknowledgements) == ({}, 1)
        net.unlink("a", "b")
        net.link("b", "c")
        net.advance(30)
        net.unlink("b", "c")
        net.link("c", "d")
        net.advance(30)
        assert holders(net, message) == "ab"
        net.unlink("c", "d")
        net.link("a", "c")
        net.advance(30)
        assert heard == [("b", ("d",)), ("d", ())]
        assert holders(net, message) == "b"
        assert (net.host("a").awaited(), net.host("a").overview().acknowledgements) == ({}, 2)
        net.kill("a")
        net.restart("a")
        net.link("a", "b")
        net.advance(30)
        assert holders(net, message) == ""
        assert len(heard) == 2
        assert [len(net.deliveries(name)) for name in "abcd"] == [0, 1, 0, 1]


def test_of_messages_that_are_not_persistent_nothing_is_told() -> None:
    with crowd(*"ab") as net:
        heard = told(net, "a")
        net.subscribe("b", "news")
        net.link("a", "b")
        message = net.publish("a", "news", b"x", recipients=["b"])
        net.advance(30)
        assert (heard, holders(net, message, "ab")) == ([], "")


def test_a_recipient_that_did_not_confirm_is_not_struck_off() -> None:
    with testing.network(*"ab", seed=1, confirm=False) as net:
        heard = told(net, "a")
        net.subscribe("b", "news")
        net.link("a", "b")
        message = net.publish("a", "news", b"x", persistent=True, recipients=["b"])
        net.advance(60)
        assert (heard, net.host("a").state_of(message)) == ([], CopyState.FINISHED)
        net.confirm("b", net.deliveries("b"))
        net.advance(30)
        assert (heard, net.host("a").state_of(message)) == ([("b", ())], CopyState.DONE)


@pytest.mark.parametrize("restart", [False, True])
def test_a_copy_stays_for_another_subscription_of_its_last_recipient(restart: bool) -> None:
    with testing.network(*"ab", seed=1) as net:
        net.open_messaging()
        net.link("a", "b")
        first = Program(net, "b", "topic/news", client="one", name="one", durable=True)
        second = Program(net, "b", "topic/news", client="two", name="two", durable=True)
        net.advance(5)
        second.close()
        message = net.publish("a", "topic/news", b"x", persistent=True, recipients=["b"])
        net.advance(30)
        assert first.texts == ["x"]
        assert net.host("a").state_of(message) is CopyState.DONE
        if restart:
            net.kill("b")
            net.restart("b")
            net.open_messaging()
            net.advance(100)
        again = Program(net, "b", "topic/news", client="two", name="two", durable=True)
        net.advance(100)
        assert again.texts == ["x"]
        assert net.host("b").state_of(message) is CopyState.DONE


# ------------------------------------------------------------------------------------------------ the list


def record(number: int, until_us: int = 100) -> AckRecord:
    return AckRecord(b"n%d" % number, until_us, (MessageId(b"m"),))


def test_the_oldest_record_gives_way() -> None:
    known = KnownAcks(8, lambda _: "anna")
    gone = [known.add(number << 40, record(number)) for number in range(12)]
    assert gone == [[]] * 8 + [[number << 40] for number in range(4)]
    assert known.in_parts(ALL_PARTS) == [number << 40 for number in range(4, 12)]


def test_the_author_with_most_records_gives_way_first_and_of_equals_the_oldest() -> None:
    known = KnownAcks(8, lambda each: "anna" if int(each.author[1:]) < 3 else "mallory")
    for number in (0, 1, *range(3, 500), 2):
        known.add(number, record(number))
    assert known.in_parts(ALL_PARTS) == [0, 1, 2, 495, 496, 497, 498, 499]
    many = KnownAcks(8, lambda each: each.author.decode())
    for number in range(12):
        many.add(number, record(number))
    assert many.in_parts(ALL_PARTS) == list(range(4, 12))


def test_records_of_unknown_messages_displace_each_other_only() -> None:
    true = set(range(8))
    known = KnownAcks(8, lambda each: "anna" if int(each.author[1:]) in true else UNKNOWN)
    for number in range(6):
        known.add(number, record(number))
    for number in range(100, 1_100):
        known.add(number, record(number))
    assert known.in_parts(ALL_PARTS) == [0, 1, 2, 3, 4, 5, 1_098, 1_099]
    true |= {1_098, 1_099}  # Their messages came.
    known.add(2_000, record(2_000))
    known.add(2_001, record(2_001))
    assert known.in_parts(ALL_PARTS) == [2, 3, 4, 5, 1_098, 1_099, 2_000, 2_001]


def test_parts_are_listed_whole_and_every_part_once() -> None:
    known = KnownAcks(1_000, lambda _: "anna")
    numbers = [number * 0x9E3779B97F4A7C15 % 2**64 for number in range(1, 900)]
    for number in numbers:
        known.add(number, record(number))
    xor = 0
    for number in numbers:
        xor ^= number
    assert known.xor == xor
    pages = list(_pages(known.in_parts(ALL_PARTS), ALL_PARTS, 100))
    covered = 0
    for mask, page in pages:
        assert not covered & mask
        covered |= mask
        assert {part_of(each) for each in page} <= {part for part in range(64) if mask >> part & 1}
        assert len(page) <= 100
    assert covered == ALL_PARTS
    assert sorted(each for _, page in pages for each in page) == sorted(numbers)
    assert unpacked(packed(numbers)) == numbers
