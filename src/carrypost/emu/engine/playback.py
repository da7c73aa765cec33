"""A file of contacts played, and a record written to a file, for networks in tests.

Contacts begin and end by themselves, at their times, in the order of `scheduler.Phase`; as with any link, no host is
notified. A link that was made by hand already is left as it is, and ends at the time in the file. Lines of JSON need
nothing but this package. Only Parquet needs the extra `emu`, and a missing extra is reported at the start, not at the
end.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from pathlib import Path

from carrypost.emu.engine.radio import Radio
from carrypost.emu.engine.scheduler import Phase, Scheduler
from carrypost.errors import LocalError
from carrypost.log.files import staged
from carrypost.log.record import Kind, Record
from carrypost.model.times import MICROSECONDS
from carrypost.traces.contacts import FOREVER_US, Contact
from carrypost.traces.csvfiles import HEARD

LINES = (".jsonl", ".ndjson")


def play(contacts: Iterable[Contact], scheduler: Scheduler, radio: Radio, record: Record | None) -> None:
    """Play contacts on a radio from now on; their times count from the present."""

    def up(a: str, b: str, end_us: int, heard: str) -> None:
        if record is not None:
            attrs = {"end": repr(end_us / MICROSECONDS)} if end_us < FOREVER_US else {}
            record.add(Kind.CONTACT, scheduler.now, a, peer=b, attrs=attrs | ({HEARD: heard} if heard else {}))
        for way in ((a, b), (b, a)):
            if heard in {"", way[0]} and not radio.linked(*way):
                radio.link(*way, one_way=True)

    def down(a: str, b: str) -> None:
        for way in ((a, b), (b, a)):
            if radio.linked(*way):
                radio.unlink(*way, one_way=True)

    for a, b, start_us, end_us, heard in contacts:
        scheduler.post(scheduler.now + start_us, Phase.UP, a, up, a, b, end_us, heard)
        if end_us < FOREVER_US:
            scheduler.post(scheduler.now + end_us, Phase.DOWN, a, down, a, b)


class RecordFile:
    """The file that a record is written to when its network is closed."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        if not self._path.parent.is_dir():
            raise LocalError(f"the record {path} cannot be written: there is no folder {self._path.parent}")
        if self._path.suffix not in LINES and importlib.util.find_spec("pyarrow") is None:
            raise LocalError(
                f"the record {path} in Parquet needs pyarrow: pip install 'carrypost[emu]', or choose a name that "
                "ends in .jsonl"
            )

    def write(self, record: Record) -> None:
        """Write all rows so far; the file is there whole, or not at all."""
        if self._path.suffix not in LINES:
            from carrypost.emu.records.files import Sink  # noqa: PLC0415 - needs pyarrow, which testing does without

            with Sink(self._path) as sink:
                sink.write(record)
            return
        with staged(self._path) as partial:
            partial.write_text("".join(f"{line}\n" for line in record.json_lines()), encoding="utf-8")
