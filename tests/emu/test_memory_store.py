"""The store in memory: readable at once, durable in order, and what a crash leaves."""

from __future__ import annotations

import pytest

from carrypost.config import Limits
from carrypost.emu.engine.driver import MemoryStore
from carrypost.errors import StateError, StoreError
from carrypost.gossip.wire.pieces import pack
from carrypost.log.journal import Batch, Durability, Key, PieceOf, Value
from carrypost.model.descriptor import Descriptor
from carrypost.model.ids import MessageId

M = MessageId(b"a:1:1")
PIECE: Key = ("piece", M, 0)
META: Key = ("meta", b"incarnation", 0)


def batch(serial: int, puts: dict[Key, Value], *deletes: Key) -> Batch:
    return Batch(serial, Durability.NORMAL, puts, deletes)


def test_a_taken_batch_is_readable_and_a_crash_loses_it() -> None:
    store = MemoryStore()
    store.accept(batch(1, {PIECE: b"0123456789"}))
    assert store.piece(M, 0) == b"0123456789"
    assert store.piece(M, 1) is None
    store.crash()
    assert store.piece(M, 0) is None
    assert store.unanswered == ()


def test_a_committed_batch_survives_a_crash() -> None:
    store = MemoryStore()
    store.accept(batch(1, {META: 7}))
    store.commit(1)
    store.accept(batch(2, {META: 8}))
    assert store.get(META) == 8
    store.crash()
    assert list(store.state()) == [(META, 7)]


def test_a_taken_deletion_hides_what_is_on_disk_until_it_is_lost() -> None:
    store = MemoryStore()
    store.accept(batch(1, {PIECE: b"0123"}))
    store.commit(1)
    store.accept(batch(2, {}, PIECE))
    assert store.piece(M, 0) is None
    store.crash()
    assert store.piece(M, 0) == b"0123"
    store.accept(batch(3, {}, PIECE))
    store.commit(3)
    assert len(store) == 0


def test_batches_are_committed_in_order() -> None:
    store = MemoryStore()
    store.accept(batch(1, {META: 1}))
    store.accept(batch(2, {META: 2}))
    with pytest.raises(StateError, match="1 is next, not 2"):
        store.commit(2)
    store.commit(1)
    store.commit(2)
    assert store.get(META) == 2


def test_a_refused_batch_was_never_there() -> None:
    store = MemoryStore()
    store.accept(batch(1, {META: 1}))
    store.refuse(1)
    assert store.get(META) is None
    with pytest.raises(StateError, match="no batch 1"):
        store.refuse(1)


def test_payloads_do_not_come_back_at_a_restart_but_stay_readable() -> None:
    store = MemoryStore()
    store.accept(batch(1, {PIECE: b"x", META: 1}))
    store.commit(1)
    store.crash()
    assert list(store.state()) == [(META, 1)]
    assert store.piece(M, 0) == b"x"
    assert store.piece(M, 1) is None


@pytest.mark.parametrize("waiting", [False, True])
def test_a_batch_that_is_written_at_once_is_durable_at_once(waiting: bool) -> None:
    store = MemoryStore()
    store.write(batch(1, {META: 1, PIECE: b"x"}))
    if waiting:
        store.accept(batch(2, {META: 2}))
        with pytest.raises(StateError, match="2 is next, not 3"):
            store.write(batch(3, {}, PIECE))
        store.commit(2)
        store.commit(3)
    else:
        store.write(batch(2, {META: 2}, PIECE))
    store.crash()
    assert (store.get(META), store.piece(M, 0), len(store)) == (2, None, 1)


@pytest.mark.parametrize("payload", [b"", b"short", b"text " * 20_000, bytes(n * n % 251 for n in range(40_000))])
def test_a_payload_comes_out_as_it_was_published(payload: bytes) -> None:
    packed = pack(payload, signed=False, compress=True, limits=Limits())
    message = Descriptor(
        "a",
        1,
        1,
        0,
        None,
        "news",
        packed.size,
        packed.length,
        packed.codec,
        packed.root,
        fragment_bytes=1_000,
    )
    store = MemoryStore()
    store.accept(batch(1, {("piece", message.id, n): piece for n, piece in enumerate(packed.pieces)}))
    assert store.payload(message, Limits()) == payload
    store.crash()
    if payload:
        with pytest.raises(StoreError, match="piece 0 of a:1:1 is gone"):
            store.payload(message, Limits())


def test_a_piece_of_another_message_is_copied_also_if_that_is_deleted_with_it() -> None:
    store, other = MemoryStore(), MessageId(b"a:1:2")
    store.accept(batch(1, {PIECE: b"0123"}))
    copied = Batch(2, Durability.NORMAL, {("piece", other, 0): PieceOf(M), META: 1}, (PIECE,), refers=True)
    store.accept(copied)
    assert (store.piece(other, 0), store.piece(M, 0)) == (b"0123", None)
    store.commit(1)
    store.commit(2)
    assert (store.piece(other, 0), store.piece(M, 0)) == (b"0123", None)
    store.write(Batch(3, Durability.NORMAL, {PIECE: PieceOf(MessageId(b"a:1:3"))}, (), refers=True))
    assert store.piece(M, 0) is None
