"""Names for programs: `carrypost.naming`, on nodes in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.support.hostile import Attacker, Message, message
from tests.support.jms_encoded import EncodedNetwork
from tests.support.named_node import saying

from carrypost import (
    Context,
    IllegalArgumentException,
    IllegalStateException,
    InvalidDestinationException,
    Queue,
    SessionMode,
    Topic,
    testing,
)
from carrypost.jms.destinations import resolve_queue
from carrypost.log.events import Event, Published, Refused
from carrypost.model import address
from carrypost.model.ids import NodeId
from carrypost.naming import (
    AmbiguousNameException,
    Binding,
    ContextNotEmptyException,
    InitialContext,
    InvalidNameException,
    NameAlreadyBoundException,
    NameNotFoundException,
    NamingContext,
    NamingException,
    NotContextException,
)
from carrypost.security.identity import Identity

DAY_S = 86_400.0
LIFE_S = 3_600.0
LEASE_S = 600.0
"""The default."""
Play = Callable[..., None]


@pytest.fixture(params=["direct", "encoded"])
def play(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Runs a scene; once more with everything encoded that programs and node say to each other."""
    if request.param == "encoded":
        monkeypatch.setattr(testing, "Network", EncodedNetwork)
    return run


def run(scene: Callable[[testing.Network], Coroutine[Any, Any, None]], *names: str, **settings: Any) -> None:  # noqa: ANN401 - all are Settings
    async def entered() -> None:
        async with testing.network(*names, seed=1, **settings) as net:
            await scene(net)

    testing.run(entered, limit_s=2 * DAY_S)


async def meet(net: testing.Network, one: str, other: str, seconds: float = 30) -> None:
    net.link(one, other)
    await net.run(seconds)
    net.unlink(one, other)


# --- one device ------------------------------------------------------------------------------------------------


def test_names_are_bound_looked_up_listed_and_unbound(play: Play) -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("a") as ctx:
            names = InitialContext(ctx)
            assert await names.list() == []
            forum = Topic("village.forum", "causal")
            await names.bind("forum", forum)
            await names.bind("doctor", Queue("doctor@clinic"))
            found = await names.lookup("forum")
            assert found == forum
            assert isinstance(found, Topic)
            assert found.ordering is forum.ordering
            assert await names.lookup("doctor") == Queue("doctor@clinic")
            assert await names.list() == ["doctor", "forum"]
            assert await names.list_bindings() == [Binding("doctor", Queue("doctor@clinic")), Binding("forum", forum)]
            with pytest.raises(NameAlreadyBoundException, match=r"'forum' is bound to 'topic/village\.forum'"):
                await names.bind("forum", Topic("x"))
            await names.rebind("forum", Topic("x"))
            assert await names.lookup("forum") == Topic("x")
            await names.unbind("forum")
            with pytest.raises(NameNotFoundException, match=r"no name 'forum' on this node; there are 'doctor'"):
                await names.lookup("forum")
            with pytest.raises(NameNotFoundException):
                await names.unbind("forum")

    play(scene, "a")


def test_subcontexts(play: Play) -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("a") as ctx:
            names = InitialContext(ctx)
            with pytest.raises(NameNotFoundException, match="no context 'office'"):
                await names.bind("office/printer", Topic("ink"))
            office = await names.create_subcontext("office")
            floor = await office.create_subcontext("floor")
            await floor.bind("printer", Topic("ink"))
            await office.bind("door", Topic("bell"))
            assert (office.name, floor.name, names.name) == ("office", "office/floor", "")
            assert await names.lookup("office/floor/printer") == await office.lookup("floor/printer") == Topic("ink")
            assert await names.list() == ["office"]
            assert await names.list("office") == await office.list() == ["door", "floor"]
            assert await office.list("floor") == ["printer"]
            found = dict(await names.list_bindings("office"))
            assert found["door"] == Topic("bell")
            below = found["floor"]
            assert isinstance(below, NamingContext)
            assert await below.list() == ["printer"]
            again = await names.lookup("office")
            assert isinstance(again, NamingContext)
            assert await again.list() == await (await names.lookup("")).list("office")  # type: ignore[union-attr]
            with pytest.raises(NotContextException):
                await names.list("office/door")
            with pytest.raises(NotContextException):
                await names.create_subcontext("office/door/x")
            with pytest.raises(NamingException, match="destroy_subcontext"):
                await names.unbind("office")
            with pytest.raises(ContextNotEmptyException, match="office/door"):
                await names.destroy_subcontext("office")
            with pytest.raises(NameAlreadyBoundException):
                await names.create_subcontext("office")
            await floor.unbind("printer")
            await office.destroy_subcontext("floor")
            await office.unbind("door")
            await names.destroy_subcontext("office")
            assert await names.list() == []

    play(scene, "a")


