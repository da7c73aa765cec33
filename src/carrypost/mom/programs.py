"""The commands of messaging: `host.messaging`. Each is a step of the host.

Messaging is asleep until it is opened: it has no interests and no rows, and costs nothing. The rows of an earlier life
are kept for it meanwhile. A command that takes a number changes what is durable, and is answered by `Done` or `Undone`
of that number, as works are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrypost.errors import IllegalStateException, StateError
from carrypost.model.address import Kind
from carrypost.mom.messaging import Messaging
from carrypost.mom.names.namespace import Binding
from carrypost.mom.overview import MessagingOverview

if TYPE_CHECKING:
    from collections.abc import Collection

    from carrypost.gossip.layer import Steps
    from carrypost.gossip.transfers.ground import Ground
    from carrypost.local.deliveries import Deliveries
    from carrypost.model.ids import MessageId, NodeId
    from carrypost.mom.channels import Overlay
    from carrypost.mom.commands import Browsing, Declare, Followed, OpenRequest, Receive, Subscribe
    from carrypost.mom.names.namespace import Bind


class MessagingCommands:
    """Commands that programs give to messaging."""

    def __init__(self, steps: Steps, ground: Ground, deliveries: Deliveries, overlay: Overlay | None = None) -> None:
        self._steps, self._step, self._ground, self._deliveries = steps, steps.step, ground, deliveries
        self._overlay = overlay
        self._messaging: Messaging | None = None

    @property
    def is_open(self) -> bool:
        """True if messaging is awake."""
        return self._messaging is not None

    def overview(self) -> MessagingOverview | None:
        """Return an overview; None while messaging is asleep."""
        return None if self._messaging is None else self._messaging.overview()

    def owed_to(self, message: MessageId) -> list[str]:
        """Return the subscriptions and queues of this node that are to have a message."""
        return [] if self._messaging is None else self._messaging.owed_to(message)

    def open(self, now: int) -> None:
        """Wake messaging: durable subscriptions of earlier lives collect from now on. A second time does nothing."""
        if self._messaging is not None:
            return
        if not self._steps.incarnation:
            raise StateError("start or restore the host first: what an earlier life left would not be found")
        with self._step(now):
            self._messaging = Messaging(self._ground, self._deliveries, self._steps.incarnation, self._overlay)
            self._steps.join(self._messaging)

    @property
    def _awake(self) -> Messaging:
        if self._messaging is None:
            raise IllegalStateException("messaging is not open on this node: open it first (host.messaging.open)")
        return self._messaging

    # --- programs ------------------------------------------------------------------------------------------

    def connect(self, now: int, *, client: str = "") -> int:
        """A program's connection, with its client id if it has one; returns its number."""
        with self._step(now, links=False):
            return self._awake.sessions.connect(client).number

    def disconnect(self, connection: int, now: int, *, unread: Collection[int] = (), crashed: bool = False) -> None:
        """Close a connection with its sessions. What they did not acknowledge goes back; `unread`: nobody saw these.

        `crashed`: the program ended without a word, and what it saw comes again one at a time.
        """
        with self._step(now):
            for session in self._awake.sessions.connection(connection).sessions:
                self._steps.forget_drafts(session)
            self._awake.consuming.disconnect(connection, now, unread=unread, crashed=crashed)

    def open_session(self, connection: int, now: int) -> int:
        """One more session of a connection; returns its number."""
        with self._step(now, links=False):
            sessions = self._awake.sessions
            return sessions.open(sessions.connection(connection)).number

    def close_session(self, session: int, now: int, *, unread: Collection[int] = ()) -> None:
        """Close a session and its consumers; its drafts are gone, and what it did not acknowledge goes back."""
        with self._step(now):
            self._awake.consuming.close_session(session, now, unread=unread)
            self._steps.forget_drafts(session)

    def recover(
        self, session: int, now: int, *, unread: Collection[int] = (), numbers: Collection[int] | None = None
    ) -> int:
        """Let everything come again that a session has not acknowledged, or of that these `numbers`.

        Returns the last number under which anything was handed over before: whoever is told later drops the rest.
        """
        with self._step(now, links=False):
            return self._awake.recover(session, unread=unread, numbers=numbers)

    def rollback(self, session: int, now: int, *, unread: Collection[int] = ()) -> int:
        """Forget a session's drafts, and let come again what it has not acknowledged; returns as `recover`."""
        with self._step(now, links=False):
            before = self._awake.recover(session, unread=unread)
            self._steps.forget_drafts(session)
        return before

    def followed(self, message: MessageId, now: int) -> Followed | None:
        """A message of this node that is followed, None if it is not; a `Receipt` tells how far it has come."""
        with self._step(now, links=False):
            return self._awake.receipts.followed(message)

    # --- consumers -----------------------------------------------------------------------------------------

    def consume(self, number: int, session: int, asked: Subscribe | Receive, now: int) -> int:
        """A consumer of a new subscription, or of one that is here already; returns its number."""
        with self._step(now, number=number):
            return self._awake.consuming.consume(session, asked, now)

    def modulate(self, number: int, consumer: int, modulator: bytes, now: int) -> None:
        """Give a consumer of a channel another modulator, as the overlay writes it; empty: none."""
        with self._step(now, number=number):
            self._awake.consuming.modulate(consumer, modulator, now)

    def credit(self, consumer: int, messages: int, nbytes: int, now: int) -> None:
        """A consumer takes so many more messages, of so many more bytes."""
        with self._step(now, links=False):
            self._awake.consuming.credit(consumer, messages, nbytes, now)

    def close_consumer(self, consumer: int, now: int, *, unread: Collection[int] = ()) -> None:
        """Close a consumer. What its program saw stays with the session; what is `unread` goes back."""
        with self._step(now):
            self._awake.consuming.close_consumer(consumer, now, unread=unread)

    def unsubscribe(self, number: int, client: str, name: str, now: int) -> None:
        """End a durable subscription for good, with all that waits for it."""
        with self._step(now, number=number):
            self._awake.consuming.unsubscribe(client, name, now)

    # --- queues --------------------------------------------------------------------------------------------

    def declare(self, number: int, asked: Declare, now: int) -> str:
        """A queue that this node manages from now on, or does already; returns its destination."""
        with self._step(now, number=number):
            return self._awake.queues.declare(asked).destination

    def end_queue(self, number: int, destination: str, now: int) -> None:
        """End a queue of this node, with its names here: whoever sent what is in it hears that it failed."""
        with self._step(now, number=number):
            self._awake.end_queue(destination, now)

    def declare_topic(self, number: int, name: str, now: int) -> str:
        """Hold a topic on this node from now on, if it does not already; returns its destination."""
        with self._step(now, number=number):
            return self._awake.queues.holder.declare(name).destination

    def end_topic(self, number: int, destination: str, now: int) -> None:
        """Hold a topic of this node no more, and let go its names here."""
        with self._step(now, number=number):
            self._awake.end_topic(destination, now)

    def browse(self, session: int, destination: str, selector: str | None, now: int) -> Browsing:
        """See what waits in a queue: at once where this node is its manager, else by `Browsed`."""
        with self._step(now):
            messaging = self._awake
            messaging.directory.check_receiver(destination)
            connection = messaging.sessions.session(session).connection.number
            return messaging.queues.browse(destination, selector, connection, now)

    def release(self, number: int, session: int, numbers: Collection[int], now: int, *, dead: bool) -> None:
        """A session does not take these any more. `dead`: it failed with them too often, and they are dead letters."""
        with self._step(now, number=number):
            self._awake.handing.release(self._awake.sessions.session(session), numbers, now, dead=dead)

    def defer(self, number: int, session: int, handed: int, until_us: int, now: int) -> None:
        """Let a message come again, not before `until_us`, that a session has under the number `handed`."""
        with self._step(now, number=number):
            self._awake.handing.defer(self._awake.sessions.session(session), handed, until_us, now)

    def retry(self, number: int, session: int, handed: int, now: int) -> int:
        """Count a message once more that a session has, under the number `handed`, and tries again.

        Returns how often it was handed over with that, or 0 if the session does not have it any more.
        """
        with self._step(now, links=False, number=number):
            return self._awake.handing.retry(self._awake.sessions.session(session), handed)

    def go_on(self, session: int, now: int) -> None:
        """Hand a session more, though it did not acknowledge what came alone."""
        with self._step(now, links=False):
            self._awake.claims.go_on(self._awake.sessions.session(session))

    def receive_counts(self, name: str, now: int) -> dict[NodeId, int]:
        """Return how many messages nodes consumed from the queues of a name, as far as this node knows."""
        with self._step(now, links=False):
            return self._awake.placements.counts(name)

    def place(
        self, number: int, asked: Declare, node: NodeId, until_us: int, now: int, *, advertise: bool = True
    ) -> None:
        """Ask another node to manage a queue; `placement.PlaceAnswered` of that number says whether it does."""
        with self._step(now):
            self._awake.placements.ask(number, asked, node, until_us, now, advertise=advertise)

    # --- requests ------------------------------------------------------------------------------------------

    def remember_request(self, number: int, correlation: str, deadline_us: int, now: int) -> None:
        """A program is about to send a request, and waits for the reply until a deadline, also after a restart."""
        with self._step(now, links=False, number=number):
            self._awake.queues.calls.remember(correlation, deadline_us)

    def forget_request(self, number: int, correlation: str, now: int) -> None:
        """A request has its reply, or was never sent."""
        with self._step(now, links=False, number=number):
            self._awake.queues.calls.forget(correlation)

    def open_requests(self) -> tuple[OpenRequest, ...]:
        """The requests of this node that have no reply yet."""
        return self._awake.queues.calls.all_open()

    # --- names ---------------------------------------------------------------------------------------------

    def bind(self, number: int, asked: Bind, now: int) -> None:
        """Let a name stand for a destination, or make a context."""
        with self._step(now, number=number):
            self._awake.directory.bind(self._awake.queues.described(asked), now)

    def unbind(self, number: int, name: str, now: int, *, context: bool = False) -> None:
        """Let a name go, and with the last name of a queue of this node the queue; `context`: an empty context."""
        with self._step(now, number=number):
            if context:
                self._awake.directory.destroy(name, now)
            else:
                self._awake.unbind(name, now)

    def lookup(self, name: str, now: int, *, kind: Kind | None = None) -> Binding:
        """Return the binding of a name on this device; `kind`: return nothing else. Raises a `NamingException`."""
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
        """Ask nodes that this one is connected with for their names; `discovery.Discovered` of that number follows."""
        if not self._ground.settings.island:
            raise IllegalStateException(
                "a discovery asks the nodes that this one is connected with, and it does not look for them: set "
                "island = true, or look names up, which asks nobody"
            )
        with self._step(now):
            self._awake.discoveries.ask(number, nodes, until_us, now)

    def entries(self, context: str, now: int) -> list[Binding]:
        """Return the bindings in a context, by name; the root is an empty text."""
        with self._step(now, links=False):
            return self._awake.directory.names.listing(context)
