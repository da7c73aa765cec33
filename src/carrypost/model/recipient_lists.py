"""Lists of recipients: as programs give them, in their wire form, and the faults of both."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from carrypost.errors import IllegalArgumentException
from carrypost.model import ids
from carrypost.model.address import names_addressee
from carrypost.model.ids import NodeId

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
