"""Destinations that programs have their nodes set up: queues that they declare, and temporary queues and topics.

A declaration checks the options, and has this node, or another, manage the queue.

Temporary destinations live as long as a connection, and that connection alone consumes from them. Any program that
knows their address, as from JMSReplyTo, may send to them. A message that comes when they are gone is dropped where it
arrives, or expires on the way.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from carrypost.config.settings import TRIES_MAX
from carrypost.errors import (
    DeliveryTimeoutException,
    IllegalArgumentException,
    IllegalStateException,
    InvalidDestinationException,
    JMSException,
    JMSSecurityException,
    NameAlreadyBoundException,
)
from carrypost.jms.destinations import RESERVED, TEMPORARY, Destination, Queue, Topic, is_temporary, named, queue_of
from carrypost.jms.durations import Duration, microseconds
from carrypost.messaging import commands as do
from carrypost.messaging.control import RECEIVERS_MAX
from carrypost.messaging.namespace import DEAD_LETTERS, Bind, room_for
from carrypost.model import address
from carrypost.model.ids import NodeId, is_node_id

if TYPE_CHECKING:
    from carrypost.jms.intake import Intake
    from carrypost.jms.listener_calls import Kinds
    from carrypost.jms.provider import Provider
    from carrypost.messaging.placement_and_discovery import Policy


ANYONE: Final = "anyone"
"""Receivers of a queue that names none."""
_PLAIN_MAX = 64
"""Characters of a plain name of a node, where security is off, so that all receivers fit into an advertisement."""
_PREFIX = f"{address.Kind.QUEUE}/"
"""Beginning of a queue's address, as programs write it elsewhere."""
_LEASE_S = 3_600.0
"""Time that a receiver has for a message, unless the queue says otherwise."""


_TIMEOUT_S = 60.0
"""Time for answers of nodes that are asked to manage a queue, unless the program says otherwise."""


async def place(provider: Provider, asked: do.Declare, policy: Policy, timeout_us: int, *, advertise: bool) -> Queue:
    """Ask nodes to manage a queue, as a policy chooses them, until one accepts; nodes that declined are left out.

    Raises `JMSException` with all that declined once no node is left, or the policy names one of them again, and
    `DeliveryTimeoutException` if a node does not answer in time.
    """
    here, ends_us = provider.node_info.node, provider.now_us() + timeout_us
    counts = await provider.execute(do.ReceiveCounts(asked.name))
    declined: dict[NodeId, str] = {}
    while not counts or counts.keys() - declined.keys():
        left = {node: count for node, count in counts.items() if node not in declined}
        manager = await _chosen(policy, left, here)
        if manager in declined:
            break
        if manager == here:
            return await declare(provider, managed_by(asked, here), advertise=advertise)
        left_us = max(ends_us - provider.now_us(), 0)
        answer = await provider.execute(do.AskToManage(managed_by(asked, manager), manager, left_us, advertise))
        if answer.accepted:
            return Queue(address.queue_name(asked.name, manager))
        if answer.reason is None:
            raise DeliveryTimeoutException(
                f"{manager} did not answer in time whether it manages the queue "
                f"{asked.name!r}{_refusals(declined)}: repeat the call, which finds the queue if the node has "
                "accepted meanwhile, or choose another node or a longer timeout"
            )
        declined[manager] = answer.reason
    raise JMSException(
        f"no node manages the queue {asked.name!r}{_refusals(declined)}: choose another node, or declare it on this one"
    )


def _refusals(declined: Mapping[NodeId, str]) -> str:
    return "".join(f"; {node} declined ({reason})" for node, reason in declined.items())


async def _chosen(policy: Policy, counts: Mapping[NodeId, int], here: NodeId) -> NodeId:
    """Call a policy, plain or async, on the event loop; a thread of listeners may wait for this very call."""
    node: object = policy(counts, here)
    if inspect.isawaitable(node):
        node = await node
    if not _is_node(node, here):
        raise IllegalArgumentException(f"a placement policy must return the id of a node, not {node!r}"[:200])
    return NodeId(str(node))


