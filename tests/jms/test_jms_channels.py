"""Channel topics: events reach live and durable consumers in every mode, modulated at their home brokers."""

from __future__ import annotations

import asyncio
import re
from contextlib import nullcontext

import pytest
from tests.support.jms_scenes import got, scene, texts

from carrypost import (
    Consumer,
    Context,
    IllegalArgumentException,
    IllegalStateException,
    InvalidDestinationException,
    InvalidSelectorException,
    JMSException,
    Message,
    Modulator,
    Result,
    SendState,
    SessionMode,
    Topic,
    modulator,
    testing,
)
from carrypost.config import Limits
from carrypost.jms.destinations import ChannelTopic
from carrypost.log.events import OverlayState
from carrypost.messaging.claim_and_claimant import Subscription
from carrypost.messaging.commands import Subscribe
from carrypost.model.address import exactly
from carrypost.model.pattern import entry
from carrypost.naming import InitialContext
from carrypost.overlay.modulators.registry import Event

pytestmark = pytest.mark.attached("channels are consumed from, modulated and told of through the socket")
FLOOD = ChannelTopic("flood")
OVERLAY: dict[str, object] = {"island": True, "overlay": {"enabled": True, "orphan_s": 5.0}}
QUIET_S = 12.0
"""Time of silence after which nothing else comes."""
MODES = [mode for mode in SessionMode if mode is not SessionMode.SESSION_TRANSACTED]


@modulator("channels-loud", cost_us=7)
class Loud:
    """Writes texts in capitals, and counts them; fails with some."""

    def __init__(self, mark: str) -> None:
        self._mark, self._count = mark.encode(), 0

    def process(self, event: Event) -> list[Event | Result]:
        assert isinstance(event.payload, bytes)
        if event.payload.startswith(b"bad"):
            raise ValueError("bad")
        self._count += 1
        return [Result(event.payload.upper() + self._mark + str(self._count).encode())]

    def save(self) -> bytes:
        return str(self._count).encode()

    def load(self, state: bytes) -> None:
        self._count = int(state)


async def linked(net: testing.Network, *pairs: str) -> None:
    """Add the broker B, link nodes, and let them find each other."""
    net.add("B", overlay={"enabled": True, "broker": True, "orphan_s": 5.0})
    for pair in pairs or ("pB", "Bc"):
        net.link(*pair)
    await net.run(15)


async def emit(ctx: Context, *bodies: str, **options: object) -> None:
    for body in bodies:
        await ctx.send(FLOOD, body, **options)  # type: ignore[arg-type]


def kept(net: testing.Network, node: str, kind: str = "results/") -> list[str]:
    """Return the destinations of one kind among a node's messages."""
    holdings = net.host(node)._holdings  # noqa: SLF001 - nobody else knows
    found = [copy.descriptor.destination for copy in holdings.known_copies() if copy.here]
    return [each for each in found if each.startswith(kind)]


def events_of(net: testing.Network, node: str) -> list[int]:
    """Return the numbers of the events that a node has of its own."""
    holdings = net.host(node)._holdings  # noqa: SLF001 - likewise
    headers = [copy.descriptor.headers for copy in holdings.known_copies() if copy.here and copy.own]
    return sorted(each.event for each in headers if each is not None and each.event)


# --- live ------------------------------------------------------------------------------------------------------------


@scene("p", "c", **OVERLAY)
async def test_live_consumers_get_events_from_their_creation_on_in_order(net: testing.Network) -> None:
    await linked(net)
    async with net.context("p") as p, net.context("c") as c:
        await emit(p, "before")
        await net.run(1)
        inbox = await c.create_consumer(c.create_topic("flood", model="channel"))
        await net.run(3)
        await p.send("channel/flood", "rain", properties={"level": 3}, jms_correlation_id="x", jms_type="warning")
        first = await got(inbox)
        assert (first.get_body(str), first.get_int_property("level"), first.jms_correlation_id) == ("rain", 3, "x")
        assert (first.jms_type, first.jms_destination) == ("warning", FLOOD)
        assert first.get_string_property("JMS_carrypost_Author") == "p"
        assert not first.property_exists("JMS_carrypost_EventsLost")
        followed = await p.send(FLOOD, "flood", request_receipt=True)
        assert (await got(inbox)).get_body(str) == "flood"
        assert await followed.delivered(timeout=30) is SendState.DELIVERED
        bodies = [str(n) for n in range(40)]
        await emit(p, *bodies)
        assert await texts(inbox, quiet_s=QUIET_S) == bodies
    assert kept(net, "c") == []  # What was acknowledged takes no room.
    await net.run(3)
    assert net.overlay("B").seats == []


