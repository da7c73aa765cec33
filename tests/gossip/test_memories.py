"""Memories of messages that are gone: as little as serves, and still enough to compare sets by."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from carrypost import Queue, testing
from carrypost.config import Limits, Settings
from carrypost.gossip.holdings.cache import Cache, CopyState
from carrypost.gossip.holdings.copies import Copy, Memory
from carrypost.gossip.holdings.eviction import PRIVILEGE_ONLY
from carrypost.log.events import Reason
from carrypost.model.descriptor import Descriptor, PayloadCodec, decode
from carrypost.model.headers import Headers
from carrypost.model.ids import MessageId
from carrypost.security.identity import Identity

ROUND_BYTES_MAX = 5_200
"""Two control messages, remembered on two nodes, and what the emulation itself keeps of them."""
MEMORY_BYTES_MAX = 900


def signed(sequence: int) -> Descriptor:
    identity = Identity.derived(1, "ann")
    made = Descriptor(
        author=identity.author, incarnation=1, sequence=sequence, created_us=sequence, deadline_us=2**40 + sequence,
        destination="control/somebody-with-a-name-of-26", size=0, length=0, codec=PayloadCodec.PLAIN,
        root=bytes(32), fragment_bytes=1_024, headers=Headers(operation="credit", control=bytes(60)),
    )  # fmt: skip
    return identity.sign(made)


@pytest.mark.soak
def test_opening_and_closing_a_remote_consumer_leaves_little_behind() -> None:
    async def scene() -> None:
        async with testing.network("a", "b", seed=1, security="signed") as net:
            net.link("a", "b")
            async with net.context("a") as here, net.context("b") as there:
                await here.declare_queue("box")

                async def rounds(count: int) -> int:
                    for _ in range(count):
                        consumer = await there.create_consumer(Queue("box@" + here.node_id))
                        await net.run(1)
                        await consumer.close()
                        await net.run(1)
                    gc.collect()
                    return tracemalloc.get_traced_memory()[0]

                tracemalloc.start()
                try:
                    before = await rounds(30)
                    assert await rounds(60) - before < 60 * ROUND_BYTES_MAX
                finally:
                    tracemalloc.stop()

    testing.run(scene)


def test_a_message_that_is_gone_for_good_takes_less_than_a_kilobyte() -> None:
    cache = Cache(Settings.emulated())
    count = 2_000
    wires = [signed(sequence).wire for sequence in range(count)]
    gc.collect()
    tracemalloc.start()
    try:
        for wire in wires:
            cache.remember(decode(wire)).condense()
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < count * MEMORY_BYTES_MAX
    finally:
        tracemalloc.stop()
    assert cache.done.bit_count() == count


def test_a_memory_still_knows_its_descriptor_and_its_deadline() -> None:
    cache = Cache(Settings.emulated(limits=Limits(seen_max=2)))
    given = [signed(sequence) for sequence in (3, 1, 2)]
    memories = [cache.remember(each) for each in given]
    for memory in memories:
        memory.condense()
        memory.condense()
    assert [type(each) for each in memories] == [Memory] * 3
    assert [each.descriptor for each in memories] == given
    assert [each.descriptor.id for each in memories] == [each.id for each in given]
    assert cache.get(given[1].id) is None  # Its deadline is the earliest.
    assert cache.get(given[0].id) is memories[0]
    assert cache.expire(2**40 + 3) == []
    assert (cache.done, len(cache.tenants)) == (0, 0)


def test_a_neighbour_does_not_offer_again_what_was_withdrawn_whatever_is_subscribed_to_later() -> None:
    with testing.network("a", "b") as net:
        net.subscribe("b", "news")
        net.link("a", "b")
        message = net.publish("a", "news", b"hello")
        net.advance(30)
        assert len(net.deliveries("b")) == 1
        net.unlink("a", "b")
        holdings = net.host("a")._holdings  # noqa: SLF001
        copy = holdings.cache.get(message)
        assert copy is not None
        holdings.discard(copy, Reason.WITHDRAWN)
        net.publish("a", "weather", b"")  # What was removed is reported at the end of the step.
        assert type(copy) is Memory
        assert copy.descriptor.destination == "news"
        net.subscribe("a", "n.*")  # A profile that nothing was matched against before.
        net.link("a", "b")
        offers = net.sent("b").frames["Offer"]
        net.advance(30)
        assert net.sent("b").frames["Offer"] == offers


def test_another_ranking_changes_who_gives_way() -> None:
    cache = Cache(Settings.emulated(cache_messages_max=2, shares=False), PRIVILEGE_ONLY)

    def admit(sequence: int, privilege: int, *, interesting: bool) -> Copy | Reason:
        return cache.admit(signed(sequence), nbytes=1, privilege=privilege, interesting=interesting, held=1, now=0)

    carried = admit(1, 14, interesting=False)
    wanted = admit(2, 4, interesting=True)
    assert isinstance(carried, Copy)
    assert isinstance(wanted, Copy)
    assert isinstance(admit(3, 9, interesting=False), Copy)
    assert (carried.here, wanted.here) == (True, False)
    assert admit(4, 4, interesting=True) is Reason.NO_ROOM


@contextmanager
def pair(*, seen_max: int) -> Iterator[testing.Network]:
    """Yield two linked hosts; b has room for one message, remembers some, carries everything and subscribes to news."""
    with testing.network("a", seed=1) as net:
        net.add("b", cache_messages_max=1, altruistic=True, limits={"seen_max": seen_max})
        net.subscribe("b", "news")
        net.link("a", "b")
        yield net


def publish(net: testing.Network, *lifetimes_s: float | None, topic: str = "news") -> list[MessageId]:
    """Publish messages at a, one after the other."""
    messages = []
    for lifetime_s in lifetimes_s:
        messages.append(net.publish("a", topic, b"x", lifetime_s=lifetime_s))
        net.advance(5)
    return messages


def received(net: testing.Network) -> list[MessageId]:
    return [each.message for each in net.deliveries("b")]


@pytest.mark.parametrize("dies", [False, True])
def test_with_the_memory_full_of_delivered_ids_nothing_wanted_comes_in_and_nothing_comes_twice(*, dies: bool) -> None:
    with pair(seen_max=2) as net:
        first = publish(net, 600, 600, 60)  # The last one stays here, and the others are remembered.
        (kept_out,) = publish(net, 2_000)
        assert net.host("b").overview().refused["memory"] == 1
        if dies:
            net.kill("b")
            net.restart("b")
            net.subscribe("b", "news")
        net.advance(60)
        (carried,) = publish(net, 2_000, topic="weather")
        for _ in range(3):
            net.unlink("a", "b")
            net.advance(30)
            net.link("a", "b")
            net.advance(30)
        assert received(net) == first
        assert net.host("b").state_of(kept_out) is CopyState.UNKNOWN
        assert net.host("b").state_of(carried) is CopyState.WHOLE
        net.advance(600)  # The ids are forgotten, and the next review brings what was kept out.
        assert received(net) == [*first, kept_out]


def test_ids_of_messages_that_live_for_ever_do_not_keep_others_out() -> None:
    with pair(seen_max=2) as net:
        messages = publish(net, None, None, None, None, 600, None)
        assert received(net) == messages
        assert net.host("b").state_of(messages[0]) is CopyState.UNKNOWN


def test_what_an_author_delivered_to_itself_does_not_fill_its_memory() -> None:
    with pair(seen_max=2) as net:
        own = [net.publish("b", "news", b"x", lifetime_s=600, priority=priority) for priority in range(5)]
        net.kill("b")
        net.restart("b")
        net.subscribe("b", "news")
        net.advance(5)
        (other,) = publish(net, 600)
        assert received(net)[-1] == other
        assert len(own) == len(received(net)) - 1
