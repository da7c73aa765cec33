"""Live pages: they say what the node says; looking takes nothing; they send and receive as programs do."""

from __future__ import annotations

import asyncio
import base64
import functools
import os
import signal
from pathlib import Path

import psutil
import pytest
from tests.support.copies import copy
from tests.support.live_pages import Pages, pages
from tests.support.nodes import scene, until
from tests.support.served import Scene, Served

from carrypost import ConnectionFactory, DeliveryMode, Queue
from carrypost.attach.served_node import ServedNode
from carrypost.node.settings import parse
from carrypost.web import nodes as live
from carrypost.web.nodes import BODY_BYTES_MAX, BODY_MAX, CONSUMERS_MAX, HELD_MAX, HISTORY, Messages


async def fill(anna: Served, name: str, count: int, **options: object) -> Queue:
    """Return a queue with messages whose bodies and labels are their numbers."""
    box = await anna.ctx.declare_queue(name, **options)  # type: ignore[arg-type]
    for number in range(count):
        await anna.ctx.send(box, str(number), label=f"{name}-{number}", properties={"level": number})
    return box


@scene
async def test_a_sample_is_what_the_node_says_at_that_time(tmp_path: Path) -> None:
    async with Scene(tmp_path) as nodes:
        anna, bert = await nodes.start("anna"), await nodes.start("bert", altruistic=True)
        await anna.linked("bert")
        await fill(anna, "box", 3)
        async with pages(anna, bert) as shown:
            found = await shown.node("sample")
            status, peers, messaging = (
                await anna.client.status(), await anna.client.peers(), await anna.client.messaging()
            )  # fmt: skip
            assert found["state"] == "up"
            for name in ("node", "pid", "neighbours", "cache", "dropped", "messaging", "carries", "security"):
                assert found["status"][name] == status[name], name
            assert [(each["node"], each["state"]) for each in found["peers"]] == [
                (each["node"], each["state"]) for each in peers
            ]
            assert found["messaging"]["messaging"]["queues"] == messaging["messaging"]["queues"]
            assert found["messaging"]["messaging"]["sends"] == messaging["messaging"]["sends"]
            assert [each["means"] for each in found["findings"]] == ["queues"]
            again = await shown.node(f"sample?after={found['serial']}")
            assert "status" not in again or again["serial"] > found["serial"]
            listed = (await shown.ask("/api/nodes")).json
            assert [(each["node"], each["state"], each["neighbours"]) for each in listed] == [
                ("anna", "up", 1), ("bert", "up", 1),
            ]  # fmt: skip
            assert (await shown.ask("/api/nodes/none/sample")).status == 400


@scene
async def test_a_node_that_ends_is_seen_to_be_gone_and_to_return(tmp_path: Path) -> None:
    async with Scene(tmp_path) as nodes:
        anna = await nodes.start("anna")
        async with pages(anna) as shown:
            before = await shown.node("sample")
            await nodes.stop(anna)

            async def state() -> str:
                return str((await shown.node("sample"))["state"])

            async def gone() -> bool:
                return await state() == "gone"

            async def advised() -> bool:
                return "start one with" in (await shown.node("sample"))["reason"]

            async def back() -> bool:
                return await state() == "up"

            await until(gone, 3)
            found = await shown.node("sample")
            assert found["status"] == before["status"] | found["status"], "the last numbers stay"
            assert "ended" in found["reason"]
            await until(advised, 5)
            assert "start one with" in await shown.refused("verdict?message=x", None)
            again = await ServedNode.start(anna.settings)
            await until(back, 5)
            consumer = (await shown.node("consume", {"from": "topic/news"}))["consumer"]
            await again.stop()
            await until(gone, 3)
            again = await ServedNode.start(anna.settings)
            await until(back, 5)
            assert (await shown.node("send", {"to": "topic/news", "body": "x"}))["state"] == "STORED"
            assert "no consumer" in await shown.refused(f"held?consumer={consumer}", None)
            await again.stop()