def test_full_names_need_nobody(play: Play) -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("a") as ctx:
            names = InitialContext(ctx)
            assert await names.lookup("Alan@nobody") == await names.lookup("queue/Alan@nobody") == Queue("Alan@nobody")
            assert await names.lookup("topic/news") == Topic("news")
            assert await names.list() == await names.list("queue") == []

    play(scene, "a")


@pytest.mark.parametrize("name", ["", "a//b", "Alan@a", "topic/x", "a\x00", "x" * 300, 7, None])
def test_what_is_no_name_is_told(play: Play, name: Any) -> None:  # noqa: ANN401 - whatever it is
    async def scene(net: testing.Network) -> None:
        async with net.context("a") as ctx:
            names = InitialContext(ctx)
            with pytest.raises(InvalidNameException):
                await names.bind(name, Topic("x"))
            with pytest.raises(InvalidNameException):
                await names.create_subcontext(name)

    play(scene, "a")


def test_misuse_is_told(play: Play) -> None:
    async def scene(net: testing.Network) -> None:
        ctx = net.context("a")
        with pytest.raises(IllegalStateException, match="not open yet"):
            await InitialContext(ctx).list()
        async with ctx:
            names = InitialContext(ctx)
            with pytest.raises(IllegalArgumentException, match="to a topic or a queue"):
                await names.bind("x", 5)  # type: ignore[arg-type]
            with pytest.raises(InvalidDestinationException, match="a destination as text must be 'topic/NAME'"):
                await names.bind("x", "news/x")
            with pytest.raises(IllegalArgumentException, match="a timeout"):
                await names.lookup("x", timeout=-1)
            with pytest.raises(IllegalArgumentException, match="context of carrypost"):
                InitialContext(net)  # type: ignore[arg-type]
        with pytest.raises(IllegalStateException, match="closed"):
            await names.list()

    play(scene, "a")


def test_a_full_disk_binds_names_all_the_same(play: Play) -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("a") as ctx:
            names = InitialContext(ctx)
            net.fill_disk("a")
            await names.bind("news", Topic("news"))
            assert await names.list() == ["news"]

    play(scene, "a")


def test_names_belong_to_the_node_and_not_to_a_program() -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("a") as ctx:
            await InitialContext(ctx).bind("news", Topic("news"))
        net.kill("a")
        net.restart("a")
        async with net.context("a", SessionMode.SESSION_TRANSACTED) as ctx:
            assert await InitialContext(ctx).lookup("news") == Topic("news")

    run(scene, "a")


def test_with_its_last_name_a_queue_of_this_node_ends() -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("a") as ctx:
            names = InitialContext(ctx)
            box = await ctx.declare_queue("Alan")
            await names.bind("second", box)
            await names.bind("friend", Queue("Bob@b"))
            await names.bind("news", Topic("news"))
            for name in ("friend", "news", "second"):
                await names.unbind(name)
            await ctx.create_producer().send(box, "it is still there")
            await names.unbind("Alan")
            assert await names.list() == []
            with pytest.raises(InvalidDestinationException, match="declare it first"):
                await ctx.create_producer().send(box, "x")

    run(scene, "a")


