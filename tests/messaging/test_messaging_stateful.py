"""Messaging on one host against a model: any sequence of commands, with crashes and a failing disk."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.support.examples import examples
from tests.support.messaging_model import ORDERINGS, Command, Letter, Model, Session, Sub, Truth
from tests.support.one_node import OneNode, S

from carrypost.errors import StateError
from carrypost.gossip.draft import Draft
from carrypost.gossip.holdings.cache import CopyState
from carrypost.log.journal import MOM, SEEN
from carrypost.messaging.commands import (
    Ack,
    CloseConsumer,
    CloseSession,
    Connect,
    Consume,
    Credit,
    Disconnect,
    GoOn,
    OpenSession,
    Recover,
    Retry,
    Rollback,
    Subscribe,
    UnitOfWork,
    Unsubscribe,
)
from carrypost.messaging.messaging import MessagingCommands
from carrypost.model.descriptor import Ordering
from carrypost.model.headers import Headers
from carrypost.model.ids import MessageId
from carrypost.model.pattern import entry

T = TypeVar("T")
PICK = st.integers(0, 7)
GONE = (CopyState.UNKNOWN, CopyState.DONE, CopyState.DECLINED)


class Content(NamedTuple):
    """The content of a message."""

    topic: str
    n: int
    lifetime_s: int | None
    delay_s: int
    placed: bool
    """True once the message has its place in the order of its topic, if there is one."""
    size: int


class Wish(NamedTuple):
    """The subscription of a consumer."""

    pattern: str
    above: int | None
    kind: str
    no_local: bool
    ample: bool
    """True if it takes as much as there is."""


A_WISH = st.builds(
    Wish,
    pattern=st.sampled_from(["a", "a", "a", "[ab]", "c", "d"]),
    above=st.sampled_from([None, None, 0, 1]),
    kind=st.sampled_from(["live", "durable", "shared", "shared durable"]),
    no_local=st.sampled_from([False, False, True]),
    ample=st.sampled_from([True, True, False]),
)
WISHES = st.lists(A_WISH, min_size=1, max_size=3)
CONTENTS = st.builds(
    Content,
    topic=st.sampled_from(["a", "a", "a", "a", "b", "c", "c", "d"]),
    n=st.sampled_from([2, 2, 1, 0]),
    lifetime_s=st.sampled_from([None, None, None, 3, 8]),
    delay_s=st.sampled_from([0, 0, 0, 0, 2, 4]),
    placed=st.sampled_from([True, True, True, False]),
    size=st.integers(1, 3),
)


class MessagingMachine(RuleBasedStateMachine):
    """Plenty of room."""

    messages_max, pins_max = 10_000, 10_000

    def __init__(self) -> None:
        super().__init__()
        self.node = OneNode(
            cache_messages_max=self.messages_max, limits={"unconfirmed_max": self.pins_max},
            messaging={"tries": 1_000},
        )  # fmt: skip
        self.node.now = S
        self.model = Model(messages_max=self.messages_max, pins_max=self.pins_max)
        self.model.now = S
        self.settled = True
        """True if everything is on disk, except `node.batches`."""
        self.sound = True
        """True if the last step was completed, so that a final check is meaningful."""

    @property
    def messaging(self) -> MessagingCommands:
        return self.node.host.messaging

    def watch(self) -> None:
        """Report all events to the model."""
        self.node.collect()
        events, self.node.events = self.node.events, []
        self.model.now = self.node.now
        self.sound = False
        self.model.observe(events)

    # --- programs ------------------------------------------------------------------------------------------

    @initialize(wishes=WISHES)
    def begin(self, wishes: list[Wish]) -> None:
        """Programs that want something."""
        for at, wish in enumerate(wishes):
            self.connect(("me", "you", "")[at])
            self.consume(list(self.model.sessions.values())[-1], wish)

    def connect(self, client: str) -> None:
        connection = self.messaging.execute(Connect(client), self.node.now)
        self.model.connections[connection] = client
        self.open(connection)

    def open(self, connection: int) -> None:
        session = self.messaging.execute(OpenSession(connection), self.node.now)
        self.model.sessions[session] = Session(session, connection, touched_us=self.node.now)
        self.watch()

    @rule(pick=PICK, client=st.sampled_from(["", "me", "you"]), wish=A_WISH)
    def join(self, pick: int, client: str, wish: Wish) -> None:
        """Add a consumer to an existing session or to a new one."""
        known = [connection for connection, owner in self.model.connections.items() if owner == client]
        if not known:
            self.connect(client)
        elif not pick and len(self.model.sessions) < 6:
            self.open(known[0])
        sessions = [
            each for each in self.model.sessions.values() if self.model.connections[each.connection] == client
        ]  # fmt: skip
        if sessions:
            self.consume(sessions[-1], wish)

    def consume(self, whose: Session, wish: Wish) -> None:
        pattern, above, kind, no_local, ample = wish
        session, connection = whose.number, whose.connection
        durable, shared = "durable" in kind, "shared" in kind
        client = self.model.connections[connection]
        if durable and not shared and not client:
            return
        # Names of shared subscriptions are others than those of unshared ones.
        name = {"live": "", "durable": "mail", "shared": "crew", "shared durable": "staff"}[kind]
        sub = Sub(pattern, above, name, client, durable, shared, no_local and not shared, connection)
        known = self.model.standing(sub.key) if name else None
        if known is not None and known.consumers and (not shared or known.asked != sub.asked):
            return
        if known is not None and known.stands is Truth.PERHAPS and known.asked != sub.asked:
            return
        asked = Subscribe(
            entry(pattern, None if above is None else f"n > {above}"), sub.ordering, name, durable, shared, sub.no_local
        )
        number = self.node.next_number()
        consumer = self.messaging.execute(Consume(session, asked), self.node.now, number)
        self.model.consume(number, consumer, session, sub)
        self.watch()
        if ample:
            self.give_credit(consumer, 100, 10_000)

    def give_credit(self, consumer: int, messages: int, nbytes: int) -> None:
        self.model.credit(consumer, messages, nbytes)
        self.messaging.execute(Credit(consumer, messages, nbytes), self.node.now)
        self.watch()

    @precondition(lambda self: self.model.consumers)
    @rule(pick=PICK, messages=st.integers(1, 4), nbytes=st.sampled_from([1, 3, 1000]))
    def credit(self, pick: int, messages: int, nbytes: int) -> None:
        self.give_credit(chosen(self.model.consumers, pick), messages, nbytes)

    @rule(what=st.sampled_from(["consumer", "consumer", "session", "connection", "name"]), pick=PICK, data=st.data())
    def close(self, what: str, pick: int, data: st.DataObject) -> None:
        if what == "consumer" and self.model.consumers:
            self.close_consumer(pick, data)
        elif what == "session" and self.model.sessions:
            self.close_session(pick, data)
        elif what == "connection" and self.model.connections:
            self.disconnect(pick)
        elif what == "name":
            self.unsubscribe(pick)

    def close_consumer(self, pick: int, data: st.DataObject) -> None:
        consumer = chosen(self.model.consumers, pick)
        handed = self.model.sessions[self.model.consumers[consumer].session].handed
        unread = some(data, [number for number, (whose, _, _) in handed.items() if whose == consumer])
        self.messaging.execute(CloseConsumer(consumer, unread), self.node.now)
        self.model.close_consumer(consumer, unread)
        self.watch()

    def close_session(self, pick: int, data: st.DataObject) -> None:
        session = chosen(self.model.sessions, pick)
        unread = some(data, list(self.model.sessions[session].handed))
        self.messaging.execute(CloseSession(session, unread), self.node.now)
        self.model.close_session(session, unread)
        self.watch()

    def disconnect(self, pick: int) -> None:
        connection = chosen(self.model.connections, pick)
        self.messaging.execute(Disconnect(connection), self.node.now)
        for session in list(self.model.sessions.values()):
            if session.connection == connection:
                self.model.close_session(session.number)
        del self.model.connections[connection]
        self.watch()

    @property
    def holding(self) -> list[Session]:
        """Sessions that have something."""
        return [session for session in self.model.sessions.values() if session.handed]

    @precondition(lambda self: self.holding)
    @rule(pick=PICK, data=st.data(), back=st.booleans())
    def recover(self, pick: int, data: st.DataObject, back: bool) -> None:
        session = chosen(self.holding, pick)
        if self.model.commits(session.number):
            return  # Programs wait for the answer first.
        unread = some(data, list(session.handed))
        self.model.recover(session.number, unread)
        if back:
            session.drafts = {}
            self.messaging.execute(Rollback(session.number, unread), self.node.now)
        else:
            self.messaging.execute(Recover(session.number, unread), self.node.now)
        self.watch()

    @precondition(lambda self: self.holding)
    @rule(pick=PICK, which=PICK)
    def retry(self, pick: int, which: int) -> None:
        """A program fails with a message, and has it once more; it asks for others without being done with any."""
        session = chosen(self.holding, pick)
        if session.may_wait(self.node.now) and which % 2:
            session.alone, session.touched_us = 0, self.node.now
            self.messaging.execute(GoOn(session.number), self.node.now)
        else:
            number, handed = self.node.next_number(), chosen(session.handed, which)
            count = self.messaging.execute(Retry(session.number, handed), self.node.now, number)
            self.model.now = self.node.now
            self.model.retry(number, session, handed, count)
        self.watch()

    def unsubscribe(self, pick: int) -> None:
        idle = [sub for sub in self.model.subs if sub.durable and not sub.consumers]
        if not idle:
            return
        sub = chosen(idle, pick)
        held = any(each[1] is sub for session in self.model.sessions.values() for each in session.handed.values())
        if held or sub.stands is Truth.PERHAPS:
            return
        number = self.node.next_number()
        self.messaging.execute(Unsubscribe(sub.client, sub.name), self.node.now, number)
        self.model.commands[number] = Command(ended=sub)
        self.model.end(sub)
        self.watch()

    # --- messages ------------------------------------------------------------------------------------------

    def letter(self, content: Content, line: int, connection: int) -> tuple[Draft, Letter]:
        topic, n, lifetime_s, delay_s, placed, size = content
        ordering = ORDERINGS.get(topic, Ordering.NONE) if placed or line else Ordering.NONE
        due = self.node.now + delay_s * S if delay_s else 0
        client = self.model.connections.get(connection, "")
        headers = Headers(delivery_time_us=due or None, connection=connection, client=client or None)
        lifetime_us = None if lifetime_s is None else lifetime_s * S
        draft = Draft(topic, b"x" * size, {"n": n}, lifetime_us, ordering=ordering, headers=headers)
        deadline = None if lifetime_us is None else self.node.now + lifetime_us
        return draft, Letter(
            topic, n, ordering, line, lifetime_us or 0, deadline, due, self.model.life, connection, client, size
        )  # fmt: skip

    @rule(contents=st.lists(CONTENTS, min_size=1, max_size=3), pick=PICK, written=st.booleans())
    def publish(self, contents: list[Content], pick: int, written: bool) -> None:
        for content in contents:
            self.publish_one(content, pick)
        if written:
            self.write()

    def publish_one(self, content: Content, pick: int) -> None:
        connection = chosen([0, *self.model.connections], pick)
        draft, letter = self.letter(content, 0, connection)
        try:
            self.node.host.publish(
                draft.destination, draft.payload, now=self.node.now, attributes=draft.attributes,
                lifetime_us=draft.lifetime_us, ordering=draft.ordering, headers=draft.headers,
            )  # fmt: skip
        except StateError:
            assert self.is_full(1)
        else:
            self.model.send([letter])
        self.watch()

    def is_full(self, more: int) -> bool:
        """Return True if this many more messages exceed the room: then some would have to be evicted, and cannot."""
        return len([each for each in self.model.letters.values() if each.here]) + more > self.messages_max

    @precondition(lambda self: self.model.sessions)
    @rule(pick=PICK, content=CONTENTS)
    def draft(self, pick: int, content: Content) -> None:
        session = self.model.sessions[chosen(self.model.sessions, pick)]
        draft, letter = self.letter(content, session.number, session.connection)
        number, made = self.node.host.draft(session.number, draft, self.node.now)
        letter.id = b"" if made is None else made.id
        session.drafts[number] = letter
        self.watch()

    @precondition(lambda self: self.holding)
    @rule(pick=PICK, data=st.data(), through=st.booleans())
    def acknowledge(self, pick: int, data: st.DataObject, through: bool) -> None:
        self.work(chosen(self.holding, pick), data, [], through=through, send=False)

    @precondition(lambda self: self.model.sessions)
    @rule(pick=PICK, data=st.data(), contents=st.lists(CONTENTS, max_size=2), through=st.booleans())
    def commit(self, pick: int, data: st.DataObject, contents: list[Content], through: bool) -> None:
        sessions = self.holding or list(self.model.sessions.values())
        self.work(chosen(sessions, pick), data, contents, through=through, send=True)

    def work(
        self, session: Session, data: st.DataObject, contents: list[Content], *, through: bool, send: bool
    ) -> None:
        sends: list[Draft | int] = []
        letters: list[Letter] = []
        if send:
            sends, letters = list(session.drafts), list(session.drafts.values())
            for content in contents:
                draft, letter = self.letter(content._replace(placed=True), 0, session.connection)
                sends.append(draft)
                letters.append(letter)
        number = self.node.next_number()
        acked: list[int] = []
        acks: list[Ack] = []
        if session.handed:
            acked = some(data, list(session.handed))
            if through and acked:
                acks = [Ack(session.number, through=acked[-1])]
                acked = [each for each in session.handed if each <= acked[-1]]
            elif acked:
                acks = [Ack(session.number, tuple(acked))]
        try:
            self.node.host.perform(UnitOfWork(number, tuple(sends), tuple(acks)), self.node.now)
        except StateError:
            assert self.is_full(len(sends))
        else:
            alive = [
                each for each in letters if each.ordering or each.deadline is None or each.deadline > self.node.now
            ]  # fmt: skip
            self.model.work(number, alive, [(session.number, acked)], commit=bool(sends))
            if send:
                session.drafts = {}
        self.watch()

    # --- the world -----------------------------------------------------------------------------------------

    @precondition(lambda self: self.node.batches)
    @rule()
    def write_one(self) -> None:
        self.node.write_one()
        self.watch()

    @rule()
    def write(self) -> None:
        self.node.write()
        self.watch()

    @rule(seconds=st.sampled_from([0.001, 0.6, 1, 2, 6]), late=st.booleans())
    def pass_time(self, seconds: float, late: bool) -> None:
        """`late`: something else comes before the tick that is due."""
        self.node.now += round(seconds * S)
        if not late:
            self.node.host.tick(self.node.now)
        self.watch()

    @rule(really=st.integers(0, 3), wishes=WISHES)
    def crash(self, really: int, wishes: list[Wish]) -> None:
        """Seldom, since much has to happen before it; programs come back."""
        if really < 3:
            return
        self.sound = False
        settled = self.settled and not self.node.batches
        self.node.events = []
        self.node.crash()
        here = {
            message for message in self.model.letters
            if self.node.host.state_of(MessageId(message)) not in GONE
        }  # fmt: skip
        self.model.crash(here, settled=settled)
        self.settled = True
        self.watch()
        self.begin(wishes)

    @rule()
    def settle(self) -> None:
        """Let the disk catch up; lost rows are written again."""
        self.node.write()
        self.watch()
        for _ in range(4):
            self.node.now += S
            self.node.host.tick(self.node.now)
            self.watch()
            self.node.write()
            self.watch()
        self.settled = True
        self.model.check_complete()
        self.check_rows()

    def check_rows(self) -> None:
        rows = [name for kind, name, _ in self.node.disk if kind == MOM]
        standing = {name[1:9] for name in rows if name[:1] == b"S"}
        assert {name[1:9] for name in rows if name[:1] == b"C"} <= standing, "rows of a subscription that is no more"
        durable = [sub for sub in self.model.subs if sub.durable]
        assert len(standing) <= len(durable)
        assert len(standing) >= len([sub for sub in durable if sub.stands is Truth.YES])
        for message, letter in self.model.letters.items():
            if letter.acknowledged is Truth.YES and letter.alive(self.node.now):
                assert (SEEN, message, 0) in self.node.disk, f"{message!r} acknowledged, and the store does not know"

    @invariant()
    def pins_are_bounded(self) -> None:
        self.sound = True
        overview = self.messaging.overview()
        assert overview is not None
        assert overview.pinned <= self.pins_max
        assert self.node.host.copies <= self.messages_max

    def teardown(self) -> None:
        if self.sound:
            self.settle()


class CrampedMachine(MessagingMachine):
    """A host with so little room that messages are evicted for others."""

    messages_max, pins_max = 8, 4


def chosen(things: Iterable[T], pick: int) -> T:
    listed = list(things)
    return listed[pick % len(listed)]


def some(data: st.DataObject, numbers: list[int]) -> list[int]:
    if not numbers:
        return []
    out = data.draw(st.integers(0, 2 ** min(len(numbers), 6) - 1), "left out")
    return [number for at, number in enumerate(numbers) if not out >> at & 1]


def test_a_retry_that_a_crash_left_unanswered_need_not_count() -> None:
    wish = Wish("a", None, "shared durable", no_local=False, ample=True)
    machine = MessagingMachine()
    machine.begin([wish])
    machine.publish([Content("a", 1, lifetime_s=None, delay_s=0, placed=True, size=1)], 0, written=True)
    machine.settle()
    machine.retry(0, 0)
    machine.write()
    machine.retry(0, 0)
    machine.crash(3, [wish])
    machine.settle()
    (handed,) = (each for session in machine.model.sessions.values() for each in session.handed.values())
    owed = handed[-1]
    assert (owed.anchor or 0) + owed.told == 3, (
        "handed over, tried again, handed over: the second retry was not answered"
    )


TestMessaging = MessagingMachine.TestCase
TestMessaging.settings = examples(15, stateful_step_count=40)
TestCrampedMessaging = CrampedMachine.TestCase
TestCrampedMessaging.settings = examples(15, stateful_step_count=40)


@pytest.mark.soak
@pytest.mark.parametrize("machine", [MessagingMachine, CrampedMachine])
def test_messaging_for_long(machine: type[MessagingMachine]) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=10_000, stateful_step_count=60))
