"""Addresses: names that people use, destinations of messages, their classes of service, and lists of recipients.

::

    what                        name         destination
    topic `x`                   x            topic/x
    queue `Alan` of node N      Alan@N       queue/N/Alan
    what one node is told                    control/N
    what all nodes are told                  control/all
    what N says of a name                    directory/N/NAME
    topic `x` that node N holds x@N          holder/N/x
    what N passes on of it                   notice/N/x
    event channel `x`                        channel/x
    module of a modulator                    module/SHA256
    overlay on node N                        overlay/N
    overlay on all nodes                     overlay/all
    results of subscription S of N           results/N/S
    topic `x` of the circle `c`              circle/c/x
    the same, as carriers see it             sealed/CIRCLE/TAG

A topic or a queue may have any name but the empty one, and it stands last, so it needs no escaping; `check_name` holds
for names that programs give. A node stands before others, and with security off its name may hold any character: ``/``,
``@`` and ``%`` are written as ``%2F``, ``%40`` and ``%25`` there, and a node called ``all`` is ``%61ll``. The one
invariant: an address has exactly one spelling, and what is spelt otherwise is no address. So two destinations are the
same if their texts are.

A class of service says how hosts pass a message on, store it and acknowledge it, by its destination and its headers.
Gossip knows only the class. What a destination is for, and which layers use it, is known here and above.
"""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from carrypost.config.rules import nearest
from carrypost.errors import IllegalArgumentException, InvalidDestinationException
from carrypost.model import ids
from carrypost.model.headers import Headers
from carrypost.model.ids import NodeId


class Kind(enum.StrEnum):
    """The kind of an address; the first part of its destination."""

    TOPIC = "topic"
    QUEUE = "queue"
    CONTROL = "control"
    DIRECTORY = "directory"
    HOLDER = "holder"
    NOTICE = "notice"
    CHANNEL = "channel"
    OVERLAY = "overlay"
    RESULTS = "results"
    CIRCLE = "circle"
    SEALED = "sealed"


class Address(NamedTuple):
    """A destination, parsed."""

    kind: Kind
    node: NodeId | None
    """Node that it belongs to; None for topics, event channels and control messages to all nodes."""
    name: str
    """Name of the topic, queue, channel, subscription or directory entry; empty for control messages."""


WRITTEN_KINDS = frozenset({Kind.TOPIC, Kind.HOLDER, Kind.CHANNEL, Kind.QUEUE, Kind.CIRCLE})
"""Kinds of destinations that programs write as text."""
UNORDERED = "none"
"""Order of a topic whose messages are delivered as they arrive."""
_ORDER = "order"
EVERYBODY = "control/all"
"""Destination of control messages to all nodes."""
OVERLAYS = "overlay/all"
"""Destination of items to the overlays of all nodes."""
_TOPIC, _QUEUE, _CONTROL, _DIRECTORY, _HOLDER, _NOTICE, _CHANNEL, _OVERLAY, _RESULTS, CIRCLE, SEALED = (
    f"{kind}/" for kind in Kind
)
_MODULE = "module/"
_DIGEST = re.compile("[0-9a-f]{64}")
_REMEMBERED = 1_024
"""Number of destinations whose addressees are remembered."""
BETWEEN_NODES = (_QUEUE, _CONTROL, _HOLDER, _NOTICE)
"""Prefixes of the destinations that all nodes with messaging carry for each other."""
CONTROL_MESSAGES = (_CONTROL, _NOTICE, _DIRECTORY)
"""Prefixes of the destinations of messages that no program publishes: requests, assignments, receipts, names."""
BETWEEN_OVERLAYS = (_OVERLAY, _RESULTS)
"""Prefixes of the destinations of legs, items and results."""
CARRIED_BY_OVERLAYS = (*BETWEEN_OVERLAYS, _CHANNEL)
"""Prefixes of the destinations that all nodes with the overlay carry for each other."""
_OWNED = (_QUEUE, _CONTROL, _HOLDER, _OVERLAY, _RESULTS)
_CARRIED = BETWEEN_NODES + BETWEEN_OVERLAYS
_NODE_LAST = {_CONTROL[0]: len(_CONTROL), _OVERLAY[0]: len(_OVERLAY)}
"""Index of the node in destinations that end with it, by their first letter."""
_NODE_FIRST = {each[0]: len(each) for each in (_QUEUE, _HOLDER, _RESULTS)}
"""Index of the node in destinations in which a name follows it."""
_BLANK = re.compile(r"[\s\x00-\x1f\x7f-\x9f]")
_SEPARATORS = re.compile(r"[.\s\x00-\x1f\x7f-\x9f]+")
_ESCAPES = {"%": "%25", "/": "%2F", "@": "%40"}
_RESERVED = re.compile("[%/@]")
_ESCAPED = re.compile("%(25|2F|40)")
_ALL, _NODE_ALL = "all", "%61ll"

