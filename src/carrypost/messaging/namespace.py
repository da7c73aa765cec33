"""The names of one device: those bound here, those that other nodes advertise, and those of queues for dead letters.

A name is one or more components with slashes between them; all but the last are contexts. A local binding lasts until
it is unbound, and wins over names of others: a stranger that chooses the same name changes nothing for the programs of
this node. A bare name stands for all advertisements of it, and ``NAME@NODE`` for one of them. A full name,
``Alan@NODE``, ``queue/Alan@NODE`` or ``topic/news``, names its destination itself and needs no entry; so that strangers
cannot interfere with these, no name contains an ``@``, or has ``topic`` or ``queue`` as its first component.
``queue/Alan`` stands for ``Alan`` among queues alone.

For a name that was looked up and does not exist there are suggestions (`Hints`). Strangers decide how many names there
are, and how long they are. So only a few are compared with the requested name: its neighbours in the alphabet, sorted
by beginnings and by ends. A name with one wrong letter has one of these right.

A queue for dead letters is named ``DLQ.`` and the name of the queue that they come from, or ``DLQ.topic/`` and the
topic. A topic is named as the subscription names it, wildcards included, not as each message does: strangers choose the
topics of their messages, and would have a node declare as many queues as they like.

Nothing here depends on time, rows or messages: see `messaging.directory`.
"""

from __future__ import annotations

from bisect import bisect_left
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from carrypost.errors import (
    AmbiguousNameException,
    ContextNotEmptyException,
    InvalidDestinationException,
    InvalidNameException,
    NameAlreadyBoundException,
    NameNotFoundException,
    NamingException,
    NotContextException,
)
from carrypost.log.events import ERROR_MAX, DeadLetter
from carrypost.model import address
from carrypost.model.address import Kind
from carrypost.model.descriptor import Ordering
from carrypost.model.headers import DESTINATION_MAX
from carrypost.model.ids import NodeId

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence


DEAD_LETTERS = "DLQ."
"""Prefix of the names of queues with dead letters; nodes assign them, not programs."""


def name_here(destination: str, node: NodeId) -> str:
    """Return the name of a queue of this node; an empty text if the address is another's."""
    found = address.address(destination)
    return found.name if found is not None and found.kind is Kind.QUEUE and found.node == node else ""


def source_of(name: str) -> str:
    """Return the name after which a queue for dead letters is named; empty if it is another queue."""
    return name.removeprefix(DEAD_LETTERS) if name.startswith(DEAD_LETTERS) else ""


def is_of_topic(name: str) -> bool:
    """Return True for the name of a queue for dead letters of a topic."""
    return source_of(name).startswith(f"{Kind.TOPIC}/")


def room_for(node: NodeId) -> int:
    """Return the number of characters that may follow `DEAD_LETTERS` in the address of a queue."""
    return DESTINATION_MAX - len(address.queue(DEAD_LETTERS, node))


def letters_of_topic(pattern: str, node: NodeId) -> str:
    """Return the name of the queue for dead letters of a subscription to this pattern; too long a name is cut."""
    name = address.topic_written(pattern)
    return DEAD_LETTERS + (pattern if name is None else address.topic(name))[: room_for(node)]


def letters_of(destination: str) -> str:
    """Return the address of the queue for dead letters of a queue."""
    found = address.address(destination)
    assert found is not None and found.node is not None  # noqa: PT018 - a queue has a node
    return address.queue(DEAD_LETTERS + found.name, found.node)


def history(source: str, tries: int, error: str) -> DeadLetter:
    """Return the history of a dead letter from a source; without an error, no program said what was wrong."""
    return DeadLetter(source[:512], tries, (error or f"delivered {tries} times and never acknowledged")[:ERROR_MAX])


_NEAREST = 3
"""Number of suggestions."""
_BESIDE = 16
"""Number of names compared on either side."""


