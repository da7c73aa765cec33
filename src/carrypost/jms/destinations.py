"""Destinations: where a message goes, as programs name it.

`Topic` and `Queue` are values, compared by their address; the core has the same as text (`model.address`). A queue may
also be named without its node: which one that is a directory says, when the name is used first. Programs without
messaging choose destinations of any form, and a message from one of them has a plain `Destination`.

Names that begin with ``$`` are those that nodes give themselves: of temporary destinations, and of the queue that
replies come to. ``DLQ.NAME`` is where a node puts what could not be consumed. All other names that a program gives are
checked when a destination is made of them. Those of received messages and of the directory are not (`destination_at`):
other nodes may have given them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from carrypost.errors import IllegalArgumentException, InvalidDestinationException, LocalError, NamingException
from carrypost.java_names import JavaNamed
from carrypost.messaging.commands import Lookup
from carrypost.messaging.namespace import DEAD_LETTERS
from carrypost.model import address
from carrypost.model.descriptor import Ordering

if TYPE_CHECKING:
    from carrypost.jms.provider import Provider

T = TypeVar("T")
RESERVED = "$"
TEMPORARY = f"{RESERVED}temporary."
EPIDEMIC, HOLDER, CHANNEL = "epidemic", "holder", "channel"
"""Models of topics: interested nodes get a publication from any node that has it, one node passes it on to subscribers,
or the brokers of the overlay pass it on, as an event."""


def named(name: object, what: str) -> str:
    """Return the name, if it is one: callers are not all checked. Raises `IllegalArgumentException`."""
    if not isinstance(name, str) or not name:
        raise IllegalArgumentException(f"{what} must be text that is not empty, not {name!r}"[:200])
    return name


def _check_name(name: str, what: str) -> None:
    """Raise `InvalidDestinationException` unless a program may give a destination this name, or a node did."""
    if not name.startswith((RESERVED, DEAD_LETTERS)):
        address.check_name(name, what)


def _check_plain(name: str, what: str) -> None:
    """Raise `InvalidDestinationException` unless a program may give this name to what is never named by wildcards."""
    _check_name(name, what)
    if address.has_wildcard(name) and not name.startswith(DEAD_LETTERS):
        raise InvalidDestinationException(f"a {what} must be named without wildcards, not {name!r}")


class Destination(JavaNamed):
    """A destination of messages. One that is neither a topic nor a queue is a plain destination."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = named(text, "a destination")

    @property
    def address(self) -> str:
        """The address that messages have, such as ``queue/NODE/Alan``; programs write it as `str` returns it."""
        return self._text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Destination) and self._text == other.address

    def __hash__(self) -> int:
        return hash(self._text)

    def __str__(self) -> str:
        return address.written(self._text)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._text!r})"


class Topic(Destination):
    """A destination to which any program may publish, and from which all subscribers receive."""

    __slots__ = ("_ordering",)
    __match_args__ = ("topic_name",)

    def __init__(self, name: str, ordering: Ordering | str = Ordering.NONE) -> None:
        super().__init__(address.topic(name))
        _check_name(name, "topic")
        try:
            self._ordering = ordering if isinstance(ordering, Ordering) else Ordering.named(ordering)
        except LocalError as error:
            raise IllegalArgumentException(str(error)) from None

    @property
    def topic_name(self) -> str:
        """The name, with dots between levels."""
        return self._text.partition("/")[2]

    @property
    def pattern(self) -> str:
        """The pattern of the destinations that it stands for; raises `InvalidDestinationException`."""
        return address.topic_pattern(self.topic_name)

    @property
    def ordering(self) -> Ordering:
        """In which order its messages are delivered. Topics that differ in this alone are equal."""
        return self._ordering

    def __str__(self) -> str:
        return address.written(self._text, self._ordering.text)

    def __repr__(self) -> str:
        ordering = f", ordering={self._ordering.text!r}" if self._ordering else ""
        return f"Topic({self.topic_name!r}{ordering})"


class HeldTopic(Topic):
    """A topic that one node holds: publications go to that node, which forwards them to its subscribers."""

    __slots__ = ()

    def __init__(self, name: str) -> None:
        Destination.__init__(self, address.holder_named(named(name, "the name of a topic")))
        self._ordering = Ordering.NONE
        _check_plain(name.rpartition("@")[0], "topic that a node holds")

    @property
    def topic_name(self) -> str:
        """The full name, ``news@NODE``."""
        return address.name_of(self._text) or self._text

    @property
    def pattern(self) -> str:
        """The pattern of its destination."""
        return address.exactly(self._text)

    def __repr__(self) -> str:
        return f"HeldTopic({self.topic_name!r})"