def placed(choose: object, timeout: Duration | None) -> int:
    """Return the time that a placement may take, in microseconds; callers are not all checked."""
    if choose is None and timeout is not None:
        raise IllegalArgumentException("timeout requires placement, since no other node is asked without it")
    if choose is not None and not callable(choose):
        raise IllegalArgumentException(
            (
                "placement must be a function of receive counts and this node's id, such as most_receiving, not "
                f"{choose!r}"
            )[:200]
        )
    timeout_us = microseconds(_TIMEOUT_S if timeout is None else timeout, "a timeout")
    if not timeout_us:
        raise IllegalArgumentException("timeout must be greater than 0")
    return timeout_us


def managed_by(asked: do.Declare, node: NodeId) -> do.Declare:
    """Return a queue as this node manages it: a manager need not be named as a receiver."""
    if asked.receivers is None:
        return asked
    receivers = tuple(each for each in asked.receivers if each != node)
    if len(receivers) > RECEIVERS_MAX:
        raise IllegalArgumentException(f"a queue names at most {RECEIVERS_MAX} receivers, not {len(receivers):,}")
    return msgspec.structs.replace(asked, receivers=receivers)


async def declare(provider: Provider, asked: do.Declare, *, advertise: bool) -> Queue:
    """Declare a queue, and bind it to its name, unless that is bound already."""
    destination = address.queue(asked.name, provider.node_info.node)
    bind = Bind(asked.name, destination, advertise=advertise, receivers=asked.receivers)
    try:
        await provider.execute(do.BindName(bind))
        new = True
    except NameAlreadyBoundException:
        new = False
    try:
        found = await provider.execute(do.DeclareQueue(asked))
    except JMSException:
        if new:
            await provider.execute(do.Unbind(asked.name))
        raise
    return Queue(address.name_of(found) or found)


def declared(
    node: NodeId,
    name: object,
    redelivery: object,
    lease_s: Duration | None,
    policy: object,
    *,
    receivers: object,
    tries: object = None,
    sealed: object = False,
) -> do.Declare:
    """Return the queue that a program wants its node to manage; callers are not all checked."""
    found = named(name, "the name of a queue")
    if "@" in found:
        raise InvalidDestinationException(
            f"a queue is declared by its name alone, and this node is added to it: declare {found.partition('@')[0]!r}"
        )
    if found.startswith(_PREFIX):
        raise InvalidDestinationException(
            f"a queue is declared by its name alone: declare {found.removeprefix(_PREFIX)!r}, not {found!r}"
        )
    if found.startswith((RESERVED, DEAD_LETTERS)):
        raise InvalidDestinationException(
            f"names that begin with {RESERVED!r} or {DEAD_LETTERS!r} are reserved: choose another name than {found!r}"
        )
    queue_of(found)  # Its name is checked.
    room = room_for(node)
    if len(found) > room:
        raise InvalidDestinationException(f"the name of a queue has at most {room} characters here, not {len(found)}")
    try:
        again = do.Redelivery(redelivery)  # type: ignore[arg-type]  # whatever it is
    except ValueError:
        raise IllegalArgumentException(
            f'redelivery must be "never" or "after_lease", not {redelivery!r}'[:200]
        ) from None
    if again is do.Redelivery.NEVER and lease_s is not None:
        raise IllegalArgumentException('lease_s requires redelivery="after_lease"')
    lease_us = 0 if again is do.Redelivery.NEVER else _lease_us(lease_s)
    if tries is not None and (type(tries) is not int or not 1 <= tries <= TRIES_MAX):
        raise IllegalArgumentException(f"tries must be a whole number from 1 to {TRIES_MAX:,}, not {tries!r}"[:200])
    if not isinstance(sealed, bool):
        raise IllegalArgumentException(f"sealed must be True or False, not {sealed!r}"[:200])
    if sealed and not is_node_id(node):
        raise JMSSecurityException('a queue for sealed messages requires security = "signed" on this node')
    return do.Declare(
        found, again, lease_us, named(policy, "a policy"), receivers=_receivers(receivers, node), tries=tries or 0,
        sealed=sealed,
    )  # fmt: skip


def _receivers(receivers: object, node: NodeId) -> tuple[NodeId, ...] | None:
    """Return the nodes that may receive from a queue, each once and in order; None: anyone."""
    if receivers == ANYONE:
        return None
    if not isinstance(receivers, Collection) or isinstance(receivers, str | bytes):
        raise IllegalArgumentException(f'receivers must be "{ANYONE}" or a list of node ids, not {receivers!r}'[:200])
    for each in receivers:
        if not _is_node(each, node):
            raise IllegalArgumentException(f"receivers must be node ids, not {each!r}"[:200])
    return tuple(sorted({NodeId(each) for each in receivers}))


