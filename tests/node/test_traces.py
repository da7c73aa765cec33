"""The history that a node keeps of messages, the copies that it holds, and the commands that show and purge them."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing, redirect_stderr, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.log.test_record import M1, M2
from tests.support.loopback import apart
from tests.support.nodes import QUICK, scene, until

from carrypost import ConnectionFactory, testing
from carrypost.attach import served_node
from carrypost.attach.client import Client
from carrypost.attach.served_node import ServedNode
from carrypost.cli import messages
from carrypost.cli.app import run
from carrypost.log import events
from carrypost.log.events import Passed, Reason
from carrypost.model.ids import NodeId
from carrypost.node.driver import NodeDriver
from carrypost.node.records import Traces
from carrypost.node.settings import NodeSettings, TraceSettings, parse

ANNA, BERT = NodeId("anna"), NodeId("bert")


class Driver:
    """A node's clock, which a test sets, and a host that is asked for nothing."""

    def __init__(self) -> None:
        self.now = 1_000_000
        self.host = SimpleNamespace(node=ANNA)

    def trace(self) -> None:
        """Ask the host for nothing."""

    @property
    def date(self) -> int:
        return self.now


def opened(file: Path, driver: Driver, **settings: Any) -> Traces:  # noqa: ANN401 - settings of any type
    return Traces(file, TraceSettings(enabled=True, **settings), cast("NodeDriver", driver))


def told(traces: Traces, name: str) -> list[tuple[str, float]]:
    return [(row["kind"], row["t"]) for row in traces.find(name)]


@pytest.mark.parametrize("size", [100, 40_000])
def test_who_acknowledged_a_message_is_told_after_trace_and_only_then(size: int) -> None:
    passed: list[tuple[str, Passed]] = []
    with testing.network("anna", "bert", seed=1) as net:
        net.watch(lambda _, node, event: passed.append((node, event)) if isinstance(event, Passed) else None)
        net.subscribe("bert", "news")
        net.link("anna", "bert")
        net.publish("anna", "news", bytes(size))
        net.advance(30)
        assert not passed
        net.host("anna").trace()
        net.publish("anna", "news", bytes(size), label="second")
        net.advance(30)
        assert len(net.deliveries("bert")) == 2
    ((node, event),) = passed
    assert (node, event.peer, [each.label for each in event.descriptors]) == ("anna", "bert", ["second"])


@scene
async def test_a_message_is_found_by_its_id_and_all_of_a_label_by_that(tmp_path: Path) -> None:
    driver = Driver()
    traces = opened(tmp_path / "trace.sqlite", driver)
    traces.observe(events.Received(BERT, (events.Reception(M1, 1, 0), events.Reception(M2, 2, 0))))
    driver.now += 1_000_000
    traces.observe(events.NeighbourUp(BERT))
    traces.observe(events.Refused("kind", "bert"))
    traces.observe(events.Dropped((M2,), Reason.EVICTED))
    assert M2.label
    assert told(traces, M1.shown) == told(traces, f"ID:{M1.shown}") == [("receive", 1.0)]
    assert told(traces, M2.label) == told(traces, M2.id.decode()) == [("receive", 1.0), ("drop", 2.0)]
    assert told(traces, "bert") == told(traces, "anna") == told(traces, "receive") == []
    traces.close()
    again = opened(tmp_path / "trace.sqlite", driver)
    assert told(again, M2.label) == [("receive", 1.0), ("drop", 2.0)]
    assert (tmp_path / "trace.sqlite").stat().st_mode & 0o777 == 0o600
    again.close()


@scene
async def test_the_oldest_messages_are_forgotten_and_those_of_long_ago(tmp_path: Path) -> None:
    driver = Driver()
    traces = opened(tmp_path / "trace.sqlite", driver, messages_max=2, keep_s=100.0)
    for _ in range(4):
        traces.observe(events.Received(BERT, (events.Reception(M1, 1, 0),)))
        traces.flush()
        driver.now += 1_000_000
    assert told(traces, M1.shown) == [("receive", 3.0), ("receive", 4.0)]
    traces.close()
    driver.now += 98_500_000
    traces = opened(tmp_path / "trace.sqlite", driver, messages_max=2, keep_s=100.0)
    assert told(traces, M1.shown) == [("receive", 4.0)]
    # What tells of no arrival is bounded by its bytes.
    for _ in range(4):
        for number in range(40):
            traces.observe(events.Refused("size", "bert", message=f"{number} " + "x" * 200))
        traces.flush()
    assert told(traces, M1.shown) == []
    traces.close()


