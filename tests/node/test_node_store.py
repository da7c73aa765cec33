"""The store of a real node: readable, durable and lost rows."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import sqlite3
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.store_disk import FIRST, ID, META, SECOND, WAIT_S, Disk, described, kept, message, opened
from tests.support.waiting import eventually

from carrypost.config import Limits
from carrypost.errors import StateError, StoreError
from carrypost.gossip.wire.pieces import pack
from carrypost.log.journal import MOM, PIECE, Durability, Key, PieceOf, StoredMessage, Value
from carrypost.model.descriptor import Descriptor
from carrypost.node.store import tables, writer
from carrypost.node.store.store import RECENT_BYTES_MAX


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def disk(path: Path) -> Iterator[Disk]:
    with opened(path) as made:
        yield made


# --- batches ---------------------------------------------------------------------------------------------------


def test_a_batch_is_readable_before_it_is_answered_and_after(disk: Disk) -> None:
    disk.submit({FIRST: b"body", SECOND: b""})
    assert disk.store.read(ID, 0) == b"body"
    assert disk.store.read(ID, 1) == b""
    assert disk.store.read(ID, 2) is None
    disk.settle()
    assert disk.store.read(ID, 0) == b"body"
    assert disk.store.read(ID, 1) == b""
    assert disk.store.status()["unanswered_bytes"] == 0


def test_the_last_of_several_unanswered_batches_counts(disk: Disk) -> None:
    disk.submit({FIRST: b"old"})
    disk.submit({}, FIRST)
    assert disk.store.read(ID, 0) is None
    disk.submit({FIRST: b"new"})
    assert disk.store.read(ID, 0) == b"new"
    disk.submit({}, FIRST)
    disk.settle()
    assert disk.store.read(ID, 0) is None


@pytest.mark.parametrize("last", [b"new", None])
def test_the_answer_of_an_earlier_batch_does_not_uncover_the_disk(disk: Disk, path: Path, last: bytes | None) -> None:
    disk.submit({FIRST: b"old"})
    eventually(lambda: disk.store.status()["batches"] == 1)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")  # The writer has to wait for this one's end.
        disk.submit({} if last is None else {FIRST: last}, *([FIRST] if last is None else []))
        assert disk.fetch() == [(1, None)]
        assert disk.store.read(ID, 0) == last
        other.execute("ROLLBACK")
    disk.settle()
    assert not disk.lost
    assert disk.store.read(ID, 0) == last


def test_a_copy_of_a_copy_is_readable_while_the_writer_is_between_them(disk: Disk, path: Path) -> None:
    copy, second = described(2).id, described(3).id
    assert disk.outcome({FIRST: b"body"}) is None
    disk.submit({(PIECE, copy, 0): PieceOf(ID)}, FIRST)
    eventually(lambda: disk.store.status()["batches"] == 2)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")  # The writer has to wait for this one's end.
        disk.submit({(PIECE, second, 0): PieceOf(copy)}, (PIECE, copy, 0))
        read = disk.store.read
        assert (read(ID, 0), read(copy, 0), read(second, 0)) == (None, None, b"body")
        other.execute("ROLLBACK")
    disk.settle()
    assert (read(ID, 0), read(copy, 0), read(second, 0)) == (None, None, b"body")


def test_what_somebody_waits_for_the_disk_with_is_written_while_the_writer_rests(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "_REST_S_MAX", 2 * WAIT_S)
    monkeypatch.setattr(writer, "_REST_RATIO", 1e9)
    with opened(path) as disk:
        disk.submit({FIRST: b"one"})
        eventually(lambda: disk.store.status()["batches"] == 1)
        disk.submit({SECOND: b"two"}, durability=Durability.FULL)
        eventually(lambda: disk.store.status()["batches"] == 2)
        disk.settle()


def test_the_writer_rests_while_more_than_one_batch_gathers(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that messages that come one at a time do not wait for it."""
    rested: list[int] = []
    monkeypatch.setattr(writer, "_REST_S_MAX", WAIT_S)
    monkeypatch.setattr(writer.Writer, "_rest", lambda _, group, __: rested.append(len(group)))
    with opened(path) as disk:
        disk.outcome({META: 1})  # After a quiet time it does not rest anyway.
        for _ in range(2 * writer.REST_AGAIN):
            disk.outcome({META: 1})
        eventually(lambda: rested == [1, 1])
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")  # The writer has to wait for this one's end.
            disk.submit({META: 1})
            eventually(disk.store._writer._queue.empty)  # noqa: SLF001 - it has taken the first one
            disk.submit({META: 1})
            disk.submit({META: 1})
            other.execute("ROLLBACK")
        disk.settle()
        eventually(lambda: rested == [1, 1, 2])


