"""Recording: the events of an emulation's hosts as rows of its record, and the file that tests have it written to.

Times are those of the emulation; where a node's clock is wrong, deliveries and expiries have its time as well. Signed
nodes have their names. A message that comes again to a node that had it, and did not drop it, was lost in a crash: only
such a reception is marked `again`. If the nodes that will crash are known beforehand, nothing has to be remembered of
the others.

Lines of JSON need nothing but this package. Only Parquet needs the extra `emu`, and a missing extra is reported at the
start, not at the end.
"""

from __future__ import annotations

import importlib.util
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from carrypost.emu.engine.driver import EmulatedDriver
from carrypost.errors import LocalError
from carrypost.log.events import Confirmed, Delivered, Dropped, Event, Expired, Received, Refused, Stored
from carrypost.log.files import staged
from carrypost.log.record import Kind, Record
from carrypost.model.ids import MessageId, NodeId
from carrypost.model.times import MICROSECONDS

LINES = (".jsonl", ".ndjson")
_UNTOLD = frozenset({Stored, Confirmed})
"""Between a host and its application."""
_NODES = ("recipients", "path", "producers", "consumer")
"""Attributes that name nodes."""
_NO_PLACE = "neighbours"
"""Reason for which an announcement is refused if there is no room for its sender."""


class Recorder:
    """Writes the events of one emulation to its record."""

    def __init__(self, record: Record, name: Callable[[NodeId], str], crashing: Iterable[str] | None = None) -> None:
        self._record = record
        self._name = name
        self._held: dict[str, set[MessageId]] = defaultdict(set)
        """Messages that each node that may crash received and did not drop."""
        self._crashing = None if crashing is None else frozenset(crashing)
        """None: any node may crash."""
        self.crowded: Counter[str] = Counter()
        """Number of times that a node had no place for another that announced itself."""

    def run(self, seed: int | str, version: str, changes: Mapping[str, str]) -> None:
        """Write the first row, with the origin of the run."""
        attrs = {"seed": str(seed), "version": version, **changes}
        self._record.add(Kind.RUN, 0, "", attrs=attrs)

    def observe(self, driver: EmulatedDriver, event: Event) -> None:
        """Write down an event of a host."""
        if type(event) in _UNTOLD:
            return
        if type(event) is Refused and event.reason == _NO_PLACE:
            self.crowded[driver.name] += event.count
        record, node = self._record, driver.name
        start = len(record)
        held = self._held[node] if self._crashing is None or node in self._crashing else None
        if type(event) is Delivered:
            record.delivered(driver.t_us, node, event, attrs=None if driver.clock.right else _shown(driver))
        elif isinstance(event, Expired) and not driver.clock.right:
            record.expired(driver.t_us, node, event, attrs=_shown(driver))
        else:
            record.observe(driver.t_us, node, event, again=held)
        if held is not None:
            _remember(held, event, driver.date)
        if driver.identity.signed:
            for column in (record.peer, record.source):
                column[start:] = [shown and self._name(NodeId(shown)) for shown in column[start:]]
            record.attrs[start:] = [self._renamed(attrs) for attrs in record.attrs[start:]]

    def _renamed(self, attrs: Mapping[str, str] | None) -> Mapping[str, str] | None:
        """Call recipients and relays by their names, too."""
        for key in _NODES if attrs is not None else ():
            if attrs is not None and key in attrs:
                attrs = {**attrs, key: " ".join([self._name(NodeId(each)) for each in attrs[key].split()])}
        return attrs


def _shown(driver: EmulatedDriver) -> dict[str, str]:
    """Return the time that the node's clock shows."""
    return {"clock": repr(driver.date / MICROSECONDS)}


def _remember(held: set[MessageId], event: Event, now: int) -> None:
    if isinstance(event, Received):
        held.update(reception.descriptor.id for reception in event.receptions)
    elif isinstance(event, Dropped):
        held.difference_update(descriptor.id for descriptor in event.descriptors)
    elif isinstance(event, Expired):  # What waited in vain for another is carried on, up to its own deadline.
        held.difference_update(descriptor.id for descriptor in event.descriptors if not descriptor.alive(now))


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
            from carrypost.emu.records import Sink  # noqa: PLC0415 - needs pyarrow, which testing does without

            with Sink(self._path) as sink:
                sink.write(record)
            return
        with staged(self._path) as partial:
            partial.write_text("".join(f"{line}\n" for line in record.json_lines()), encoding="utf-8")
