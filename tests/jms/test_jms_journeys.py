"""Programs over carriers and long disconnections, in virtual time: the scenes of `test_messaging_scenes` again."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import combinations, pairwise

from tests.support.jms_scenes import NEWS, texts

from carrypost import Consumer, Context, Message, SessionMode, Topic, testing

HOUR_S = 3_600.0
CLIENT = SessionMode.CLIENT_ACKNOWLEDGE
LIMIT_S = 400 * HOUR_S


@asynccontextmanager
async def network(*names: str, carrier: bool = True, **settings: object) -> AsyncIterator[testing.Network]:
    """Yield nodes that are alone, and one that carries for others; announcements are rare, because days pass."""
    options = {"announce_s_min": 5.0, "announce_s_max": 20.0, "seed": 1} | settings
    async with testing.network(*names, **options) as net:  # type: ignore[arg-type]  # as they are
        if carrier:
            net.add("carrier", altruistic=True)
        yield net


async def meet(net: testing.Network, a: str, b: str, *, after_s: float = HOUR_S, for_s: float = 120.0) -> None:
    """Let two nodes meet for a short time, after a long time alone."""
    await net.run(after_s)
    net.link(a, b)
    await net.run(for_s)
    net.unlink(a, b)


class Program:
    """A program on one node, which keeps the messages of its listener."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.got: list[Message] = []

    @classmethod
    async def on(
        cls, net: testing.Network, node: str, topic: Topic, selector: str | None = None, client_id: str | None = None
    ) -> Program:
        self = cls(await net.context(node, client_id=client_id))
        consumer = await self.context.create_consumer(topic, selector)
        consumer.set_message_listener(self.take)
        return self

    def take(self, message: Message) -> None:
        self.got.append(message)

    @property
    def texts(self) -> list[str]:
        return [message.get_body(str) or "" for message in self.got]

    async def say(self, topic: Topic, text: str) -> None:
        await self.context.create_producer().send(topic, text)


def test_programs_do_not_see_that_predecessors_were_joined() -> None:
    names, forum = ("anna", "ben", "cleo", "dora"), Topic("forum", ordering="causal")

    async def play() -> None:
        async with network(*names, carrier=False, limits={"barrier_entries_max": 2}) as net:
            programs = {name: await Program.on(net, name, forum) for name in names}
            for name in names:
                await programs[name].say(forum, name)
            for name in names[1:]:
                await meet(net, names[0], name)
            await programs["anna"].say(forum, "after all")
            await net.run(1)
            await programs["anna"].say(forum, "last")
            for name in names[1:]:
                await meet(net, names[0], name)
            for program in programs.values():
                assert sorted(program.texts[:-2]) == list(names)
                assert program.texts[-2:] == ["after all", "last"]
            assert net.host("dora").registries(round(net.now * 1e6))[0].c_barrier == 1

    testing.run(play, LIMIT_S)


def test_public_text_reaches_five_nodes_that_never_meet_all_at_once() -> None:
    names = ("anna", "ben", "cleo", "dora", "emil")

    async def play() -> None:
        async with network(*names, carrier=False) as net:
            programs = {name: await Program.on(net, name, Topic("text")) for name in names}
            for number, name in enumerate(names):
                await programs[name].say(Topic("text"), f"{number} says {name}")
            for a, b in [*pairwise(names), *pairwise(names[::-1])]:
                await meet(net, a, b)
            net.kill("cleo")
            net.restart("cleo")
            again = programs["cleo again"] = await Program.on(net, "cleo", Topic("text"))
            await programs["emil"].say(Topic("text"), "a late word")
            for a, b in pairwise(names[::-1]):
                await meet(net, a, b)
            said = sorted(f"{number} says {name}" for number, name in enumerate(names))
            for name in ("anna", "ben", "dora", "emil"):
                assert sorted(programs[name].texts) == [*said, "a late word"]
                assert not any(message.jms_redelivered for message in programs[name].got)
            assert sorted(programs["cleo"].texts) == said
            assert again.texts == ["a late word"]
            for program in programs.values():
                await program.context.close()

    testing.run(play, LIMIT_S)


