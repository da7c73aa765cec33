"""Stores that were cut off, damaged, or written by another version, and disks without room."""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.examples import soaked
from tests.support.store_disk import META, Disk, described, message, opened
from tests.support.waiting import eventually

from carrypost.errors import NodeError
from carrypost.log.journal import STRUCK, StoredMessage
from carrypost.model.descriptor import Descriptor, PayloadCodec
from carrypost.model.ids import MessageId, NodeId
from carrypost.node.store import tables
from carrypost.node.store.store import Store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


# --- cut off ---------------------------------------------------------------------------------------------------

_CHILD = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from tests.support.store_disk import Disk, killed_batch
disk = Disk(Path(sys.argv[1]))
serial = int(sys.argv[3])
disk.serial = serial
os.write(1, b"0\\n")
while True:
    serial += 1
    puts, deletes, durability = killed_batch(serial)
    disk.submit(puts, *deletes, durability=durability)
    if disk.woken.is_set():
        disk.woken.clear()
        for answered, reason in disk.fetch():
            assert reason is None
            os.write(1, b"%d\\n" % answered)
"""


def kill_and_look(path: Path, first: int, chance: random.Random) -> int:
    """Let a child write from `first` on, kill it, and return the last batch that is there."""
    arguments = [sys.executable, "-c", _CHILD, str(path), str(Path(__file__).parents[2]), str(first)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as child:  # noqa: S603 - our own
        assert child.stdout is not None
        assert child.stdout.readline() == b"0\n"
        time.sleep(chance.random() * 0.3)
        child.send_signal(signal.SIGKILL)
        lines = child.stdout.read().split(b"\n")[:-1]
    answered = int(lines[-1]) if lines else first
    with opened(path) as disk:
        state = disk.state()
        last = state.pop(META, 0)
        assert isinstance(last, int)
        assert last >= answered
        expected = {key: value for n in range(max(1, last - 99), last + 1) for key, value in message(n, b"").items()}
        assert state == {key: value for key, value in expected.items() if key[0] == "message"}
        for n in range(max(1, last - 99), last + 1):
            assert disk.store.read(described(n).id, 0) == b"%d " % n * 200
        assert disk.store.read(described(last - 100).id, 0) is None
        assert disk.store.read(described(last + 1).id, 0) is None
    return last


@pytest.mark.parametrize("kills", [4, pytest.param(30, marks=pytest.mark.soak)])
def test_what_was_answered_survives_a_kill(path: Path, kills: int) -> None:
    chance, last = random.Random(1), 0
    for _ in range(kills):
        last = kill_and_look(path, last, chance)
    assert last > 10


@pytest.mark.soak
def test_what_was_answered_survives_many_kills(path: Path) -> None:
    chance, last = random.Random(), 0
    for _ in range(200):
        last = kill_and_look(path, last, chance)


# --- files that are not what they should be ------------------------------------------------------------------------


def filled(path: Path, count: int = 300) -> None:
    with opened(path) as disk:
        for n in range(1, count):
            disk.submit(message(n, random.Random(n).randbytes(1_000)) | {META: n})


def refusal(path: Path) -> str:
    """Return the error that the user reads; the file must be unchanged."""
    before = path.read_bytes()
    with pytest.raises(NodeError) as caught:
        Store.open(path, lambda: None)
    assert path.read_bytes() == before
    assert str(path) in str(caught.value)
    return str(caught.value)


_KILLED = """
import os, signal, sys
from pathlib import Path
from carrypost.node.store import tables
from carrypost.node.store.store import Store

left = int(sys.argv[2])
connect = tables.connect

def watched(path, **options):
    def count(statement):
        global left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
    connection = connect(path, **options)
    connection.set_trace_callback(count)
    return connection