# ------------------------------------------------------------------------------------------- destinations


def topic(name: str) -> str:
    """Return the destination of a topic."""
    return _TOPIC + _named(name, "topic")


def queue(name: str, node: NodeId) -> str:
    """Return the destination of a node's queue."""
    return f"{_QUEUE}{_escaped(node)}/{_named(name, 'queue')}"


def holder(name: str, node: NodeId) -> str:
    """Return the destination of publications to a topic that a node holds."""
    return f"{_HOLDER}{_escaped(node)}/{_named(name, 'topic')}"


def notice_of(holder_destination: str) -> str:
    """Return the destination of what a holder passes on of a topic."""
    return _NOTICE + holder_destination.removeprefix(_HOLDER)


def control(node: NodeId) -> str:
    """Return the destination of control messages to one node."""
    return _CONTROL + _escaped(node)


def channel(name: str) -> str:
    """Return the destination of the events of a channel."""
    return _CHANNEL + _named(name, "channel")


def overlay(node: NodeId) -> str:
    """Return the destination of legs and items for the overlay of one node."""
    return _OVERLAY + _escaped(node)


def module(digest: bytes) -> str:
    """Return the destination of a module of modulators, by its SHA-256."""
    return _MODULE + digest.hex()


def module_of(destination: str) -> bytes | None:
    """Return the SHA-256 of the module that a destination names; None if it names none."""
    text = destination[len(_MODULE) :] if destination.startswith(_MODULE) else ""
    return bytes.fromhex(text) if _DIGEST.fullmatch(text) else None


def results(node: NodeId, subscription: str) -> str:
    """Return the destination of the results of a node's subscription to a channel."""
    return f"{_RESULTS}{_escaped(node)}/{_named(subscription, 'subscription')}"


def circle_topic(circle: str, name: str) -> str:
    """Return the address of a topic of a circle, as programs of this node name it."""
    return f"{CIRCLE}{_named(circle, 'circle')}/{_named(name, 'topic')}"


def parted_circle(destination: str) -> tuple[str, str]:
    """Return the names of the circle and of the topic in an address of a topic of a circle, or in a pattern of some."""
    circle, _, name = destination.removeprefix(CIRCLE).partition("/")
    return circle, name


def sealed_topic(circle: NodeId, tags: str) -> str:
    """Return the destination of a topic of a circle, as carriers see it."""
    return f"{SEALED}{circle}/{tags}"


def directory(node: NodeId, name: str) -> str:
    """Return the destination of a node's advertisement of a name."""
    return f"{_DIRECTORY}{_escaped(node)}/{_named(name, 'entry of the directory')}"


@functools.lru_cache(_REMEMBERED)
def addressee(destination: str) -> NodeId | None:
    """Return the node that a message is for; None if it is for all subscribers. Called several times per message."""
    if not destination.startswith(_OWNED):
        return None
    start = _NODE_FIRST.get(destination[0])
    if start is None:
        return _unescaped(destination[_NODE_LAST[destination[0]] :])
    end = destination.find("/", start)
    return None if end < 0 or end + 1 == len(destination) else _unescaped(destination[start:end])


def between_nodes(destination: str) -> bool:
    """Return True for queues, holders and control messages: all nodes carry these, for any addressee."""
    return destination.startswith(_CARRIED)


def names_addressee(destination: str) -> bool:
    """Return True if a destination is of a kind that names the one node that a message is for."""
    return destination.startswith(_OWNED)


def is_channel(destination: str) -> bool:
    """Return True if a destination is an event channel."""
    return destination.startswith(_CHANNEL)


def channel_of(destination: str) -> str | None:
    """Return the name of the event channel of a destination; None if it is no channel."""
    return destination[len(_CHANNEL) :] or None if destination.startswith(_CHANNEL) else None


def is_held(destination: str) -> bool:
    """Return True if a destination is a topic that a node holds."""
    return destination.startswith(_HOLDER)


def is_control_of_node(destination: str) -> bool:
    """Return True for the destination of control messages to one node; `EVERYBODY` is none."""
    return destination.startswith(_CONTROL) and destination != EVERYBODY