@scene("p", "c", **OVERLAY)
async def test_an_event_is_carried_once_a_neighbour_has_its_leg(net: testing.Network) -> None:
    await linked(net)
    async with net.context("p") as p:
        first = await p.send(FLOOD, "rain")
        assert await first.carried(timeout=10) is SendState.CARRIED
        for near in "Bc":
            net.unlink("p", near)
        await net.run(1)
        sent = [await p.send(FLOOD, body, request_receipt=receipt) for body, receipt in (("a", False), ("b", True))]
        carried = [asyncio.ensure_future(each.carried()) for each in sent]
        await net.run(60)
        assert [each.result() for each in carried if each.done()] == []
        net.link("p", "B")
        assert await asyncio.gather(*carried) == [SendState.CARRIED] * 2


@pytest.mark.parametrize("mode", MODES)
@scene("p", "c", **OVERLAY)
async def test_what_was_not_acknowledged_comes_again_in_every_mode(net: testing.Network, mode: SessionMode) -> None:
    await linked(net)
    async with net.context("p") as p, net.context("c", mode) as c:
        inbox = await c.create_consumer(FLOOD)
        await net.run(3)
        await emit(p, "a", "b", "c")
        first = await got(inbox)
        assert first.get_body(str) == "a"
        if mode in {SessionMode.CLIENT_ACKNOWLEDGE, SessionMode.INDIVIDUAL_ACKNOWLEDGE}:
            await first.acknowledge()
        assert (await got(inbox)).get_body(str) == "b"
        await c.recover()
        again = [(each.get_body(str), each.jms_redelivered) async for each in inbox.messages(timeout=QUIET_S)]
        by_itself = mode in {SessionMode.AUTO_ACKNOWLEDGE, SessionMode.DUPS_OK_ACKNOWLEDGE}
        assert again == ([("c", False)] if by_itself else [("b", True), ("c", False)])


@scene("p", "c", **OVERLAY)
async def test_a_transaction_sends_and_receives_whole_or_not_at_all(net: testing.Network) -> None:
    await linked(net)
    modes = SessionMode.SESSION_TRANSACTED
    async with net.context("p", modes) as p, net.context("c", modes) as c:
        inbox = await c.create_consumer(FLOOD)
        await net.run(3)
        await emit(p, "one", "two")
        assert await inbox.receive(timeout=5) is None
        await p.commit()
        await emit(p, "never")
        await p.rollback()
        await emit(p, "three")
        await p.commit()
        assert [(await got(inbox)).get_body(str) for _ in range(2)] == ["one", "two"]
        await c.rollback()
        assert [(each.get_body(str), each.jms_redelivered) async for each in inbox.messages(timeout=QUIET_S)] == [
            ("one", True), ("two", True), ("three", False),
        ]  # fmt: skip
        await c.commit()
        assert await inbox.receive(timeout=5) is None
    assert events_of(net, "p") == [1, 2, 3]


@scene("p", "c", **OVERLAY)
async def test_selectors_run_at_the_home_broker(net: testing.Network) -> None:
    await linked(net)
    async with net.context("p") as p, net.context("c", SessionMode.CLIENT_ACKNOWLEDGE) as c:
        inbox = await c.create_consumer(FLOOD, "level > 2 AND JMSType = 'rain'")
        assert inbox.message_selector == "level > 2 AND JMSType = 'rain'"
        await net.run(3)
        for level in range(5):
            await emit(p, str(level), properties={"level": level}, jms_type="rain")
        assert await texts(inbox, quiet_s=QUIET_S) == ["3", "4"]
        assert len(kept(net, "c")) == 2
        await net.run(10)
        assert inbox.overlay.events == 5