def test_a_row_of_a_layer_is_deleted_without_reading_the_others(path: Path) -> None:
    with contextlib.closing(tables.open_writer(path)) as connection:
        directory = tables.Directory(connection)
        names = [number.to_bytes(4, "big") for number in range(5_000)]
        tables.Transaction({(MOM, name, 0): b"row" for name in names}, directory).execute(connection)
        steps = 0

        def count_steps() -> None:
            nonlocal steps
            steps += 10

        connection.set_progress_handler(count_steps, 10)
        tables.Transaction({(MOM, name, 0): None for name in names[2_000:2_003]}, directory).execute(connection)
        assert steps < 500
        (left,) = connection.execute("SELECT count(*) FROM layer").fetchone()
        assert left == len(names) - 3


def test_everything_but_payloads_comes_back_at_the_next_start(path: Path) -> None:
    signed, plain, large = described(1), described(2, signed=False), described(3, length=200 * 16_384)
    puts: dict[Key, Value] = {
        META: 7,
        ("message", signed.id, 0): kept(signed),
        ("message", plain.id, 0): kept(plain, 0),
        ("message", large.id, 0): kept(large, 1 << 199 | 5, delivered=True),
        ("hashes", large.id, 0): b"h" * 6_400,
        ("seen", signed.id, 0): signed,
        ("piece", signed.id, 0): b"body",
        ("piece", large.id, 199): b"last",
    }
    with opened(path) as disk:
        assert disk.outcome(puts) is None
    with opened(path) as disk:
        assert disk.state() == {key: value for key, value in puts.items() if key[0] != "piece"}
        restored = disk.state()["message", signed.id, 0]
        assert isinstance(restored, StoredMessage)
        assert restored.descriptor.wire == signed.wire
        assert restored.descriptor.id == signed.id
        assert disk.store.read(signed.id, 0) == b"body"
        assert disk.store.read(large.id, 199) == b"last"
        assert disk.store.read(large.id, 5) is None


def test_every_key_comes_and_goes_alone(path: Path) -> None:
    descriptor = described(1)
    own: Key = ("message", ID, 0)
    others: dict[Key, Value] = {("seen", ID, 0): descriptor, ("hashes", ID, 0): b"h"}
    with opened(path) as disk:
        disk.submit({SECOND: b"two"})  # a piece of which nothing else is known
    with opened(path) as disk:
        assert disk.state() == {}
        assert disk.store.read(ID, 1) == b"two"
        disk.submit({own: kept(descriptor), FIRST: b"one"})
        disk.settle()
        disk.submit({}, own, SECOND)
        disk.submit(others)
    with opened(path) as disk:
        assert disk.state() == others
        assert disk.store.read(ID, 0) == b"one"
        assert disk.store.read(ID, 1) is None
        disk.submit({own: kept(descriptor, delivered=True)}, ("seen", ID, 0))
        disk.settle()
        disk.submit({}, FIRST, own, ("hashes", ID, 0), META)
    with opened(path) as disk:
        assert disk.state() == {}
        assert disk.store.read(ID, 0) is None
        assert disk.store.status()["names"] == 0