@scene
async def test_nobody_asks_a_node_without_pages_and_history_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "_LINGER_S", 0.1)
    monkeypatch.setattr(live, "PERIOD_S", 0.002)
    async with Scene(tmp_path) as nodes:
        anna = await nodes.start("anna")
        process = psutil.Process()
        others = len(process.net_connections("unix"))
        async with pages(anna) as shown:
            watched = shown.live.find(shown.id)

            async def long() -> bool:
                await shown.node("sample")
                return watched.serial > HISTORY + 20

            await until(long)
            assert len(watched.history) == HISTORY
            assert len((await shown.node("sample"))["history"]) == HISTORY

            async def left() -> bool:
                return len(process.net_connections("unix")) == others

            await until(left, 5)
            serial = watched.serial
            await asyncio.sleep(0.05)
            assert watched.serial == serial


@scene
async def test_what_one_page_sends_another_node_shows(tmp_path: Path) -> None:
    async with Scene(tmp_path) as nodes:
        anna, bert = await nodes.start("anna"), await nodes.start("bert")
        await anna.linked("bert")
        inbox = await bert.ctx.create_consumer("topic/news", "level > 2")
        async with pages(anna) as here, pages(bert) as there:
            assert (await here.node("verdict?message=first"))["verdict"] == "unknown"
            order = {
                "to": "topic/news", "body": "hällo", "label": "first", "time_to_live": 60, "priority": 7,
                "delivery_mode": "PERSISTENT", "request_receipt": True,
                "properties": {"level": {"type": "short", "value": 3}, "name": "x", "ok": True},
            }  # fmt: skip
            sent = await here.node("send", order)
            assert (sent["state"], sent["neighbours"]) == ("STORED", 1)
            message = await inbox.receive(timeout=10)
            assert message is not None
            assert (message.text, message.jms_priority, message.get_short_property("level")) == ("hällo", 7, 3)
            rows = (await there.node("trace?message=first"))["rows"]
            assert [each["sentence"] for each in rows if each["kind"] == "receive"] == ["received from anna, hop 1"]
            await message.acknowledge()
            await anna.becomes("first", "delivered")
            assert (await here.node("verdict?message=first"))["verdict"] == "delivered"
            raw = bytes(range(256))
            await here.node("send", {"to": "topic/x", "base64": base64.b64encode(raw).decode(), "label": "raw"})
            cached = (await here.node("cache?select=size = 256"))["rows"]
            assert [each["label"] for each in cached] == ["raw"]


MISTAKES = {
    "no JSON": (b"{", "must be a JSON object"),
    "no object": (b"[1]", "must be a JSON object"),
    "no destination": ({}, "to must be a text"),
    "an unknown field": ({"to": "topic/x", "colour": 1}, "unknown 'colour'"),
    "a destination that is none": ({"to": "x/y"}, "a destination as text must be"),
    "an unknown queue": ({"to": "queue/none@anna"}, "this node manages no queue 'none"),
    "an unknown type": ({"to": "topic/x", "properties": {"a": {"type": "byt", "value": 1}}}, "has the type 'byt'"),
    "a value of another type": ({"to": "topic/x", "properties": {"a": {"type": "byte", "value": 300}}}, "300"),
    "a property that is a list": ({"to": "topic/x", "properties": {"a": [1]}}, "list"),
    "a lifetime that is a text": ({"to": "topic/x", "time_to_live": "1"}, "time_to_live must be of type float"),
    "a priority that is none": ({"to": "topic/x", "priority": 12}, "priority"),
    "a mode that is none": ({"to": "topic/x", "delivery_mode": "LOUD"}, "delivery_mode must be"),
    "a mode that is a list": ({"to": "topic/x", "delivery_mode": []}, "delivery_mode must be"),
    "a type that is a list": ({"to": "topic/x", "properties": {"a": {"type": [], "value": 1}}}, "has the type '[]'"),
    "a body that is no text": ({"to": "topic/x", "body": 3}, "body must be a text"),
    "no base64": ({"to": "topic/x", "base64": "*"}, "base64 must be"),
    "recipients of a queue": ({"to": "topic/x", "recipients": ["bert", 3]}, "recipient"),
    "a channel without overlay": ({"to": "channel/flood"}, "overlay"),
}


