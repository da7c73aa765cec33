"""Layers: the parts above gossip, through which messages pass to the application, and layers that consist of parts.

A host has its layers in a fixed order, lowest first. When messages become whole, gossip passes them to the first layer;
each returns those that may go on, and the last one is the application's side, which delivers them. Layers are informed
of copies that leave the cache in the same order. A layer may handle kinds of frames, have rows of its own and links of
its own (which it adds to `Links`), hold messages back, and have messages published. It reads gossip through what it was
built on (`HostContext`) and is called by the host alone: its results are returned, or put into `Outputs`.

Every step of a host is: `expire`, then the request (`receive`, `published`, `confirmed`, `left`, frames), then
`finish`. A host calls only methods that a layer overrides, so the others cost nothing.

A `Composite` is a layer that consists of parts. It names its parts once, in the order in which they are called, for
every method, and each part takes part in what it overrides. A part has a timer if it has `due_us` and `expire`,
messages to publish if it has `drafts`, and rows if it has `restore`. The rows of a layer are divided by family, the
first byte of their names; each family belongs to one part.
"""

# Why layers and not subclasses of the host. Causal order, messaging, acknowledgements and the
# overlay each need to see messages pass, hold some back, and keep rows in the same batch as the
# cache. As subclasses they would have to be combined in every mix that scenarios ask for. As
# observers of events they could not hold a message back. A chain of layers can, and an emulation of
# thousands of hosts pays only for methods that are overridden (`_overriding`).
#
# What must hold. Layers are called in one order, lowest first, so that the upper one sees only what
# the lower one let pass. They never call the host back in the middle of a step: whatever they want
# is returned or put into `Outputs`, so that a step is over before the next begins.

# Why a composite reads `due_us` of all timers, and parts do not announce that they are due: most of
# what becomes due in a step is done before the step ends, and a time that was announced too early
# would wake the host for nothing. To look at some twenty numbers takes less than a microsecond, if
# they are attributes: a part whose times are in an `Agenda` names that as its timer.

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from mypy_extensions import mypyc_attr

from carrypost.gossip.draft import Draft
from carrypost.log.journal import CORE, LAYERS
from carrypost.model.times import NEVER

if TYPE_CHECKING:
    from carrypost.gossip.holdings.copies import Copy
    from carrypost.gossip.holdings.holdings import Holdings
    from carrypost.gossip.outputs import Journal
    from carrypost.gossip.transfers.link import Link
    from carrypost.gossip.wire.frames import Frame
    from carrypost.gossip.wire.pieces import Blank
    from carrypost.log.events import Reason
    from carrypost.log.journal import Key, Value
    from carrypost.model.descriptor import Descriptor
    from carrypost.model.ids import MessageId, NodeId


Handler = Callable[["Link", Any, int], object]
"""Handler of one kind of frame that came over a usable link; may raise `RemoteError`. Returns False if it found nothing
new."""
Rows = Mapping["Key", "Value | None"]
"""Rows of the store by key; None deletes one."""