class ChannelTopic(Topic):
    """A topic that is an event channel of the overlay: brokers pass its events on, and run modulators on them."""

    __slots__ = ()

    def __init__(self, name: str) -> None:
        Destination.__init__(self, address.channel(named(name, "the name of a channel")))
        self._ordering = Ordering.NONE
        address.check_levels(name)
        _check_plain(name, "channel")

    @property
    def pattern(self) -> str:
        """The pattern of its destination."""
        return address.exactly(self._text)

    def __repr__(self) -> str:
        return f"ChannelTopic({self.topic_name!r})"


class SealedTopic(Topic):
    """A topic of a circle: its messages are sealed for all members."""

    __slots__ = ()

    def __init__(self, circle: str, name: str, ordering: Ordering | str = Ordering.NONE) -> None:
        super().__init__(name, ordering)
        self._text = address.circle_topic(named(circle, "the name of a circle"), name)
        if "/" in circle:
            raise InvalidDestinationException(f"the name of a circle has no slash, unlike {circle!r}")

    @property
    def circle(self) -> str:
        """The name of the circle on this node."""
        return address.parted_circle(self._text)[0]

    @property
    def topic_name(self) -> str:
        """The name, with dots between levels."""
        return address.parted_circle(self._text)[1]

    @property
    def pattern(self) -> str:
        """The pattern of the destinations that it stands for; raises `InvalidDestinationException`."""
        return address.topic_pattern(self.topic_name, address.circle_topic(self.circle, "x")[:-1])

    def __repr__(self) -> str:
        return f"SealedTopic({self.circle!r}, {self.topic_name!r})"


def check_one(topic: Topic) -> None:
    """Raise `InvalidDestinationException` for a topic that stands for many: a message goes to one."""
    if not isinstance(topic, HeldTopic | ChannelTopic):
        address.check_levels(topic.topic_name)
        if address.has_wildcard(topic.topic_name):
            raise InvalidDestinationException(
                f"{topic.topic_name!r} contains wildcards: a message must be sent to one topic"
            )


def topic_of(name: str, ordering: Ordering | str, model: object, circle: str | None = None) -> Topic:
    """Return the topic of this name; `circle`: of the circle that this node calls so.

    `model`: no node holds it ("epidemic"), the node in its name does ("holder"), or it is a channel ("channel").
    """
    if model not in (EPIDEMIC, HOLDER, CHANNEL):
        raise IllegalArgumentException(f'model must be "{EPIDEMIC}", "{HOLDER}" or "{CHANNEL}", not {model!r}'[:200])
    # Only topics that gossip spreads have an order. An option without effect would mislead, so that
    # it is refused instead of ignored.
    if model != EPIDEMIC:
        if circle is not None:
            raise IllegalArgumentException(
                f"a topic with model={model!r} is read by the nodes that pass it on, and cannot be sealed for a "
                "circle: leave model or circle out"
            )
        if Topic("x", ordering).ordering:
            what = "topic that a node holds has no order" if model == HOLDER else "channel has no order among producers"
            raise IllegalArgumentException(f"a {what}: leave ordering={ordering!r} out, or model={model!r}")
        return HeldTopic(name) if model == HOLDER else ChannelTopic(name)
    made = Topic(name, ordering) if circle is None else SealedTopic(circle, name, ordering)
    address.check_levels(name)
    return made


class Queue(Destination):
    """A destination that one node manages, and of which each message goes to one receiver."""

    __slots__ = ()
    __match_args__ = ("queue_name",)

    def __init__(self, name: str) -> None:
        super().__init__(address.queue_named(name))
        _check_plain(name.rpartition("@")[0], "queue")

    @property
    def queue_name(self) -> str:
        """The full name, ``Alan@NODE``, by which any node can send to it."""
        return address.name_of(self._text) or self._text

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.queue_name!r})"


class NamedQueue(Queue):
    """A queue that is named without its node; made by `Context.create_queue`.

    Which queue that is the directory of the node says, when it is used first. It is equal to others of that name.
    """

    __slots__ = ("_name", "found")

    def __init__(self, name: str) -> None:
        Destination.__init__(self, f"{_NOWHERE}{named(name, 'the name of a queue')}")
        _check_plain(name, "queue")
        self._name = name
        self.found: Queue | None = None
        """The queue, once it is known."""

    @property
    def queue_name(self) -> str:
        """The full name once it is known, the short one before."""
        return self._name if self.found is None else self.found.queue_name

    def __str__(self) -> str:
        return address.written_as(address.Kind.QUEUE, self.queue_name)


_NOWHERE = "queue//"
"""Prefix that is not an address, so that the text that follows is not taken for one."""