@scene
async def test_mistakes_are_refused_with_a_sentence_and_nothing_is_stored(tmp_path: Path) -> None:
    async with Scene(tmp_path) as nodes:
        anna = await nodes.start("anna")
        async with pages(anna) as shown:
            for name, (order, sentence) in MISTAKES.items():
                body, value = (order, None) if isinstance(order, bytes) else (None, order)
                answer = await shown.ask(f"/api/nodes/{shown.id}/send", value, body=body)
                assert (answer.status, sentence in answer.json["error"]) == (400, True), (name, answer)
            assert (await anna.client.cache()) == []
            long = await shown.ask(f"/api/nodes/{shown.id}/send", body=b" " * (BODY_BYTES_MAX + 1))
            assert long.status == 413
            assert "no consumer '7'" in await shown.refused("settle", {"consumer": "7", "how": "close"})
            assert "mode must be" in await shown.refused("consume", {"from": "topic/x", "mode": "steal"})
            assert "mode must be" in await shown.refused("consume", {"from": "topic/x", "mode": {}})
            assert "(character" in await shown.refused("cache?select=size %3E", None)
            await anna.ctx.declare_queue("box")
            assert "character 8" in await shown.refused("browse?queue=box&select=level %3E", None)
            assert "no queue of dead letters" in await shown.refused("retry", {"queue": "box@anna", "message": "x"})
            for _ in range(CONSUMERS_MAX):
                await shown.node("consume", {"from": "topic/x"})
            assert "close one of them first" in await shown.refused("consume", {"from": "topic/x"})
        status = await anna.client.status()
        assert status["messaging"]["consumers"] == 0


@scene
async def test_looking_takes_nothing_from_a_program_that_consumes(tmp_path: Path) -> None:
    async with Scene(tmp_path) as nodes:
        anna = await nodes.start("anna")
        box = await fill(anna, "box", 40)
        async with pages(anna) as shown:
            before = (await shown.node("sample"))["messaging"]["messaging"]

            async def look() -> None:
                for _ in range(4):
                    found = await shown.node("browse?queue=box&limit=200")
                    assert not any(each["redelivered"] for each in found["messages"])
                    await shown.node("cache")
                    await shown.node("verdict?message=box-7")

            await look()
            assert (await anna.client.messaging())["messaging"]["queues"] == before["queues"]
            inbox = await anna.ctx.create_consumer(box)
            looking = [asyncio.create_task(look()) for _ in range(10)]
            got: list[str | None] = []
            for _ in range(40):
                message = await inbox.receive(timeout=10)
                assert message is not None
                assert not message.jms_redelivered
                got.append(message.text)
                await message.acknowledge()
            await asyncio.gather(*looking)
            assert got == [str(number) for number in range(40)]
            narrow = await shown.node("browse?queue=box")
            assert narrow == {"messages": [], "age_s": narrow["age_s"], "taken": narrow["taken"]}


@scene
async def test_a_queue_elsewhere_is_shown_with_the_age_of_its_snapshot(tmp_path: Path) -> None:
    async with Scene(tmp_path) as nodes:
        anna, bert = await nodes.start("anna"), await nodes.start("bert")
        await anna.linked("bert")
        await fill(anna, "box", 3)
        async with pages(bert) as shown:
            found = await shown.node("browse?queue=box@anna&select=level %3C 2")
            assert [each["text"] for each in found["messages"]] == ["0", "1"]
            assert 0 <= found["age_s"] < 60
            await nodes.stop(anna)
            nothing = await shown.node("browse?queue=other@anna")
            assert (nothing["messages"], nothing["age_s"]) == ([], None)


