"""The walks through the code in `CONTRIBUTING.md`: each names functions once, in the order of their calls."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from carrypost import SessionMode, testing

ROOT = Path(__file__).resolve().parents[2]
ELSEWHERE = {"Host.lost"}
"""Functions that a walk names for what happens otherwise."""
_CALLED = re.compile(r"`((?:[A-Z]\w*\.)\w+|[a-z_]+_[a-z_]+)`")


def walks() -> dict[str, list[str]]:
    """Return the functions that each walk names."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.partition("## Five walks through the code")[2].partition("\n## ")[0]
    return {
        part.splitlines()[0]: [name for name in _CALLED.findall(part) if name not in ELSEWHERE]
        for part in section.split("\n### ")[1:]
    }


class Trace:
    """The functions of the package that are called while a walk is taken, in order."""

    def __init__(self) -> None:
        self.calls: dict[str, list[str]] = {}

    @contextmanager
    def walk(self, *names: str) -> Iterator[None]:
        """Note calls within the block as part of these walks."""
        noted: list[str] = []

        def note(frame: FrameType, event: str, _: object) -> None:
            if event == "call" and "carrypost" in frame.f_code.co_filename:
                noted.append(frame.f_code.co_qualname)

        sys.setprofile(note)
        try:
            yield
        finally:
            sys.setprofile(None)
            for name in names:
                self.calls.setdefault(name, []).extend(noted)


@pytest.fixture(scope="module")
def trace() -> Trace:
    found = Trace()

    async def scene() -> None:
        async with testing.network("anna", "carl", seed=1) as net:
            net.link("anna", "carl")
            async with net.context("anna") as anna, net.context("carl") as carl:
                news = anna.create_topic("news")
                reader = await carl.create_consumer(carl.create_topic("news"))
                await net.run(30)
                with found.walk("One send"):
                    await anna.create_producer().send(news, "hello")
                with found.walk("One receive"):
                    assert await reader.receive(timeout=60) is not None
                    await net.run(1)
                with found.walk("One offer"):
                    await anna.create_producer().send(news, random.Random(1).randbytes(5_000))
                    assert await reader.receive(timeout=60) is not None
                    await net.run(1)
                jobs = await anna.declare_queue("jobs")
                await net.run(30)
                work = await carl.create_context(SessionMode.SESSION_TRANSACTED)
                worker = await work.create_consumer(work.create_queue("jobs"))
                await net.run(30)
                with found.walk("One queue hand-out"):
                    await anna.create_producer().send(jobs, "dig")
                    assert await worker.receive(timeout=60) is not None
                await work.create_producer().send(news, "done")
                with found.walk("One commit"):
                    await work.commit()
                    await net.run(30)

    testing.run(scene)
    return found


@pytest.mark.pure("traces calls")
@pytest.mark.parametrize("walk", list(walks()))
def test_a_walk_names_what_is_called_in_order(trace: Trace, walk: str) -> None:
    named = walks()[walk]
    assert len(named) > 8
    assert len(named) == len(set(named)), "a function is named twice"
    left = iter(trace.calls[walk])
    missed = next((name for name in named if name not in left), None)
    assert missed is None, f"{missed} is not called, or before what is named before it"


def test_one_send_and_its_receive_take_a_bounded_number_of_calls() -> None:
    """Bound the length of the way from a program to another one on a neighbouring node; lower it with the code."""
    found = Trace()

    async def scene() -> None:
        async with testing.network("anna", "carl", seed=1) as net:
            net.link("anna", "carl")
            async with net.context("anna") as anna, net.context("carl") as carl:
                reader = await carl.create_consumer("topic/news")
                await net.run(30)
                for _ in range(3):
                    await anna.send("topic/news", "warm")
                    assert await reader.receive(timeout=60) is not None
                    await net.run(1)
                await net.run(5)
                with found.walk("both"):
                    await anna.send("topic/news", "hello")
                    assert await reader.receive(timeout=60) is not None

    testing.run(scene)
    calls = found.calls["both"]
    assert len(set(calls)) <= 450
    assert len(calls) <= 700
