"""The event log, the same for emulated and real nodes.

A `Record` holds the log of one run by columns, rows in order of happening; at equal times the order of rows
counts. Times are whole microseconds inside and seconds outside. Bursts of receptions and deliveries, which
are nearly all of a log, are appended column by column. Nothing here touches a file: drivers write
`json_lines` (real nodes) or make a table of `columns` (emulator), under the same names. The metrics of
CAUSAL §VI and of the other papers are computed from this log and nothing else.
"""
# Why columns. A long emulation appends millions of rows, mostly receptions and deliveries in
# bursts. A list per column is extended by a whole burst with one call each, and a table for
# analysis takes the lists as they are. An object per row would cost several times the memory and
# the time.
#
# Why one format for emulated and real nodes: then the same metrics and checks apply to both, and a
# run in the field can be compared with its emulation.

from __future__ import annotations

import enum
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self, TypedDict, cast

import msgspec

from carrypost.errors import LocalError
from carrypost.log import events
from carrypost.model import address, ids
from carrypost.model.descriptor import Descriptor
from carrypost.model.headers import Headers
from carrypost.model.ids import MessageId
from carrypost.model.times import MICROSECONDS


class Kind(enum.StrEnum):
    """The kind of a row."""

    RUN = "run"
    """The first row: `attrs` has the scenario's text, seed, versions, defaults."""
    JOIN = "join"
    LEAVE = "leave"
    CONTACT = "contact"
    """The truth, known to the emulator only: node < peer, `attrs["end"]`."""
    UP = "up"
    """The host's view, as are `down` and `oneway`: one row per side."""
    DOWN = "down"
    ONEWAY = "oneway"
    REACH = "reach"
    """A host (peer) can be reached, over the given number of hops."""
    UNREACH = "unreach"
    PUBLISH = "publish"
    """By the application: source = node, size = payload bytes, detail = barrier entries, where there is an order."""
    RECEIVE = "receive"
    """A whole message is here for the first time, never the author's own. hops 1: from the author."""
    PASS = "pass"  # noqa: S105 - no password
    """A neighbour (peer) acknowledged the whole message; only where a node keeps traces."""
    DELIVER = "deliver"
    """To the application, own messages included."""
    EXPIRE = "expire"
    """Received, pending, never delivered. Where its deadline is the cause, there is no `drop`."""
    DROP = "drop"
    """Any other end of a copy; detail = reason."""
    REFUSE = "refuse"
    """Refused on receipt; detail = reason, `attrs["count"]` where it stands for several."""
    TRAFFIC = "traffic"
    """Bytes sent (size) by node and frame kind (detail) since the sample before."""
    REGISTRY = "registry"
    """Entries (size) of a registry (detail); `attrs["at"]` is `leave` where a node is about to go."""
    RECEIPT = "receipt"
    """The author of a message heard of its delivery."""
    FAILURE = "failure"
    """To its author, a message that it wanted to hear of expired or failed; detail = reason. A receipt may follow."""
    ASSIGN = "assign"
    """A queue of this node gave a message to a receiver (detail)."""
    HOME = "home"
    """A client of a channel has a home broker (peer), another one than before; detail = reason."""
    RELOCATE = "relocate"
    """The seat of a consumer moved from a broker to another one (peer): size = bytes of its state, detail = operation,
    `attrs["pause_s"]`."""
    PATH = "path"
    """Paths of a broker to others (detail `network`, `overlay`), or of a producer to consumers (`delivery`, `best`);
    size = sum of hops over `attrs["pairs"]` pairs."""
    LOAD = "load"
    """Load of a broker: work that arrived, in thousandths (size) of what it can do in the same time."""
    TALLY = "tally"
    """A population's count (size) of something (detail), at the end of its run; of delays and hops a histogram."""


AGAIN = "again"
"""Detail of a `receive` after a crash that lost the first one: metrics do not count it."""
REDELIVERED = "redelivered"
"""Detail of a `deliver` after a crash: metrics do not count it."""


class Row(TypedDict):
    """One row as `Record.rows` yields it: every column, None where it is empty."""

    run: str
    t: float
    kind: str
    node: str
    peer: str | None
    message: str | None
    source: str | None
    hops: int | None
    size: int | None
    detail: str | None
    attrs: dict[str, str] | None


class Line(msgspec.Struct, omit_defaults=True):
    """One row as a line of JSON: the same names, empty columns left out."""

    run: str
    t: float
    kind: str
    node: str
    peer: str | None = None
    message: str | None = None
    source: str | None = None
    hops: int | None = None
    size: int | None = None
    detail: str | None = None
    attrs: dict[str, str] | None = None


