"""The commands of messaging: `host.messaging`. Each is a step of the host.

Messaging is dormant until it is opened: it has no interests and no rows, and costs nothing. The rows from before a
restart are kept for it meanwhile. A command that takes a number changes durable state, and is answered by `Done` or
`Undone` of that number, as units of work are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.errors import IllegalStateException, StateError
from carrypost.model.address import Kind
from carrypost.mom.commands import OpenRequest
from carrypost.mom.messaging import Messaging
from carrypost.mom.names.namespace import Binding
from carrypost.mom.overview import MessagingOverview

if TYPE_CHECKING:
    from collections.abc import Collection

    from carrypost.gossip.layer import Steps
    from carrypost.gossip.transfers.host_context import HostContext
    from carrypost.local.deliveries import Deliveries
    from carrypost.model.ids import MessageId, NodeId
    from carrypost.mom.channels import Overlay
    from carrypost.mom.commands import Browsing, Declare, Followed, Receive, Subscribe
    from carrypost.mom.names.namespace import Bind


class MessagingCommands:
    """Commands that programs give to messaging."""

    def __init__(
        self, steps: Steps, host_context: HostContext, deliveries: Deliveries, overlay: Overlay | None = None
    ) -> None:
        self._steps, self._step, self._host_context, self._deliveries = steps, steps.step, host_context, deliveries
        self._overlay = overlay
        self._messaging: Messaging | None = None

    @property
    def is_open(self) -> bool:
        """True if messaging was opened."""
        return self._messaging is not None

    def overview(self) -> MessagingOverview | None:
        """Return an overview; None while messaging is dormant."""
        return None if self._messaging is None else self._messaging.overview()

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
            self._messaging = Messaging(self._host_context, self._deliveries, self._steps.incarnation, self._overlay)
            self._steps.join(self._messaging)

    @property
    def _awake(self) -> Messaging:
        if self._messaging is None:
            raise IllegalStateException("messaging is not open on this node: open it first (host.messaging.open)")
        return self._messaging

    # --- programs ------------------------------------------------------------------------------------------

    def connect(self, now: int, *, client: str = "") -> int:
        """Open a program's connection, with its client id if it has one; return its number."""
        with self._step(now, links=False):
            return self._awake.sessions.connect(client).number

    def disconnect(self, connection: int, now: int, *, unread: Collection[int] = (), crashed: bool = False) -> None:
        """Close a connection with its sessions, and return unacknowledged messages; `unread`: what no program saw.

        `crashed`: the program ended without closing, and the messages that it saw come again one at a time.
        """
        with self._step(now):
            for session in self._awake.sessions.connection(connection).sessions:
                self._steps.forget_drafts(session)
            self._awake.consuming.disconnect(connection, now, unread=unread, crashed=crashed)

    def open_session(self, connection: int, now: int) -> int:
        """Open a session of a connection; return its number."""
        with self._step(now, links=False):
            sessions = self._awake.sessions
            return sessions.open(sessions.connection(connection)).number

    def close_session(self, session: int, now: int, *, unread: Collection[int] = ()) -> None:
        """Close a session and its consumers; drop its drafts, and return what it did not acknowledge."""
        with self._step(now):
            self._awake.consuming.close_session(session, now, unread=unread)
            self._steps.forget_drafts(session)

    def recover(
        self, session: int, now: int, *, unread: Collection[int] = (), numbers: Collection[int] | None = None
    ) -> int:
        """Have everything redelivered that a session has not acknowledged, or only these `numbers`.

        Returns the last number under which anything was handed over before: callers drop reports up to it.
        """
        with self._step(now, links=False):
            return self._awake.recover(session, unread=unread, numbers=numbers)

    def rollback(self, session: int, now: int, *, unread: Collection[int] = ()) -> int:
        """Drop a session's drafts, and return what it has not acknowledged; the result is as for `recover`."""
        with self._step(now, links=False):
            before = self._awake.recover(session, unread=unread)
            self._steps.forget_drafts(session)
        return before

    def followed(self, message: MessageId, now: int) -> Followed | None:
        """Return the state of a tracked message of this node, None if it is not; a `Receipt` reports progress."""
        with self._step(now, links=False):
            return self._awake.receipts.followed(message)

    # --- consumers -----------------------------------------------------------------------------------------

    def consume(self, number: int, session: int, asked: Subscribe | Receive, now: int) -> int:
        """Open a consumer of a new subscription, or of an existing one; return its number."""
        with self._step(now, number=number):
            return self._awake.consuming.consume(session, asked, now)

    def modulate(self, number: int, consumer: int, modulator: bytes, now: int) -> None:
        """Give a consumer of a channel another modulator, as encoded by the overlay; empty: none."""
        with self._step(now, number=number):
            self._awake.consuming.modulate(consumer, modulator, now)

    def credit(self, consumer: int, messages: int, nbytes: int, now: int) -> None:
        """Raise the credit of a consumer by messages and bytes."""
        with self._step(now, links=False):
            self._awake.consuming.credit(consumer, messages, nbytes, now)

    def close_consumer(self, consumer: int, now: int, *, unread: Collection[int] = ()) -> None:
        """Close a consumer. What its program saw stays with the session; what is `unread` is returned."""
        with self._step(now):
            self._awake.consuming.close_consumer(consumer, now, unread=unread)

    def unsubscribe(self, number: int, client: str, name: str, now: int) -> None:
        """End a durable subscription for good, with everything that waits for it."""
        with self._step(now, number=number):
            self._awake.consuming.unsubscribe(client, name, now)

    # --- queues --------------------------------------------------------------------------------------------

    def declare(self, number: int, asked: Declare, now: int) -> str:
        """Declare a queue that this node manages, unless it does already; return its destination."""
        with self._step(now, number=number):
            return self._awake.queues.declare(asked).destination

    def end_queue(self, number: int, destination: str, now: int) -> None:
        """End a queue of this node, with its names here: senders of messages in it are informed that these failed."""
        with self._step(now, number=number):
            self._awake.end_queue(destination, now)

    def declare_topic(self, number: int, name: str, now: int) -> str:
        """Hold a topic on this node, unless it does already; return its destination."""
        with self._step(now, number=number):
            return self._awake.queues.holder.declare(name).destination

    def end_topic(self, number: int, destination: str, now: int) -> None:
        """Stop holding a topic of this node, and unbind its names here."""
        with self._step(now, number=number):
            self._awake.end_topic(destination, now)

    def browse(self, session: int, destination: str, selector: str | None, now: int) -> Browsing:
        """Browse a queue: at once if this node is its manager, else by `Browsed`."""
        with self._step(now):
            messaging = self._awake
            messaging.directory.check_receiver(destination)
            connection = messaging.sessions.session(session).connection.number
            return messaging.queues.browse(destination, selector, connection, now)

    def release(
        self, number: int, session: int, numbers: Collection[int], now: int, *, dead: bool, error: str = ""
    ) -> str:
        """Release messages that a session does not take any more; `dead`: make dead letters of them, with this error.

        Returns the address of the queue that the last dead letter enters, or an empty text.
        """
        with self._step(now, number=number):
            found = self._awake.sessions.session(session)
            return self._awake.handing.release(found, numbers, now, dead=dead, error=error)

    def defer(self, number: int, session: int, handed: int, until_us: int, now: int) -> None:
        """Return the message that a session has under the number `handed`, to come again only after `until_us`."""
        with self._step(now, number=number):
            self._awake.handing.defer(self._awake.sessions.session(session), handed, until_us, now)

    def retry(self, number: int, session: int, handed: int, now: int) -> int:
        """Count another try of the message that a session has under the number `handed`.

        Returns the number of tries, or 0 if the session does not have it any more.
        """
        with self._step(now, links=False, number=number):
            return self._awake.handing.retry(self._awake.sessions.session(session), handed)

    def go_on(self, session: int, now: int) -> None:
        """Hand a session more, although it did not acknowledge the message that came alone."""
        with self._step(now, links=False):
            self._awake.claims.go_on(self._awake.sessions.session(session))

    def receive_counts(self, name: str, now: int) -> dict[NodeId, int]:
        """Return the number of messages that nodes consumed from the queues of a name, as far as this node knows."""
        with self._step(now, links=False):
            return self._awake.placements.counts(name)

    def place(
        self, number: int, asked: Declare, node: NodeId, until_us: int, now: int, *, advertise: bool = True
    ) -> None:
        """Ask another node to manage a queue; `placement.PlaceAnswered` of that number has the answer."""
        with self._step(now):
            self._awake.placements.ask(number, asked, node, until_us, now, advertise=advertise)

    # --- requests ------------------------------------------------------------------------------------------

    def remember_request(self, number: int, correlation: str, deadline_us: int, now: int) -> None:
        """Remember a request that a program is about to send, and whose reply it awaits until a deadline, a date."""
        with self._step(now, links=False, number=number):
            self._awake.queues.calls.remember(correlation, self._host_context.holdings.own_time(deadline_us))

    def forget_request(self, number: int, correlation: str, now: int) -> None:
        """Forget a request that has its reply, or was never sent."""
        with self._step(now, links=False, number=number):
            self._awake.queues.calls.forget(correlation)

    def open_requests(self) -> tuple[OpenRequest, ...]:
        """Return the requests of this node that have no reply yet."""
        date_of = self._host_context.holdings.date_of
        return tuple(
            OpenRequest(each.correlation, date_of(each.deadline_us)) for each in self._awake.queues.calls.all_open()
        )

    # --- names ---------------------------------------------------------------------------------------------

    def bind(self, number: int, asked: Bind, now: int) -> None:
        """Bind a name to a destination, or make a context."""
        with self._step(now, number=number):
            self._awake.directory.bind(self._awake.queues.described(asked), now)

    def unbind(self, number: int, name: str, now: int, *, context: bool = False) -> None:
        """Unbind a name, and end a queue of this node with its last name; `context`: remove an empty context."""
        with self._step(now, number=number):
            if context:
                self._awake.directory.destroy(name, now)
            else:
                self._awake.unbind(name, now)

    def lookup(self, name: str, now: int, *, kind: Kind | None = None) -> Binding:
        """Return the binding of a name on this device; `kind`: only of this kind. Raises a `NamingException`."""
        with self._step(now, links=False):
            names = self._awake.directory.names
            letters = self._awake.queues.letters_named(name)
            if letters is not None and name not in names.bound and kind in (None, Kind.QUEUE):
                return Binding(name, letters)  # A node that advertises such a name is not in the way.
            found = names.lookup(name, kind)
            if found is None:
                raise names.missing(name, "name" if kind is None else kind)
            return found

    def discover(self, number: int, nodes: Collection[NodeId], until_us: int, now: int) -> None:
        """Ask connected nodes for their names; `discovery.Discovered` of that number follows."""
        if not self._host_context.settings.island:
            raise IllegalStateException(
                "discovery asks connected nodes and requires island = true: set it, or look names up in the "
                "directory of this node"
            )
        with self._step(now):
            self._awake.discoveries.ask(number, nodes, until_us, now)

    def entries(self, context: str, now: int) -> list[Binding]:
        """Return the bindings in a context, by name; the root is an empty text."""
        with self._step(now, links=False):
            return self._awake.directory.names.listing(context)