def test_answers_come_in_order_and_wake_the_loop(disk: Disk) -> None:
    serials = [disk.submit(message(n, b"x" * n)) for n in range(1, 200)]
    fetched: list[int] = []
    until = time.monotonic() + WAIT_S
    while len(fetched) < len(serials):
        assert disk.woken.wait(until - time.monotonic())
        disk.woken.clear()
        answers = disk.fetch()
        assert all(reason is None for _, reason in answers)
        fetched += [serial for serial, _ in answers]
    assert fetched == serials
    assert disk.store.answers() == []


def test_queued_batches_are_committed_together(disk: Disk) -> None:
    for n in range(1, 500):
        disk.submit(message(n, b"x"))
    disk.settle()
    commits = disk.store.status()["commits"]
    assert isinstance(commits, int)
    assert commits < 250


def test_only_batches_that_ask_for_it_wait_for_the_disk_itself(disk: Disk) -> None:
    assert disk.outcome({META: 1}) is None
    assert disk.store.status()["commits_full"] == 0
    assert disk.outcome({META: 2}, durability=Durability.FULL) is None
    assert disk.outcome({META: 3}) is None
    status = disk.store.status()
    assert (status["commits"], status["commits_full"]) == (3, 1)


def test_what_is_deleted_but_never_was_there_is_not_written(disk: Disk) -> None:
    assert disk.outcome({}, FIRST, ("message", ID, 0), ("seen", ID, 0), ("hashes", ID, 0)) is None
    assert disk.store.status()["commits"] == 0


@pytest.mark.parametrize("payload", [b"", b"short", b"text " * 20_000, bytes(n * n % 251 for n in range(40_000))])
def test_a_payload_comes_out_as_it_was_published(path: Path, payload: bytes) -> None:
    packed = pack(payload, signed=False, compress=True, limits=Limits())
    found = Descriptor("a", 1, 1, 0, None, "news", packed.size, packed.length, packed.codec, packed.root, 1_000)
    puts: dict[Key, Value] = {("piece", found.id, n): piece for n, piece in enumerate(packed.pieces)}
    with opened(path) as disk:
        disk.submit(puts)
        assert disk.store.payload(found, Limits()) == payload
    with opened(path) as disk:
        assert disk.store.payload(found, Limits()) == payload
        disk.submit({}, *puts)
        if payload:
            with pytest.raises(StoreError, match="piece 0 of a:1:1 is gone"):
                disk.store.payload(found, Limits())