def test_a_name_of_an_own_queue_that_was_never_declared_can_be_unbound() -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("a") as ctx:
            names = InitialContext(ctx)
            await names.bind("Anna", Queue("Anna@a"))
            await names.unbind("Anna")
            assert await names.list() == []

    run(scene, "a")


def test_a_queue_with_consumers_here_keeps_its_last_name() -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("a") as ctx:
            names = InitialContext(ctx)
            async with ctx.create_consumer(await ctx.declare_queue("Alan")):
                with pytest.raises(IllegalStateException, match="close them first"):
                    await names.unbind("Alan")
            assert await names.list() == ["Alan"]
            await names.unbind("Alan")

    run(scene, "a")


def test_a_queue_whose_only_name_was_bound_to_something_else_can_be_ended() -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("a") as ctx:
            names = InitialContext(ctx)
            box = await ctx.declare_queue("Alan")
            await names.rebind("Alan", Topic("news"))
            await ctx.end_queue(box)
            with pytest.raises(InvalidDestinationException, match="declare it first"):
                await ctx.create_producer().send(box, "x")
            assert await names.lookup("Alan") == Topic("news")

    run(scene, "a")


def test_the_end_of_a_queue_and_of_its_names_is_one_batch() -> None:
    """A crash at any moment leaves both or neither: a queue without a name would stay for good."""

    async def scene(net: testing.Network) -> None:
        seen = set[tuple[bool, bool]]()
        for milliseconds in range(0, 60, 5):
            async with net.context("a") as ctx:
                box = await ctx.declare_queue("Alan")
                await InitialContext(ctx).rebind("alias", box)
                ending = asyncio.create_task(ctx.end_queue(box))
                await net.run(milliseconds / 1000)
                net.kill("a")
                await asyncio.gather(ending, return_exceptions=True)
            net.restart("a")
            async with net.context("a") as ctx:
                there = net.host("a").messaging.overview()
                assert there is not None
                seen.add((bool(there.queues), bool(await InitialContext(ctx).list())))
        assert seen == {(True, True), (False, False)}

    run(scene, "a", disk_delay_s=0.02)


# --- several devices -------------------------------------------------------------------------------------------


def test_a_name_appears_on_another_device_through_a_carrier_that_is_asked_for_nothing(play: Play) -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("anna") as here, net.context("carl") as there:
            await InitialContext(here).bind("roads", Topic("village.roads"))
            await InitialContext(here).bind("Anna", Queue("Anna@anna"))
            await meet(net, "anna", "bus")
            names = InitialContext(there)
            assert await names.list() == []
            await meet(net, "bus", "carl")
            assert await names.list() == ["Anna@anna", "roads"]
            assert await names.lookup("roads") == Topic("village.roads")
            assert await names.lookup("Anna") == Queue("Anna@anna")
            assert await names.list("topic") == ["village.roads"]
            assert await names.list("queue") == ["Anna@anna"]

    play(scene, "anna", "bus", "carl")


def test_lookup_waits_for_an_advertisement(play: Play) -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("a") as here, net.context("b") as there:
            names = InitialContext(there)
            waiting = [asyncio.create_task(names.lookup(name, timeout=600)) for name in ("news", "clinic", "never")]
            await net.run(100)
            await InitialContext(here).bind("other", Topic("other"))
            await InitialContext(here).bind("news", Topic("news"))
            await (await InitialContext(here).create_subcontext("clinic")).bind("doctor", Topic("doctor"))
            net.link("a", "b")
            assert await waiting[0] == Topic("news")
            assert isinstance(await waiting[1], NamingContext)
            assert net.now < 130
            with pytest.raises(NameNotFoundException, match="'never'"):
                await waiting[2]
            assert net.now == pytest.approx(600)

    play(scene, "a", "b")


def test_lookup_waits_for_a_name_of_the_same_device_too(play: Play) -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("a") as one, net.context("a") as other:
            waiting = asyncio.create_task(InitialContext(one).lookup("news", timeout=600))
            await net.run(1)
            await InitialContext(other).bind("news", Topic("news"))
            assert await waiting == Topic("news")
            assert net.now < 2

    play(scene, "a")