@scene
async def test_what_a_page_holds_is_settled_one_by_one_or_comes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Scene(tmp_path) as nodes:
        anna = await nodes.start("anna")
        box = await fill(anna, "box", HELD_MAX + 5)
        async with pages(anna) as shown:
            consumer = (await shown.node("consume", {"from": "queue/box@anna"}))["consumer"]
            held = (await shown.node(f"held?consumer={consumer}"))["messages"]
            assert [each["text"] for each in held] == [str(number) for number in range(HELD_MAX)]
            first, second = held[0]["number"], held[1]["number"]
            await shown.node("settle", {"consumer": consumer, "number": first, "how": "acknowledge"})
            assert "holds no message" in await shown.refused(
                "settle", {"consumer": consumer, "number": first, "how": "acknowledge"}
            )
            await shown.node("settle", {"consumer": consumer, "number": second, "how": "release"})
            taken = await shown.node("consume", {"from": "queue/box@anna", "mode": "take", "select": "level = 22"})
            assert [each["text"] for each in taken["messages"]] == ["22"]
            # The page is gone: nobody asks any more.
            monkeypatch.setattr(live, "_CONSUMERS_LINGER_S", 0.3)

            async def closed() -> bool:
                return not (await anna.client.messaging())["messaging"]["queues"][0]["demands"]

            await until(closed, 10)
            assert "what it held comes again" in await shown.refused(f"held?consumer={consumer}", None)
        inbox = await anna.ctx.create_consumer(box)
        left: dict[str | None, bool] = {}
        while len(left) < HELD_MAX + 3:
            message = await inbox.receive(timeout=10)
            assert message is not None
            left[message.text] = message.jms_redelivered
            await message.acknowledge()
        assert set(left) == {str(number) for number in range(HELD_MAX + 5)} - {"0", "22"}
        assert all(left[str(number)] for number in range(1, HELD_MAX))
        assert not left[str(HELD_MAX + 4)]


async def dead_letter(anna: Served, lifetime_s: float = 60) -> str:
    """Make a dead letter of the queue `box`; return its id."""
    box = await anna.ctx.declare_queue("box", tries=1)
    sent = await anna.ctx.send(box, "bad", label="bad", properties={"level": 3}, time_to_live=lifetime_s)
    async with ConnectionFactory(f"unix:{anna.settings.control}").create_context() as failing:

        def fail(_: object) -> None:
            raise ValueError("no such village")

        (await failing.create_consumer(box)).set_message_listener(fail)
        await anna.becomes("bad", "dead-letter")
    return str(sent.message_id)


async def places(shown: Pages) -> dict[str, list[str]]:
    """Return the messages in the queue and among its dead letters."""
    return {
        name: [each["text"] for each in (await shown.node(f"browse?queue={name}"))["messages"]]
        for name in ("box", "DLQ.box")
    }


@scene
async def test_a_dead_letter_is_retried_for_the_rest_of_its_lifetime(tmp_path: Path) -> None:
    async with Scene(tmp_path) as nodes:
        anna = await nodes.start("anna")
        message = await dead_letter(anna)
        async with pages(anna) as shown:
            (letter,) = (await shown.node("browse?queue=DLQ.box"))["messages"]
            answer = await shown.node("retry", {"queue": "queue/DLQ.box@anna", "message": message})
            assert answer["to"] == "queue/box@anna"
            (again,) = (await shown.node("browse?queue=box"))["messages"]
            assert again["expires"] == pytest.approx(letter["expires"], abs=0.1)
            assert (again["text"], again["properties"], again["label"]) == ("bad", {"level": 3}, "bad")
            assert await places(shown) == {"box": ["bad"], "DLQ.box": []}
            assert "is not in queue/DLQ.box@anna any more" in await shown.refused(
                "retry", {"queue": "queue/DLQ.box@anna", "message": message}
            )


