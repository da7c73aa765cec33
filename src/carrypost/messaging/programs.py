"""The commands of messaging: `host.messaging`. Each is a step of the host.

Messaging is dormant until it is opened: it has no interests and no rows, and costs nothing. The rows from before a
restart are kept for it meanwhile. A command that changes durable state has a number, and is answered by `Done` of that
number, as units of work are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from carrypost.errors import IllegalStateException, StateError
from carrypost.messaging import program_commands as do
from carrypost.messaging.commands import Browsing, OpenRequest
from carrypost.messaging.messaging import Messaging
from carrypost.messaging.names.namespace import Binding
from carrypost.messaging.overview import MessagingOverview
from carrypost.messaging.program_commands import Command
from carrypost.messaging.session import Sessions
from carrypost.model.address import Kind

if TYPE_CHECKING:
    from collections.abc import Collection

    from carrypost.application.circles import Circles
    from carrypost.application.deliveries import Deliveries
    from carrypost.gossip.layer import Steps
    from carrypost.gossip.transfers.host_context import HostContext
    from carrypost.messaging.channels import Overlay
    from carrypost.messaging.views import Views
    from carrypost.model.ids import MessageId, NodeId

R = TypeVar("R")


class MessagingCommands:
    """Commands that programs give to messaging."""

    def __init__(
        self,
        steps: Steps,
        host_context: HostContext,
        deliveries: Deliveries,
        circles: Circles,
        overlay: Overlay | None = None,
    ) -> None:
        self._steps, self._step, self._host_context, self._deliveries = steps, steps.step, host_context, deliveries
        self._circles = circles
        self._overlay = overlay
        self._messaging: Messaging | None = None

    @property
    def is_open(self) -> bool:
        """True if messaging was opened."""
        return self._messaging is not None

    def overview(self) -> MessagingOverview | None:
        """Return an overview; None while messaging is dormant."""
        return None if self._messaging is None else self._messaging.overview()

    def views(self) -> Views | None:
        """Return what makes views of messaging at this moment, in full; None while it is dormant."""
        return None if self._messaging is None else self._messaging.views()

    def owed_to(self, message: MessageId) -> list[str]:
        """Return the subscriptions and queues of this node that have claims to a message."""
        return [] if self._messaging is None else self._messaging.owed_to(message)

    def open(self, now: int) -> None:
        """Open messaging: durable subscriptions from before a restart collect from now on. Idempotent."""
        if self._messaging is not None:
            return
        if not self._steps.incarnation:
            raise StateError(
                "start or restore the host first: otherwise state from before the restart would not be found"
            )
        with self._step(now):
            self._messaging = Messaging(self._host_context, self._deliveries, self._circles, self._steps, self._overlay)
            self._steps.join(self._messaging)

    @property
    def _awake(self) -> Messaging:
        if self._messaging is None:
            raise IllegalStateException("messaging is not open on this node: open it first (host.messaging.open)")
        return self._messaging

    @property
    def sessions(self) -> Sessions:
        """Connections, sessions and consumers of programs on this node."""
        return self._awake.sessions

    def execute(self, command: Command[R], now: int, number: int = 0) -> R:
        """Carry out a command, and return its answer, unless that comes by an event of this number.

        A durable command requires a number, which `Done` has.
        """
        with self._step(now, links=command.links, number=number if command.durable else None):
            return _DO[type(command)](self._awake, command, now, number)  # type: ignore[no-any-return]  # see its class

    def discover(self, number: int, nodes: Collection[NodeId], until_us: int, now: int) -> None:
        """Ask connected nodes for their names; `discovery.Discovered` of that number follows."""
        if not self._host_context.settings.island:
            raise IllegalStateException(
                "discovery asks connected nodes and requires island = true: set it, or look names up in the "
                "directory of this node"
            )
        with self._step(now):
            self._awake.discoveries.ask(number, nodes, until_us, now)


def _disconnect(on: Messaging, asked: do.Disconnect, now: int, _: int) -> None:
    for session in on.sessions.connection(asked.connection).sessions:
        on.forget_drafts(session)
    on.consuming.disconnect(asked.connection, now, unread=asked.unread, crashed=asked.crashed)


def _close_session(on: Messaging, asked: do.CloseSession, now: int, _: int) -> None:
    on.consuming.close_session(asked.session, now, unread=asked.unread)
    on.forget_drafts(asked.session)


def _rollback(on: Messaging, asked: do.Rollback, _now: int, _: int) -> int:
    before = on.recover(asked.session, unread=asked.unread)
    on.forget_drafts(asked.session)
    return before


def _browse(on: Messaging, asked: do.Browse, now: int, _: int) -> Browsing:
    on.directory.check_receiver(asked.destination)
    connection = on.sessions.session(asked.session).connection.number
    return on.queues.browse(asked.destination, asked.selector, connection, now)


def _lookup(on: Messaging, asked: do.Lookup, _now: int, _: int) -> Binding:
    """Return the binding of a name on this device. Raises a `NamingException`."""
    name, kind = asked.name, asked.kind
    names = on.directory.names
    letters = on.queues.letters_named(name)
    if letters is not None and name not in names.bound and kind in (None, Kind.QUEUE):
        return Binding(name, letters)  # A node that advertises such a name is not in the way.
    found = names.lookup(name, kind)
    if found is None:
        raise names.missing(name, "name" if kind is None else kind)
    return found


def _open_requests(on: Messaging, *_: object) -> tuple[OpenRequest, ...]:
    date_of = on.holdings.date_of
    return tuple(OpenRequest(each.correlation, date_of(each.deadline_us)) for each in on.queues.calls.all_open())


_Does = Callable[[Messaging, Any, int, int], Any]
_DO: Mapping[type[Command[Any]], _Does] = {
    do.Connect: lambda on, it, *_: on.sessions.connect(it.client).number,
    do.Disconnect: _disconnect,
    do.OpenSession: lambda on, it, *_: on.sessions.open(on.sessions.connection(it.connection)).number,
    do.CloseSession: _close_session,
    do.Recover: lambda on, it, *_: on.recover(it.session, unread=it.unread, numbers=it.numbers),
    do.Rollback: _rollback,
    do.Follow: lambda on, it, *_: on.receipts.followed(it.message),
    do.Consume: lambda on, it, now, _: on.consuming.consume(it.session, it.asked, now),
    do.Modulate: lambda on, it, now, _: on.consuming.modulate(it.consumer, it.modulator, now),
    do.Credit: lambda on, it, now, _: on.consuming.credit(it.consumer, it.messages, it.nbytes, now),
    do.CloseConsumer: lambda on, it, now, _: on.consuming.close_consumer(it.consumer, now, unread=it.unread),
    do.Unsubscribe: lambda on, it, now, _: on.consuming.unsubscribe(it.client, it.name, now),
    do.DeclareQueue: lambda on, it, *_: on.queues.declare(it.asked).destination,
    do.EndQueue: lambda on, it, now, _: on.end_queue(it.destination, now),
    do.DeclareTopic: lambda on, it, *_: on.queues.holder.declare(it.name).destination,
    do.EndTopic: lambda on, it, now, _: on.end_topic(it.destination, now),
    do.Browse: _browse,
    do.Release: lambda on, it, now, _: on.handing.release(
        on.sessions.session(it.session), it.numbers, now, dead=it.dead, error=it.error
    ),
    do.Defer: lambda on, it, now, _: on.handing.defer(
        on.sessions.session(it.session), it.number, now + it.delay_us, now
    ),
    do.Retry: lambda on, it, *_: on.handing.retry(on.sessions.session(it.session), it.number),
    do.GoOn: lambda on, it, *_: on.claims.go_on(on.sessions.session(it.session)),
    do.ReceiveCounts: lambda on, it, *_: on.placements.counts(it.name),
    do.AskToManage: lambda on, it, now, number: on.placements.ask(
        number, it.asked, it.node, now + it.timeout_us, now, advertise=it.advertise
    ),
    do.RememberRequest: lambda on, it, *_: on.queues.calls.remember(
        it.correlation, on.holdings.own_time(it.deadline_us)
    ),
    do.ForgetRequest: lambda on, it, *_: on.queues.calls.forget(it.correlation),
    do.OpenRequests: _open_requests,
    do.MakeCard: lambda on, _, now, __: on.keyring.card(now),
    do.AddCard: lambda on, it, now, _: on.keyring.add_card(it.card, now),
    do.FoundCircle: lambda on, it, now, _: on.circles.found(it.name, now),
    do.InviteToCircle: lambda on, it, now, _: on.circles.invite(it.circle, it.card, it.days, now, fresh=it.fresh),
    do.JoinCircle: lambda on, it, now, _: on.circles.join(it.code, now, it.root),
    do.RemoveFromCircle: lambda on, it, now, _: on.circles.remove(it.circle, it.node, now),
    do.RotateCircle: lambda on, it, now, _: on.circles.rotate(it.circle, now),
    do.LeaveCircle: lambda on, it, *_: on.circles.leave(it.circle),
    do.ExportCircle: lambda on, it, *_: on.circles.export(it.circle),
    do.ShowCircles: lambda on, *_: on.circles.views(),
    do.BindName: lambda on, it, now, _: on.directory.bind(on.queues.described(it.asked), now),
    do.Unbind: lambda on, it, now, _: (on.directory.destroy if it.context else on.unbind)(it.name, now),
    do.Lookup: _lookup,
    do.Entries: lambda on, it, *_: on.directory.names.listing(it.context),
}
"""Functions by the command that they carry out, given the command, the time, and the number of its answer."""