def test_pieces_kept_in_memory_are_bounded(path: Path) -> None:
    bodies = {n: random.Random(n).randbytes(16_384) for n in range(2 * RECENT_BYTES_MAX // 16_384)}
    with opened(path) as disk:
        for n, body in bodies.items():
            disk.submit({("piece", ID, n): body})
        disk.settle()
        for n, body in bodies.items():
            assert disk.store.read(ID, n) == body
        recent = disk.store.status()["recent_bytes"]
        assert isinstance(recent, int)
        assert RECENT_BYTES_MAX // 2 < recent <= RECENT_BYTES_MAX


def test_the_log_beside_the_store_stays_small(disk: Disk, path: Path) -> None:
    for n in range(1, 400):
        disk.submit({("piece", ID, n): bytes(16_384)})
        disk.store.read(ID, n)
        disk.settle()
    assert path.stat().st_size > 3 * 2**20
    assert tables.wal(path).stat().st_size <= 3 * 2**20


def test_room_of_deleted_messages_is_used_again(disk: Disk, path: Path) -> None:
    def fill(first: int) -> None:
        for n in range(first, first + 200):
            puts = message(n, bytes(4_000))
            disk.submit(puts, *message(n - 200, b""))
        disk.settle()

    fill(1_000)
    fill(1_200)
    size = path.stat().st_size
    for first in range(1_400, 2_600, 200):
        fill(first)
    assert path.stat().st_size < 2 * size


# --- the end ---------------------------------------------------------------------------------------------------


def test_closing_writes_what_was_submitted_and_leaves_one_file_and_the_reserve(path: Path) -> None:
    disk = Disk(path)
    for n in range(1, 50):
        disk.submit({META: n})
    disk.store.close()
    disk.store.close()
    assert sorted(file.name for file in path.parent.iterdir()) == ["store.db", "store.db.reserve"]
    assert [serial for serial, reason in disk.store.answers() if reason is None] == list(range(1, 50))
    for use in (lambda: disk.submit({META: 50}), lambda: disk.store.read(ID, 0)):
        with pytest.raises(StateError, match="closed"):
            use()
    with opened(path) as disk:
        assert disk.state() == {META: 49}


@pytest.mark.skipif(os.name != "posix", reason="modes of files are those of POSIX")
def test_nobody_else_may_read_the_files(disk: Disk, path: Path) -> None:
    disk.outcome({META: 1})
    files = sorted(path.parent.iterdir())
    assert {file.name for file in files} == {"store.db", "store.db-wal", "store.db-shm", "store.db.reserve"}
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


# --- losses ----------------------------------------------------------------------------------------------------


def test_a_store_that_was_moved_away_loses_batches_until_it_is_back(disk: Disk, path: Path) -> None:
    assert disk.outcome({FIRST: b"kept"}) is None
    away = path.with_name("away.db")
    path.rename(away)
    reason = disk.outcome({FIRST: b"lost"})
    assert reason is not None
    assert f"{path} is gone" in reason
    assert disk.store.read(ID, 0) == b"kept"
    assert disk.store.status()["failure"] == reason
    path.write_bytes(away.read_bytes())
    assert "replaced" in str(disk.outcome({FIRST: b"lost"}))
    away.rename(path)
    assert disk.outcome({FIRST: b"new"}) is None
    assert disk.store.read(ID, 0) == b"new"
    assert disk.store.status()["failure"] is None


def test_a_store_whose_folder_was_removed_answers_and_closes(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    with opened(folder / "store.db") as disk:
        disk.outcome({FIRST: b"kept"})
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
        for _ in range(3):
            assert "is gone" in str(disk.outcome({FIRST: b"lost"}))


def test_a_lost_batch_takes_with_it_all_that_the_loop_submitted_before_it_knew(disk: Disk) -> None:
    disk.submit({FIRST: b"before"})
    bad = disk.submit({("nonsense", b"", 0): 1})
    disk.submit({FIRST: b"after", META: 1})
    eventually(lambda: disk.store.status()["lost"] == 1)
    disk.submit({META: 2})
    disk.submit({}, FIRST)
    assert disk.store.read(ID, 0) is None
    disk.settle()
    assert list(disk.lost) == [bad, bad + 1, bad + 2, bad + 3]
    assert all("nonsense" in reason for reason in disk.lost.values())
    assert disk.store.read(ID, 0) == b"before"
    assert disk.state() == {}
    assert disk.outcome({META: 3}) is None
    assert disk.state() == {META: 3}
    assert disk.store.status()["lost"] == 4


def test_batches_before_a_bad_one_in_the_same_group_are_written(path: Path) -> None:
    with opened(path) as disk:
        for n in range(1, 100):
            disk.submit(message(n, b"x") if n != 60 else {META: 2**70})
        disk.settle()
        assert list(disk.lost) == list(range(60, 100))
        assert len(disk.state()) == 59


def test_a_failing_disk_loses_the_batch_and_not_the_node(disk: Disk, path: Path) -> None:
    assert disk.outcome({FIRST: b"kept"}) is None
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Writes beyond this size fail, as they would on a bad sector.
    resource.setrlimit(resource.RLIMIT_FSIZE, (tables.wal(path).stat().st_size + 100, before[1]))
    try:
        reason = disk.outcome({SECOND: bytes(16_000)})
        assert reason is not None
        assert f"the disk under the store {path} failed" in reason
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert disk.outcome({SECOND: b"two"}) is None
    assert (disk.store.read(ID, 0), disk.store.read(ID, 1)) == (b"kept", b"two")
