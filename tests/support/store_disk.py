"""A store, driven as a loop would drive it, and the messages that are put into it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from carrypost.log.journal import Batch, Durability, Key, PieceOf, StoredMessage, Value
from carrypost.model.descriptor import Descriptor, PayloadCodec
from carrypost.model.ids import NodeId
from carrypost.node.store.store import Store

WAIT_S = 30.0
META: Key = ("meta", b"incarnation", 0)


def described(sequence: int, *, signed: bool = True, length: int = 1_000) -> Descriptor:
    author: bytes | str = bytes(32) if signed else "anna"
    made = Descriptor(
        author, 1, sequence, 5, 2**52, "village/roads", length, length, PayloadCodec.PLAIN, b"r" * 32, 1_000,
        attributes={"language": "English", "urgent": True, "weight": 1.5},
    )  # fmt: skip
    return made.with_signature(b"s" * 64) if signed else made


def kept(descriptor: Descriptor, held: int = 1, *, delivered: bool = False) -> StoredMessage:
    return StoredMessage(descriptor, held, 3, 70, 2**50, NodeId("10.0.0.1:5"), False, True, delivered)


def message(sequence: int, body: bytes) -> dict[Key, Value]:
    """Return the puts of a host for a small message."""
    descriptor = described(sequence)
    return {("message", descriptor.id, 0): kept(descriptor), ("piece", descriptor.id, 0): body}


class Disk:
    """A store, driven as a loop would drive it."""

    def __init__(self, path: Path) -> None:
        self.woken = threading.Event()
        self.store = Store.open(path, self.woken.set)
        self.serial = 0
        self.waiting: list[int] = []
        self.lost: dict[int, str] = {}

    def submit(
        self, puts: dict[Key, Value] | None = None, *deletes: Key, durability: Durability = Durability.NORMAL
    ) -> int:
        self.serial += 1
        self.waiting.append(self.serial)
        refers = any(isinstance(value, PieceOf) for value in (puts or {}).values())
        self.store.submit(Batch(self.serial, durability, puts or {}, deletes, refers))
        return self.serial

    def fetch(self) -> list[tuple[int, str | None]]:
        answers = self.store.answers()
        for serial, reason in answers:
            assert self.waiting.pop(0) == serial
            if reason is not None:
                self.lost[serial] = reason
        return answers

    def settle(self) -> None:
        until = time.monotonic() + WAIT_S
        while self.waiting:
            assert self.woken.wait(until - time.monotonic()), "no answer in time"
            self.woken.clear()
            self.fetch()

    def outcome(
        self, puts: dict[Key, Value] | None = None, *deletes: Key, durability: Durability = Durability.NORMAL
    ) -> str | None:
        """Why a batch was lost; None: it is durable."""
        serial = self.submit(puts, *deletes, durability=durability)
        self.settle()
        return self.lost.get(serial)

    def state(self) -> dict[Key, Value]:
        return dict(self.store.state())


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Disk]:
    disk = Disk(path)
    try:
        yield disk
    finally:
        disk.store.close()


ID = described(1).id
FIRST: Key = ("piece", ID, 0)
SECOND: Key = ("piece", ID, 1)


def killed_batch(serial: int) -> tuple[dict[Key, Value], tuple[Key, ...], Durability]:
    """Return the batch that a child submits under this serial. Afterwards the store must have all of it or nothing."""
    durability = Durability.FULL if serial % 50 == 0 else Durability.NORMAL
    puts = message(serial, b"%d " % serial * 200) | {META: serial}
    return puts, tuple(message(serial - 100, b"")), durability