def _is_node(text: object, here: NodeId) -> bool:
    """Return True for the id of a node, or, where nodes have no keys, for a plain name of one."""
    return isinstance(text, str) and (is_node_id(text) or (not is_node_id(here) and 0 < len(text) <= _PLAIN_MAX))


def _lease_us(lease_s: Duration | None) -> int:
    lease_us = microseconds(_LEASE_S if lease_s is None else lease_s, "lease_s")
    if not lease_us:
        raise IllegalArgumentException("lease_s must be greater than 0")
    return lease_us


class Temporary(Destination):
    """A destination of one connection."""

    __slots__ = ()
    _all: Temporaries

    async def delete(self) -> None:
        """End it, with all that waits in it; raises `IllegalStateException` while a consumer is open. Twice is once."""
        await self._all.end(self)


class TemporaryQueue(Temporary, Queue):
    """A queue of one connection; made by `Context.create_temporary_queue`."""

    __slots__ = ("_all",)

    def __init__(self, name: str, temporaries: Temporaries) -> None:
        Queue.__init__(self, name)
        self._all = temporaries


class TemporaryTopic(Temporary, Topic):
    """A topic of one connection; made by `Context.create_temporary_topic`."""

    __slots__ = ("_all",)

    def __init__(self, name: str, temporaries: Temporaries) -> None:
        Topic.__init__(self, name)
        self._all = temporaries


class Temporaries:
    """The temporary destinations of one connection."""

    def __init__(self, intakes: Mapping[int, Intake], kinds: Kinds) -> None:
        self._intakes = intakes
        """Open consumers of it."""
        self._queue: type[TemporaryQueue] = kinds.get(TemporaryQueue, TemporaryQueue)
        self._topic: type[TemporaryTopic] = kinds.get(TemporaryTopic, TemporaryTopic)
        self._alive: dict[str, Provider] = {}
        """By address, the messaging of the node that has it."""
        self._count = 0

    async def queue(self, provider: Provider, connection: int) -> TemporaryQueue:
        """Make one more queue, which the node ends with the connection of this number."""
        asked = do.Declare(self._name(provider, connection), connection=connection)
        destination = await provider.execute(do.DeclareQueue(asked))
        self._alive[destination] = provider
        return self._queue(address.name_of(destination) or destination, self)

    def topic(self, provider: Provider, connection: int) -> TemporaryTopic:
        """Make one more topic."""
        topic = self._topic(f"{self._name(provider, connection)}.{provider.node_info.node}", self)
        self._alive[topic.address] = provider
        return topic

    def _name(self, provider: Provider, connection: int) -> str:
        """Return a name that no other incarnation of the node gives, and no other connection."""
        self._count += 1
        return f"{TEMPORARY}{provider.now_us():x}-{connection}-{self._count}"

    async def end(self, destination: Destination) -> None:
        """End one of them; raises `IllegalStateException` if it is in use."""
        provider = self._alive.get(destination.address)
        if provider is None:
            return
        if any(each.wanted.destination == destination for each in self._intakes.values()):
            raise IllegalStateException(
                f"{destination!r} has a consumer: close the consumer before you delete the destination"
            )
        if isinstance(destination, Queue):
            await provider.execute(do.EndQueue(destination.address))
        self._alive.pop(destination.address, None)

    def end_all(self) -> None:
        """End all of them with their connection."""
        self._alive.clear()

    def check_consumer(self, destination: object) -> None:
        """Raise unless a consumer of this connection may be opened for it."""
        if not isinstance(destination, Destination) or destination.address in self._alive:
            return
        if is_temporary(destination):
            raise InvalidDestinationException(
                f"{destination!r} is temporary: only the connection that created it can consume from it"
            )

    def check_sender(self, destination: Destination) -> None:
        """Raise if it is one of this connection that was deleted."""
        mine = isinstance(destination, Temporary) and destination._all is self  # noqa: SLF001 - which makes them
        if mine and destination.address not in self._alive:
            raise InvalidDestinationException(f"{destination!r} was deleted")
