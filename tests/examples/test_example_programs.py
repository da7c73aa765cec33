"""The examples in virtual time, among people who meet and part, and as programs with real nodes."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest
from tests.support.loopback import apart
from tests.support.nodes import PATIENCE_S

from carrypost import SessionMode, testing

EXAMPLES = Path(__file__).parents[2] / "examples"
LINES_MAX = {"texter": 150, "file_drop": 150, "sensors": 150, "service": 150, "shared_list": 150, "flood_watch": 200}


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Keyboard:
    """Lines that a person types when the test says so."""

    def __init__(self) -> None:
        self._lines = asyncio.Queue[str | None]()

    def type(self, *lines: str | None) -> None:
        for line in lines:
            self._lines.put_nowait(line)

    async def __aiter__(self) -> AsyncIterator[str]:
        while (line := await self._lines.get()) is not None:
            yield line


def test_examples_are_short_and_say_how_to_run_them() -> None:
    for name, lines_max in LINES_MAX.items():
        text = (EXAMPLES / f"{name}.py").read_text()
        assert len(text.splitlines()) < lines_max, name
        assert f"python examples/{name}.py" in str(example(name).__doc__)


# --- virtual time ------------------------------------------------------------------------------------------


def test_public_texts_reach_everybody_and_private_ones_their_receiver_by_a_carrier() -> None:
    texter = example("texter").texter

    async def scene() -> dict[str, list[str]]:
        shown: dict[str, list[str]] = {name: [] for name in ("anna", "bert", "carl")}
        keys = {name: Keyboard() for name in shown}
        async with testing.network(*shown, seed=3, altruistic=True) as net, asyncio.TaskGroup() as people:

            async def person(name: str) -> None:
                async with net.context(name, client_id=name) as ctx:
                    await texter(ctx, name, keys[name], shown[name].append)

            for name in shown:
                people.create_task(person(name))
            for first, second in (("anna", "bert"), ("bert", "carl")) * 2:  # Anna and Carl never meet.
                net.link(first, second)
                await net.run(60)
                net.unlink(first, second)
            keys["anna"].type("The bridge is closed.", "@carl See you at eight.", "@nobody Hello?")
            for first, second in (("anna", "bert"), ("bert", "carl")) * 3:
                net.link(first, second)
                await net.run(60)
                net.unlink(first, second)
            for each in keys.values():
                each.type(None)
        return shown

    shown = testing.run(scene)
    assert shown["bert"] == ["anna: The bridge is closed."]
    assert shown["carl"] == ["anna: The bridge is closed.", "anna, to you alone: See you at eight."]
    unknown, delivered = shown["anna"]
    assert unknown.startswith("! ")
    assert delivered == "  (delivered: @carl See you at eight.)"


def test_files_are_written_whole_and_stay_in_the_folder(tmp_path: Path) -> None:
    module = example("file_drop")
    there = tmp_path / "there"
    files = {"photo.jpg": bytes(range(256)) * 400, "note.txt": b"The mill is for sale."}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)

    async def scene() -> list[str]:
        said: list[str] = []
        async with testing.network("anna", "bert", seed=1) as net:
            mode = SessionMode.INDIVIDUAL_ACKNOWLEDGE
            async with net.context("anna") as here, net.context("bert", mode, client_id="drop") as other:
                collecting = asyncio.create_task(module.collect(other, there, said.append))
                dropping = asyncio.create_task(module.drop(here, [tmp_path / name for name in files], said.append))
                await net.run(10)
                assert not dropping.done()
                net.link("anna", "bert")
                await net.run(60)
                await dropping
                collecting.cancel()
        return said

    said = testing.run(scene)
    assert "a neighbour has everything" in said
    assert {each.name: each.read_bytes() for each in there.iterdir()} == files
    assert module.write(there, "../../outside", b"x") == there / "outside"


def test_readings_are_chosen_by_their_properties() -> None:
    module = example("sensors")

    async def readings() -> AsyncIterator[float]:
        for celsius in (19.5, 20.5, 31.0):
            yield celsius

    async def scene() -> list[str]:
        shown: list[str] = []
        async with (
            testing.network("mill", "home", seed=1) as net,
            net.context("mill") as here,
            net.context("home") as there,
        ):
            watching = asyncio.create_task(module.watch(there, "celsius > 20", shown.append))
            net.link("mill", "home")
            await net.run(30)
            await module.measure(here, "mill", readings())
            await net.run(30)
            watching.cancel()
        return shown

    assert sorted(testing.run(scene)) == ["mill: 20.5 °C", "mill: 31.0 °C"]


def test_a_service_answers_whoever_came_to_know_it() -> None:
    module = example("service")

    async def scene() -> list[str]:
        async with (
            testing.network("office", "home", seed=1) as net,
            net.context("office") as here,
            net.context("home") as there,
        ):
            serving = asyncio.create_task(module.serve(here))
            asking = [asyncio.create_task(module.ask(there, place)) for place in ("mill", "moon")]
            await net.run(60)
            assert not any(each.done() for each in asking)
            net.link("office", "home")
            answers = [await each for each in asking]
            serving.cancel()
        return answers

    assert testing.run(scene) == ["to mill: 8:10, 12:10 and 17:40", "no bus goes to moon"]


def test_shared_lists_become_the_same_and_a_concurrent_addition_stays() -> None:
    module = example("shared_list")

    async def scene() -> list[list[str]]:
        async with testing.network("anna", "bert", "carl", seed=2) as net, asyncio.TaskGroup() as tasks:
            contexts = [await net.context(name) for name in ("anna", "bert", "carl")]
            anna, bert, carl = lists = [module.SharedList(ctx) for ctx in contexts]
            following = [tasks.create_task(each.follow(lambda _: None)) for each in lists]
            net.link("anna", "bert")
            await net.run(10)
            await anna.add("milk")
            await anna.add("bread")
            await net.run(30)
            net.unlink("anna", "bert")
            await bert.strike("milk")
            await carl.add("milk")
            await net.run(5)
            assert (anna.entries, bert.entries, carl.entries) == (["bread", "milk"], ["bread"], ["milk"])
            for first, second in (("bert", "carl"), ("anna", "carl"), ("bert", "carl"), ("anna", "bert")):
                net.link(first, second)
                await net.run(60)
                net.unlink(first, second)
            for each in following:
                each.cancel()
            for ctx in contexts:
                await ctx.close()
        return [each.entries for each in lists]

    assert testing.run(scene) == [["bread", "milk"]] * 3


@pytest.mark.parametrize("wat", [False, True], ids=["Python", "WAT"])
def test_a_broker_computes_the_water_of_a_storm_for_a_watcher(*, wat: bool) -> None:
    if wat:
        pytest.importorskip("wasmtime", reason="WebAssembly modulators need the extra: pip install '.[wasm]'")
    module, area, overlay = example("flood_watch"), [60, 60, 92, 92], {"enabled": True}
    images = list(module.storm(seed=1, images=14))[::6]

    async def scene() -> tuple[list[str], list[str]]:
        fed: list[str] = []
        shown: list[str] = []
        async with (
            testing.network("feed", "watcher", seed=1, island=True, overlay=overlay) as net,
            net.context("feed") as here,
            net.context("watcher") as there,
        ):
            modulator = module.runoff(area, wat=wat)
            watching = asyncio.create_task(module.watch(there, area, modulator, shown.append))
            await net.run(3)
            for name, allowed in (("miser", "named"), ("B", "any")) if wat else (("B", "named"),):
                net.add(name, overlay=overlay | {"broker": True, "modulators": allowed})
                net.link("watcher", name)
                await net.run(20)
            net.link("B", "feed")
            await module.feed(here, module.paced(images), fed.append)
            await net.run(5)
            watching.cancel()
        return fed, shown

    fed, shown = testing.run(scene)
    assert fed[0].startswith("0:00  rain on the land: ")
    assert shown.pop(0) == "waiting for a broker"
    if wat:
        assert shown.pop(0).startswith("a broker refused: this broker runs registered modulators only")
    assert shown == [
        "broker B computes the water",
        "0:00  dry",
        "0:05  deepest 0.11 m in column 72, row 60; 0% flooded",
        "0:10  deepest 0.86 m in column 72, row 60; 10% flooded",
    ]


def test_areas_and_files_of_the_flood_watch_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = example("flood_watch")
    for area in ([60, 60, 60, 92], [60, 60, 92, 192], [-1, 60, 92, 92]):
        with pytest.raises(ValueError, match="100 columns"):
            module.runoff(area)
    (tmp_path / "rain").write_bytes(b"a shower")
    with pytest.raises(ValueError, match="draw some with the command storm"):
        module.recorded(tmp_path / "rain")
    monkeypatch.setattr("sys.argv", ["flood_watch", "watch", "60", "60", "92"])
    with pytest.raises(SystemExit, match="2"):  # Without a traceback.
        module.arguments()
    images = list(module.storm(seed=2, images=2))
    (tmp_path / "rain").write_bytes(b"".join(images))
    assert module.recorded(tmp_path / "rain") == images == list(module.storm(seed=2, images=2))


# --- real nodes --------------------------------------------------------------------------------------------


class Scripts:
    """Examples that run as programs, in one folder and on one loopback network."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        quick = {"CARRYPOST_ANNOUNCE_S_MIN": "0.2", "CARRYPOST_ANNOUNCE_S_MAX": "0.5"}
        udp = {f"CARRYPOST_UDP_{name.upper()}": json.dumps(value) for name, value in apart().items()}
        self._environment = os.environ | quick | udp | {"PYTHONUNBUFFERED": "1"}

    @contextmanager
    def run(self, name: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        with subprocess.Popen(  # noqa: S603 - our own
            [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments], cwd=self._folder, env=self._environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            guard = threading.Timer(2 * PATIENCE_S, process.kill)  # What it says is read without a timeout.
            guard.start()
            try:
                yield process
            finally:
                guard.cancel()
                process.kill()


def said(process: subprocess.Popen[str], expected: str) -> str:
    """Read lines until one contains these words."""
    assert process.stdout is not None
    for line in process.stdout:
        if expected in line:
            return line.strip()
    raise AssertionError(f"nothing with {expected!r}: {process.stderr.read() if process.stderr else ''}")


def typed(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


@pytest.fixture
def scripts(tmp_path: Path) -> Scripts:
    return Scripts(tmp_path)


@pytest.mark.soak
def test_a_file_is_dropped_by_one_program_and_written_by_another(scripts: Scripts, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("The mill is for sale.")
    with (
        scripts.run("file_drop", "receive", "inbox") as receiver,
        scripts.run("file_drop", "send", "note.txt") as sender,
    ):
        assert said(sender, "a neighbour") == "a neighbour has everything"
        assert said(receiver, "note.txt") == "note.txt is here"
        assert sender.wait(PATIENCE_S) == 0
    assert (tmp_path / "inbox" / "note.txt").read_text() == "The mill is for sale."


@pytest.mark.soak
def test_readings_and_questions_go_between_programs(scripts: Scripts) -> None:
    with scripts.run("sensors", "watch", "place = 'mill'") as watcher, scripts.run("sensors", "measure", "mill"):
        assert said(watcher, "mill").endswith("°C")
    with scripts.run("service", "serve"), scripts.run("service", "ask", "town") as client:
        assert said(client, "town") == "to town: 7:00 and 18:00"
        assert client.wait(PATIENCE_S) == 0


@pytest.mark.soak  # Four programs start; the scene in virtual time is the same.
def test_a_storm_is_fed_computed_and_watched_by_three_programs(scripts: Scripts, tmp_path: Path) -> None:
    (tmp_path / "rain.dat").write_bytes(bytes(20_000))
    with scripts.run("flood_watch", "broker"), scripts.run("flood_watch", "watch", "60", "60", "92", "92") as watcher:
        assert said(watcher, "computes").endswith(" computes the water")
        with scripts.run("flood_watch", "feed", "rain.dat") as feed:
            assert said(watcher, "0:00") == "0:00  dry"
            assert said(feed, "storm").startswith("that was the storm")
            assert feed.wait(PATIENCE_S) == 0
    with scripts.run("flood_watch", "feed", "nothing.dat") as feed:
        assert feed.wait(PATIENCE_S) == 1
        assert feed.stderr is not None
        assert feed.stderr.read() == "flood_watch: [Errno 2] No such file or directory: 'nothing.dat'\n"


def test_people_text_and_share_a_list_by_programs(scripts: Scripts) -> None:
    with scripts.run("texter", "anna") as anna, scripts.run("texter", "bert") as bert:
        typed(anna, "Hello!")
        assert said(bert, "Hello") == "anna: Hello!"
        typed(bert, "@anna Good morning.")
        assert said(anna, "alone") == "bert, to you alone: Good morning."
    with scripts.run("shared_list", "anna") as anna, scripts.run("shared_list", "bert") as bert:
        typed(anna, "+ milk")
        assert said(bert, "milk") == "milk"
        typed(bert, "- milk")
        assert said(anna, "empty") == "the list is empty"
        assert anna.stdin is not None
        anna.stdin.close()
        assert anna.wait(PATIENCE_S) == 0
