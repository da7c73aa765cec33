"""Lengths of time that look like Java's milliseconds: what warns of them, and what does not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta

import pytest
from tests.support.jms_scenes import NEWS, scene

from carrypost import Producer, UnitWarning, testing

SUSPECT: dict[str, Callable[[Producer], object]] = {
    "time to live": lambda producer: producer.set_time_to_live(10_000),
    "longer time to live": lambda producer: producer.set_time_to_live(86_400_000),
    "delivery delay": lambda producer: producer.set_delivery_delay(10_000),
}
PLAIN: dict[str, Callable[[Producer], object]] = {
    "short": lambda producer: producer.set_time_to_live(9_000),
    "no multiple": lambda producer: producer.set_time_to_live(86_400),
    "keyword": lambda producer: producer.set_time_to_live(seconds=10_000),
    "timedelta": lambda producer: producer.set_time_to_live(timedelta(seconds=10_000)),
    "float": lambda producer: producer.set_time_to_live(10_000.0),
    "milliseconds": lambda producer: producer.set_time_to_live_ms(10_000_000),
    "delivery delay": lambda producer: producer.set_delivery_delay(hours=10_000),
}


@pytest.mark.parametrize("call", SUSPECT)
@scene("a")
async def test_a_setter_warns_of_what_looks_like_milliseconds(net: testing.Network, call: str) -> None:
    async with net.context("a") as context:
        with pytest.raises(UnitWarning, match=r"not milliseconds as in Java, .*: pass .*, or seconds=\d+ if"):
            SUSPECT[call](context.create_producer())


@pytest.mark.parametrize("call", PLAIN)
@scene("a")
async def test_a_setter_does_not_warn_of_what_is_plain(net: testing.Network, call: str) -> None:
    async with net.context("a") as context:
        PLAIN[call](context.create_producer())


@scene("a")
async def test_only_a_whole_number_by_position_warns_when_receiving(net: testing.Network) -> None:
    async with net.context("a") as context, context.create_consumer(NEWS) as inbox:
        with pytest.raises(UnitWarning, match=r"receive takes seconds, .* pass 1, or timeout=1000 if"):
            await inbox.receive(1000)
        with pytest.raises(UnitWarning, match=r"receive_body takes seconds, .* pass 30, or timeout=30000 if"):
            await inbox.receive_body(str, 30_000)
        assert await inbox.receive(999) is None
        assert await inbox.receive(1_000.0) is None
        assert await inbox.receive(timeout=1_000) is None
        assert await inbox.receive(timedelta(seconds=1_000)) is None
        assert await inbox.receive_body(str, timeout=1_000) is None


PROGRAM = """
from carrypost import testing

async def scene():
    async with testing.network("a", seed=1) as net, net.context("a") as ctx:
        inbox = await ctx.create_consumer(ctx.create_topic("news"))
        for _ in range(3):
            await inbox.receive(1000)
            ctx.create_producer().set_time_to_live(60000)

testing.run(scene)
"""


def test_each_call_warns_once_per_process_where_the_program_is() -> None:
    ran = subprocess.run([sys.executable, "-W", "always", "-c", PROGRAM], capture_output=True, text=True, check=True)  # noqa: S603 - our own
    warned = [line for line in ran.stderr.splitlines() if "UnitWarning" in line]
    assert [line.split(": ")[0] for line in warned] == ["<string>:8", "<string>:9"]
    assert ["receive takes" in warned[0], "set_time_to_live takes" in warned[1]] == [True, True]


def test_it_is_a_warning_for_users() -> None:
    assert issubclass(UnitWarning, UserWarning)