@functools.lru_cache(_REMEMBERED)
def address(destination: str) -> Address | None:
    """Return the address of a destination; None for destinations that programs without messaging choose."""
    kind, slash, rest = destination.partition("/")
    if not slash or not rest or kind not in _KINDS:
        return None
    if kind in (Kind.TOPIC, Kind.CHANNEL):
        return Address(Kind(kind), None, rest)
    if kind == Kind.CIRCLE:
        circle, _, name = rest.partition("/")
        return Address(Kind.CIRCLE, None, rest) if circle and name else None
    if destination in (EVERYBODY, OVERLAYS):
        return Address(Kind(kind), None, "")
    owner, slash, name = rest.partition("/")
    node = _unescaped(owner)
    if node is None or (kind in (Kind.CONTROL, Kind.OVERLAY)) is bool(slash) or bool(slash) is not bool(name):
        return None
    return Address(Kind(kind), node, name)


# -------------------------------------------------------------------------------------------------- names


def queue_name(name: str, node: NodeId) -> str:
    """Return the name under which any node can send to a node's queue: ``Alan@N``."""
    return f"{_named(name, 'queue')}@{_escaped(node)}"


def queue_named(text: str) -> str:
    """Return the destination of the queue with this full name; raises `InvalidDestinationException`."""
    return queue(*_owned(text, "queue"))


def holder_named(text: str) -> str:
    """Return the destination of the topic with this full name, which a node holds.

    Raises `InvalidDestinationException`.
    """
    return holder(*_owned(text, "topic that a node holds"))


def _owned(text: str, what: str) -> tuple[str, NodeId]:
    """Return the name and the node of a full name."""
    name, at, owner = text.rpartition("@")
    node = _unescaped(owner)
    if not at or not name or node is None:
        raise InvalidDestinationException(f"the name of a {what} must be NAME@NODE, not {text!r}")
    return name, node


def name_of(destination: str) -> str | None:
    """Return the full name of a topic or a queue; None for other destinations."""
    found = address(destination)
    if found is None or found.kind not in (Kind.TOPIC, Kind.QUEUE, Kind.HOLDER, Kind.CIRCLE):
        return None
    return found.name if found.node is None else queue_name(found.name, found.node)


def written(destination: str, order: str = UNORDERED) -> str:
    """Return a destination as programs write it; one that is not for programs is returned unchanged.

    Those are ``topic/x``, ``topic/x?order=causal``, ``holder/x@N``, ``channel/x`` and ``queue/Alan@N``.
    """
    found = address(destination)
    if found is None or found.kind not in WRITTEN_KINDS:
        return destination
    name = found.name if found.node is None else queue_name(found.name, found.node)
    return written_as(found.kind, name, order)


def written_as(kind: Kind, name: str, order: str = UNORDERED) -> str:
    """Return a destination of this kind and full name as programs write it; `parted` reads it."""
    # Options follow the last question mark. A name may contain question marks, too: one more at the
    # end then says that there are no options.
    options = f"?{_ORDER}={order}" if order != UNORDERED else "?" if "?" in name else ""
    return f"{kind}/{name}{options}"


def parted(text: str) -> tuple[Kind, str, str]:
    """Return the kind, the name and the order of a destination that a program wrote.

    Raises `InvalidDestinationException` for other texts. The order may be one that does not exist.
    """
    kind, _, rest = text.partition("/")
    name, mark, options = rest.rpartition("?")
    if kind not in WRITTEN_KINDS or not rest or (mark and not name):
        raise InvalidDestinationException(
            (
                "a destination as text must be 'topic/NAME', 'holder/NAME@NODE', 'channel/NAME', 'circle/CIRCLE/NAME', "
                f"'queue/NAME' or 'queue/NAME@NODE', not {text!r}"
            )[:200]
        )
    if not mark:
        return Kind(kind), rest, UNORDERED
    if not options and "?" in name:
        return Kind(kind), name, UNORDERED
    option, _, order = options.partition("=")
    if option != _ORDER:
        raise InvalidDestinationException(
            f"the option {option!r} of {text!r} is unknown{nearest(option, [_ORDER]) or '.'} Write {kind}/{name} with "
            f"an option, such as ?{_ORDER}=causal, or without. If the question mark belongs to the name, write one "
            f"more at the end: {text + '?'!r}"
        )
    return Kind(kind), name, order


def _named(name: object, what: str) -> str:
    """Return the name, if it is valid: callers are not all checked."""
    if not isinstance(name, str) or not name:
        raise InvalidDestinationException(f"the name of a {what} must be text that is not empty, not {name!r}")
    return name