def test_who_waits_for_a_name_is_told_when_the_node_dies(play: Play) -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("a") as ctx:
            waiting = asyncio.create_task(InitialContext(ctx).lookup("news", timeout=600))
            cancelled = asyncio.create_task(InitialContext(ctx).lookup("news", timeout=600))
            await net.run(1)
            cancelled.cancel()
            net.kill("a")
            with pytest.raises(IllegalStateException, match="killed"):
                await waiting
            assert net.now < 2

    play(scene, "a")


def test_a_bare_name_of_several_is_told_with_the_candidates(play: Play) -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("a") as a, net.context("b") as b, net.context("c") as c:
            await InitialContext(a).bind("Alan", Queue("Alan@a"))
            await InitialContext(b).bind("Alan", Queue("Alan@b"))
            net.link("a", "c")
            net.link("b", "c")
            await net.run(30)
            names = InitialContext(c)
            assert await names.list() == ["Alan@a", "Alan@b"]
            with pytest.raises(AmbiguousNameException, match="'Alan@a', 'Alan@b'"):
                await names.lookup("Alan")
            with pytest.raises(AmbiguousNameException):
                await names.lookup("Alan", timeout=600)
            assert net.now < 40
            assert await names.lookup("Alan@b") == Queue("Alan@b")
            await names.bind("Alan", Queue("Alan@a"))
            assert await names.lookup("Alan") == Queue("Alan@a")
            assert await names.list() == ["Alan", "Alan@b"]
            assert await InitialContext(a).lookup("Alan") == Queue("Alan@a")

    play(scene, "a", "b", "c")


def test_a_queue_is_found_by_its_bare_name_among_queues_only(play: Play) -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("a") as a, net.context("b") as b, net.context("c") as c:
            provider = net.provider("c")
            assert await resolve_queue(provider, "Alan@nobody") == "queue/nobody/Alan"
            with pytest.raises(InvalidDestinationException, match=r"no queue 'Alan' on this node.*NAME@NODE"):
                await resolve_queue(provider, "Alan")
            with pytest.raises(InvalidDestinationException, match="NAME@NODE"):
                await resolve_queue(provider, "@")
            await InitialContext(a).bind("Alan", Queue("Alan@a"))
            await InitialContext(b).bind("Alan", Topic("Alan"))
            net.link("a", "c")
            net.link("b", "c")
            await net.run(30)
            assert await resolve_queue(provider, "Alan") == "queue/a/Alan"
            await InitialContext(b).rebind("Alan", Queue("Alan@b"))
            await net.run(30)
            with pytest.raises(InvalidDestinationException, match="'Alan@a', 'Alan@b'"):
                await resolve_queue(provider, "Alan")
            await InitialContext(c).bind("Alan", Queue("Alan@b"))
            assert await resolve_queue(provider, "Alan") == "queue/b/Alan"

    play(scene, "a", "b", "c")


async def seen(net: testing.Network, node: str) -> list[str]:
    async with net.context(node) as ctx:
        return await InitialContext(ctx).list()


def test_a_name_lapses_on_an_idle_device_and_stays_on_a_busy_one() -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("owner") as ctx:
            names = InitialContext(ctx)
            await names.bind("news", Topic("news"))
            await names.bind("talk", Topic("talk"))
            for other in ("idle", "sender", "reader"):
                await meet(net, "owner", other)
            await names.unbind("news")  # The rest is the deadline's.
            await names.unbind("talk")
        async with net.context("sender") as sender, net.context("reader") as reader:
            inbox = await reader.create_consumer(reader.create_topic("news"))
            for _ in range(12):
                await sender.create_producer().set_time_to_live(seconds=1).send(sender.create_topic("news"), "hello")
                assert await seen(net, "sender") == (["news", "talk"] if net.now < LIFE_S else ["news"])
                await net.run(LIFE_S / 3)
            assert [await seen(net, node) for node in ("idle", "sender", "reader")] == [[], ["news"], ["news"]]
            await inbox.close()
            await net.run(LIFE_S)
            assert [await seen(net, node) for node in ("sender", "reader")] == [[], []]

    run(scene, "owner", "idle", "sender", "reader", messaging={"advert_s": LIFE_S})