class RecordColumn(NamedTuple):
    """A column of the log; types as Arrow calls them."""

    name: str
    type: str
    nullable: bool


_TYPES = {"t": "float64", "hops": "int32", "size": "int64", "attrs": "map<string, string>"}
"""Of columns that are no text."""
SCHEMA = tuple(
    RecordColumn(each.name, _TYPES.get(each.name, "string"), nullable=not each.required)
    for each in msgspec.structs.fields(Line)
)
_OPTIONAL = tuple(column.name for column in SCHEMA if column.nullable)
_LINE_ENCODER = msgspec.json.Encoder()
_LINE_DECODER = msgspec.json.Decoder(Line)
# The columns hold plain text: a reader need not know our enumerations. As a look-up it also checks.
_PLAIN: dict[str, str] = {kind: kind.value for kind in Kind}
_REASONS = {reason: reason.value for reason in events.Reason}
_SEEN: Mapping[type[events.Event], Kind] = {
    events.NeighbourUp: Kind.UP, events.NeighbourDown: Kind.DOWN, events.OneWay: Kind.ONEWAY,
    events.Unreachable: Kind.UNREACH,
}  # fmt: skip
_RECEIVE, _DELIVER, _DROP, _EXPIRE = Kind.RECEIVE.value, Kind.DELIVER.value, Kind.DROP.value, Kind.EXPIRE.value
_PASS = Kind.PASS.value