class Steps(Protocol):
    """The steps of a host, for commands of layers."""

    @property
    def incarnation(self) -> int:
        """The incarnation of the host; 0 before it began."""

    def step(self, now: int, *, links: bool = True, number: int | None = None) -> AbstractContextManager[None]:
        """Return one step; with `number`, it is answered by `Done` of that number."""

    def publish(self, draft: Draft, now: int) -> MessageId:
        """Publish a message and return its id; raises if it is invalid."""

    def join(self, layer: Layer) -> None:
        """Add a layer to the host, above those that it has."""

    def forget_drafts(self, session: int) -> None:
        """Forget the drafts of a session that rolled back, or is gone."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Layer:
    """One layer of a host. Every method does nothing unless it is overridden."""

    kind: ClassVar[str] = ""
    """The kind of its rows' keys in the store; empty for a layer without rows."""
    due_us: int = NEVER
    """Not after the time of its next `expire`."""

    @classmethod
    def register(cls) -> None:
        """Register what it brings to this process: rows of the event log (`record.register`).

        Called before the first layer of its class joins a host, and perhaps again.
        """

    @property
    def handlers(self) -> Mapping[type, Handler]:
        """The kinds of frames that only this layer handles, and their handlers. Read once."""
        return {}

    def commands(self, steps: Steps) -> object | None:
        """Return the commands of the layer for programs (`Host.commands`), each of them a step. Called once."""
        return None

    def companions(self, now: int, link: Link | None) -> Sequence[Frame]:
        """Return frames to send beside an announcement, to one neighbour or (None) to all."""
        return ()

    def started(self, incarnation: int, now: int) -> None:
        """Begin to send: the incarnation of this host is durable."""

    def heard(self, link: Link, now: int) -> None:
        """Handle a neighbour that hears others than before (`Link.heard`), whether or not the link is usable."""

    def met(self, link: Link, now: int) -> None:
        """Begin a contact: frames sent now arrive before sets of messages are compared.

        Called once the link is usable and the neighbour was informed. A layer that joins a running host is informed
        only of contacts that begin later.
        """

    def parted(self, link: Link, now: int) -> None:
        """End a contact: the link is not usable any more."""

    def restore(self, rows: Iterable[tuple[Key, Value]]) -> None:
        """Restore the layer's rows after a restart. Copies are restored already; nothing was announced yet."""

    def expire(self, now: int) -> None:
        """Do what is due by now. Messages that it lets pass go on with the next `receive`, which follows."""

    def receive(self, copies: Sequence[Copy]) -> Sequence[Copy]:
        """Handle whole messages that are wanted here; return those that pass now, in order, earlier ones included."""
        return copies

    def published(self, copies: Sequence[Copy]) -> None:
        """Handle messages of this node that were admitted; `receive` of the same copies follows."""

    def check_session(self, session: int) -> None:
        """Raise unless drafts may be kept for this session of programs."""

    def check_unit(self, drafts: Sequence[Draft], acks: Sequence[Any]) -> None:
        """Raise if a unit of work that sends and acknowledges these is invalid; nothing was done yet."""

    def performed(self, sent: Sequence[tuple[Draft, Descriptor]], acks: Sequence[Any]) -> None:
        """Acknowledge for a unit of work whose messages were sent."""

    def last_event(self, destination: str) -> int | None:
        """Return the number of this node's last event to a channel, 0 if none; None: events are not numbered."""
        return None

    def event_home(self, destination: str) -> NodeId | None:
        """Return the broker that this node's next event to a channel goes to first; None: the event names none."""
        return None

    def payload_read(self, copy: Copy, payload: bytes | Blank) -> None:
        """Handle a payload that a layer of this host requested by `PayloadWanted`."""

    def confirmed(self, messages: Sequence[MessageId]) -> None:
        """Handle messages that the application confirmed."""

    def left(self, copies: Sequence[Copy], reason: Reason | None) -> None:
        """Handle copies that left the cache; reason None: they are here, but not wanted on this node any more."""

    def finish(self, now: int) -> Sequence[Draft]:
        """End a step; return messages to publish. Those that cannot be published are not reported by `published`."""
        return ()

    def follow_up(self, now: int) -> Sequence[Draft]:
        """Return messages to publish after those that `finish`, or this, returned before in the same step."""
        return ()

    def rows(self) -> Rows:
        """Return the rows that changed since the last call, for the batch that is being made.

        A layer whose rows alone are a reason to make a batch puts one of them into the journal itself. What is to be
        done once the batch is durable waits in the journal (`Journal.when_durable`).
        """
        return {}


# Cached by the classes: thousands of hosts of an emulation have the same few combinations.
@functools.cache
def _overriding(kinds: tuple[type[Layer], ...]) -> Mapping[Callable[..., object], Sequence[int]]:
    """Return the layers that override each method of `Layer`: computed once, not for each host of an emulation."""
    for kind in kinds:
        kind.register()
        if kind.kind:
            LAYERS.add(kind.kind)
    return {
        method: [at for at, kind in enumerate(kinds) if getattr(kind, name) is not method]
        for name, method in vars(Layer).items()
        if callable(method) and not name.startswith("_")
    }


class Layers:
    """The layers of one host, lowest first."""

    __slots__ = ("_all", "_handlers", "_stored", "having", "timed")

    def __init__(self, layers: Sequence[Layer], handlers: dict[type, Callable[[Link, Any, int], object]]) -> None:
        self.timed: list[Layer] = []
        """Layers with something that expires: each step reads their `due_us`."""
        self._handlers = handlers
        """Handlers of frames, to which layers add their own (`Links.handlers`)."""
        # A layer may join after a restart, and its rows must not be lost meanwhile: they wait here
        # until it does.
        self._stored: Sequence[tuple[Key, Value]] = ()
        """Rows after a restart that belong to layers which have not joined yet."""
        self._arrange(layers)

    def _arrange(self, layers: Sequence[Layer]) -> None:
        self._all = tuple(layers)
        places = _overriding(tuple(map(type, layers)))
        self.having: Mapping[Callable[..., object], Sequence[Layer]] = {
            method: [layers[at] for at in found] for method, found in places.items()
        }
        """The layers that override each method of `Layer`, lowest first; the others need not be called."""
        self.timed[:] = self.having[Layer.expire]
        for layer in self._all:
            self._handlers.update(layer.handlers)

    def insert(self, layer: Layer) -> None:
        """Add a layer to a running host, as the highest below the application's side, and restore its rows."""
        # The application's side stays last: it delivers, so nothing may come after it.
        self._arrange((*self._all[:-1], layer, self._all[-1]))
        self._restore(layer)

    def commands(self, steps: Steps) -> dict[type, object]:
        """Return the commands of the layers for programs, by class."""
        found = [layer.commands(steps) for layer in self._all]
        return {type(commands): commands for commands in found if commands is not None}

    def close(self) -> None:
        """Break reference cycles when the host is done with the layers."""
        self._arrange(())

    def restore(self, rows: Sequence[tuple[Key, Value]]) -> None:
        """Restore every layer from its own rows; keep the others for layers that join later."""
        self._stored = rows
        for layer in self._all:
            self._restore(layer)
        self._stored = [row for row in self._stored if row[0][0] not in CORE]

    def _restore(self, layer: Layer) -> None:
        if layer.kind:
            layer.restore([row for row in self._stored if row[0][0] == layer.kind])
            self._stored = [row for row in self._stored if row[0][0] != layer.kind]

    def receive(self, copies: Sequence[Copy]) -> Sequence[Copy]:
        """Pass whole messages through the layers; return those newly given to the application."""
        for layer in self.having[Layer.receive]:
            copies = layer.receive(copies)
        return copies

    def write(self, journal: Journal) -> None:
        """Put the changes of each layer into the batch that is being made."""
        for layer in self.having[Layer.rows]:
            if changed := layer.rows():
                journal.update(changed)