def test_a_durable_subscriber_that_is_off_while_messages_are_published_expire_and_come() -> None:
    async def mail(net: testing.Network) -> tuple[Context, Consumer]:
        context = await net.context("reader", CLIENT, client_id="me")
        return context, await context.create_durable_consumer(NEWS, "mail")

    async def play() -> None:
        async with network("author", "reader") as net, net.context("author") as author:
            context, _ = await mail(net)
            await net.run(60)
            net.kill("reader")
            await context.close()
            producer = author.create_producer()
            await producer.send(NEWS, "dead before they meet", time_to_live=HOUR_S)
            await producer.send(NEWS, "dead before anybody reads", time_to_live=5 * HOUR_S)
            await producer.send(NEWS, "one", time_to_live=72 * HOUR_S)
            await producer.send(NEWS, "two")
            await meet(net, "author", "carrier", after_s=600.0)
            await net.run(2 * HOUR_S)
            net.restart("reader")
            await meet(net, "carrier", "reader")  # The node is on; the program is not.
            net.kill("reader")
            await net.run(3 * HOUR_S)
            net.restart("reader")
            await producer.send(NEWS, "three")
            await meet(net, "author", "carrier")
            await meet(net, "carrier", "reader")

            context, inbox = await mail(net)
            found = [message async for message in inbox.messages(timeout=1)]
            assert [message.get_body(str) for message in found] == ["one", "two", "three"]
            assert not any(message.jms_redelivered for message in found)
            net.kill("reader")
            await context.close()
            net.restart("reader")
            context, inbox = await mail(net)
            first = await inbox.receive(timeout=1)
            assert first is not None
            assert (first.get_body(str), first.get_int_property("JMSXDeliveryCount")) == ("one", 2)
            await first.acknowledge()
            await inbox.receive(timeout=1)
            net.kill("reader")
            await context.close()
            net.restart("reader")
            context, inbox = await mail(net)
            counts = [
                (message.get_body(str), message.get_int_property("JMSXDeliveryCount"))
                async for message in inbox.messages(timeout=1)
            ]
            assert counts == [("two", 3), ("three", 2)], "the program never saw the third one"
            await context.close()

    testing.run(play, LIMIT_S)


async def _last_hop(selector: str | None) -> tuple[testing.Traffic, list[str]]:
    """Return the traffic of a carrier to a reader of a hundred messages, half of which are of one language."""
    nodes = network("author", "reader", compress=False)
    async with nodes as net, net.context("author") as author, net.context("reader") as reader:
        consumer = await reader.create_consumer(NEWS, selector)
        chance = random.Random(1)
        producer = author.create_producer()
        for number in range(100):
            producer.set_property("language", ("English", "French")[number % 2]).set_property("number", number)
            await producer.send(NEWS, f"{number:03} " + chance.randbytes(500).hex())
        await meet(net, "author", "carrier")
        assert net.host("carrier").copies == 100
        await meet(net, "carrier", "reader")
        return net.traffic("carrier", "reader"), [text[:3] for text in await texts(consumer)]


def test_a_selector_halves_the_traffic_of_the_last_hop() -> None:
    everything, all_of_it = testing.run(lambda: _last_hop(None))
    selected, some_of_it = testing.run(lambda: _last_hop("language = 'French' AND number >= 0"))
    assert sorted(all_of_it) == [f"{number:03}" for number in range(100)]
    assert sorted(some_of_it) == [f"{number:03}" for number in range(1, 100, 2)]
    assert (everything.frames["Parcel"], selected.frames["Parcel"]) == (100, 50)
    assert selected.bytes < 0.53 * everything.bytes


class Forum(Program):
    """A participant that answers questions, if asked to, and sends messages that follow the last one it got."""

    def __init__(self, context: Context, name: str, topic: Topic, follows: dict[str, str], *, answers: bool) -> None:
        super().__init__(context)
        self.name, self.topic, self.follows, self.answers = name, topic, follows, answers

    async def hear(self, message: Message) -> None:
        self.take(message)
        if self.answers and message.properties["kind"] == "question":
            text = message.get_body(str) or ""
            await self.tell(f"{text}, {self.name} answers", "answer", text)

    async def tell(self, text: str, kind: str, to: str = "") -> None:
        self.follows[text] = to
        await self.context.create_producer().set_property("kind", kind).send(self.topic, text)