@scene
async def test_a_damaged_file_is_set_aside_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "trace.sqlite"
    file.write_bytes(b"no database at all" * 100)
    driver = Driver()
    traces = opened(file, driver)
    traces.observe(events.Published(M1))
    assert told(traces, M1.shown) == [("publish", 1.0)]
    traces.close()
    content = bytearray(file.read_bytes())
    content[4096:] = bytes(len(content) - 4096)
    file.write_bytes(content)
    traces = opened(file, driver)  # It is found when it is read.
    traces.observe(events.Published(M2))
    traces.flush()
    traces.observe(events.Published(M2))
    assert told(traces, M2.label)
    traces.close()
    assert file.with_name("trace.sqlite.damaged").exists()
    assert [each.levelno for each in caplog.records] == [logging.WARNING] * 2
    assert all("is damaged" in each.getMessage() for each in caplog.records)


@scene
async def test_lines_that_are_damaged_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "trace.sqlite"
    traces = opened(file, Driver())
    traces.observe(events.Published(M1))
    traces.close()
    with closing(sqlite3.connect(file)) as history:
        for lines in (f'{{"message":"{M1.shown}","ki', f'["{M1.shown}"]', f'{{"t":"{M1.shown}"}}'):
            history.execute("UPDATE burst SET lines = lines || ?", (f"\n{lines}",))
        history.commit()
    traces = opened(file, Driver())
    assert told(traces, M1.shown) == [("publish", 1.0)]
    traces.close()


@scene
async def test_a_full_disk_costs_rows_and_is_told_once(
    small_disk: Callable[[int], Path], caplog: pytest.LogCaptureFixture
) -> None:
    disk = small_disk(128 * 1024)
    driver = Driver()
    traces = opened(disk / "trace.sqlite", driver)
    filler = disk / "foreign"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(bytes(4_096)):
            pass
    for _ in range(20):
        for number in range(40):
            traces.observe(events.Refused("size", "bert", message=f"{number} " + "x" * 200))
        traces.flush()
    assert traces.lost >= 40
    filler.unlink()
    traces.observe(events.Published(M1))
    assert told(traces, M1.shown) == [("publish", 1.0)]
    traces.close()
    first, last = (each.getMessage() for each in caplog.records)
    assert "the node continues without" in first
    assert f"can be written again; {traces.lost} rows are missing" in last


# --- commands ----------------------------------------------------------------------------------------------


def settings(folder: Path, name: str, udp: dict[str, Any], **more: Any) -> NodeSettings:  # noqa: ANN401 - any setting
    place = {"data": str(folder / name), "name": name}
    return parse("", {}, {**QUICK, "security": "off", "udp": udp, "node": place, **more})


class Commands:
    """Commands about one node of this process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def run(self, *arguments: str) -> tuple[int, list[dict[str, Any]], str]:
        """Run a command outside of the node's loop; return its exit code, its lines and its output on stderr."""
        with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
            code = await asyncio.to_thread(run, [*arguments, "--data", str(self._folder), "--json"])
        return code, [json.loads(line) for line in out.getvalue().splitlines()], err.getvalue()


def examples(command: Callable[..., None]) -> list[list[str]]:
    """Return the examples of the help of a command."""
    return [found.split() for found in re.findall("`carrypost ([^`]*)`", str(command.__doc__))]


@scene
async def test_the_history_of_a_message_is_told_at_both_ends_and_after_a_restart(tmp_path: Path) -> None:
    udp, trace = apart(), {"enabled": True}
    anna, bert = (settings(tmp_path, name, udp, trace=trace) for name in ("anna", "bert"))
    nodes = [await ServedNode.start(each) for each in (anna, bert)]
    here, there = (ConnectionFactory(f"unix:{each.control}") for each in (anna, bert))
    async with here.create_context() as sender, there.create_context() as receiver:
        reader = await receiver.create_consumer("topic/news")
        sent = await sender.send("topic/news", "hello", label="firstMSG")
        assert await reader.receive(timeout=20) is not None
        commands = Commands(tmp_path / "anna")

        async def passed() -> list[dict[str, Any]]:
            _, rows, _ = await commands.run("trace", "firstMSG")
            return [row for row in rows if row["kind"] == "pass"]

        (row,) = await until(passed)
        assert row["peer"] == "bert"
    code, rows, err = await Commands(tmp_path / "bert").run("trace", str(sent.message_id))
    assert (code, err) == (0, "")
    assert [row["kind"] for row in rows][:2] == ["receive", "deliver"]
    assert rows[0]["attrs"] == {"label": "firstMSG"}
    for node in nodes:
        await node.stop()
    code, rows, err = await commands.run("trace", "firstMSG")
    assert (code, rows) == (4, [])
    assert "no node answers" in err
    again = await ServedNode.start(anna)
    for arguments in examples(messages.trace):
        code, rows, err = await commands.run(*arguments)
        assert (code, err) == (0, "")
        assert [row["kind"] for row in rows] == ["publish", "pass", "held", "verdict"]
        assert rows[-2]["expires"] > rows[-2]["received"]
        assert rows[-1]["verdict"] == "carried"
    assert await commands.run("trace", "another") == (
        1, [], "carrypost: this node knows no message with the id or label another\n",
    )  # fmt: skip
    await again.stop()


