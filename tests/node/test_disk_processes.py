"""A program that fills its disk and is killed there, again and again: consuming always works, and makes room."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.support.agents import Agent
from tests.support.loopback import apart

AGENT = Path(__file__).parents[1] / "support" / "disk_agent.py"
DISK_BYTES = 7_792 * 1024
"""Size at which a store once filled the disk so tightly that its log had no room."""
ON_TOPIC = 8


def killed(until: str, what: str, *arguments: object) -> tuple[int, str]:
    """Return the number of sends of a program before it was killed, when it said this, and its output."""
    agent = Agent(AGENT, None, "", what, *arguments)
    try:
        agent.wait(lambda: bool(agent.said(until)))
    finally:
        said = agent.kill()
    return len(agent.said("sent")), said


def test_a_full_disk_is_consumed_after_every_kill_and_takes_as_much_as_before(
    small_disk: Callable[[int], Path],
) -> None:
    node, port = small_disk(DISK_BYTES) / "node", apart()["port"]
    sent, _ = killed("filled", "fill", node, port, ON_TOPIC)
    killed("stuck", "move", node, port)
    more, _ = killed("filled", "fill", node, port, 0)
    again, said = killed("filled", "drain", node, port, sent + more, ON_TOPIC)
    assert again >= sent - 2
    assert "the disk is full" in said.splitlines()[0]  # The store is full when the program starts.