def test_a_causal_forum_with_selectors_whose_nodes_crash() -> None:
    names = ("anna", "ben", "cleo", "dora", "emil")
    forum = Topic("forum", "causal")
    asked = {
        "anna": "kind <> 'chatter'", "ben": "kind = 'question'", "cleo": None, "dora": "kind = 'question'",
        "emil": "kind = 'answer'",
    }  # fmt: skip

    async def play() -> None:
        follows: dict[str, str] = {}
        people: dict[str, Forum] = {}
        async with network(*names, carrier=False, seed=7) as net:

            async def join(name: str) -> None:
                heard = people[name].got if name in people else []
                context = await net.context(name, client_id=name)
                people[name] = Forum(context, name, forum, follows, answers=name in ("ben", "dora"))
                people[name].got = heard
                consumer = await context.create_durable_consumer(forum, "all", asked[name])
                consumer.set_message_listener(people[name].hear)

            for name in names:
                await join(name)
            chance = random.Random(3)
            pairs = list(combinations(names, 2))
            for number in range(25):
                if number < 12:
                    await people["cleo"].tell(f"chatter {number}", "chatter", (people["cleo"].texts or [""])[-1])
                    await people["anna"].tell(f"question {number}", "question", (people["anna"].texts or [""])[-1])
                if number % 5 == 4:
                    name = names[number // 5]
                    await net.run(1)
                    net.kill(name)
                    await people[name].context.close()
                    net.restart(name)
                    await join(name)
                await meet(net, *chance.choice(pairs))
            for a, b in combinations(names, 2):
                await meet(net, a, b, after_s=10.0)
            for person in people.values():
                in_order(person.texts, follows)
                assert not any(message.property_exists("JMS_carrypost_Unordered") for message in person.got)
            assert {message.properties["kind"] for message in people["emil"].got} == {"answer"}
            assert len(people["emil"].got) == 24
            assert sorted(people["anna"].texts) == sorted(text for text in follows if not text.startswith("chatter"))
            assert sorted(people["cleo"].texts) == sorted(follows)
            for person in people.values():
                await person.context.close()

    testing.run(play, LIMIT_S)


def in_order(heard: Sequence[str], follows: dict[str, str]) -> None:
    """Nothing comes twice, nor before something that it follows, also by way of what this program did not ask for."""
    assert len(heard) == len(set(heard))
    place = {text: number for number, text in enumerate(heard)}
    for text in heard:
        before = follows[text]
        while before:
            assert place.get(before, -1) < place[text], (before, text)
            before = follows[before]


def test_a_shared_subscription_of_three_consumers_gives_each_message_to_one() -> None:
    async def play() -> None:
        jobs = Topic("jobs")
        async with network("author", "shop") as net, net.context("author") as author:
            crew = [Program(await net.context("shop")) for _ in range(2)]
            for program in crew:
                consumer = await program.context.create_shared_durable_consumer(jobs, "crew", prefetch=4)
                consumer.set_message_listener(program.take)
            idle = await net.context("shop", CLIENT)
            unread = await idle.create_shared_durable_consumer(jobs, "crew", prefetch=4)
            for day in range(3):
                for number in range(20):
                    await author.create_producer().send(jobs, f"{day}-{number}")
                await meet(net, "author", "carrier")
                await meet(net, "carrier", "shop")
            first = await unread.receive(timeout=1)
            assert first is not None
            assert min(len(program.got) for program in crew) > 20
            assert sum(len(program.got) for program in crew) <= 56  # The idle one has its prefetch.
            await idle.close()
            await net.run(1)
            done = Counter(text for program in crew for text in program.texts)
            assert done == {f"{day}-{number}": 1 for day in range(3) for number in range(20)}
            again = [message for program in crew for message in program.got if message.jms_redelivered]
            assert [message.get_body(str) for message in again] == [first.get_body(str)]
            overview = net.host("shop").messaging.overview()
            assert overview is not None
            assert overview.claims == 0
            for program in crew:
                await program.context.close()

    testing.run(play, LIMIT_S)