class Record:
    """The event log of one run, by columns.

    `by_id`: messages are called by their ids, also those that have a label, which is an attribute then.
    """

    __slots__ = ("by_id", "run", "t_us", *(column.name for column in SCHEMA[2:]))

    def __init__(self, run: str = "", *, by_id: bool = False) -> None:
        self.run, self.by_id = run, by_id
        self.clear()

    def clear(self) -> None:
        """Forget all rows, after they were written elsewhere."""
        self.t_us: list[int] = []
        self.kind: list[str] = []
        self.node: list[str] = []
        self.peer: list[str | None] = []
        self.message: list[str | None] = []
        self.source: list[str | None] = []
        self.hops: list[int | None] = []
        self.size: list[int | None] = []
        self.detail: list[str | None] = []
        self.attrs: list[Mapping[str, str] | None] = []

    def __len__(self) -> int:
        return len(self.t_us)

    def add(
        self,
        kind: Kind | str,
        t_us: int,
        node: str,
        *,
        peer: str | None = None,
        message: str | None = None,
        source: str | None = None,
        hops: int | None = None,
        size: int | None = None,
        detail: str | None = None,
        attrs: Mapping[str, str] | None = None,
    ) -> None:
        """Append one row."""
        try:
            self.kind.append(_PLAIN[kind])  # A text equals the kind that has it as its value.
        except KeyError:
            raise LocalError(f"a record has no rows of kind {kind!r}; it has {', '.join(_PLAIN)}") from None
        self.t_us.append(t_us)
        self.node.append(node)
        self.peer.append(peer)
        self.message.append(message)
        self.source.append(source)
        self.hops.append(hops)
        self.size.append(size)
        self.detail.append(detail)
        self.attrs.append(attrs)

    def observe(self, t_us: int, node: str, event: events.Event, *, again: Container[MessageId] | None = None) -> None:
        """Append what an event of `node` means to the log, if it means anything.

        `again` has the ids of what this node received before and lost in a crash.
        """
        if type(event) is events.Received:
            self.received(t_us, node, event, again=again)
        elif (append := _ROWS.get(type(event))) is not None:
            append(self, t_us, node, event)

    def received(
        self, t_us: int, node: str, event: events.Received, *, again: Container[MessageId] | None = None
    ) -> None:
        """Append a burst of receptions."""
        descriptors = [each.descriptor for each in event.receptions]
        hops = [each.hops for each in event.receptions]
        detail = None if again is None else [AGAIN if each.id in again else None for each in descriptors]
        attrs = {"path": " ".join(event.path)} if event.path else None
        self._burst(_RECEIVE, t_us, node, descriptors, peer=event.peer, hops=hops, detail=detail, attrs=attrs)

    def delivered(
        self, t_us: int, node: str, event: events.Delivered, *, attrs: Mapping[str, str] | None = None
    ) -> None:
        """Append a burst of deliveries; `attrs` for all of them (`clock` where the node's is skewed)."""
        # A claim that messaging reported as a delivery before would be counted twice.
        deliveries = [each for each in event.deliveries if not each.known]
        descriptors = [each.descriptor for each in deliveries]
        detail = [REDELIVERED if each.redelivered else None for each in deliveries]
        self._burst(_DELIVER, t_us, node, descriptors, detail=detail, attrs=attrs)

    def passed(self, t_us: int, node: str, event: events.Passed) -> None:
        """Append a burst of messages that a neighbour has now."""
        self._burst(_PASS, t_us, node, event.descriptors, peer=event.peer)

    def named(self, message: MessageId, label: str) -> str:
        """Return what a message is called here."""
        return label if label and not self.by_id else ids.shown(message)

    def expired(self, t_us: int, node: str, event: events.Expired, *, attrs: Mapping[str, str] | None = None) -> None:
        """Append a burst of messages that wait no more, and were not delivered; `attrs` for all of them."""
        self._burst(_EXPIRE, t_us, node, event.descriptors, attrs=attrs)

    def published(self, t_us: int, node: str, descriptor: Descriptor) -> None:
        """Append a publication, with the options of the message."""
        attrs = {
            "destination": descriptor.destination,
            "mode": "persistent" if descriptor.persistent else "non-persistent",
            "priority": str(descriptor.priority),
        }
        if descriptor.listed:
            attrs["recipients"] = " ".join(descriptor.listed)
        if descriptor.deadline_us is not None:
            attrs["deadline"] = repr(descriptor.deadline_us / MICROSECONDS)
        detail = None
        if descriptor.ordering:
            attrs["ordering"] = descriptor.ordering.text
            detail = str(len(descriptor.barrier))
            if descriptor.joins:
                attrs["joins"] = "true"
        if self.by_id and descriptor.label:
            attrs["label"] = descriptor.label
        if descriptor.headers is not None:
            attrs |= self._of_channels(descriptor, descriptor.headers)
        message, size = self.named(descriptor.id, descriptor.label), descriptor.size
        self.add(Kind.PUBLISH, t_us, node, message=message, source=node, size=size, detail=detail, attrs=attrs)

    def _of_channels(self, descriptor: Descriptor, headers: Headers) -> dict[str, str]:
        """Return the number of an event, the message that another one passes on, and the events that a result covers.

        Covered events are the epoch and the number of the result, then runs of events as PRODUCER:AFTER-UPTO, where the
        producer is the place of its name in `producers`, counted from 0.
        """
        attrs = {"event": str(headers.event)} if headers.event else {}
        if headers.origin and (original := descriptor.original) is not descriptor:
            attrs["origin"] = self.named(original.id, original.label)
        if (covers := headers.covers) is not None:
            runs = [f"{at}:{after}-{upto}" for at, after, upto in covers.runs]
            attrs["covers"] = " ".join([str(covers.epoch), str(covers.number), *runs])
            if covers.producers:
                attrs["producers"] = " ".join(address.nodes(covers.producers))
        return attrs

    def dropped(self, t_us: int, node: str, event: events.Dropped) -> None:
        """Append a burst of copies that left."""
        self._burst(_DROP, t_us, node, event.descriptors, detail=[_REASONS[event.reason]] * len(event.descriptors))

    def refused(self, t_us: int, node: str, event: events.Refused) -> None:
        """Append what was refused on receipt."""
        attrs = {"count": str(event.count)} if event.count != 1 else None
        self.add(Kind.REFUSE, t_us, node, peer=event.peer, message=event.message, detail=event.reason, attrs=attrs)

    def seen(
        self,
        t_us: int,
        node: str,
        event: events.NeighbourUp | events.NeighbourDown | events.OneWay | events.Unreachable,
    ) -> None:
        """Append a change of the host's view of a link, or that a host cannot be reached any more."""
        self.add(_SEEN[type(event)], t_us, node, peer=event.node)

    def reachable(self, t_us: int, node: str, event: events.Reachable) -> None:
        """Append that a host can be reached."""
        self.add(Kind.REACH, t_us, node, peer=event.node, hops=event.hops)

    def acknowledged(self, t_us: int, node: str, event: events.Acknowledged) -> None:
        """Append that a recipient has a message that this node sent."""
        message = self.named(event.message, event.label)
        self.add(Kind.RECEIPT, t_us, node, peer=event.recipient, message=message, source=node)

    def _burst(
        self,
        kind: str,
        t_us: int,
        node: str,
        descriptors: Sequence[Descriptor],
        *,
        peer: str | None = None,
        hops: list[int] | None = None,
        detail: Sequence[str | None] | None = None,
        attrs: Mapping[str, str] | None = None,
    ) -> None:
        count = len(descriptors)
        if count == 1:  # As mostly: ten lists of one value would take twice as long.
            (one,) = descriptors
            message = self.named(one.id, one.label) if self.by_id else one.shown
            attrs = {**(attrs or {}), "label": one.label} if self.by_id and one.label else attrs
            self.add(
                kind, t_us, node, peer=peer, message=message, source=one.node, hops=hops[0] if hops else None,
                size=one.size, detail=detail[0] if detail else None, attrs=attrs,
            )  # fmt: skip
            return
        blank = [None] * count
        self.t_us.extend([t_us] * count)
        self.kind.extend([kind] * count)
        self.node.extend([node] * count)
        self.peer.extend([peer] * count)
        self.source.extend([each.node for each in descriptors])
        self.hops.extend(blank if hops is None else hops)
        self.size.extend([each.size for each in descriptors])
        self.detail.extend(blank if detail is None else detail)
        # Attributes are shared by a whole burst where possible: most rows have none of their own.
        if self.by_id and any(each.label for each in descriptors):
            self.message.extend([self.named(each.id, each.label) for each in descriptors])
            self.attrs.extend([{**(attrs or {}), "label": each.label} if each.label else attrs for each in descriptors])
        else:
            self.message.extend([each.shown for each in descriptors])
            self.attrs.extend([attrs] * count)

    def columns(self) -> dict[str, list[Any]]:
        """Return the columns of `SCHEMA`, for a table. The lists are the record's own, except `run` and `t`."""
        own: dict[str, list[Any]] = {column.name: getattr(self, column.name) for column in SCHEMA[2:]}
        seconds = [t_us / MICROSECONDS for t_us in self.t_us]
        return {"run": [self.run] * len(seconds), "t": seconds, **own}

    def rows(self) -> Iterator[Row]:
        """Yield every row, with every column."""
        columns = self.columns()
        for values in zip(*columns.values(), strict=True):
            yield cast("Row", dict(zip(columns, values, strict=True)))

    def json_lines(self) -> Iterator[str]:
        """Yield every row as a line of JSON without its line end; empty columns are left out."""
        for values in zip(*self.columns().values(), strict=True):
            yield _LINE_ENCODER.encode(Line(*values)).decode()

    @classmethod
    def from_json_lines(cls, lines: Iterable[str | bytes]) -> Self:
        """Return the record that `json_lines` wrote; blank lines are skipped."""
        record, named = cls(), False
        for number, text in enumerate(lines, 1):
            if not text.strip():
                continue
            try:
                line = _LINE_DECODER.decode(text)
            except msgspec.MsgspecError as error:
                raise LocalError(f"line {number} is not a row of a record: {error}") from None
            if line.kind not in _PLAIN:
                raise LocalError(f"line {number} is not a row of a record: unknown kind {line.kind!r}")
            if named and line.run != record.run:
                raise LocalError(f"line {number} is of run {line.run!r}, those before of {record.run!r}")
            record.run, named = line.run, True
            _, t, kind, node, *rest = msgspec.structs.astuple(line)
            record.add(kind, round(t * MICROSECONDS), node, **dict(zip(_OPTIONAL, rest, strict=True)))
        return record


Append = Callable[[Record, int, str, Any], None]
"""Appends what an event of a node at a time means to the log."""
_ROWS: dict[type[events.Event], Append] = {
    events.Published: lambda record, t_us, node, event: record.published(t_us, node, event.descriptor),
    events.Passed: Record.passed, events.Delivered: Record.delivered, events.Dropped: Record.dropped,
    events.Expired: Record.expired, events.Refused: Record.refused, events.NeighbourUp: Record.seen,
    events.NeighbourDown: Record.seen, events.OneWay: Record.seen, events.Acknowledged: Record.acknowledged,
    events.Reachable: Record.reachable, events.Unreachable: Record.seen,
}  # fmt: skip
"""Other events are between a host and its programs."""


def register(rows: Mapping[type[events.Event], Append], kinds: Iterable[str] = ()) -> None:
    """Let the events of a layer append rows, also of kinds that are its own. Idempotent."""
    _PLAIN.update({kind: kind for kind in kinds})
    _ROWS.update(rows)