class Hints:
    """All names, in order."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = sorted(names)
        self._reversed = sorted(name[::-1] for name in self.names)

    def near(self, name: str) -> list[str]:
        """Return the names that are most like this one, if any is like it."""
        known = self.names
        if len(known) > 4 * _BESIDE:
            ends = [each[::-1] for each in _beside(self._reversed, name[::-1])]
            known = sorted({*_beside(known, name), *ends})
        return get_close_matches(name, known, n=_NEAREST)


def _beside(names: Sequence[str], name: str) -> Sequence[str]:
    at = bisect_left(names, name)
    return names[max(0, at - _BESIDE) : at + _BESIDE]


A = TypeVar("A")
B = TypeVar("B")
SEPARATOR = "/"
_AT = "@"
_BY_KIND = (Kind.QUEUE, Kind.TOPIC)
"""Contexts that every device has: all that it knows of one kind, by their own names."""
_UNOWNED = (f"{Kind.TOPIC}/", f"{Kind.CHANNEL}/")
"""Prefixes of destinations that belong to no node."""
_SHOWN_MAX = 10


class Bind(msgspec.Struct, frozen=True):
    """The request of a program to the directory."""

    name: str
    destination: str = ""
    """Destination of the name; empty: make a context."""
    ordering: Ordering = Ordering.NONE
    """Ordering that the topic is opened with."""
    advertise: bool = True
    """Advertise it to other nodes, if this node may speak for it: a topic, or a queue of its own."""
    replace: bool = False
    """Replace any present binding of the name."""
    receivers: tuple[NodeId, ...] | None = None
    """Of a queue of this node, the nodes that may receive from it; None: anyone."""


class Binding(msgspec.Struct, frozen=True):
    """A name, and its destination on this device."""

    name: str
    """The full name, from the root."""
    destination: str = ""
    """Empty: a context."""
    ordering: Ordering = Ordering.NONE
    deadline_us: int | None = None
    """Time at which it lapses, unless it is used or advertised again; None: it lasts until it is unbound."""


class Entry(msgspec.Struct, array_like=True, eq=False):
    """A stored name of this node or of another one; fields may be appended with a default."""

    owner: NodeId
    name: str
    destination: str
    """Empty: a context of this device."""
    ordering: Ordering = Ordering.NONE
    advertised: bool = True
    """True if it is advertised to other nodes."""
    hidden: bool = False
    """True if another node's name was unbound on this device: remembered, so that the same advertisement does not
    restore it."""
    message: bytes = b""
    """The id of its latest advertisement."""
    incarnation: int = 0
    sequence: int = 0
    """Sequence number of that advertisement; newer ones replace it."""
    deadline_us: int = 0
    """Of an own name, the deadline of its advertisement; of another node's, the time at which the name lapses here."""
    used_us: int = 0
    """Time at which this device last sent to the destination or received from it; 0: never."""
    receivers: tuple[NodeId, ...] | None = None
    """Of a queue, the nodes that its owner lets receive from it; None: anyone."""
    counts: tuple[tuple[NodeId, int], ...] = ()
    """Of a queue, the nodes that consumed most from it, as it was advertised last."""

    @property
    def full_name(self) -> str:
        """The name with its node, which distinguishes it from equal names of others."""
        return address.queue_name(self.name, self.owner)

    @property
    def is_context(self) -> bool:
        """True if it only contains other names."""
        return not self.destination


def fault_of(name: str) -> str | None:
    """Return the fault of a text as a name, or None."""
    components = name.split(SEPARATOR)
    if not name.isprintable() or not all(components):
        return "cannot be a name: a name is text without control characters, with single slashes between its components"
    if _AT in name:
        return "cannot be bound: a name with '@' is a full name already"
    if components[0].startswith("$"):
        return "cannot be bound: names that begin with '$' are reserved for entries of nodes"
    if components[0] in _BY_KIND:
        return f"cannot be bound: names below {components[0]!r} are reserved for destinations themselves"
    return None