def test_an_owner_renews_its_names_for_those_that_it_meets_now_and_then_over_restarts() -> None:
    published: list[float] = []

    def note(at: float, node: str, event: Event) -> None:
        if node == "owner" and isinstance(event, Published):
            published.append(at)

    async def scene(net: testing.Network) -> None:
        net.watch(note)
        async with net.context("owner") as ctx:
            await InitialContext(ctx).bind("news", Topic("news"))
        for time in range(10):
            await meet(net, "owner", "other")
            if time % 3 == 1:
                net.kill("owner")
                await net.run(LIFE_S / 20)
                net.restart("owner")
            await net.run(LIFE_S * 0.4)
            assert await seen(net, "other") == ["news"]
        assert net.now / (LIFE_S / 2) <= len(published) <= net.now / (LIFE_S / 3) + 1
        await net.run(LIFE_S)
        assert await seen(net, "other") == []

    run(scene, "owner", "other", messaging={"advert_s": LIFE_S})


def test_a_name_that_is_bound_anew_elsewhere_is_told_to_all() -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("a") as here, net.context("b") as there:
            names = InitialContext(here)
            await names.bind("news", Topic("old"))
            await meet(net, "a", "b")
            await names.rebind("news", Topic("new"))
            assert await InitialContext(there).lookup("news") == Topic("old")
            await meet(net, "a", "b")
            assert await InitialContext(there).lookup("news") == Topic("new")

    run(scene, "a", "b")


def test_a_name_of_another_device_can_be_unbound_here() -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("a") as here, net.context("b") as there:
            await InitialContext(here).bind("news", Topic("news"))
            await meet(net, "a", "b")
            names = InitialContext(there)
            await names.unbind("news")
            await meet(net, "a", "b")
            assert await names.list() == []
            assert await InitialContext(here).list() == ["news"]
            await net.run(LIFE_S / 2)
            await meet(net, "a", "b")
            assert await names.list() == ["news"]

    run(scene, "a", "b", messaging={"advert_s": LIFE_S})


@pytest.mark.parametrize("seed", range(3))
def test_with_leases_a_name_lapses_when_the_last_advertisement_of_a_gone_holder_ends(seed: int) -> None:
    last: dict[str, float] = {}

    def note(at: float, node: str, event: Event) -> None:
        if isinstance(event, Published):
            last[node] = at

    async def scene(net: testing.Network) -> None:
        chance = random.Random(seed)
        net.watch(note)
        net.link("a", "hub")
        net.link("b", "hub")
        for owner in ("a", "b"):
            async with net.context(owner) as ctx:
                await InitialContext(ctx).bind(f"of {owner}", Topic(f"news.{owner}"))
        async with net.context("hub") as ctx:
            names = InitialContext(ctx)
            await ctx.create_consumer(ctx.create_topic("news.>"))  # Use, which prolongs nothing.
            await net.run(LEASE_S * (3 + chance.random()))
            net.kill("a")
            await net.run(LEASE_S / 3 * chance.random())
            net.kill("b")
            ends = {at + LEASE_S: f"of {owner}" for owner, at in last.items()}
            for end in sorted(ends):
                await net.run(end - 1 - net.now)
                assert await names.list() == sorted(ends.values())
                del ends[end]
                await net.run(2)
                assert await names.list() == sorted(ends.values())

    run(scene, "a", "b", "hub", messaging={"directory": "lease"})