@scene
async def test_without_a_history_trace_tells_what_is_held_and_how_to_keep_one(tmp_path: Path) -> None:
    of = settings(tmp_path, "anna", apart())
    node = await ServedNode.start(of)
    async with ConnectionFactory(f"unix:{of.control}").create_context() as ctx:
        await ctx.send("topic/news", "hello", label="firstMSG")
        code, rows, err = await Commands(tmp_path / "anna").run("trace", "firstMSG")
    assert (code, [row["kind"] for row in rows]) == (0, ["held", "verdict"])
    assert "set trace.enabled = true" in err
    assert not (tmp_path / "anna" / "trace.sqlite").exists()
    await node.stop()


@scene
async def test_what_is_held_is_shown_and_purged_but_for_what_a_program_is_owed(tmp_path: Path) -> None:
    of = settings(tmp_path, "anna", apart())
    node = await ServedNode.start(of)
    commands = Commands(tmp_path / "anna")
    async with ConnectionFactory(f"unix:{of.control}", client_id="c").create_context() as ctx:
        queue = await ctx.declare_queue("Alan")
        await ctx.create_durable_consumer(ctx.create_topic("news"), "mail")
        await ctx.send("topic/news", "owed", label="owed")
        await ctx.send("topic/weather", "sunny", label="firstMSG")
        await ctx.send(queue, "letter", label="letter")
        code, held, err = await commands.run("cache", "inspect")
        shown = {each["label"]: each for each in held if each["label"]}
        assert (code, err) == (0, "")
        assert {label: (each["destination"], each["owed_to"], each["owed"]) for label, each in shown.items()} == {
            "owed": ("topic/news", ["topic/news (mail)"], True),
            "firstMSG": ("topic/weather", [], False),
            "letter": ("queue/Alan@anna", ["queue/Alan@anna"], True),
        }
        assert {each["role"] for each in held} == {"own"}
        for arguments in examples(messages.inspect):
            code, held, err = await commands.run(*arguments)
            assert (code, err) == (0, "")
            assert ("letter" in [each["label"] for each in held]) is ("--foreign" not in arguments)
        code, gone, err = await commands.run("cache", "purge", "--to", "topic/news")
        assert (code, [each["purged"] for each in gone]) == (1, [False])
        assert err == "carrypost: messages kept: 1; programs here have yet to receive them, and --force removes them\n"
        purged: list[str] = []
        for arguments in examples(messages.purge):
            code, gone, err = await commands.run(*arguments)
            assert (code, err, [each["purged"] for each in gone]) == (0, "", [True] * len(gone))
            purged += [each["label"] for each in gone]
        assert purged == ["firstMSG", "letter"]
        code, _, err = await commands.run("cache", "purge")
        assert (code, "name what to remove" in err) == (2, True)
        code, _, err = await commands.run("cache", "purge", "--to", "Alan")
        assert (code, "Write --to topic/Alan or --to queue/Alan" in err) == (2, True)
        assert await commands.run("cache", "purge", "unknown") == (
            0, [], "carrypost: the node holds no such messages\n"
        )  # fmt: skip
        code, rows, err = await commands.run("trace", "")
        assert (code, rows) == (1, []), "most messages have no label"
        assert [each["label"] for each in (await commands.run("cache", "inspect"))[1] if each["label"]] == ["owed"]
    await node.stop()


@scene
async def test_carried_messages_are_shown_page_by_page_and_purged_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_node, "_PAGE", 4)
    udp = apart()
    anna, bert = settings(tmp_path, "anna", udp), settings(tmp_path, "bert", udp, altruistic=True)
    nodes = [await ServedNode.start(each) for each in (anna, bert)]
    async with (
        ConnectionFactory(f"unix:{anna.control}").create_context() as ctx,
        await Client.connect(bert.control) as client,
    ):
        for number in range(10):
            await ctx.send("topic/news", str(number))

        async def carried() -> list[dict[str, Any]] | None:
            held = await client.cache(foreign=True)
            return held if len(held) >= 10 else None

        held = await until(carried)
        assert {each["role"] for each in held} == {"carried"}
        assert len({each["message"] for each in held}) == len(held)
        gone = await client.cache(foreign=True, purge=True)
        assert all(each["purged"] for each in gone)
        assert await client.cache(destination="topic/news") == []
    for node in nodes:
        await node.stop()


@scene
async def test_people_at_a_terminal_get_sentences_and_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of = settings(tmp_path, "anna", apart(), trace={"enabled": True})
    node = await ServedNode.start(of)
    async with ConnectionFactory(f"unix:{of.control}").create_context() as ctx:
        await ctx.send("topic/news", "hello", label="firstMSG")
        for arguments in (["trace", "firstMSG"], ["cache", "inspect"], ["cache", "purge", "firstMSG"]):
            assert await asyncio.to_thread(run, [*arguments, "--data", str(tmp_path / "anna")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "stored here: a program of this node sent it to topic/news" in shown
    assert "now held here (own) for others, until " in shown
    assert "firstMSG topic/news own others" in shown
    assert "messages removed: 1 (5 B)" in shown
    await node.stop()