@scene("p", "c", **OVERLAY)
async def test_consumers_of_one_shared_subscription_take_turns(net: testing.Network) -> None:
    await linked(net)
    async with net.context("p") as p, net.context("c") as one, net.context("c") as other:
        inboxes = [await each.create_shared_consumer(FLOOD, "turns", prefetch=1) for each in (one, other)]
        await net.run(3)
        await emit(p, "a", "b", "c", "d")
        found = [await texts(inbox, quiet_s=QUIET_S) for inbox in inboxes]
        assert sorted(text for texts_of_one in found for text in texts_of_one) == ["a", "b", "c", "d"]
        assert all(found)
        assert len(net.overlay("B").seats) == 1


@scene("c", **OVERLAY)
async def test_no_local_leaves_out_what_its_connection_sent(net: testing.Network) -> None:
    await linked(net, "Bc")
    async with net.context("c") as mine, net.context("c") as other:
        inbox = await mine.create_consumer(FLOOD, no_local=True)
        await net.run(3)
        await emit(mine, "mine")
        await emit(other, "other")
        assert await texts(inbox, quiet_s=QUIET_S) == ["other"]


@scene("p", "c", **OVERLAY)
async def test_requests_over_a_channel_are_replied_to(net: testing.Network) -> None:
    await linked(net)
    async with net.context("p") as p, net.context("c") as c:

        @c.responder(FLOOD)
        def answer(question: Message) -> str:
            return f"{question.get_body(str)}!"

        await c.start()
        await net.run(3)
        assert (await p.ask(FLOOD, "rain?", timeout=60)).get_body(str) == "rain?!"
        inbox = await p.create_consumer(FLOOD)
        await net.run(3)
        sent = net.now
        await p.send(FLOOD, "later", delivery_delay=20)
        assert (await got(inbox)).get_body(str) == "later"
        assert net.now - sent >= 20


# --- modulators ------------------------------------------------------------------------------------------------------


@scene("p", "c", **OVERLAY)
async def test_a_modulator_transforms_events_and_is_exchanged_while_they_flow(net: testing.Network) -> None:
    await linked(net)
    async with net.context("p") as p, net.context("c") as c:
        inbox = await c.create_consumer(FLOOD, modulator=Modulator.named("channels-loud", mark="!"))
        assert inbox.overlay in (OverlayState(), OverlayState(epoch=1))
        await net.run(3)
        assert (inbox.overlay.home, inbox.overlay.hops, inbox.overlay.epoch) == ("B", 1, 1)
        await emit(
            p, "a", "bad", "b", properties={"level": 3}, jms_correlation_id="x", jms_type="t", jms_reply_to="topic/back"
        )
        first = await got(inbox)
        assert (first.get_body(str), first.jms_destination, first.jms_correlation_id) == ("A!1", FLOOD, "x")
        assert (first.jms_type, first.jms_reply_to, first.get_int_property("level")) == ("t", Topic("back"), 3)
        assert first.get_string_property("JMS_carrypost_Author") == "B"
        assert (await got(inbox)).get_body(str) == "B!2"
        await inbox.set_modulator(Modulator.named("channels-loud", mark="?"))
        await net.run(3)
        await emit(p, "c")
        assert (await got(inbox)).get_body(str) == "C?1"
        await inbox.set_modulator(None)
        await net.run(3)
        await emit(p, "d")
        assert (await got(inbox)).get_body(str) == "d"
        await net.run(3)
        assert (inbox.overlay.events, inbox.overlay.faults, inbox.overlay.busy_us) == (5, 1, 28)
        assert re.fullmatch(r"ValueError: .* \(test_jms_channels\.py, line \d+\)", inbox.overlay.fault)