tables.connect = watched
Store.open(Path(sys.argv[1]), lambda: None)
"""


def test_a_file_that_is_no_database_is_refused(path: Path) -> None:
    path.write_bytes(b"This is my diary, and no database.")
    assert "damaged" in refusal(path)


def test_a_truncated_store_is_refused(path: Path) -> None:
    filled(path)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)
    assert "is damaged" in refusal(path)


@pytest.mark.parametrize("kept_bytes", [0, 1, 16, 100, 511, 512, 4_096, 8_192, 20_000, -1])
def test_a_store_that_was_cut_short_is_refused_however_little_is_left(path: Path, kept_bytes: int) -> None:
    filled(path)
    with path.open("r+b") as file:
        file.truncate(kept_bytes if kept_bytes >= 0 else path.stat().st_size + kept_bytes)
    assert "move it and the files beside it away" in refusal(path)


def test_a_database_with_nothing_in_it_is_refused(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("VACUUM")
    assert path.stat().st_size
    assert "is damaged" in refusal(path)


@pytest.mark.parametrize(
    "damage", ["DROP TABLE seen", "DROP TABLE registry", "DROP TABLE layer", "ALTER TABLE piece DROP COLUMN body"]
)
def test_a_store_that_lacks_something_is_refused(path: Path, damage: str) -> None:
    filled(path, 3)
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(damage)
    assert f"the table {damage.split()[2]} is missing" in refusal(path)


def test_a_log_without_its_store_is_refused_and_not_read_into_another_one(path: Path) -> None:
    with opened(path) as disk:
        assert disk.outcome({META: 3}) is None
        log = tables.wal(path).read_bytes()
    path.unlink()
    tables.wal(path).write_bytes(log)
    with pytest.raises(NodeError, match="its log is there, and the store itself is gone"):
        Store.open(path, lambda: None)
    assert not path.exists()
    assert tables.wal(path).read_bytes() == log


@pytest.mark.parametrize("statement", [1, 6, 11, *soaked(range(2, 11))])
def test_a_store_that_was_cut_off_while_it_was_made_is_made_again(path: Path, statement: int) -> None:
    """An empty file counts as damage, so merely starting a node must never leave one behind."""
    with subprocess.Popen([sys.executable, "-c", _KILLED, str(path), str(statement)]) as child:  # noqa: S603 - our own
        assert child.wait() == -signal.SIGKILL
    assert not path.exists()
    with opened(path) as disk:
        assert disk.outcome({META: 1}) is None
    assert [file.name for file in path.parent.iterdir() if ".new" in file.name] == []


@pytest.mark.parametrize("page", [0, 1, 2, 5, 40, -1])
def test_a_store_with_a_page_of_garbage_is_refused_with_advice(path: Path, page: int) -> None:
    filled(path)
    pages = path.stat().st_size // tables.PAGE_BYTES
    with path.open("r+b") as file:
        file.seek(page % pages * tables.PAGE_BYTES)
        file.write(random.Random(page).randbytes(tables.PAGE_BYTES))
    assert "move it and the files beside it away" in refusal(path)


def test_a_store_that_was_cut_off_and_damaged_is_left_as_it_is(path: Path, tmp_path: Path) -> None:
    filled(path)
    with opened(path) as disk:
        disk.outcome(message(1_000, b"in the log"))
        copy = tmp_path / "copy" / "store.db"
        copy.parent.mkdir()
        copy.write_bytes(path.read_bytes())
        tables.wal(copy).write_bytes(tables.wal(path).read_bytes())
    with copy.open("r+b") as file:
        file.seek(40 * tables.PAGE_BYTES)
        file.write(b"\xff" * tables.PAGE_BYTES)
    log = tables.wal(copy).read_bytes()
    assert "is damaged" in refusal(copy)
    assert tables.wal(copy).read_bytes() == log


def test_a_row_that_does_not_decode_is_told_when_the_state_is_read(path: Path) -> None:
    filled(path, 3)
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE message SET value = x'00'")
    with opened(path) as disk, pytest.raises(NodeError, match="does not decode"):
        disk.state()


def test_another_program_s_database_is_refused(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE diary (day, entry)")
    assert "not a store of carrypost" in refusal(path)


def test_a_store_in_use_by_another_program_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "BUSY_S", 0.05)
    filled(path, 3)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(NodeError, match="in use by another process"):
            Store.open(path, lambda: None)
        other.execute("ROLLBACK")
    with opened(path) as disk:
        assert disk.state()[META] == 2


def test_a_batch_that_meets_another_program_s_transaction_is_lost(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "BUSY_S", 0.05)
    with opened(path) as disk, contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert "in use by another process" in str(disk.outcome({META: 1}))
        other.execute("ROLLBACK")
        assert disk.outcome({META: 2}) is None


def test_a_folder_in_the_place_of_the_store_is_refused(path: Path) -> None:
    path.mkdir()
    with pytest.raises(NodeError, match="cannot be opened: Is a directory"):
        Store.open(path, lambda: None)


def test_a_store_in_a_folder_that_is_not_there_is_refused(path: Path) -> None:
    with pytest.raises(NodeError, match="cannot be opened: No such file"):
        Store.open(path.parent / "nowhere" / "store.db", lambda: None)


# --- versions ----------------------------------------------------------------------------------------------------

VERSION_1 = """
PRAGMA application_id = 1129337684;
PRAGMA user_version = 1;
CREATE TABLE message (n INTEGER PRIMARY KEY, id BLOB NOT NULL, pieces BLOB NOT NULL, value BLOB);
CREATE TABLE hashes (n INTEGER PRIMARY KEY, id BLOB NOT NULL, value BLOB NOT NULL);
CREATE TABLE seen (n INTEGER PRIMARY KEY, id BLOB NOT NULL, value BLOB NOT NULL);
CREATE TABLE piece (n INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE meta (name BLOB NOT NULL, number INTEGER NOT NULL, value NOT NULL, PRIMARY KEY (name, number));
INSERT INTO message VALUES (3, x'613a313a31', x'05', CAST(
    x'99c41d009fa161010105c0a46e657773cd9c40cd9c4000c400cd03e804c2a080c4010503cd01f407a16ac2c3c3' AS BLOB));
INSERT INTO hashes VALUES (4, x'62', x'6868');
INSERT INTO piece VALUES (3 << 24, x'6f6e65');
INSERT INTO piece VALUES (3 << 24 | 2, x'7468726565');
INSERT INTO meta VALUES (x'696e6361726e6174696f6e', 0, 6);
"""


VERSION_2 = """
PRAGMA user_version = 2;
CREATE TABLE registry (name BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
INSERT INTO registry VALUES (x'666f72756d', x'68656164');
"""
"""Tables that a store of version 1 lacks."""
PLAIN = Descriptor("a", 1, 1, 5, None, "news", 40_000, 40_000, PayloadCodec.PLAIN, b"", 1_000)


def version_1(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(VERSION_1)


def test_a_store_of_version_1_opens(path: Path) -> None:
    version_1(path)
    with opened(path) as disk:
        stored = StoredMessage(PLAIN, 5, 3, 500, 7, NodeId("j"), False, True, True)
        assert disk.state() == {("message", PLAIN.id, 0): stored, ("hashes", b"b", 0): b"hh", META: 6}
        assert disk.store.read(PLAIN.id, 0) == b"one"
        assert disk.store.read(PLAIN.id, 1) is None
        assert disk.store.read(PLAIN.id, 2) == b"three"
        assert disk.outcome({("seen", MessageId(b"new"), 0): PLAIN}, ("hashes", b"b", 0)) is None
    with opened(path) as disk:
        assert set(disk.state()) == {("message", PLAIN.id, 0), META, ("seen", b"new", 0)}


def test_a_store_of_version_1_learns_to_keep_registries(path: Path) -> None:
    version_1(path)
    forum, source = ("order", b"forum", 0), ("order", b"forum b", 0)
    with opened(path) as disk:
        assert disk.outcome({forum: b"head", source: b"last"}) is None
    with opened(path) as disk:
        assert disk.state()[forum] == b"head"
        assert disk.outcome({forum: b"later"}, source) is None
    with opened(path) as disk:
        assert disk.state()[forum] == b"later"
        assert source not in disk.state()
        assert disk.store.read(PLAIN.id, 0) == b"one"


def test_a_store_of_version_2_learns_to_keep_the_rows_of_layers(path: Path) -> None:
    version_1(path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(VERSION_2)
    subscription, claim = ("mom", b"S" + bytes(8), 0), ("mom", b"C" + bytes(8) + PLAIN.id, 0)
    forum = ("order", b"forum", 0)
    with opened(path) as disk:
        assert disk.state()[forum] == b"head"
        assert disk.outcome({subscription: b"what", claim: b"first"}) is None
    with opened(path) as disk:
        assert (disk.state()[subscription], disk.state()[claim]) == (b"what", b"first")
        assert disk.outcome({subscription: b"else"}, claim) is None
    with opened(path) as disk:
        assert disk.state()[subscription] == b"else"
        assert claim not in disk.state()
        assert disk.state()[forum] == b"head"
        assert disk.store.read(PLAIN.id, 0) == b"one"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT kind, name FROM layer").fetchall() == [("mom", subscription[1])]
        assert connection.execute("PRAGMA user_version").fetchone() == (3,)


def test_recipients_that_are_struck_off_are_kept_beside_their_message_and_without_it(path: Path) -> None:
    here, gone = (STRUCK, PLAIN.id, 0), (STRUCK, b"another", 0)
    with opened(path) as disk:
        assert disk.outcome({**message(1, b"one"), here: b"places", gone: b"all"}) is None
        assert disk.outcome({here: b"more places"}) is None
    with opened(path) as disk:
        assert (disk.state()[here], disk.state()[gone]) == (b"more places", b"all")
        assert disk.outcome({}, here, gone) is None
    with opened(path) as disk:
        assert not {here, gone} & disk.state().keys()


def test_a_store_of_a_later_version_is_refused(path: Path) -> None:
    version_1(path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    assert "version 99" in refusal(path)


def test_a_migration_is_made_once_and_keeps_what_is_there(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version_1(path)
    extra = ("ALTER TABLE seen ADD COLUMN note TEXT", "UPDATE meta SET value = value + 10")
    monkeypatch.setattr(tables, "MIGRATIONS", (*tables.MIGRATIONS, extra))
    for _ in range(2):
        with opened(path) as disk:
            assert disk.state()[META] == 16
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (len(tables.MIGRATIONS),)


def test_a_migration_that_fails_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version_1(path)

    broken = ("UPDATE meta SET value = 0", "DROP TABLE piece", "a statement that is none")
    with monkeypatch.context() as patched:
        patched.setattr(tables, "MIGRATIONS", (*tables.MIGRATIONS, broken))
        with pytest.raises(NodeError, match="syntax error"):
            Store.open(path, lambda: None)
    with opened(path) as disk:
        assert disk.state()[META] == 6
        assert disk.store.read(PLAIN.id, 0) == b"one"


# --- disks without room --------------------------------------------------------------------------------------------


@pytest.fixture
def small(small_disk: Callable[[int], Path]) -> Path:
    """Return a disk of 8 MiB for one test."""
    return small_disk(8 << 20)


def take_all(folder: Path, name: str = "other") -> None:
    """Use up the room that is left, as another program would."""
    with (folder / name).open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4_096)) == 4_096:
            pass


def fill_up(disk: Disk, first: int = 1) -> int:
    """Put messages, as many as there is room for; return the number of the next one."""
    for n in range(first, 10_000):
        if disk.store.room_bytes < 10_000:
            return n
        assert disk.outcome(message(n, random.Random(n).randbytes(10_000))) is None
    raise AssertionError("the disk is never full")


def test_a_full_disk_says_so_and_still_takes_deletions(small: Path) -> None:
    with opened(small / "store.db") as disk:
        full = fill_up(disk)
        reason = disk.outcome(message(full, bytes(8 << 20)))
        assert reason == f"the disk is full: the store {small / 'store.db'} cannot grow; free some space"
        assert full > 200
        assert disk.store.read(described(full).id, 0) is None
        take_all(small)
        for n in range(1, full - 20):
            assert disk.outcome({}, *message(n, b"")) is None, disk.store.status()
        assert disk.outcome({META: 5}) is None
        kept = [n for n in range(1, full + 1) if disk.store.read(described(n).id, 0) is not None]
        assert kept == list(range(full - 20, full))
    with opened(small / "store.db") as disk:
        assert len(disk.state()) == 21
        assert disk.store.read(described(full - 1).id, 0) == random.Random(full - 1).randbytes(10_000)


def test_a_full_disk_still_takes_the_rows_of_layers_which_are_notes(small: Path) -> None:
    subscription, claim = ("mom", b"S" + bytes(8), 0), ("mom", b"C" + bytes(8), 0)
    with opened(small / "store.db") as disk:
        assert disk.outcome({claim: b"first"}) is None
        full = fill_up(disk)
        take_all(small)
        for number in range(50):
            seen = described(full + number)
            assert disk.outcome({subscription: b"%d" % number, ("seen", seen.id, 0): seen}, claim) is None
    with opened(small / "store.db") as disk:
        assert disk.state()[subscription] == b"49"
        assert claim not in disk.state()


def test_freed_room_is_used_again_although_the_disk_stays_full(small: Path) -> None:
    with opened(small / "store.db") as disk:
        full = fill_up(disk)
        take_all(small)
        for n in range(1, full):
            assert disk.outcome({}, *message(n, b"")) is None
        again = fill_up(disk, full)
        assert again - full > full // 2


@pytest.mark.parametrize("commits", [240, 242])
def test_what_is_deleted_on_a_full_disk_makes_room_at_once_though_the_log_was_longer_before(
    small: Path, commits: int
) -> None:
    """At the end of a long log there is room for deletions, but none for messages that could use the freed room."""
    chance = random.Random(commits)
    with opened(small / "store.db") as disk:
        for number in range(commits):
            assert disk.outcome({META: number}) is None
        assert disk.outcome(message(1, chance.randbytes(300_000))) is None
        last = 2
        while disk.store.room_bytes >= 60_000:
            assert disk.outcome(message(last, chance.randbytes(60_000))) is None
            last += 1
        assert disk.outcome({}, *(key for n in range(2, 7) for key in message(n, b""))) is None
        assert disk.store.room_bytes >= 60_000
        assert disk.outcome(message(last, chance.randbytes(60_000))) is None


def test_when_room_returns_everything_goes_on_and_the_reserve_is_taken_again(small: Path) -> None:
    (small / "other").write_bytes(bytes(2**21))
    with opened(small / "store.db") as disk:
        assert disk.store.status()["reserve"]
        full = fill_up(disk)
        gone = 0
        while disk.store.status()["reserve"]:  # It is given up for a deletion, and taken again if that was all.
            take_all(small)
            gone += 1
            assert disk.outcome({}, *message(gone, b"")) is None
        assert disk.store.status()["reserve_given_up"]
        take_all(small)
        assert disk.store.room_bytes <= 0
        (small / "other").unlink()
        eventually(lambda: bool(disk.store.status()["reserve"]))
        assert (small / "store.db.reserve").stat().st_size > 2**20
        for n in range(full, full + 50):
            assert disk.outcome(message(n, bytes(10_000))) is None
        assert disk.store.status()["failure"] is None


def test_a_store_opens_on_a_full_disk(small: Path) -> None:
    path = small / "store.db"
    arguments = [sys.executable, "-c", _CHILD, str(path), str(Path(__file__).parents[2]), "0"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as child:  # noqa: S603 - our own
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(5)]
        child.send_signal(signal.SIGKILL)
    answered = int(lines[-1])
    (path.with_name("store.db-shm")).unlink(missing_ok=True)
    take_all(small)
    with opened(path) as disk:
        last = disk.state()[META]
        assert isinstance(last, int)
        assert last >= answered
        assert disk.outcome({META: last + 1}) is None


def test_a_new_store_on_a_full_disk_is_refused(small: Path) -> None:
    take_all(small)
    with pytest.raises(NodeError, match="the disk is full"):
        Store.open(small / "store.db", lambda: None)


def test_a_store_on_a_read_only_disk_is_refused(small: Path) -> None:
    path = small / "store.db"
    filled(path, 3)
    subprocess.run([str(shutil.which("mount")), "-o", "remount,ro", str(small)], check=True)  # noqa: S603 - our own
    assert "Read-only file system" in refusal(path)