def queue_of(name: object) -> Queue:
    """Return the queue of this name, full or short."""
    found = named(name, "the name of a queue")
    # The directory is asked later, by `resolved`: a name may be used before the queue is known
    # here, and this function cannot wait.
    return Queue(found) if "@" in found else NamedQueue(found)


def as_destination(given: object) -> object:
    """Return the destination that a text names, and what is no text as it is.

    A topic is ``topic/x``, ``topic/x?order=causal`` with an ordering, ``holder/x@NODE`` if a node holds it, or
    ``channel/x``. A queue is ``queue/Alan``, as the directory of this node has it at first use, or, in full,
    ``queue/Alan@NODE``. Whatever `str` of a topic or queue returns is such a text. Raises `InvalidDestinationException`
    for any other text.
    """
    if not isinstance(given, str):
        return given
    kind, name, order = address.parted(given)
    try:
        ordering = Ordering.named(order)
    except LocalError as error:
        raise InvalidDestinationException(f"{given!r}: {error}") from None
    if kind is address.Kind.TOPIC:
        address.check_levels(name)
        return Topic(name, ordering)
    if kind is address.Kind.CIRCLE:
        circle, _, topic = name.partition("/")
        if not topic:
            raise InvalidDestinationException(f"a topic of a circle is written 'circle/CIRCLE/NAME', not {given!r}")
        address.check_levels(topic)
        return SealedTopic(circle, topic, ordering)
    if ordering:
        raise InvalidDestinationException(f"{given!r}: only a topic without a holder has an order: leave ?order= out")
    return _WITHOUT_ORDER[kind](name)


_WITHOUT_ORDER: Mapping[address.Kind, Callable[[str], Destination]] = {
    address.Kind.HOLDER: HeldTopic, address.Kind.CHANNEL: ChannelTopic, address.Kind.QUEUE: queue_of,
}  # fmt: skip


def as_queue(given: object, what: str) -> Queue:
    """Return a queue, or the one that a text names; `what` begins the sentence that refuses all else."""
    found = as_destination(given)
    if not isinstance(found, Queue):
        raise InvalidDestinationException(f"{what}, not {given!r}"[:200])
    return found


def is_temporary(destination: Destination) -> bool:
    """Return True if a topic or a queue lives as long as a connection."""
    found = address.address(destination.address)
    return found is not None and found.name.startswith(TEMPORARY)


def destination_at(text: str, ordering: Ordering = Ordering.NONE) -> Destination:
    """Return the destination of this address. Its name is not checked, since another node may have given it."""
    found = address.address(text)
    kind = Destination if found is None else _KINDS.get(found.kind, Destination)
    if kind is ChannelTopic and found is not None and address.has_wildcard(found.name):
        kind = Destination
    made = kind.__new__(kind)
    made._text = text  # noqa: SLF001 - made here, without the check of its name
    if isinstance(made, Topic):
        made._ordering = ordering if kind in (Topic, SealedTopic) else Ordering.NONE  # noqa: SLF001 - likewise
    return made


_KINDS: Mapping[address.Kind, type[Destination]] = {
    address.Kind.TOPIC: Topic, address.Kind.HOLDER: HeldTopic, address.Kind.CHANNEL: ChannelTopic,
    address.Kind.QUEUE: Queue, address.Kind.CIRCLE: SealedTopic,
}  # fmt: skip


async def resolved(provider: Provider, destination: T) -> T | Queue:
    """Return the destination itself; of a short name, the queue, which is found when it is used first."""
    if not isinstance(destination, NamedQueue):
        return destination
    # Looked up once. Later bindings of the same name do not redirect a program that already uses
    # it.
    if destination.found is None:
        found = destination_at(await resolve_queue(provider, destination.queue_name))
        assert isinstance(found, Queue)  # The directory was asked for queues alone.
        destination.found = found
    return destination.found


async def resolve_queue(provider: Provider, name: str) -> str:
    """Return the destination of the queue with this name.

    A full name, ``Alan@NODE``, is the address itself, and the directory is not asked. A bare one, ``Alan``, is looked
    up on this device, among queues only. Raises `InvalidDestinationException`, with what is there, where none or
    several are called so.
    """
    if "@" in name:
        return address.queue_named(name)
    try:
        return (await provider.execute(Lookup(name, address.Kind.QUEUE))).destination
    except NamingException as error:
        raise InvalidDestinationException(
            f"{error}. To make this node its manager: `await ctx.declare_queue({name!r})`. To wait until another node "
            f"advertises it: `await InitialContext(ctx).lookup({name!r}, timeout=SECONDS)`. A full name, NAME@NODE, "
            "needs no directory"
        ) from error