@scene("p", "c", **OVERLAY)
async def test_a_durable_subscription_keeps_its_modulator_and_what_waits_when_that_changes(
    net: testing.Network,
) -> None:
    await linked(net)
    loud = Modulator.named("channels-loud", mark="!")
    async with net.context("p") as p:
        async with net.context("c", client_id="c") as c:
            inbox = await c.create_durable_consumer(FLOOD, "inbox")
            await inbox.set_modulator(loud)
            await net.run(3)
        await emit(p, "a")
        await net.run(5)
        net.kill("c")
        net.restart("c")
        await net.run(10)
        await emit(p, "b")
        await net.run(5)
        async with net.context("c", client_id="c") as c:
            inbox = await c.create_durable_consumer(FLOOD, "inbox", modulator=loud)
            assert [(await got(inbox)).get_body(str) for _ in range(2)] == ["A!1", "B!2"]
            await emit(p, "c")
            await net.run(5)
            await inbox.close()
            inbox = await c.create_durable_consumer(FLOOD, "inbox")
            await net.run(3)
            await emit(p, "d")
            assert await texts(inbox, quiet_s=QUIET_S) == ["C!3", "d"]


@scene("p", "c", **OVERLAY)
async def test_a_consumer_sees_why_no_broker_takes_it(net: testing.Network) -> None:
    await linked(net)
    async with net.context("c") as c:
        unknown = await c.create_consumer(FLOOD, modulator=Modulator.named("nobody-has-it", version=3))
        await net.run(5)
        assert (unknown.overlay.home, unknown.overlay.refusal) == (None, "modulator")
        await unknown.set_modulator(None)
        await net.run(70)
        assert (unknown.overlay.home, unknown.overlay.refusal) == ("B", "")


@scene("p", "c", **OVERLAY)
async def test_a_seat_follows_its_consumer_and_takes_its_state_along(net: testing.Network) -> None:
    for broker in "AD":
        net.add(broker, overlay={"enabled": True, "broker": True, "orphan_s": 60.0})
    await linked(net, "pA", "AB", "AD", "Bc")
    async with net.context("p") as p, net.context("c", client_id="c") as c:
        loud = Modulator.named("channels-loud", mark="!")
        inbox = await c.create_durable_consumer(FLOOD, "inbox", modulator=loud, relocation="strict")
        await net.run(5)
        await emit(p, "a", "b")
        assert [(await got(inbox)).get_body(str) for _ in range(2)] == ["A!1", "B!2"]
        before = inbox.overlay
        net.link("c", "D")
        net.unlink("c", "B")
        await net.run(35)
        await emit(p, "c", "d")
        assert [(await got(inbox)).get_body(str) for _ in range(2)] == ["C!3", "D!4"]
        await net.run(1)
        assert (before.home, inbox.overlay.home, inbox.overlay.hops, inbox.overlay.events) == ("B", "D", 1, 4)
        assert inbox.overlay.epoch > before.epoch


# --- durable ---------------------------------------------------------------------------------------------------------


@scene("p", "c", **OVERLAY)
async def test_a_durable_subscription_collects_over_crashes_of_program_node_and_broker(net: testing.Network) -> None:
    await linked(net)
    expected = ["a", "b", "c", "d", "e"]
    async with net.context("p") as p:
        async with net.context("c", client_id="c") as c:
            await c.create_durable_consumer(FLOOD, "inbox")
            await c.create_consumer(FLOOD)
            await net.run(3)
            assert len(net.overlay("B").seats) == 2
            await emit(p, "a")
            await net.run(3)
            net.kill("c")
        await emit(p, "b")
        await net.run(10)
        net.restart("c")
        await net.run(10)
        assert len(net.overlay("B").seats) == 1  # That of the live consumer is gone.
        net.kill("B")
        await emit(p, "c")
        await net.run(2)
        net.restart("B")
        await net.run(30)
        await emit(p, "d")
        await net.run(5)
        net.kill("c")
        net.restart("c")
        await net.run(5)
        await emit(p, "e")
        async with net.context("c", SessionMode.CLIENT_ACKNOWLEDGE, client_id="c") as c:
            inbox = await c.create_durable_consumer(FLOOD, "inbox")
            assert await texts(inbox, quiet_s=QUIET_S) == expected
            net.kill("c")
        net.restart("c")
        async with net.context("c", client_id="c") as c:
            inbox = await c.create_durable_consumer(FLOOD, "inbox")
            assert [(each.get_body(str), each.jms_redelivered) async for each in inbox.messages(timeout=QUIET_S)] == [
                (text, True) for text in expected
            ]
            await inbox.close()
            await c.unsubscribe("inbox")
            await net.run(3)
            assert net.overlay("B").seats == []
            assert kept(net, "c", "results/c/1") == []


