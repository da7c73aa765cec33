"""Crash and restart at every batch, before and after it is durable, and at every event.

One scripted exchange of three hosts is run to count the batches of each. Then it is run once for every batch of every
host, with the power failing right before or right after that batch is on disk; and once for every event that a host
emits, with the host killed when the event is handled. `watched_network` checks the invariants at every event. In the
end, everything that can be wanted has arrived, at each point of failure.
"""

from __future__ import annotations

from itertools import count

import pytest
from tests.support.watched_network import Config, Watched

from carrypost.log import events

PIECE = 16 * 1024
CONFIGS = {
    "at once": Config(altruistic=True),
    "slow disks": Config(altruistic=True, disk_delay_s=0.3),
    "late confirmation": Config(altruistic=True, confirm=False),
    "as the papers have it": Config(altruistic=True, paper_mode=True),
    "signed": Config(altruistic=True, security="signed", disk_delay_s=0.02),
}


class Story:
    """The exchange; a node that crashes is back after a second."""

    def __init__(self, config: Config) -> None:
        self.world = Watched(config)
        self.over = False

    def back(self, seconds: float) -> None:
        """Time passes, and the fallen come back."""
        self.world.advance(seconds)
        for name, node in self.world.nodes.items():
            if node.state == "down":
                self.world.restart(name)
                self.world.advance(1.0)

    def publish(self, node: str, destination: str, size: int, **how: object) -> None:
        self.back(0.1)
        if self.world.nodes[node].state == "up":
            self.world.play("publish", node, destination, size, **how)

    def confirm(self, node: str) -> None:
        known = self.world.nodes[node]
        if known.state == "up" and not self.world.config.confirm:
            self.world.confirm(node, [n for n in known.delivered if n not in known.confirming])

    def subscribe(self, node: str, pattern: str) -> None:
        self.back(0.1)
        self.world.subscribe(node, pattern)

    def tell(self) -> None:
        """Let a publish, b carry, c want and answer; one message has several pieces, one expires on the way."""
        world = self.world
        self.subscribe("c", "news")
        self.publish("a", "news", 0, persistent=True)
        world.link("a", "b")
        self.publish("a", "news", 2 * PIECE + 1)
        self.publish("a", "news", 700, persistent=True, lifetime_s=6.0)
        self.back(8.0)
        world.unlink("a", "b")
        world.link("b", "c")
        self.back(8.0)
        self.confirm("c")
        self.subscribe("a", "answers")
        self.publish("c", "answers", 3_000, persistent=True)
        self.back(2.0)
        self.subscribe("c", "answers")
        world.link("a", "b")
        self.back(8.0)
        self.confirm("a")
        self.confirm("c")
        self.back(2.0)
        self.over = True
        world.settle()

    def end(self) -> None:
        self.world.close()


def batches(config: Config) -> dict[str, int]:
    story = Story(config)
    try:
        story.tell()
        return {name: story.world.store(name).batches for name in config.names}
    finally:
        story.end()


def crash_everywhere(config: Config, every: int) -> int:
    """Crash at every n-th point (`every`); return the number of points."""
    points = 0
    written = 0 if config.disk_delay_s else 1  # while the network is opened
    for name, most in batches(config).items():
        for number in range(written + 1, most + 1):
            for after in (False, True):
                points += 1
                if points % every:
                    continue
                story = Story(config)
                story.world.arm(name, number - written, after)
                try:
                    story.tell()
                    assert story.world.nodes[name].life > 1, "no crash"
                except Exception as error:
                    error.add_note(f"{name} crashes {'after' if after else 'before'} batch {number} of {most}")
                    raise
                finally:
                    story.end()
    return points


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("kind", CONFIGS)
def test_a_crash_at_any_batch_loses_nothing_that_was_promised(kind: str, every: int) -> None:
    assert crash_everywhere(CONFIGS[kind], every) > 30


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_a_host_that_is_killed_while_it_tells_an_event_comes_back_in_order(name: str, every: int) -> None:
    for at in count(1, every):
        story = Story(CONFIGS["at once"])
        seen = 0

        def kill(_t: float, node: str, _event: events.Event, story: Story = story, at: int = at) -> None:
            nonlocal seen
            seen += node == name and not story.over
            if seen == at and node == name and not story.over and story.world.nodes[name].life == 1:
                story.world.kill(name)

        story.world.net.watch(kill)
        try:
            story.tell()
        except Exception as error:
            error.add_note(f"{name} is killed while it tells its event {at}")
            raise
        finally:
            story.end()
        if story.world.nodes[name].life == 1:
            break
    assert at > 5
