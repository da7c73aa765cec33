"""The directory of one host against a model: any sequence of commands, true and forged advertisements, and crashes.

Disks fail as well. The model is written from the promises: one table of the names bound here, and one of the newest
advertisement of each node and name, with its earliest and latest end. With leases these are one moment: the end of that
advertisement, even if the name is used.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.support.examples import examples
from tests.support.named_node import NamedNode, advert, saying
from tests.support.one_node import S

from carrypost.errors import AmbiguousNameException, NamingException

LIFE_S = 60
SLACK_US = LIFE_S * S // 30
"""Time within which the use of a name need not be noted again."""
NAMES = ("a", "b", "c", "c/d")
OWNERS = ("x", "y")
TOPICS = ("topic/t", "topic/u")
PICK = st.integers(0, 7)


@dataclass
class Heard:
    """The advertisement of one node for one name, as far as this node knows."""

    destination: str
    serial: tuple[int, int]
    earliest: int
    latest: int
    hidden: bool = False


@dataclass
class Bound:
    """The binding of a name by a program."""

    destination: str
    advertised: bool


@dataclass
class Model:
    """The contents that the directory must have."""

    bound: dict[str, Bound] = field(default_factory=dict)
    heard: dict[tuple[str, str], Heard] = field(default_factory=dict)

    def seen(self, name: str, now: int) -> list[tuple[str, Heard]]:
        return [
            (owner, heard)
            for (owner, called), heard in sorted(self.heard.items())
            if called == name and not heard.hidden and heard.latest > now
        ]

    def lapse(self, now: int) -> None:
        self.heard = {key: heard for key, heard in self.heard.items() if heard.latest > now}

    def doubtful(self, name: str, now: int) -> bool:
        """Return True if a name may have lapsed, or not."""
        return any(heard.earliest <= now for _, heard in self.seen(name, now))


@dataclass
class Command:
    """An unanswered command: the directory before it and after it."""

    name: str
    before: Bound | None
    after: Bound | None
    hid: list[tuple[str, Heard]] = field(default_factory=list)


class DirectoryMachine(RuleBasedStateMachine):
    """Programs, neighbours, a clock and a disk."""

    leased = False

    def __init__(self) -> None:
        super().__init__()
        self.node = NamedNode(lease_s=LIFE_S) if self.leased else NamedNode(advert_s=LIFE_S)
        self.model = Model()
        self.written = Model()
        """The directory after the last batch that is on disk."""
        self.pending: list[tuple[int, Model]] = []
        """As it was after each step, by the last batch of the step."""
        self.commands: dict[int, Command] = {}
        self.sequence = 100
        self.refused = 0
        self.lost = False
        """Something was lost that has still to be written again."""

    # --- keeping up ----------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Check the outcome of a step."""
        node = self.node
        node.collect()
        for event in node.answers():
            del self.commands[event.number]
        self.model.lapse(node.now)
        if node.batches:
            self.pending.append((node.batches[-1].serial, copy.deepcopy(self.model)))

    def put(self, name: str, bound: Bound | None) -> None:
        if bound is None:
            self.model.bound.pop(name, None)
        else:
            self.model.bound[name] = bound

    def note_written(self, serial: int) -> None:
        for last, model in list(self.pending):
            if last <= serial:
                self.written = model
                self.pending.remove((last, model))

    # --- programs ------------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(NAMES), pick=PICK, replace=st.booleans(), advertise=st.sampled_from([True, True, False]))
    def bind(self, name: str, pick: int, replace: bool, advertise: bool) -> None:
        destination = ("", *TOPICS, "queue/n/box", "queue/x/Alan")[pick % 5]
        before = self.model.bound.get(name)
        after = Bound(destination, advertise and destination not in ("", "queue/x/Alan"))
        if self.model.doubtful("c/d", self.node.now):
            return  # Whether `c` is a context may not be known.
        allowed = self.may_bind(name, replace=replace)
        try:
            number = self.node.bind(name, destination, replace=replace, advertise=advertise)
        except NamingException:
            assert not allowed
            return
        assert allowed
        self.commands[number] = Command(name, before, after)
        self.put(name, after)
        self.watch()

    def may_bind(self, name: str, *, replace: bool) -> bool:
        before = self.model.bound.get(name)
        if name == "c/d" and not self.is_context("c"):
            return False
        if name == "c" and before is None and "c/d" in self.model.bound:
            return False
        return before is None or (bool(before.destination) and replace)

    def is_context(self, name: str) -> bool:
        """Return True for `c`, the only one of these names that can be a context."""
        own = self.model.bound.get(name)
        if own is not None:
            return not own.destination
        return name == "c" and ("c/d" in self.model.bound or bool(self.model.seen("c/d", self.node.now)))

    @rule(name=st.sampled_from(NAMES))
    def unbind(self, name: str) -> None:
        own, now = self.model.bound.get(name), self.node.now
        others = self.model.seen(name, now)
        if own is None and self.model.doubtful(name, now):
            return
        single = len({heard.destination for _, heard in others}) == 1
        allowed = bool(own.destination) if own is not None else single
        try:
            number = self.node.unbind(name)
        except NamingException:
            assert not allowed
            return
        assert allowed
        if own is not None:
            self.commands[number] = Command(name, own, None)
            self.put(name, None)
        else:
            self.commands[number] = Command(name, None, None, others)
            for _, heard in others:
                heard.hidden = True
        self.watch()

    @rule()
    def destroy(self) -> None:
        own = self.model.bound.get("c")
        allowed = own is not None and not own.destination and "c/d" not in self.model.bound
        try:
            number = self.node.unbind("c", context=True)
        except NamingException:
            assert not allowed
            return
        assert allowed
        self.commands[number] = Command("c", own, None)
        self.put("c", None)
        self.watch()

    @rule(destination=st.sampled_from(TOPICS))
    def use(self, destination: str) -> None:
        now = self.node.now
        self.node.publish(destination, lifetime_s=0.5)
        for heard in self.model.heard.values():
            if self.leased:
                break
            if heard.destination == destination and not heard.hidden and heard.earliest > now:
                heard.earliest = max(heard.earliest, now + LIFE_S * S - SLACK_US)
                heard.latest = max(heard.latest, now + LIFE_S * S)
        self.watch()

    # --- others --------------------------------------------------------------------------------------------

    @rule(
        owner=st.sampled_from(OWNERS), name=st.sampled_from(NAMES), pick=PICK, age=st.integers(-3, 1),
        life_s=st.sampled_from([5, 20, 60, 90]),
    )  # fmt: skip
    def hear(self, owner: str, name: str, pick: int, age: int, life_s: int) -> None:
        """Receive an advertisement.

        `age`: mostly new, sometimes old and late, or so new that the next ones are older.
        """
        self.sequence += 4
        serial = 1, self.sequence + (13 if age > 0 else -14 if age < -1 else 0)  # No two are the same.
        destination = (*TOPICS, f"queue/{owner}/{name}")[pick % 3]
        known = self.model.heard.get((owner, name))
        if known is not None and known.earliest <= self.node.now:
            return  # Whether it still counts is not known.
        said = self.node.hear_of(owner, name, destination, serial[1], life_s=life_s)
        deadline = self.node.now + life_s * S
        if self.node.received(said) and (known is None or known.serial < serial):
            made = Heard(destination, serial, deadline, deadline)
            if known is not None and known.destination == destination and not self.leased:
                made.earliest, made.latest = max(deadline, known.earliest), max(deadline, known.latest)
            self.model.heard[owner, name] = made
        self.watch()

    @rule(name=st.sampled_from(NAMES), pick=PICK)
    def forge(self, name: str, pick: int) -> None:
        self.sequence += 4
        now, number = self.node.now, 10**6 + self.sequence
        forged = (
            advert("x", name, "topic/bad", number, now=now, author="mallory"),
            advert("n", name, "topic/bad", number, now=now, author="mallory"),
            advert("x", name, "queue/y/Alan", number, now=now),
            advert("x", name, "", number, now=now, headers=saying("control/x")),
        )[pick % 4]
        if self.node.received(self.node.hear(forged)):
            self.refused += 1
        self.watch()

    # --- the world -----------------------------------------------------------------------------------------

    @precondition(lambda self: self.node.batches)
    @rule()
    def write_one(self) -> None:
        serial = self.node.batches[0].serial
        self.node.write_one()
        self.note_written(serial)
        self.watch()

    @rule()
    def write(self) -> None:
        while self.node.batches:
            self.write_one()

    @rule(seconds=st.sampled_from([1, 3, 8, 20]), late=st.booleans())
    def pass_time(self, seconds: int, late: bool) -> None:
        """`late`: something else comes before the tick that is due."""
        self.node.now += seconds * S
        if not late:
            self.node.host.tick(self.node.now)
        self.watch()

    @rule(really=st.integers(0, 2))
    def crash(self, really: int) -> None:
        if really:
            return
        if self.lost:
            self.settle()
        self.model = copy.deepcopy(self.written)
        self.pending, self.commands = [], {}
        self.node.events = []
        self.refused = 0
        self.node.crash()
        self.model.lapse(self.node.now)
        self.written = copy.deepcopy(self.model)

    @rule()
    def settle(self) -> None:
        """Let the disk catch up; lost rows are written and advertised again."""
        self.write()
        for _ in range(12):
            self.node.now += S
            self.node.host.tick(self.node.now)
            self.watch()
            self.write()
        self.lost = False
        assert not self.commands, "a command was not answered"
        self.check_disk()

    def check_disk(self) -> None:
        node = self.node
        own = {name: each.destination for name, each in self.model.bound.items() if each.advertised}
        assert node.advertised() == own
        assert len(node.adverts()) == len(own), "one advertisement for each name"
        certain = {key for key, heard in self.model.heard.items() if heard.earliest > node.now}
        rows = {tuple(row.decode().split("/", 2)[1:]) for row in node.rows()}
        assert certain | {("n", name) for name in self.model.bound} <= rows
        assert rows <= self.model.heard.keys() | {("n", name) for name in self.model.bound}
        for owner in (*OWNERS, "mallory"):
            carried = [each.destination for each in node.adverts(owner)]
            assert len(carried) == len(set(carried)), "one copy of what a node says of a name"
            assert all((owner, each.split("/", 2)[2]) in self.model.heard for each in carried)

    # --- what has to hold ----------------------------------------------------------------------------------

    @invariant()
    def names_stand_for_what_they_should(self) -> None:
        for name in NAMES:
            if not self.model.doubtful(name, self.node.now) and not self.model.doubtful("c/d", self.node.now):
                assert self.meaning(name) == self.expected(name), name
        self.watch()

    def meaning(self, name: str) -> str | None:
        try:
            return self.node.meaning(name)
        except AmbiguousNameException:
            return "several"

    def expected(self, name: str) -> str | None:
        own = self.model.bound.get(name)
        if own is not None:
            return own.destination
        meant = {heard.destination for _, heard in self.model.seen(name, self.node.now)}
        if len(meant) > 1:
            return "several"
        return meant.pop() if meant else "" if self.is_context(name) else None

    @invariant()
    def names_of_others_lapse_when_they_should(self) -> None:
        for owner in OWNERS:
            for name in NAMES:
                found = self.node.found(f"{name}@{owner}")
                assert found is not None, "a full name needs no entry"
                heard = self.model.heard.get((owner, name))
                if heard is None or heard.hidden or heard.latest <= self.node.now:
                    assert (found.destination, found.deadline_us) == (f"queue/{owner}/{name}", None)
                elif heard.earliest > self.node.now:
                    assert found.deadline_us is not None
                    assert heard.earliest <= found.deadline_us <= heard.latest
                    assert found.destination == heard.destination
                    heard.earliest = heard.latest = found.deadline_us
        self.watch()

    @invariant()
    def forgeries_are_counted(self) -> None:
        assert self.node.refused()["directory"] == self.refused

    def teardown(self) -> None:
        self.settle()


TestDirectory = DirectoryMachine.TestCase
TestDirectory.settings = examples(10, stateful_step_count=40)


class LeaseMachine(DirectoryMachine):
    """The same with leases: no name outlives its last advertisement, and none goes before."""

    leased = True

    @invariant()
    def nothing_is_in_doubt(self) -> None:
        assert all(heard.earliest == heard.latest for heard in self.model.heard.values())


TestLeases = LeaseMachine.TestCase
TestLeases.settings = examples(10, stateful_step_count=40)