@scene("p", "c", **OVERLAY)
async def test_events_that_are_missing_are_counted_on_the_message_after_them(net: testing.Network) -> None:
    await linked(net)
    async with net.context("p") as p, net.context("c", SessionMode.CLIENT_ACKNOWLEDGE, client_id="c") as c:
        inbox = await c.create_durable_consumer(FLOOD, "inbox")
        await net.run(3)
        await emit(p, "a")
        assert (await got(inbox)).get_body(str) == "a"
        await c.acknowledge()
        net.unlink("p", "B")
        await emit(p, "lost", "lost", time_to_live=5)
        await net.run(20)
        net.link("p", "B")
        await net.run(20)
        await emit(p, "b", "c")
        await net.run(120)
        net.kill("c")
    net.restart("c")
    async with net.context("c", client_id="c") as c:
        inbox = await c.create_durable_consumer(FLOOD, "inbox")
        after, then = await got(inbox), await got(inbox)
        assert (after.get_body(str), after.get_long_property("JMS_carrypost_EventsLost")) == ("b", 2)
        assert (then.get_body(str), then.property_exists("JMS_carrypost_EventsLost")) == ("c", False)


@pytest.mark.parametrize("at", [0.05, 0.15, 0.25])
@scene("p", "c", disk_delay_s=0.2, **OVERLAY)
async def test_numbers_of_events_are_dense_over_crashes_during_commits(net: testing.Network, at: float) -> None:
    await linked(net)
    async with net.context("c", client_id="c") as c:
        inbox = await c.create_durable_consumer(FLOOD, "inbox")
        await net.run(3)
        async with net.context("p", SessionMode.SESSION_TRANSACTED) as p:
            await emit(p, "a", "b")
            await p.commit()
            await emit(p, "c", "d", "e")
            commit = asyncio.ensure_future(p.commit())
            await net.run(at)
            net.kill("p")
            with nullcontext() if at > 0.2 else pytest.raises(JMSException):
                await commit
        net.restart("p")
        await net.run(5)
        async with net.context("p") as p:
            await emit(p, "f")
        found = await texts(inbox, quiet_s=QUIET_S)
        assert found in (["a", "b", "f"], ["a", "b", "c", "d", "e", "f"])
        assert (len(found) == 6) is (at > 0.2)
        assert events_of(net, "p") == list(range(1, len(found) + 1))


@scene("p", "c", **OVERLAY)
async def test_a_full_disk_costs_no_event_and_consumers_are_opened_and_changed_all_the_same(
    net: testing.Network,
) -> None:
    await linked(net)
    async with net.context("p") as p, net.context("c", client_id="c") as c:
        inbox = await c.create_durable_consumer(FLOOD, "inbox")
        await net.run(3)
        await emit(p, "a")
        assert (await got(inbox)).get_body(str) == "a"
        net.fill_disk("c")
        await emit(p, "b", "c")
        await net.run(5)
        other = await c.create_durable_consumer(FLOOD, "other")
        net.fill_disk("c", full=False)
        assert [(await got(inbox)).get_body(str) for _ in range(2)] == ["b", "c"]
        net.fill_disk("c")
        await inbox.set_modulator(Modulator.named("channels-loud", mark="!"))
        net.fill_disk("c", full=False)
        await net.run(5)
        await emit(p, "d")
        assert (await got(inbox)).get_body(str) == "D!1"
        assert (await got(other)).get_body(str) == "d"


# --- names and misuse ------------------------------------------------------------------------------------------------


@scene("p", "c", **OVERLAY)
async def test_names_stand_for_channels(net: testing.Network) -> None:
    await linked(net)
    async with net.context("p") as p, net.context("c") as c:
        await InitialContext(p).bind("water", FLOOD)
        found = await InitialContext(c).lookup("water", timeout=60)
        assert (found, type(found), repr(found)) == (FLOOD, ChannelTopic, "ChannelTopic('flood')")
        assert await InitialContext(c).lookup("channel/flood") == FLOOD


async def _opened(ctx: Context, *args: object, **options: object) -> Consumer:
    if "durable" in options:
        return await ctx.create_durable_consumer(args[0], options["durable"])  # type: ignore[arg-type]
    return await ctx.create_consumer(*args, **options)  # type: ignore[arg-type]