Stored = Mapping[bytes, Sequence[tuple[bytes, bytes]]]
"""Rows from before a restart by family: the rest of the name, and the value, in the order of the names."""


class Timer(Protocol):
    """Something that is due at some time, `due_us`."""

    due_us: int


@mypyc_attr(allow_interpreted_subclasses=True)
class Part:
    """One part of a layer. A method that it does not override is not called."""

    due_us: int = NEVER
    """Not after the time of its next `expire` or `drafts`; set by the part."""
    timers: Sequence[Timer] = ()
    """Owners of the times of `expire`, if it is not the part itself. Set before that joins its layer."""

    def restore(self, stored: Stored, now: int) -> None:
        """Restore its rows after a restart; the parts before it are restored already."""

    def expire(self, now: int) -> None:
        """Do what is due. Called once `due_us` has come."""

    def drafts(self, now: int) -> Sequence[Draft]:
        """Return messages to publish at the end of a step. Called once `due_us` has come."""
        return ()

    def published(self, copies: Sequence[Copy]) -> None:
        """Handle messages of this node that were admitted."""

    def left(self, copies: Sequence[Copy], reason: Reason) -> None:
        """Handle copies that left the cache."""


_DUE_US: Final = attrgetter("due_us")


# Cached by the classes, as by `Layer`: thousands of hosts have the same parts.
@functools.cache
def _parts_overriding(kinds: tuple[type[Part], ...], name: str) -> Sequence[int]:
    """Return the places of the parts that override a method."""
    return [at for at, kind in enumerate(kinds) if getattr(kind, name) is not getattr(Part, name)]


@mypyc_attr(allow_interpreted_subclasses=True)
class Composite(Layer):
    """A layer of parts."""

    def compose(self, holdings: Holdings, parts: Sequence[Part]) -> None:
        """Set the parts, in the order in which they are called. Done once."""
        self.holdings = holdings
        kinds = tuple(map(type, parts))
        self._restored, self._publishing, self._leaving, expiring, self._drafting = (
            [parts[at] for at in _parts_overriding(kinds, name)]
            for name in ("restore", "published", "left", "expire", "drafts")
        )
        self._expiring = [(timer, part) for part in expiring for timer in part.timers or (part,)]
        self._timers: list[Timer] = [*(timer for timer, _ in self._expiring), *self._drafting]

    def restore(self, rows: Iterable[tuple[Key, Value]]) -> None:
        """Restore the parts from their rows."""
        stored: dict[bytes, list[tuple[bytes, bytes]]] = {}
        for name, value in sorted((name, value) for (_, name, _), value in rows if isinstance(value, bytes)):
            stored.setdefault(name[:1], []).append((name[1:], value))
        for part in self._restored:
            part.restore(stored, self.holdings.now_us)
        self.look_ahead()

    def expire(self, now: int) -> None:
        """Do what is due in the parts."""
        self.expire_parts(now)
        self.look_ahead()

    def expire_parts(self, now: int) -> None:
        """Call the parts that are due, for a layer that has something to do afterwards."""
        for timer, part in self._expiring:
            if timer.due_us <= now:
                part.expire(now)

    def finish(self, now: int) -> Sequence[Draft]:
        """End a step; return messages to publish."""
        drafts: list[Draft] = []
        for part in self._drafting:
            if part.due_us <= now:
                drafts += part.drafts(now)
        self.look_ahead()
        return drafts

    def look_ahead(self) -> None:
        """Determine when a part is due next."""
        self.due_us = min(map(_DUE_US, self._timers), default=NEVER)

    def published(self, copies: Sequence[Copy]) -> None:
        """Pass on messages of this node that were admitted."""
        for part in self._publishing:
            part.published(copies)

    def left(self, copies: Sequence[Copy], reason: Reason | None) -> None:
        """Pass on copies that left the cache."""
        if reason is not None:
            for part in self._leaving:
                part.left(copies, reason)
