"""Rows of seats: states are stored in parts, and what is on disk is always of one event."""

from __future__ import annotations

import random

import pytest
from tests.support.histories import Histories

from carrypost.application.ledger import KnownRows
from carrypost.gossip.outputs import Journal
from carrypost.log.journal import Key, Value
from carrypost.overlay.processing import PART_BYTES, SeatRow, SeatRows

NAME = b"S" + bytes(16)


class Disk:
    """A disk, and the rows that are written to it."""

    def __init__(self) -> None:
        self.journal = Journal([])
        self.rows = KnownRows(self.journal, "overlay")
        self.seats = SeatRows(self.rows)
        self.stored: dict[Key, Value] = {}
        self.written_bytes = 0

    def write(self) -> None:
        """Write the next batch."""
        if (batch := self.journal.pop_batch()) is None:
            return
        self.stored |= batch.puts
        for key in batch.deletes:
            self.stored.pop(key, None)
        self.written_bytes += sum(len(value) for value in batch.puts.values() if isinstance(value, bytes))
        self.journal.durable(batch.serial)

    def restarted(self) -> SeatRow | None:
        """Return the seat that a new life finds."""
        rows = KnownRows(Journal([]), "overlay")
        for (_, name, _), value in self.stored.items():
            assert isinstance(value, bytes)
            rows.restore(name, value)
        return SeatRows(rows).get(NAME)


@pytest.mark.parametrize("seed", range(20))
def test_cursors_and_state_on_disk_are_of_the_same_event(seed: int) -> None:
    chance, disk = random.Random(seed), Disk()
    for number in range(60):
        length = chance.choice([0, 1, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES])
        row: SeatRow | None = SeatRow(1, number, {"p": number}, bytes([number]) * length)
        assert row is not None
        if chance.random() < 0.2:
            row = None
            disk.seats.delete(NAME)
        else:
            disk.seats.put(NAME, row)
        disk.write()
        assert disk.seats.get(NAME) == row
        assert disk.restarted() == row
    disk.seats.delete(NAME)
    disk.write()
    assert disk.stored == {}


def test_of_a_large_state_only_the_parts_that_changed_are_written() -> None:
    disk, state = Disk(), bytearray(250_000)
    disk.seats.put(NAME, SeatRow(1, 0, {}, bytes(state)))
    disk.write()
    disk.written_bytes = 0
    for number in range(200):
        state[number * 1_000] = 1
        disk.seats.put(NAME, SeatRow(1, number, {"p": number}, bytes(state)))
        disk.write()
    assert disk.written_bytes < 200 * (PART_BYTES + 100)
    found = disk.restarted()
    assert found is not None
    assert found.state == state


def test_a_row_that_cannot_be_read_closes_its_seat_and_no_other_when_the_broker_starts() -> None:
    world = Histories("ABpyz")
    world.failed = []
    with world.net as net:
        world.begin("AB pA pB yA zA yB zB", "yz")
        world.emit("p")
        net.advance(5)
        net.kill("A")
        disk = net._driver("A").store._disk  # noqa: SLF001 - a disk that has lost bits
        (key, *_) = [key for key in sorted(disk) if key[0] == "overlay" and key[1].startswith(b"S")]
        disk[key] = b"\xc1"
        net.restart("A")
        net.advance(20)
        assert [node for node, _ in world.failed] == ["A"]
        assert net.host("A").overlay.view().failed == 1
        for _ in range(4):
            world.emit("p")
            net.advance(5)
        world.settle()
        assert world.wrong() == []
        assert world.lost == []