BOX = Modulator.named("box", area=[0, 0, 1, 1])
MISUSES: list[tuple[tuple[object, ...], dict[str, object], type[JMSException], str]] = [
    (("topic/news",), {"modulator": BOX}, IllegalArgumentException, 'model="channel"'),
    (("queue/q@c",), {"modulator": BOX}, IllegalArgumentException, "requires a channel"),
    (("topic/news",), {"relocation": "strict"}, IllegalArgumentException, "relocation requires a channel"),
    ((FLOOD,), {"relocation": "strickt"}, IllegalArgumentException, "did you mean strict"),
    ((FLOOD,), {"modulator": "box"}, IllegalArgumentException, "Modulator.named"),
    ((FLOOD,), {"modulator": Modulator.named("box", area=[1])}, IllegalArgumentException, "does not accept these"),
    ((FLOOD, "a = 1"), {"modulator": BOX}, IllegalArgumentException, "leave the selector out"),
    (
        (FLOOD,),
        {"modulator": BOX, "no_local": True},
        IllegalArgumentException,
        "no_local cannot be combined with a modulator",
    ),
    ((FLOOD,), {"patterns": {"level": "3"}}, IllegalArgumentException, "use a selector"),
    ((FLOOD, "a ="), {}, InvalidSelectorException, "found the end"),
    ((FLOOD, "a = 1" + 1_015 * " "), {}, InvalidSelectorException, "at most 1,024 bytes"),
    (("channel/a.*",), {}, InvalidDestinationException, "without wildcards"),
    ((FLOOD,), {"durable": "no name!"}, JMSException, "name of a subscription"),
]


@scene("c", **OVERLAY)
async def test_misuse_raises_and_says_what_to_do(net: testing.Network) -> None:
    async with net.context("c", client_id="c") as c:
        for args, options, kind, words in MISUSES:
            with pytest.raises(kind, match=words) as raised:
                await _opened(c, *args, **options)
            assert type(raised.value) is kind
        with pytest.raises(IllegalArgumentException, match="did you mean box"):
            Modulator.named("bax")
        with pytest.raises(IllegalArgumentException, match='"channel"'):
            c.create_topic("flood", model="canal")  # type: ignore[arg-type]
        with pytest.raises(IllegalArgumentException, match="leave ordering='causal' out"):
            c.create_topic("flood", model="channel", ordering="causal")
        plain, chosen = await c.create_consumer("topic/news"), await c.create_consumer(FLOOD, "a = 1")
        with pytest.raises(IllegalStateException, match="overlay requires a consumer of a channel"):
            _ = plain.overlay
        with pytest.raises(IllegalStateException, match='model="channel"'):
            await plain.set_modulator(BOX)
        with pytest.raises(IllegalStateException, match="has a selector"):
            await chosen.set_modulator(BOX)
        await chosen.close()
        with pytest.raises(IllegalStateException, match="closed"):
            _ = chosen.overlay
        with pytest.raises(IllegalArgumentException, match="have no recipients"):
            await c.send(FLOOD, "x", recipients=["c"])
        with pytest.raises(JMSException, match="1 to 256 bytes"):
            await c.send(ChannelTopic("x" * 300), "x")


@scene("c")
async def test_channels_of_a_node_without_overlay_say_how_to_enable_it(net: testing.Network) -> None:
    async with net.context("c") as c, net.context("c", SessionMode.SESSION_TRANSACTED) as transacted:
        for call in (
            lambda: c.send(FLOOD, "x"),
            lambda: transacted.send(FLOOD, "x"),
            lambda: c.create_consumer(FLOOD),
        ):
            with pytest.raises(IllegalStateException, match=r"set overlay.enabled = true"):
                await call()


def test_people_see_the_name_of_a_channel_as_it_was_given() -> None:
    asked = Subscribe(entry(exactly("channel/a.b")), name="inbox", durable=True)
    assert Subscription(1, asked, 0, "", Limits()).written == "channel/a.b (inbox)"
    assert Subscription(1, Subscribe(asked.entry), 0, "", Limits()).written == "channel/a.b"