class Namespace:
    """All names of one device."""

    def __init__(self, here: NodeId) -> None:
        self._here = here
        self._bound: dict[str, Entry] = {}
        self.bound: Mapping[str, Entry] = self._bound
        """Local bindings, contexts included."""
        self._others: dict[str, dict[NodeId, Entry]] = {}
        """Advertisements of others, by name."""
        self._owners: dict[NodeId, dict[str, Entry]] = {}
        self._destinations: dict[str, dict[Entry, None]] = {}
        """Advertisements of others, by destination."""
        self._bound_to: dict[str, dict[Entry, None]] = {}
        """Local bindings, by destination."""
        self._sorted: tuple[str, ...] | None = None
        """All visible names, in order; made on demand, until one is added, removed or hidden."""
        self._hints: Hints | None = None
        """Suggestions for all listed names; made likewise."""

    # --- changes -------------------------------------------------------------------------------------------

    def add(self, entry: Entry) -> None:
        """Add a name; the same one of the same node was removed before."""
        self._changed()
        if entry.owner == self._here:
            self._bound[entry.name] = entry
            self._bound_to.setdefault(entry.destination, {})[entry] = None
            return
        self._others.setdefault(entry.name, {})[entry.owner] = entry
        self._owners.setdefault(entry.owner, {})[entry.name] = entry
        self._destinations.setdefault(entry.destination, {})[entry] = None

    def remove(self, entry: Entry) -> None:
        """Remove a name."""
        self._changed()
        if entry.owner == self._here:
            del self._bound[entry.name]
            _remove_from(self._bound_to, entry.destination, entry)
            return
        _remove_from(self._others, entry.name, entry.owner)
        _remove_from(self._owners, entry.owner, entry.name)
        _remove_from(self._destinations, entry.destination, entry)

    def hide(self, entry: Entry, *, hidden: bool) -> None:
        """Hide a name of another node, or show it again."""
        self._changed()
        entry.hidden = hidden

    def _changed(self) -> None:
        self._sorted = self._hints = None

    # --- asking --------------------------------------------------------------------------------------------

    def entry(self, owner: NodeId, name: str) -> Entry | None:
        """Return the entry of a node's name, hidden or not."""
        return self._bound.get(name) if owner == self._here else self._others.get(name, {}).get(owner)

    def of_owner(self, owner: NodeId) -> Collection[Entry]:
        """Return the advertisements of another node, hidden or not, in order of arrival."""
        return self._owners.get(owner, {}).values()

    def of_others(self, destination: str) -> Collection[Entry]:
        """Return the names that others have for a destination, hidden or not."""
        return self._destinations.get(destination, ())

    def bound_to(self, destination: str) -> list[Entry]:
        """Return the local names for a destination."""
        return list(self._bound_to.get(destination, ()))

    def find(self, name: str, kind: Kind | None = None) -> list[Entry]:
        """Return everything that a bare name may stand for, local bindings first; of one kind, or of any."""
        own = self._bound.get(name)
        found = [] if own is None or own.is_context else [own]
        found += [each for each in self._others.get(name, {}).values() if not each.hidden]
        return found if kind is None else [each for each in found if each.destination.startswith(f"{kind}/")]

    def lookup(self, name: str, kind: Kind | None = None) -> Binding | None:
        """Return the binding of a name; None if there is none.

        `kind`: return only bindings of this kind. Raises `AmbiguousNameException` if others bind it differently.
        """
        found = self.find(name, kind)
        own = self._bound.get(name)
        if kind is None and (not name or name in _BY_KIND or (own is not None and own.is_context)):
            return Binding(name)
        if found and found[0].owner == self._here:
            return self._binding(found[0], name)
        if len({each.destination for each in found}) > 1:
            raise self._ambiguous(name, found)
        if found:
            return self._binding(found[0], name)
        if kind is None and self._has_below(name):
            return Binding(name)
        return self._full(name, kind)

    def _full(self, name: str, kind: Kind | None) -> Binding | None:
        """Return the binding of a full name, which names its destination."""
        first, slash, rest = name.partition(SEPARATOR)
        if first in (Kind.TOPIC, Kind.CHANNEL) and slash and rest:
            to_address = address.topic if first == Kind.TOPIC else address.channel
            return self._addressed(name, to_address(rest), kind)
        if first == Kind.QUEUE and rest and _AT not in rest and kind in (None, Kind.QUEUE):
            found = self.lookup(rest, Kind.QUEUE)
            return None if found is None else Binding(name, found.destination, found.ordering, found.deadline_us)
        text = rest if first == Kind.QUEUE else name
        try:
            destination = address.queue_named(text)
        except InvalidDestinationException:
            return None
        meant = address.address(destination)
        assert meant is not None  # `queue_named` made it.
        assert meant.node is not None
        entry = self.entry(meant.node, meant.name) if text is name else None
        if entry is None or entry.hidden or entry.is_context:
            return self._addressed(name, destination, kind)
        return self._binding(entry, name) if kind is None or entry.destination.startswith(f"{kind}/") else None

    def _addressed(self, name: str, destination: str, kind: Kind | None) -> Binding | None:
        if kind is not None and not destination.startswith(f"{kind}/"):
            return None
        known = self.bound_to(destination)
        known += [each for each in self.of_others(destination) if not each.hidden]
        return Binding(name, destination, known[0].ordering if known else Ordering.NONE)

    def _binding(self, entry: Entry, name: str) -> Binding:
        deadline_us = None if entry.owner == self._here else entry.deadline_us
        return Binding(name, entry.destination, entry.ordering, deadline_us)

    def _all(self) -> Iterator[Entry]:
        """Yield all visible entries except contexts, local bindings first."""
        yield from [each for each in self._bound.values() if not each.is_context]
        for entries in self._others.values():
            yield from [each for each in entries.values() if not each.hidden]

    def _has_below(self, name: str) -> bool:
        """Return True if names below it make it a context."""
        if self._sorted is None:
            self._sorted = tuple(sorted({*self._bound, *(each.name for each in self._all())}))
        begin = name + SEPARATOR
        at = bisect_left(self._sorted, begin)
        return at < len(self._sorted) and self._sorted[at].startswith(begin)

    # --- listing -------------------------------------------------------------------------------------------

    def listing(self, context: str) -> list[Binding]:
        """Return the bindings in a context, by name; of deeper ones, the contexts in between."""
        if context in _BY_KIND:
            return self._of_kind(Kind(context))
        self.check_context(context)
        begin = context + SEPARATOR if context else ""
        found: dict[str, Binding] = {}
        for each in self._shown():
            if each.name.startswith(begin):
                child, slash, _ = each.name[len(begin) :].partition(SEPARATOR)
                found.setdefault(child, Binding(begin + child) if slash else each)
        return [found[child] for child in sorted(found)]

    def _shown(self) -> Iterator[Binding]:
        """Yield all names as they are listed: bare if that is unambiguous, else with their node."""
        for entry in self._bound.values():
            yield self._binding(entry, entry.name)
        for name, entries in self._others.items():
            own, seen = self._bound.get(name), [each for each in entries.values() if not each.hidden]
            others = {each.destination for each in seen}
            for each in seen:
                if own is not None and own.destination == each.destination:
                    continue
                bare = own is None and len(others) == 1 and each.destination.startswith(_UNOWNED)
                yield self._binding(each, name if bare else each.full_name)

    def _of_kind(self, kind: Kind) -> list[Binding]:
        """Return everything of a kind that has a name here, by its own name."""
        found: dict[str, Binding] = {}
        for each in self._all():
            if each.destination.startswith(f"{kind}/"):
                name = f"{kind}/{address.name_of(each.destination)}"
                found.setdefault(name, self._binding(each, name))
        return [found[name] for name in sorted(found)]

    # --- what may be done ----------------------------------------------------------------------------------

    def check_context(self, name: str) -> None:
        """Raise unless names can be bound in it."""
        own = self._bound.get(name)
        if not name or (own is not None and own.is_context) or (own is None and self._has_below(name)):
            return
        if own is not None or self.find(name):
            raise NotContextException(f"{name!r} is bound to a destination, and is not a context")
        raise self.missing(name, "context")

    def check_bindable(self, asked: Bind) -> None:
        """Raise unless a name may be bound, or a context made."""
        wrong = fault_of(asked.name)
        if wrong is not None:
            raise InvalidNameException(f"{asked.name!r} {wrong}")
        self.check_context(asked.name.rpartition(SEPARATOR)[0])
        own = self._bound.get(asked.name)
        if (own is not None and own.is_context) or (own is None and self._own_below(asked.name)):
            raise NameAlreadyBoundException(f"{asked.name!r} is a context: choose another name, or destroy it first")
        if own is not None and not asked.replace:
            raise NameAlreadyBoundException(
                f"{asked.name!r} is bound to {address.written(own.destination)!r} on this node: rebind it, or unbind "
                "it first"
            )

    def destructible(self, name: str) -> Entry:
        """Return the context of this name, which may be removed; raises otherwise."""
        own = self._bound.get(name)
        if own is not None and not own.is_context:
            raise NotContextException(
                f"{name!r} is bound to {address.written(own.destination)!r}, and is not a context: unbind it"
            )
        if own is None:
            raise self.missing(name, "context that was created here")
        if below := self._own_below(name):
            raise ContextNotEmptyException(f"the context {name!r} is not empty: unbind {_some(below)} first")
        return own

    def _own_below(self, name: str) -> list[str]:
        """Return local bindings in a context. Names of others do not count: they cannot be unbound for good."""
        return sorted(each for each in self._bound if each.startswith(name + SEPARATOR))

    def unbindable(self, name: str) -> list[Entry]:
        """Return the bindings of a name to be unbound: the local one, or those of others."""
        own = self._bound.get(name)
        if own is not None and own.is_context:
            raise NamingException(f"{name!r} is a context: remove it with destroy_subcontext")
        if own is not None:
            return [own]
        found = self.find(name)
        if len({each.destination for each in found}) > 1:
            raise self._ambiguous(name, found)
        found = found or [each for each in self._all() if each.full_name == name]
        if not found:
            raise self.missing(name)
        return found

    def missing(self, name: str, what: str = "name") -> NameNotFoundException:
        """Return the error that a name does not exist, with the nearest names."""
        # Made when a name is missing, and kept until names change: programs may ask for the same
        # wrong name in a loop.
        if self._hints is None:
            self._hints = Hints({each.name for each in self._shown()})
        known = self._hints.names
        if near := self._hints.near(name):
            hint = f"near it: {_some(near)}"
        else:
            hint = f"there are {_some(known)}" if known else "no names are bound or were advertised so far"
        return NameNotFoundException(f"there is no {what} {name!r} on this node; {hint}")

    def _ambiguous(self, name: str, found: Iterable[Entry]) -> AmbiguousNameException:
        names = sorted({each.full_name for each in found})
        return AmbiguousNameException(f"{name!r} is ambiguous: use one of {_some(names)}")


def _remove_from(index: dict[A, dict[B, Any]], key: A, inner: B) -> None:
    """Remove something from an index, and with the last of a key the key."""
    things = index[key]
    del things[inner]
    if not things:
        del index[key]


def _some(names: Sequence[str]) -> str:
    """Return some of these names as text."""
    more = f" and {len(names) - _SHOWN_MAX} more" if len(names) > _SHOWN_MAX else ""
    return ", ".join(map(repr, names[:_SHOWN_MAX])) + more
