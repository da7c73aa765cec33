"""What contexts do with queues: declare and browse them, make temporary ones, ask and reply."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from carrypost.errors import (
    IllegalArgumentException,
    InvalidDestinationException,
    JMSException,
    NameAlreadyBoundException,
    TransactionInProgressException,
)
from carrypost.jms.asking import queue_selector
from carrypost.jms.browsing import QueueBrowser
from carrypost.jms.destinations import RESERVED, Destination, Queue, named, resolved
from carrypost.jms.durations import Duration, microseconds
from carrypost.jms.producer import Producer
from carrypost.jms.requests import Request, Requests, remaining_s, reply_place
from carrypost.model import address
from carrypost.model.ids import NodeId, is_node_id
from carrypost.mom.admission import RECEIVERS_MAX
from carrypost.mom.commands import Declare, Redelivery
from carrypost.mom.letters import DEAD_LETTERS, room_for
from carrypost.mom.names.namespace import Bind

if TYPE_CHECKING:
    from carrypost.jms.connection import Connection
    from carrypost.jms.messages import Message
    from carrypost.jms.provider import Provider
    from carrypost.jms.sent import Sent
    from carrypost.jms.session import Session
    from carrypost.jms.temporary import TemporaryQueue, TemporaryTopic

ANYONE: Final = "anyone"
"""Who may receive from a queue that names no receivers."""
_PLAIN_MAX = 64
"""Characters of a plain name of a node, where security is off, so that all receivers fit into an advertisement."""
_LEASE_S = 3_600.0
"""How long a receiver has for a message, unless the queue says otherwise."""


class Queueing:
    """The part of a context that is about queues."""

    _connection: Connection
    _requests: Requests

    @abstractmethod
    def _opened(self) -> Session:
        """Its session; raises `IllegalStateException` unless it is open."""

    @abstractmethod
    def _start_by_itself(self) -> None:
        """Something is to be received: start the connection, unless the program does."""

    async def declare_queue(
        self,
        name: str,
        *,
        redelivery: str = "never",
        lease_s: Duration | None = None,
        policy: str = "fair",
        receivers: Literal["anyone"] | Collection[str] = ANYONE,
        advertise: bool = True,
    ) -> Queue:
        """Make this node the manager of a queue, ``NAME@NODE``; again, and it finds what waits there.

        The queue outlives context and program, until `end_queue`, or until its last name is unbound. It is bound
        to its name in the directory, which other nodes hear of unless `advertise` is false. `redelivery`: a message
        that a receiver got and does not acknowledge stays with that receiver's node ("never": no two nodes ever get
        it), or goes to whoever asks when its lease of `lease_s` (an hour) is over ("after_lease": it may be consumed
        twice). `policy`: who of those that ask for a message gets it. `receivers`: the ids of the nodes, 64 at most,
        that may receive from it and browse it beside this one; "anyone" includes strangers, who can consume what they
        get. Raises `JMSException` if the queue is there, and was declared otherwise.
        """
        session = self._opened()
        node = session.works.provider.place.node
        asked = _declared(name, redelivery, lease_s, policy, node)
        asked = msgspec.structs.replace(asked, receivers=_receivers(receivers, node))
        self._connection.used = True
        await session.works.ready()
        return await _managed(session.works.provider, asked, advertise=advertise)

    async def end_queue(self, queue: Queue) -> None:
        """End a queue that this node manages, with all that waits in it and all names that it has here.

        Its senders hear that those messages failed. Raises `InvalidDestinationException` if this node does not manage
        the queue, `IllegalStateException` while a program of this node consumes from it.
        """
        session = self._opened()
        if not isinstance(queue, Queue):
            raise InvalidDestinationException(f"end_queue expects a queue, made by declare_queue, not {queue!r}"[:200])
        await session.works.ready()
        self._connection.used = True
        found = await resolved(session.works.provider, queue)
        await session.works.provider.end_queue(found.address)

    async def create_temporary_queue(self) -> TemporaryQueue:
        """A queue of this connection, which lives as long; others may send to it, as to a `jms_reply_to`."""
        await self._opened().works.ready()
        self._connection.used = True
        return await self._connection.temporaries.queue()

    async def create_temporary_topic(self) -> TemporaryTopic:
        """A topic of this connection, which lives as long; others may send to it, as to a `jms_reply_to`."""
        await self._opened().works.ready()
        self._connection.used = True
        return self._connection.temporaries.topic()

    def create_browser(self, queue: Queue, selector: str | None = None) -> QueueBrowser:
        """What sees the messages that wait in a queue, by ``async for``, and takes none."""
        session = self._opened()
        if not isinstance(queue, Queue):
            raise InvalidDestinationException(f"a browser is of a queue, made by create_queue, not of {queue!r}"[:200])
        self._connection.used = True
        return QueueBrowser(session, queue, queue_selector(selector))

    # --- requests ------------------------------------------------------------------------------------------

    async def request(
        self,
        destination: Destination,
        body: Message | str | bytes | Mapping[str, object] | object | None,
        *,
        time_to_live: Duration,
        correlation_id: str | None = None,
    ) -> Request:
        """Send a message, or a body, and wait for the reply by the handle that this returns, for `time_to_live`.

        The reply comes to a queue of this node, and waits there also while program or node are off: `open_request`
        finds the request again. Returns when request and note are on disk.
        """
        session = self._opened()
        if session.transaction is not None:
            raise TransactionInProgressException(
                "a request in a transaction would not be sent before the commit: make it in a context of another mode "
                "(ctx.create_context())"
            )
        self._connection.used = True
        await session.works.ready()
        made = await self._requests.send(destination, body, time_to_live, correlation_id)
        self._start_by_itself()
        return made

    async def open_request(self, correlation_id: str) -> Request:
        """The request of this correlation id that a program of this node sent, maybe in an earlier life.

        Raises `IllegalStateException` if none is open: its reply was taken, or its time is over.
        """
        await self._opened().works.ready()
        self._connection.used = True
        found = await self._requests.open(named(correlation_id, "a correlation id"))
        self._start_by_itself()
        return found

    async def reply(
        self,
        request: Message,
        body: Message | str | bytes | Mapping[str, object] | object | None,
        *,
        time_to_live: Duration | None = None,
    ) -> Sent:
        """Reply to a message: to its `jms_reply_to`, with its correlation id, or else its message id.

        The reply lives as long as the request, unless `time_to_live` says otherwise.
        """
        session, to = self._opened(), reply_place(request)
        self._connection.used = True
        producer = Producer(session).set_jms_correlation_id(request.jms_correlation_id or request.jms_message_id)
        if time_to_live is None:
            time_to_live = remaining_s(request, session.works.provider.now_us())
        return await producer.send(to, body, time_to_live=time_to_live)


async def _managed(provider: Provider, asked: Declare, *, advertise: bool) -> Queue:
    """Declare a queue, and bind it to its name, unless that stands for something: then it was, or the program knows."""
    destination = address.queue(asked.name, provider.place.node)
    bind = Bind(asked.name, destination, advertise=advertise, receivers=asked.receivers)
    try:
        await provider.bind(bind)
        new = True
    except NameAlreadyBoundException:
        new = False
    try:
        found = await provider.declare(asked)
    except JMSException:
        if new:
            await provider.unbind(asked.name, context=False)
        raise
    return Queue(address.name_of(found) or found)


def _declared(name: object, redelivery: object, lease_s: Duration | None, policy: object, node: NodeId) -> Declare:
    """The queue that is to be managed; callers are not all checked."""
    found = named(name, "the name of a queue")
    if "@" in found:
        raise InvalidDestinationException(
            f"a queue is managed where it is declared, and has its node added: declare {found.partition('@')[0]!r}"
        )
    if found.startswith((RESERVED, DEAD_LETTERS)):
        raise InvalidDestinationException(
            f"names that begin with {RESERVED!r} or {DEAD_LETTERS!r} are given by nodes themselves, not to {found!r}"
        )
    room = room_for(node)
    if len(found) > room:
        raise InvalidDestinationException(f"the name of a queue has at most {room} characters here, not {len(found)}")
    try:
        again = Redelivery(redelivery)  # type: ignore[arg-type]  # whatever it is
    except ValueError:
        raise IllegalArgumentException(f'redelivery is "never" or "after_lease", not {redelivery!r}'[:200]) from None
    if again is Redelivery.NEVER and lease_s is not None:
        raise IllegalArgumentException('a lease_s is for redelivery="after_lease": otherwise nothing ends')
    return Declare(found, again, 0 if again is Redelivery.NEVER else _lease_us(lease_s), named(policy, "a policy"))


def _receivers(receivers: object, node: NodeId) -> tuple[NodeId, ...] | None:
    """The nodes that may receive from a queue of this node, each once and in order; None: anyone."""
    if receivers == ANYONE:
        return None
    if not isinstance(receivers, Collection) or isinstance(receivers, str | bytes):
        raise IllegalArgumentException(f'receivers is "{ANYONE}", or a list of ids of nodes, not {receivers!r}'[:200])
    for each in receivers:
        plain = isinstance(each, str) and not is_node_id(node) and 0 < len(each) <= _PLAIN_MAX
        if not plain and not (isinstance(each, str) and is_node_id(each)):
            raise IllegalArgumentException(f"receivers has the ids of nodes, and {each!r} is none"[:200])
    found = {NodeId(each) for each in receivers} - {node}
    if len(found) > RECEIVERS_MAX:
        raise IllegalArgumentException(f"a queue names at most {RECEIVERS_MAX} receivers, not {len(found):,}")
    return tuple(sorted(found))


def _lease_us(lease_s: Duration | None) -> int:
    lease_us = microseconds(_LEASE_S if lease_s is None else lease_s, "lease_s")
    if not lease_us:
        raise IllegalArgumentException("lease_s is more than 0: nobody could consume anything in no time")
    return lease_us
