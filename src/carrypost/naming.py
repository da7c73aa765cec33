"""`InitialContext`: the directory for programs, as JNDI has it, in Python's spelling.

Every device has a namespace of its own: what its programs bound, and what other devices advertise. A lookup asks that
namespace alone, so it sends nothing and returns what is known here; with a timeout it waits for an advertisement.
Names, and how they travel, are described in `messaging.namespace` and `messaging.directory`.
"""

from __future__ import annotations

from typing import NamedTuple

from carrypost.errors import (
    AmbiguousNameException,
    ContextNotEmptyException,
    IllegalArgumentException,
    InvalidNameException,
    NameAlreadyBoundException,
    NameNotFoundException,
    NamingException,
    NotContextException,
)
from carrypost.java_names import JavaNamed
from carrypost.jms.context import Context
from carrypost.jms.destinations import Destination, Topic, as_destination, destination_at
from carrypost.jms.durations import Duration, microseconds, seconds
from carrypost.jms.provider import Provider
from carrypost.messaging.commands import BindName, Discover, Entries, Lookup, Unbind
from carrypost.messaging.namespace import SEPARATOR, Bind
from carrypost.messaging.namespace import Binding as Found
from carrypost.model.descriptor import Ordering
from carrypost.model.ids import NodeId

__all__ = [
    "AmbiguousNameException",
    "Binding",
    "ContextNotEmptyException",
    "Discovery",
    "InitialContext",
    "InvalidNameException",
    "NameAlreadyBoundException",
    "NameNotFoundException",
    "NamingContext",
    "NamingException",
    "NotContextException",
]


class Binding(NamedTuple):
    """A name in a context, and what it stands for there."""

    name: str
    bound: Destination | NamingContext


class Discovery(NamedTuple):
    """Names that the nodes of the connected part of the network have for topics and queues."""

    names: dict[str, Destination]
    """In full, ``NAME@NODE``, and what each stands for; those of this node are among them."""
    silent: tuple[NodeId, ...]
    """Nodes that were in reach and did not answer in time."""


Names = list[str]
Bindings = list[Binding]
"""Below, `list` is a method."""


class NamingContext(JavaNamed):
    """The names below one name. Names are given, and listed, as they are called there."""

    def __init__(self, context: Context, name: str = "") -> None:
        if not isinstance(context, Context):
            raise IllegalArgumentException(f"InitialContext requires a context of carrypost, not {context!r}"[:200])
        self._context = context
        self._name = name

    @property
    def name(self) -> str:
        """Name of this context, from the root; the root's is empty."""
        return self._name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r}>"

    async def bind(self, name: str, destination: Destination | str, *, advertise: bool = True) -> None:
        """Let a name stand for a topic or a queue on this device, until it is unbound, over restarts.

        A topic, or a queue of this node, is advertised under that name, too, unless `advertise` is false; a queue of
        another node never is: only its manager speaks for it. Raises `NameAlreadyBoundException` if the name stands
        for something here; what others call so is no hindrance. Returns when that is on disk.
        """
        await self._bind(name, destination, advertise=advertise, replace=False)

    async def rebind(self, name: str, destination: Destination | str, *, advertise: bool = True) -> None:
        """Bind a name as `bind` does, even if it is bound already."""
        await self._bind(name, destination, advertise=advertise, replace=True)

    async def _bind(self, name: str, destination: Destination | str, *, advertise: bool, replace: bool) -> None:
        bound = as_destination(destination)
        if not isinstance(bound, Destination):
            raise IllegalArgumentException(f"a name must be bound to a topic or a queue, not to {destination!r}"[:200])
        ordering = bound.ordering if isinstance(bound, Topic) else Ordering.NONE
        asked = Bind(self._full(name), bound.address, ordering, bool(advertise), replace)
        await (await self._provider()).execute(BindName(asked))

    async def unbind(self, name: str) -> None:
        """Let a name go. This node advertises it no more, and other devices forget it when its time is over.

        With the last name of a queue on the node that manages it, the queue ends, in the same batch. A name of another
        node goes on this device only, until it is advertised anew. Raises `NameNotFoundException` if nothing is called
        so, and `IllegalStateException` if the queue that would end has consumers on this node.
        """
        await (await self._provider()).execute(Unbind(self._full(name)))

    async def lookup(self, name: str, timeout: Duration | None = None) -> Destination | NamingContext:
        """Return the destination or context of a name on this device.

        With a `timeout`, waits that long for a node to advertise the name, if it is not known yet. A full name needs no
        advertisement: ``Alan@NODE``, ``queue/Alan@NODE``, ``topic/news``. Raises `NameNotFoundException`, which has the
        nearest names, and `AmbiguousNameException`, which has the full ones, where nodes mean different things by it.
        """
        limit_s = 0.0 if timeout is None else seconds(timeout, "a timeout")
        return self._bound(await (await self._provider()).execute(Lookup(self._full(name), None, limit_s)))

    async def list(self, name: str = "") -> Names:
        """Return the names in this context, or in one below it, sorted.

        A queue of another node has that node's id appended. ``topic`` and ``queue`` have all of their kind that has
        any name here.
        """
        return [each.name for each in await self.list_bindings(name)]

    async def list_bindings(self, name: str = "") -> Bindings:
        """Return the same names, with what they stand for."""
        full = self._full(name)
        cut = len(full) + 1 if full else 0
        found = await (await self._provider()).execute(Entries(full))
        return [Binding(each.name[cut:], self._bound(each)) for each in found]

    async def create_subcontext(self, name: str) -> NamingContext:
        """Make a context, in which names can be bound; on this device only."""
        full = self._full(name)
        await (await self._provider()).execute(BindName(Bind(full)))
        return NamingContext(self._context, full)

    async def destroy_subcontext(self, name: str) -> None:
        """Let a context go that was created here. Raises `ContextNotEmptyException` if names are bound in it."""
        await (await self._provider()).execute(Unbind(self._full(name), context=True))

    def _full(self, name: str) -> str:
        if not isinstance(name, str):
            raise InvalidNameException(f"a name must be text, not {name!r}"[:200])
        return SEPARATOR.join(each for each in (self._name, name) if each)

    def _bound(self, found: Found) -> Destination | NamingContext:
        if not found.destination:
            return NamingContext(self._context, found.name)
        return destination_at(found.destination, found.ordering)

    async def _provider(self) -> Provider:
        units = self._context._opened().units  # noqa: SLF001 - a part of the same API
        await units.ready()
        return units.provider


class InitialContext(NamingContext):
    """The root of the namespace of a context's node."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)

    async def discover(self, timeout: Duration) -> Discovery:
        """Ask all nodes that this one is connected with, over any number of hops, for the names that they advertise.

        Returns when all have answered, or after `timeout`. What was found is not entered in the directory, which only
        advertisements change. Raises `IllegalStateException` where the setting `island` is off.
        """
        timeout_us = microseconds(timeout, "a timeout")
        if not timeout_us:
            raise IllegalArgumentException("timeout must be greater than 0")
        found = await (await self._provider()).execute(Discover(timeout_us))
        names = {each.name: destination_at(each.destination, each.ordering) for each in found.names}
        return Discovery(names, found.silent)
