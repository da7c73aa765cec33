"""Two to five hosts under everything that can happen to them, against an account kept from outside.

The steps are Hypothesis's; the account and what must hold at every event is in `watched_network`. In the end all
contacts are made good: everything wanted arrives, and the hosts fall quiet. Runs in which every frame goes through
its bytes are played again without: the records are the same.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from tests.support.watched_network import Config, Watched

PIECE = 16 * 1024
SIZES = (0, 1, 100, 512, 513, 3_000, PIECE, PIECE + 1, 40_000)
DESTINATIONS = ("news", "news.uk", "sport")
LANGUAGES = ("en", "fr")
PATTERNS = ("news", "news.*", ".*", "sport", {"destination": "news.*", "language": "en"}, {"language": "fr|de"})
RATES = st.sampled_from((0.0, 0.0, 0.1, 0.4))
MODEL = st.fixed_dictionaries(
    {}, optional={"one_way": st.just(True), "loss": RATES, "duplicate": RATES, "reorder": RATES}
)
HOW = st.fixed_dictionaries(
    {"language": st.sampled_from(LANGUAGES), "persistent": st.booleans(), "label": st.booleans()},
    optional={"lifetime_s": st.sampled_from((0.01, 2.0, 20.0, 100_000.0)), "priority": st.integers(0, 9)},
)

configs = st.builds(
    Config,
    names=st.sampled_from(("ab", "abc", "abcd", "abcde")),
    seed=st.integers(0, 1000),
    security=st.sampled_from(("off",) * 5 + ("signed",)),
    encoded=st.sampled_from((False, False, False, True)),
    paper_mode=st.sampled_from((False, False, False, True)),
    altruistic=st.booleans(),
    horizon_hops=st.sampled_from((1, 1, 3)),
    confirm=st.booleans(),
    disk_delay_s=st.sampled_from((0.0, 0.005, 0.2, 3.0)),
)
small = {"cache_messages_max": st.integers(1, 6), "cache_bytes_max": st.sampled_from((3_000, 20_000, 60_000))}
cramped_configs = st.builds(lambda config, **limits: Config(**{**vars(config), **limits}), configs, **small)


class HostsMachine(RuleBasedStateMachine):
    """Any steps, in a network where nothing is evicted."""

    configs = configs

    def __init__(self) -> None:
        super().__init__()
        self.world: Watched | None = None

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        self.world = Watched(data.draw(self.configs, "config"))

    @property
    def here(self) -> Watched:
        assert self.world is not None
        return self.world

    def choose(self, data: st.DataObject, names: list[str]) -> str:
        return data.draw(st.sampled_from(names), "node")

    def pair(self, data: st.DataObject) -> list[str]:
        return data.draw(st.permutations(self.here.config.names), "pair")[:2]

    def nodes(self, *states: str) -> list[str]:
        return [name for name, node in self.here.nodes.items() if node.state in states]

    @precondition(lambda self: self.nodes("up"))
    @rule(data=st.data(), destination=st.sampled_from(DESTINATIONS), size=st.sampled_from(SIZES), how=HOW)
    def publish(self, data: st.DataObject, destination: str, size: int, how: dict[str, Any]) -> None:
        self.here.play("publish", self.choose(data, self.nodes("up")), destination, size, **how)

    @precondition(lambda self: self.nodes("up"))
    @rule(data=st.data(), pattern=st.sampled_from(PATTERNS))
    def subscribe(self, data: st.DataObject, pattern: str | dict[str, str]) -> None:
        self.here.play("subscribe", self.choose(data, self.nodes("up")), pattern)

    @precondition(lambda self: any(self.here.nodes[name].subscriptions for name in self.nodes("up")))
    @rule(data=st.data())
    def unsubscribe(self, data: st.DataObject) -> None:
        node = self.choose(data, [name for name in self.nodes("up") if self.here.nodes[name].subscriptions])
        which = data.draw(st.integers(0, len(self.here.nodes[node].subscriptions) - 1), "which")
        self.here.play("unsubscribe", node, which)

    @rule(data=st.data(), model=MODEL)
    def link(self, data: st.DataObject, model: dict[str, Any]) -> None:
        self.here.play("link", *self.pair(data), **model)

    @rule()
    def link_all(self) -> None:
        for a, b in combinations(self.here.config.names, 2):
            self.here.play("link", a, b)

    @rule(data=st.data())
    def unlink(self, data: st.DataObject) -> None:
        self.here.play("unlink", *self.pair(data))

    @rule(seconds=st.sampled_from((0.0005, 0.002, 0.006, 0.05, 0.25, 1.0, 4.0, 15.0, 40.0)))
    def time_passes(self, seconds: float) -> None:
        self.here.play("advance", seconds)

    @precondition(lambda self: self.nodes("up", "suspended"))
    @rule(data=st.data())
    def kill(self, data: st.DataObject) -> None:
        self.here.play("kill", self.choose(data, self.nodes("up", "suspended")))

    @precondition(lambda self: self.nodes("up", "suspended"))
    @rule(data=st.data(), fuse=st.integers(1, 6), after=st.booleans())
    def crash_at_a_batch(self, data: st.DataObject, fuse: int, after: bool) -> None:
        self.here.play("arm", self.choose(data, self.nodes("up", "suspended")), fuse, after)

    @precondition(lambda self: self.nodes("down"))
    @rule(data=st.data())
    def restart(self, data: st.DataObject) -> None:
        self.here.play("restart", self.choose(data, self.nodes("down")))

    @precondition(lambda self: self.nodes("up"))
    @rule(data=st.data())
    def suspend(self, data: st.DataObject) -> None:
        self.here.play("suspend", self.choose(data, self.nodes("up")))

    @precondition(lambda self: self.nodes("suspended"))
    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        self.here.play("resume", self.choose(data, self.nodes("suspended")))

    @rule(data=st.data(), full=st.booleans())
    def fill_disk(self, data: st.DataObject, full: bool) -> None:
        self.here.play("fill_disk", self.choose(data, list(self.here.config.names)), full)

    @precondition(lambda self: not self.here.config.confirm and self.nodes("up"))
    @rule(data=st.data())
    def confirm(self, data: st.DataObject) -> None:
        node = self.choose(data, self.nodes("up"))
        open_ = [n for n in self.here.nodes[node].delivered if n not in self.here.nodes[node].confirming]
        if open_:
            self.here.play("confirm", node, data.draw(st.lists(st.sampled_from(open_), unique=True), "which"))

    def teardown(self) -> None:
        if self.world is None:
            return
        try:
            self.world.play("settle")
            if self.world.config.encoded:
                self.compare()
        finally:
            self.world.close()

    def compare(self) -> None:
        """The same steps with frames handed over as values."""
        plain = Watched(Config(**{**vars(self.here.config), "encoded": False}))
        try:
            for name, arguments, keywords in self.here.script:
                plain.play(name, *arguments, **keywords)
        finally:
            plain.close()
        assert list(plain.record.json_lines()) == list(self.here.record.json_lines())


class CrampedMachine(HostsMachine):
    """Any steps, in a network whose caches are so small that messages are evicted."""

    configs = cramped_configs


_SETTINGS = settings(max_examples=7, stateful_step_count=30, suppress_health_check=list(HealthCheck))
_FOR_LONG = settings(max_examples=3_000, stateful_step_count=60, suppress_health_check=list(HealthCheck))
TestHosts = HostsMachine.TestCase
TestHosts.settings = _SETTINGS
TestCrampedHosts = CrampedMachine.TestCase
TestCrampedHosts.settings = _SETTINGS


@pytest.mark.soak
@pytest.mark.parametrize("machine", [HostsMachine, CrampedMachine])
def test_hosts_for_long(machine: type[HostsMachine]) -> None:
    run_state_machine_as_test(machine, settings=_FOR_LONG)
