"""The store against a dictionary: any sequence of submitting, answering, losing, closing and cutting off.

The model is a list of the contents after each batch. Reads see the last of them. A store that was cut off holds one of
them, none older than the last answer. A lost batch, and all that were not answered by then, never existed.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.support.examples import examples
from tests.support.store_disk import META, WAIT_S, Disk, described, kept

from carrypost.log.journal import Durability, Key, PieceOf, Value
from carrypost.model.ids import MessageId
from carrypost.node.store import tables

Contents = dict[Key, Value]

NAMES = [described(n).id for n in range(1, 5)]
DESCRIPTORS = {name: described(n) for n, name in enumerate(NAMES, 1)}
PIECES = (0, 1, 2, 70)
KINDS = ("message", "hashes", "seen", *("piece",) * 4)


@st.composite
def keys(draw: st.DrawFn) -> Key:
    kind = draw(st.sampled_from(KINDS))
    piece = draw(st.sampled_from(PIECES)) if kind == "piece" else 0
    return draw(st.just(META) | st.just((kind, draw(st.sampled_from(NAMES)), piece)))


def value_for(draw: st.DrawFn, key: Key) -> Value:
    kind, name, _ = key
    if kind == "message":
        return kept(DESCRIPTORS[MessageId(name)], draw(st.integers(0, 2**80)), delivered=draw(st.booleans()))
    if kind == "seen":
        return DESCRIPTORS[MessageId(name)]
    if kind == "meta":
        return draw(st.integers(0, 2**63 - 1))
    return draw(st.binary(max_size=8)) * draw(st.sampled_from((1, 1, 1, 2_000)))


@st.composite
def batches(draw: st.DrawFn) -> tuple[Contents, tuple[Key, ...]]:
    changed = draw(st.lists(keys(), min_size=1, max_size=8, unique=True))
    cut = draw(st.integers(0, len(changed)))
    return {key: value_for(draw, key) for key in changed[:cut]}, tuple(changed[cut:])


def piecemeal(contents: Contents) -> tuple[Contents, Contents]:
    """Return the parts of it that `state` gives and that `read` gives."""
    state = {key: value for key, value in contents.items() if key[0] != "piece"}
    return state, {key: value for key, value in contents.items() if key[0] == "piece"}


class StoreMachine(RuleBasedStateMachine):
    """One file, and the stores that are opened on it one after the other."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.path = self.folder / "store.db"
        self.account: list[Contents] = [{}]
        """Contents after each batch since the last that was answered, which comes first."""
        self.away = False
        self.bodies: dict[Key, Value] = {}
        """The bytes of each piece that ever existed. They never change, since the id of a message stands for them."""
        self.open()

    def open(self) -> None:
        self.disk = Disk(self.path)
        self.serials: list[int] = []

    def pieces(self) -> Contents:
        found: Contents = {}
        for name in NAMES:
            for piece in PIECES:
                body = self.disk.store.read(name, piece)
                if body is not None:
                    found["piece", name, piece] = body
        return found

    def take(self, answers: list[tuple[int, str | None]]) -> None:
        for serial, reason in answers:
            assert self.serials.pop(0) == serial
            if reason is None:
                del self.account[0]
            else:
                assert self.away_since
                del self.account[1]
        if any(reason is not None for _, reason in answers):
            assert not self.serials, "a loss leaves nothing unanswered"

    away_since = False

    @rule(batch=batches(), full=st.booleans())
    def submit(self, batch: tuple[Contents, tuple[Key, ...]], full: bool) -> None:
        self.write(*batch, full=full)

    @rule(data=st.data(), to=st.sampled_from(NAMES), batch=batches(), full=st.booleans())
    def pass_on(self, data: st.DataObject, to: MessageId, batch: tuple[Contents, tuple[Key, ...]], full: bool) -> None:
        """One message has the same pieces as another; the batch may delete those as well."""
        pieces = [key for key in self.account[-1] if key[0] == "piece" and key[1] != to]
        if not pieces:
            return
        source = data.draw(st.sampled_from(sorted({name for _, name, _ in pieces})))
        referred: Contents = {("piece", to, key[2]): self.account[-1][key] for key in pieces if key[1] == source}
        referred = {key: body for key, body in referred.items() if self.bodies.setdefault(key, body) == body}
        puts, deletes = ({key: each for key, each in batch[0].items() if key[0] != "piece"}, batch[1])
        deletes = tuple(key for key in deletes if key not in referred)
        references: Contents = dict.fromkeys(referred, PieceOf(MessageId(source)))
        self.write(puts | references, deletes, full=full)
        self.account[-1] |= referred

    def write(self, puts: Contents, deletes: tuple[Key, ...], *, full: bool) -> None:
        durability = Durability.FULL if full else Durability.NORMAL
        for key, value in puts.items():
            if isinstance(value, bytes) and key[0] == "piece":
                puts[key] = self.bodies.setdefault(key, value)
        self.serials.append(self.disk.submit(puts, *deletes, durability=durability))
        gone = set(deletes)
        self.account.append({key: value for key, value in self.account[-1].items() if key not in gone} | puts)

    @rule()
    def fetch(self) -> None:
        self.take(self.disk.fetch())

    @rule()
    def settle(self) -> None:
        until = time.monotonic() + WAIT_S
        while self.serials:
            self.take(self.disk.fetch())
            assert time.monotonic() < until
            time.sleep(0.0005)
        self.away_since = self.away
        assert len(self.account) == 1
        assert self.disk.store.status()["unanswered_bytes"] == 0
        assert dict(self.disk.store.state()) == piecemeal(self.account[0])[0]

    @rule()
    @precondition(lambda self: not self.away)
    def move_away(self) -> None:
        """From now on writing fails."""
        self.path.rename(self.folder / "away.db")
        self.away = self.away_since = True

    @rule()
    @precondition(lambda self: self.away)
    def move_back(self) -> None:
        (self.folder / "away.db").rename(self.path)
        self.away = False

    @rule()
    @precondition(lambda self: not self.away)
    def close_and_open(self) -> None:
        self.disk.store.close()
        self.take(self.disk.fetch())
        assert not self.serials
        self.away_since = False
        self.open()
        assert dict(self.disk.store.state()) == piecemeal(self.account[0])[0]

    @rule()
    @precondition(lambda self: not self.away and not self.away_since)
    def cut_off(self) -> None:
        """Cut the node off: only what is on disk at this moment remains, even in the middle of a write."""
        cut = Path(tempfile.mkdtemp()) / "store.db"
        while True:
            before = os.stat(self.path)  # noqa: PTH116 - mtime in ns
            shutil.copyfile(self.path, cut)
            shutil.copyfile(tables.wal(self.path), tables.wal(cut))
            if os.stat(self.path).st_mtime_ns == before.st_mtime_ns:  # noqa: PTH116 - the log was not emptied meanwhile
                break
        self.disk.store.close()
        shutil.rmtree(self.folder)
        self.folder, self.path = cut.parent, cut
        self.open()
        found = dict(self.disk.store.state()) | self.pieces()
        assert found in self.account
        self.account = [found]

    @invariant()
    def every_piece_reads_as_last_submitted(self) -> None:
        if hasattr(self, "disk"):
            assert self.pieces() == piecemeal(self.account[-1])[1]

    def teardown(self) -> None:
        if hasattr(self, "disk"):
            self.disk.store.close()
            shutil.rmtree(self.folder)


TestStore = StoreMachine.TestCase
TestStore.settings = examples(10)
