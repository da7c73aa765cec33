"""Verdicts on messages: each one in a scene of real nodes; those on channels between hosts in virtual time."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.channels import World
from tests.support.modulators import FAIL
from tests.support.nodes import scene, until
from tests.support.served import Scene

from carrypost import ConnectionFactory, DeliveryMode, Queue
from carrypost.attach import calls
from carrypost.attach.client import Client
from carrypost.cli.app import run
from carrypost.errors import StateError
from carrypost.overlay.modulators.modulator import Modulator
from carrypost.web.verdict import Verdict, verdict

PERSISTENT = DeliveryMode.PERSISTENT
BIG = {"limits": {"message_bytes_max": 1_000}}


@scene
async def test_a_node_alone_tells_what_became_of_its_messages(tmp_path: Path) -> None:
    async with Scene(tmp_path, cache_messages_max=40) as nodes:
        anna = await nodes.start("anna")
        send = anna.ctx.send
        await send("topic/news", "x", label="alone")
        assert await anna.verdict("alone") == Verdict(
            "no-neighbour",
            "Stored; no neighbour is in reach.",
            "If one should be in reach: carrypost doctor.",
            ("Linked neighbours: none.", "The copy here is own, of 1 bytes."),
        )
        await send("topic/news", "x", label="short", time_to_live=0.2, delivery_mode=PERSISTENT, request_receipt=True)
        await anna.becomes("short", "expired")
        for _ in range(60):
            await send("topic/news", "x")
        assert "cache_messages_max" in (await anna.becomes("alone", "evicted")).remedy
        assert (await anna.verdict("nothing")).verdict == "unknown"

        box = await anna.ctx.declare_queue("box")
        await send(box, "x", label="letter")
        assert (await anna.verdict("letter")).sentence == "Waits in queue/box@anna, which no consumer receives from."
        await send(box, "x", label="later", delivery_delay=60)
        assert (await anna.verdict("later")).verdict == "delayed"
        inbox = await anna.ctx.create_consumer(box)
        assert await inbox.receive(timeout=5) is not None
        await anna.becomes("letter", "handed")
        await inbox.close()

        dead = await anna.ctx.declare_queue("dead", tries=1)
        await send(dead, "x", label="bad")
        async with ConnectionFactory(f"unix:{anna.settings.control}").create_context() as failing:

            def fail(_: object) -> None:
                raise ValueError("no such village")

            (await failing.create_consumer(dead)).set_message_listener(fail)
            assert "no such village" in (await anna.becomes("bad", "dead-letter")).sentence


@scene
async def test_a_node_without_a_history_says_so(tmp_path: Path) -> None:
    async with Scene(tmp_path, trace={"enabled": False}) as nodes:
        anna = await nodes.start("anna")
        made = await anna.verdict("nothing")
        assert made.verdict == "history-off"
        assert "trace.enabled = true" in made.remedy
        bert = await nodes.start("bert", altruistic=True)
        await anna.linked("bert")
        await anna.ctx.send("topic/news", "x", label="given")
        made = await anna.becomes("given", "history-off")
        assert made.sentence.startswith("Stored; bert asks for such messages.")
        await nodes.stop(bert)


@scene
async def test_what_neighbours_do_with_messages_is_told(tmp_path: Path) -> None:
    async with Scene(tmp_path) as nodes:
        anna, bert = await nodes.start("anna"), await nodes.start("bert", **BIG)
        await anna.linked("bert")
        send = anna.ctx.send
        await send("topic/roads", "x", label="nobody")
        assert (await anna.verdict("nobody")).sentence == (
            "Stored; your only neighbour, bert, neither subscribes to topic/roads nor carries for others."
        )
        inbox = await bert.ctx.create_consumer("topic/news")
        await send("topic/news", "x", label="arrives", delivery_mode=PERSISTENT, request_receipt=True)
        assert (await anna.becomes("arrives", "carried")).sentence.startswith("bert has it, too;")
        message = await inbox.receive(timeout=10)
        assert message is not None
        assert (await bert.verdict("arrives")).verdict in {"here", "delivered"}
        await message.acknowledge()
        await anna.becomes("arrives", "delivered")

        await send("topic/news", bytes(2_000), label="long")
        size = (await anna.client.trace("long"))["held"][0]["message"]
        await bert.becomes(size, "too-large")
        assert (await anna.verdict("long")).verdict == "on-its-way"

        await send("topic/news", "x", label="listed", recipients=["bert", "carl"], delivery_mode=PERSISTENT)
        made = await anna.becomes("listed", "recipients-left")
        assert "carl" in made.sentence
        await send(Queue("nothing@bert"), "x", label="lost", delivery_mode=PERSISTENT)
        assert (await anna.becomes("lost", "queue-unknown")).sentence == "Failed: there is no such queue."


@scene
async def test_a_silent_receiver_and_a_deaf_neighbour_are_named(tmp_path: Path) -> None:
    async with Scene(tmp_path) as nodes:
        anna, bert = await nodes.start("anna"), await nodes.start("bert")
        await anna.linked("bert")
        for name, options in (("final", {}), ("leased", {"redelivery": "after_lease", "lease_s": 1.0})):
            box = await anna.ctx.declare_queue(name, **options)  # type: ignore[arg-type]
            inbox = await bert.ctx.create_consumer(Queue(f"{name}@anna"))
            await anna.ctx.send(box, "x", label=name, delivery_mode=PERSISTENT)
            assert await inbox.receive(timeout=10) is not None
        assert (await anna.verdict("final")).verdict == "assigned"
        messaging = (await anna.client.messaging())["messaging"]
        assigned = {each["name"]: [held["node"] for held in each["assigned"]] for each in messaging["queues"]}
        assert assigned["queue/final@anna"] == ["bert"]
        await bert.client.gate([])  # It hears nobody any more, and is still heard.
        await anna.becomes("leased", "assigned-silent")
        made = await anna.becomes("final", "assigned-silent")
        assert made.sentence.startswith("Assigned to bert at ")
        assert made.sentence.endswith(", which did not answer yet and is not in reach.")
        await anna.ctx.send("topic/news", "x", label="deaf")
        await anna.becomes("deaf", "one-way")


# --- channels --------------------------------------------------------------------------------------------------------


def of_channels(world: World, node: str) -> Verdict:
    """Return the verdict on an unknown message at a node with channels."""
    found: dict[str, Any] = {"kept": True, "rows": [], "held": [], "sends": [], "entries": []}
    channels = msgspec.to_builtins(world.net.host(node).overlay.channels())
    return verdict("ID:x", found, [], {"messaging": None, "channels": channels})


def test_trouble_with_channels_is_told() -> None:
    world = World("ABpyz")
    with world.net as net:
        world.begin("")
        world.consume("y")
        assert of_channels(world, "y").verdict == "no-home-broker"
        net.link("B", "y")
        net.link("A", "B")
        net.advance(20)
        assert of_channels(world, "y").verdict == "unknown"
        for _ in range(3):
            net.emit("p", "flood", b"short", lifetime_s=5)
            net.advance(1)
        net.advance(20)
        net.link("p", "A")
        net.advance(10)
        world.emit("p")
        net.advance(30)
        made = of_channels(world, "y")
        assert (made.verdict, made.sentence[-36:]) == ("events-lost", "3 events of channel/flood were lost.")
        (view,) = net.host("y").overlay.channels()
        assert (view.role, view.home, view.lost, view.results) == ("consumer", "B", 3, 1)
        assert [each.role for each in net.host("B").overlay.channels()] == ["broker"]
        assert [(each.role, each.home) for each in net.host("p").overlay.channels()] == [("producer", "A")]


def test_a_modulator_that_fails_is_told() -> None:
    world = World("Bpy")
    with world.net as net:
        world.begin("Bp By")
        net.consume("y", "flood", Modulator.named("every-nth", n=1))
        net.advance(5)
        net.emit("p", "flood", FAIL.payload)
        net.emit("p", "flood", b"works")
        net.advance(10)
        for node in "yB":
            made = of_channels(world, node)
            assert made.verdict == "modulator-fails"
            assert "The modulator every-nth:1 of channel/flood fails: RuntimeError: as told" in made.sentence


@scene
async def test_trouble_with_channels_of_real_nodes_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fails_with_odd.py").write_text(
        "import carrypost\n@carrypost.modulator('fails-with-odd')\nclass Fails:\n    'Fail with odd numbers.'\n"
        "    def process(self, event):\n        if int(event.payload) % 2: raise ValueError('odd')\n"
        "        return [event]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    async with Scene(tmp_path, overlay={"enabled": True}) as nodes:
        plugins = {"plugins": ["fails_with_odd"]}
        anna = await nodes.start("anna", node=plugins)
        inbox = await anna.ctx.create_consumer("channel/flood", modulator=Modulator.named("fails-with-odd"))
        assert (await anna.becomes("nothing", "no-home-broker")).remedy.startswith("Set overlay.broker=true")
        broker = await nodes.start("broker", overlay={"enabled": True, "broker": True}, node=plugins)
        await anna.linked("broker")
        await anna.becomes("nothing", "unknown")
        for number in range(2):
            await broker.ctx.send("channel/flood", str(number))
        assert (message := await inbox.receive(timeout=10)) is not None
        assert message.text == "0"
        for node in (anna, broker):
            made = await node.becomes("nothing", "modulator-fails")
            assert "fails-with-odd" in made.sentence
            assert "ValueError: odd" in made.sentence


@scene
async def test_events_that_real_nodes_lost_are_told(tmp_path: Path) -> None:
    async with Scene(tmp_path, overlay={"enabled": True}) as nodes:
        anna = await nodes.start("anna")
        await nodes.start("broker", overlay={"enabled": True, "broker": True})
        inbox = await anna.ctx.create_consumer("channel/flood")
        await anna.becomes("nothing", "unknown")
        bert = await nodes.start("bert")
        await bert.client.gate([])
        for number in range(3):
            await bert.ctx.send("channel/flood", str(number), time_to_live=1.0, label=str(number))
        await bert.becomes("2", "expired")
        await bert.client.gate(None)
        await bert.linked("anna", "broker")
        await bert.ctx.send("channel/flood", "3")
        made = await anna.becomes("nothing", "events-lost")
        assert made.sentence.endswith("3 events of channel/flood were lost.")
        assert (message := await inbox.receive(timeout=10)) is not None
        assert message.text == "3"


# --- calls -----------------------------------------------------------------------------------------------------------


@scene
async def test_a_node_of_an_earlier_version_still_answers_what_it_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Scene(tmp_path) as nodes:
        anna = await nodes.start("anna")
        monkeypatch.setattr(calls, "VERSION", 1)
        client = await Client.connect(anna.settings.control)
        monkeypatch.undo()
        assert (await client.status())["node"] == "anna"
        with pytest.raises(StateError, match="does not list its queues and sends: restart it with this version"):
            await client.messaging()
        await client.close()


@scene
async def test_queues_are_listed_with_what_waits_and_what_programs_have(tmp_path: Path) -> None:
    async with Scene(tmp_path) as nodes:
        anna = await nodes.start("anna")
        box = await anna.ctx.declare_queue("box")
        for _ in range(5):
            await anna.ctx.send(box, "x" * 100)
        await anna.ctx.send(box, "x", delivery_delay=60)
        inbox = await anna.ctx.create_consumer(box)
        got = [await inbox.receive(timeout=5) for _ in range(2)]
        assert all(got)
        (queue,) = (await anna.client.messaging())["messaging"]["queues"]
        numbers = {name: queue[name] for name in ("waiting", "handed", "delayed", "assigned")}
        assert sum((numbers["waiting"], numbers["handed"], numbers["delayed"])) == 6
        assert numbers["delayed"] == 1
        assert [each["node"] for each in queue["demands"]] == ["anna"]
        await inbox.close()

        async def back() -> bool:
            (queue,) = (await anna.client.messaging())["messaging"]["queues"]
            return (queue["waiting"], queue["demands"]) == (3, [])

        await until(back)
        assert (await anna.client.status())["messaging"]["entries"] == 6


@scene
async def test_the_command_lists_all_of_messaging(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    overlay = {"overlay": {"enabled": True}, "island": True}
    async with Scene(tmp_path, **overlay) as nodes:
        anna = await nodes.start("anna")
        box = await anna.ctx.declare_queue("box")
        await anna.ctx.send(box, "x", label="letter", delivery_mode=PERSISTENT)
        await anna.ctx.create_consumer("topic/news")
        await anna.ctx.create_consumer("channel/flood")
        await anna.ctx.declare_topic("village")
        arguments = ["status", "--messaging", "--data", str(tmp_path / "anna")]
        assert await asyncio.to_thread(run, arguments) == 0
        shown = capsys.readouterr().out
        for text in ("queue/box@anna", "topic/news", "holder/village@anna", "letter", "none", "flood"):
            assert text in shown
        assert await asyncio.to_thread(run, [*arguments, "--json"]) == 0
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        kinds = Counter(each["kind"] for each in rows)
        assert kinds == {"queues": 1, "held": 1, "subscriptions": 2, "sends": 1, "channels": 1}
        assert next(each["state"] for each in rows if each["kind"] == "sends") == "STORED"
