"""A file of contacts played, and a record written to a file, for networks in tests.

Contacts begin and end by themselves, at their times, in the order of `scheduler.Phase`; as with any link, nobody is
told. A link that was made by hand already is left as it is, and ends when the file says so. Lines of JSON need nothing
but this package; only Parquet needs the extra `emu`, and that is said at the start, not at the end.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from pathlib import Path

from carrypost.emu.engine.radio import Radio
from carrypost.emu.engine.scheduler import Phase, Scheduler
from carrypost.emu.traces.contacts import FOREVER_US, Contact
from carrypost.errors import LocalError
from carrypost.files import staged
from carrypost.model.times import MICROSECONDS
from carrypost.record import Kind, Record

LINES = (".jsonl", ".ndjson")


class Playback:
    """Plays contacts on a radio."""

    def __init__(self, scheduler: Scheduler, radio: Radio, record: Record | None) -> None:
        self._scheduler = scheduler
        self._radio = radio
        self._record = record

    def play(self, contacts: Iterable[Contact]) -> None:
        """Play these contacts from now on; their times count from the present."""
        now = self._scheduler.now
        for contact in contacts:
            self._scheduler.post(now + contact.start_us, Phase.UP, contact.a, self._up, contact)
            if contact.end_us < FOREVER_US:
                self._scheduler.post(now + contact.end_us, Phase.DOWN, contact.a, self._down, contact)

    def _up(self, contact: Contact) -> None:
        if self._record is not None:
            attrs = {"end": repr(contact.end_us / MICROSECONDS)} if contact.end_us < FOREVER_US else {}
            self._record.add(Kind.CONTACT, self._scheduler.now, contact.a, peer=contact.b, attrs=attrs)
        for way in ((contact.a, contact.b), (contact.b, contact.a)):
            if not self._radio.linked(*way):
                self._radio.link(*way, one_way=True)

    def _down(self, contact: Contact) -> None:
        for way in ((contact.a, contact.b), (contact.b, contact.a)):
            if self._radio.linked(*way):
                self._radio.unlink(*way, one_way=True)


class RecordFile:
    """The file that a record is written to when its network is closed."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        if not self._path.parent.is_dir():
            raise LocalError(f"the record {path} cannot be written: there is no folder {self._path.parent}")
        if self._path.suffix not in LINES and importlib.util.find_spec("pyarrow") is None:
            raise LocalError(
                f"the record {path} would be Parquet, which needs pyarrow: pip install 'carrypost[emu]'; "
                "a record that ends in .jsonl needs nothing"
            )

    def write(self, record: Record) -> None:
        """Write all rows so far; the file is there whole, or not at all."""
        if self._path.suffix not in LINES:
            from carrypost.emu.records.files import Sink  # noqa: PLC0415 - needs pyarrow, which testing does without

            with Sink(self._path) as sink:
                sink.take(record)
            return
        with staged(self._path) as partial:
            partial.write_text("".join(f"{line}\n" for line in record.json_lines()), encoding="utf-8")