def test_a_queue_of_a_node_that_was_never_met_is_bound_and_used_by_hand(play: Play) -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("here") as here:
            names = InitialContext(here)
            await names.bind("Alan", Queue("Alan@there"))  # `there` is off, and nobody ever heard of it.
            assert await names.lookup("Alan") == Queue("Alan@there")
            assert await names.list() == ["Alan"]
            await here.send("queue/Alan", "hello")
            await net.run(LIFE_S)
            assert await names.list() == ["Alan"], "what was bound by hand has no lease"
            net.link("here", "bus")
            await net.run(30)
            assert await seen(net, "bus") == [], "only its manager speaks for a queue"
            net.unlink("here", "bus")
        async with net.context("there") as there:
            inbox = await there.create_consumer(await there.declare_queue("Alan"))
            net.link("bus", "there")
            assert await inbox.receive_body(str, timeout=60) == "hello"

    play(scene, "here", "bus", "there", messaging={"directory": "lease"})


# --- those who say what is not theirs to say -------------------------------------------------------------------


def forgeries(mallory: Identity, victim: NodeId, deadline_us: int) -> dict[str, Message]:
    """Advertisements with Mallory's own, sound signature."""

    def said(owner: NodeId, name: str, destination: str) -> Message:
        where = address.directory(owner, name)
        return message(mallory, b"", destination=where, headers=saying(destination), deadline_us=deadline_us)

    return {
        "another node's name": said(victim, "news", "topic/bad"),
        "another node's new name": said(victim, "gold", "topic/bad"),
        "another node's queue": said(mallory.node, "Alan", address.queue("Alan", victim)),
        "another node's full name": said(mallory.node, f"Alan@{victim}", "topic/bad"),
    }


@pytest.mark.parametrize("security", ["signed", "off"])
def test_forged_and_replayed_advertisements_change_nothing_and_are_counted(security: str) -> None:
    refused: Counter[tuple[str, str]] = Counter()

    def count(_: float, node: str, event: Event) -> None:
        if isinstance(event, Refused):
            refused[node, event.reason] += event.count

    async def scene(net: testing.Network) -> None:
        net.watch(count)
        async with net.context("a") as here, net.context("b") as there, net.context("c") as beyond:
            await InitialContext(here).bind("news", Topic("news"))
            await InitialContext(here).bind("Alan", Queue(f"Alan@{here.node_id}"))
            await meet(net, "a", "b")
            before = await pictured(there)
            mallory = Attacker(net)
            mallory.meet("b", "directory/.*")
            await net.run(1)
            forged = forgeries(mallory.identity, here.node_id, round(net.now * 1e6) + 3_600_000_000)
            for handle, given in enumerate(forged.values(), 1):
                mallory.say("b", mallory.offer(given, handle))
                await net.run(1)
                mallory.say("b", mallory.parcel(given, handle))
                await net.run(1)
            assert refused["b", "directory"] == len(forged)
            net.link("b", "c")
            await net.run(30)
            assert await pictured(there) == before
            assert await pictured(beyond) == before
            assert refused["c", "directory"] == 0, "what is refused is passed on to nobody"

    run(scene, "a", "b", "c", security=security, lifetime_s_max=30 * DAY_S, lifetime_s_default=DAY_S)


async def pictured(ctx: Context) -> list[object]:
    names = InitialContext(ctx)
    return [await names.list_bindings(each) for each in ("", "topic", "queue")]


def test_an_old_advertisement_that_is_replayed_brings_nothing_back() -> None:
    async def scene(net: testing.Network) -> None:
        async with net.context("a") as here, net.context("b") as there, net.context("c") as late:
            names = InitialContext(here)
            await names.bind("news", Topic("old"))
            await meet(net, "a", "c")  # It has the old one, and passes it on later than the new one comes.
            await names.rebind("news", Topic("new"))
            await meet(net, "a", "b")
            await meet(net, "c", "b")
            assert await InitialContext(there).lookup("news") == Topic("new")
            assert await InitialContext(late).lookup("news") == Topic("new")

    run(scene, "a", "b", "c", security="signed", lifetime_s_max=30 * DAY_S, lifetime_s_default=DAY_S)