@functools.lru_cache(_REMEMBERED)
def check_name(name: str, what: str) -> None:
    """Raise `InvalidDestinationException` unless a program may name a topic, a queue or a channel so.

    A name with a blank or an empty level is a mistake: no other program names the same. Names that other nodes give are
    not checked, since their messages must be readable.
    """
    if _BLANK.search(name):
        rule = "it must not contain spaces or control characters"
    elif not all(name.split(".")):
        rule = "dots divide it into levels, of which none may be empty"
    else:
        return
    meant = ".".join(level for level in _SEPARATORS.split(name) if level)
    example = f". Did you mean {meant!r}?" if meant else ""
    raise InvalidDestinationException(f"{name!r} cannot be the name of a {what}: {rule}{example}")


def _escaped(node: NodeId) -> str:
    if node == _ALL:
        return _NODE_ALL
    return _RESERVED.sub(lambda found: _ESCAPES[found[0]], _named(node, "node"))


def _unescaped(text: str) -> NodeId | None:
    """Return the node with this spelling; None if it is not valid."""
    if "%" not in text and "/" not in text and "@" not in text:  # faster than one search for any of them
        return None if text == _ALL or not text else text  # type: ignore[return-value]  # NodeId(text) costs a call
    if text == _NODE_ALL:
        return NodeId(_ALL)
    node = NodeId(_ESCAPED.sub(lambda found: chr(int(found[1], 16)), text))
    return node if _escaped(node) == text else None


_KINDS = frozenset(Kind)

# ----------------------------------------------------------------------------------------------- patterns

SPECIAL = re.compile(r"[\\.+*?()|\[\]{}^$]")
"""Characters with another meaning in a pattern than in a text."""
_ONE, _REST = "*", ">"
_FOREIGN = re.compile(r"(?<![^./])[#+](?![^./])|(?<=/)[*>](?![^./])|(?<![^./])[*>](?=/)")
"""A level that is a wildcard elsewhere (MQTT, AMQP), or one of ours beside a slash, which separates no levels here."""
_LEVELS = re.compile("[./]")
_FORMS = {_ONE: "[^.]*", _REST: ".*"}
_WRITTEN = re.compile(r"\[\^\.\]\*|\.\*|\\(.)")


def exactly(text: str) -> str:
    """Return the pattern that matches only this text."""
    return SPECIAL.sub(r"\\\g<0>", text)


def has_wildcard(name: str) -> bool:
    """Return True if a topic's name matches many topics."""
    return (_ONE in name or _REST in name) and any(level in (_ONE, _REST) for level in name.split("."))


def check_levels(name: str) -> None:
    """Raise `InvalidDestinationException` for a name with wildcards in the spelling of other systems.

    Such a name matches nothing but itself, which is never intended. Characters within a level, as in ``C#``, are plain.
    """
    found = _FOREIGN.search(name)
    if found is None:
        return
    levels = [_OURS.get(level, level) for level in _LEVELS.split(name)]
    example = f", as in {'.'.join(levels)!r}" if _REST not in levels[:-1] else ""
    raise InvalidDestinationException(
        f"the level {found[0]!r} of the topic {name!r} is not a valid wildcard: '*' must stand for a "
        f"whole level between dots, and '>' for one or more levels at the end{example}"
    )


_OURS = {"#": _REST, "+": _ONE}
"""Our spelling of other systems' wildcards."""


def topic_pattern(name: str, prefix: str = _TOPIC) -> str:
    """Return the pattern of the destinations of a topic, or of all topics that a name with wildcards matches.

    Dots divide a name into levels. A level ``*`` matches any one level, a last level ``>`` matches one or more;
    elsewhere the two are ordinary characters. Raises `InvalidDestinationException`.
    """
    levels = _named(name, "topic").split(".")
    check_levels(name)
    if _REST in levels[:-1]:
        raise InvalidDestinationException(f"'>' must be the last level of a name, not as in {name!r}")
    return exactly(prefix) + r"\.".join(_FORMS.get(level) or exactly(level) for level in levels)


def levels_of(pattern: str) -> list[str]:
    """Return the levels of the name that `topic_pattern` made a pattern of; wildcards are ``*`` and ``>``."""
    words = {form: word for word, form in _FORMS.items()}
    return _WRITTEN.sub(lambda found: found[1] or words[found[0]], pattern).split(".")


def sealed_pattern(circle: NodeId, levels: Iterable[str], tag: Callable[[str], str]) -> str:
    """Return the pattern of the destinations of topics of a circle with these levels."""
    return SEALED + circle + "/" + r"\.".join([_FORMS.get(level) or tag(level) for level in levels])