def retry_and_die(data: str, message: str, after_s: float) -> int:
    """Retry a dead letter as a server of pages does, and be killed while that is under way."""

    async def work() -> None:
        acting = Messages(parse("", {}, {"node.data": data}))
        asyncio.get_running_loop().call_later(after_s, os.kill, os.getpid(), signal.SIGKILL)
        await acting.retry({"queue": "queue/DLQ.box@anna", "message": message})
        await asyncio.sleep(60)

    asyncio.run(work())
    return 0


@scene
async def test_a_letter_whose_retry_is_killed_at_any_point_is_in_one_queue(tmp_path: Path) -> None:
    async with Scene(tmp_path) as nodes:
        anna = await nodes.start("anna")
        message = await dead_letter(anna)
        box: dict[str, int] = {}
        for step in range(6):
            killed = copy(functools.partial(retry_and_die, str(anna.settings.data), message, 0.005 * 2**step))
            assert await asyncio.to_thread(killed.wait) == -signal.SIGKILL

            async def settled() -> dict[str, int]:
                """Return the messages by queue once no program has one."""
                queues = (await anna.client.messaging())["messaging"]["queues"]
                handed = any(each["handed"] or each["demands"] for each in queues)
                return {} if handed else {each["name"]: each["waiting"] for each in queues}

            box = await until(settled, 10)
            assert sum(box.values()) == 1, box
            if box["queue/box@anna"]:
                break
        assert box["queue/box@anna"], "it was never given the time to end"


@scene
async def test_pages_that_may_only_look_have_no_other_routes(tmp_path: Path) -> None:
    async with Scene(tmp_path) as nodes:
        anna = await nodes.start("anna")
        await fill(anna, "box", 1)
        async with pages(anna, read_only=True) as shown:
            assert (await shown.node("sample"))["read_only"] is True
            assert len((await shown.node("browse?queue=box"))["messages"]) == 1
            for path in ("send", "consume", "settle", "retry"):
                answer = await shown.ask(f"/api/nodes/{shown.id}/{path}", {"to": "topic/x"})
                assert answer.status in {404, 405}, path
            assert (await shown.ask(f"/api/nodes/{shown.id}/held?consumer=1")).status == 404


@scene
async def test_other_sites_may_not_send(tmp_path: Path) -> None:
    async with Scene(tmp_path) as nodes:
        anna = await nodes.start("anna")
        async with pages(anna) as shown:
            path, order = f"/api/nodes/{shown.id}/send", {"to": "topic/x", "body": "x"}
            for headers in (
                {"origin": "http://127.0.0.1:9999"}, {"origin": None}, {"origin": "null"}, {"cookie": None},
                {"content-type": "text/plain"}, {"content-type": "application/x-www-form-urlencoded"},
                {"sec-fetch-site": "same-site"}, {"sec-fetch-site": "cross-site"}, {"host": "evil.example"},
            ):  # fmt: skip
                assert (await shown.ask(path, order, headers)).status in {403, 415, 421}, headers
            assert (await shown.ask(f"{path}?to=topic/x&body=x")).status == 405, "an image"
            assert await anna.client.cache() == []


@scene
async def test_long_bodies_are_cut(tmp_path: Path) -> None:
    async with Scene(tmp_path) as nodes:
        anna = await nodes.start("anna")
        box = await anna.ctx.declare_queue("box")
        await anna.ctx.send(box, bytes(4 << 20), delivery_mode=DeliveryMode.PERSISTENT)
        async with pages(anna) as shown:
            answer = await shown.ask(f"/api/nodes/{shown.id}/browse?queue=box")
            (found,) = answer.json["messages"]
            assert (found["size"], len(base64.b64decode(found["base64"]))) == (4 << 20, BODY_MAX)
            assert len(answer.body) < 2 * BODY_MAX