def topic_written(pattern: str) -> str | None:
    """Return the name from which `topic_pattern` makes this pattern; None if there is none."""
    words = {form: word for word, form in _FORMS.items()}
    name = _WRITTEN.sub(lambda found: found[1] or words[found[0]], pattern.removeprefix(_TOPIC))
    try:
        return name if topic_pattern(name) == pattern else None
    except InvalidDestinationException:
        return None


class Service(NamedTuple):
    """The class of service of one message."""

    direct: bool = False
    """True if it mostly goes from its author straight to the one node in its destination, or to the home of an event.
    Neighbours of the two do not miss it, and its author is informed of its arrival before others are."""
    private: bool = False
    """True if only its author and the one node in its destination ever have it."""
    momentary: bool = False
    """True if it is of use only now, and its author repeats it until there is an answer. So it is neither stored nor
    acknowledged."""


_USUAL = Service()
_DIRECT, _PRIVATE = Service(direct=True), Service(private=True)
_DIRECT_PRIVATE, _MOMENTARY = Service(direct=True, private=True), Service(direct=True, private=True, momentary=True)


def service_of(destination: str, headers: Headers | None, size: int) -> Service:
    """Return the class of service of a message with a payload of this size."""
    private = headers is not None and headers.connected and not headers.recipients
    if not destination.startswith(BETWEEN_OVERLAYS):
        if headers is not None and headers.home is not None:
            return _DIRECT
        return _PRIVATE if private else _USUAL
    if not private:
        return _DIRECT
    return _DIRECT_PRIVATE if size else _MOMENTARY


Named = tuple[bytes | str, ...]
"""A list in its wire form: text if security is off, else the bytes of the ids."""


def nodes(named: Named) -> tuple[NodeId, ...]:
    """Return the ids of the nodes in a list."""
    return tuple([ids.node_of(each) if isinstance(each, bytes) else NodeId(each) for each in named])


def fault(named: Named, author: NodeId, destination: str, *, ordered: bool, signed: bool) -> str | None:
    """Return the fault of a message's list, or None; `named` may be of any type that a stranger sent."""
    if signed:
        well_named = all(isinstance(each, bytes) and len(each) == ids.DIGEST_BYTES for each in named)
    else:
        well_named = all(isinstance(each, str) and each for each in named)
    if not well_named:
        return "the recipients are named in another way than the author"
    if list(named) != sorted(set(named)):
        return "the recipients are not in order, or one is listed twice"
    if author in nodes(named):
        return "the author is listed as a recipient"
    return _misplaced(destination, ordered=ordered)


def _misplaced(destination: str, *, ordered: bool) -> str | None:
    """Return the reason why messages to this destination, or with an order, may not list recipients, or None."""
    if names_addressee(destination):
        return (
            f"a message to {destination!r} takes no recipients, since its destination names the node: leave "
            "them out, or send to a topic"
        )
    if ordered:
        return (
            "an ordered message takes no recipients, since all other nodes would wait for it in vain: leave "
            "them out, or send to a topic without an ordering"
        )
    return None


def as_given(given: object) -> tuple[str, ...]:
    """Return the recipients that a program names; raises `IllegalArgumentException` unless it is a list of texts."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Collection):
        raise IllegalArgumentException(f"recipients must be a list of node ids, not {given!r}"[:200])
    for each in given:
        if not isinstance(each, str) or not each:
            raise IllegalArgumentException(f"a recipient must be a node id, as text, not {each!r}"[:200])
    return tuple(given)


def as_sent(
    named: tuple[str, ...], author: NodeId, destination: str, *, ordered: bool, signed: bool, most: int
) -> Named:
    """Return the list in its wire form, sorted and without repetition; raises `IllegalArgumentException`."""
    if (misplaced := _misplaced(destination, ordered=ordered)) is not None:
        raise IllegalArgumentException(misplaced)
    if not named:
        raise IllegalArgumentException(
            "the list of recipients is empty: name a node, or leave the list out to send to all subscribers"
        )
    if author in named:
        raise IllegalArgumentException(f"recipients must be other nodes: leave this node, {author!r}, out of the list")
    for each in named:
        if signed and not ids.is_node_id(each):
            raise IllegalArgumentException(
                f"a recipient must be a node id, 26 lower-case letters and digits, not {each!r}"[:200]
            )
        if not each.isascii() and not _is_unicode(each):
            raise IllegalArgumentException(
                f"a node id must be Unicode text without lone surrogates, not {each!r}"[:200]
            )
    made: set[bytes | str] = {ids.node_bytes(NodeId(each)) if signed else each for each in named}
    if len(made) > most:
        raise IllegalArgumentException(
            f"a message can list at most {most} recipients (limits.recipients_max), not {len(made)}: send it "
            "several times"
        )
    return tuple(sorted(made))


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
