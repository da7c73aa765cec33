"""Type rules, as far as types are known when a selector is made: those of literals, operations and header fields.

JMS lets providers check them then, and its test suite expects it of strings in order and of booleans beside numbers.
What depends on the types of properties shows when a message is there: it makes a comparison false.
"""

from __future__ import annotations

from carrypost.config.rules import nearest
from carrypost.model.selector.fault import NEAR, TYPE, Fault, listed, shortened
from carrypost.model.selector.tree import HEADER_PREFIX, HEADERS, Identifier, Kind, Literal, Node, kind

_EQUALITY = ("=", "<>")
_ANY = Kind.ANY
_NEEDED = {Kind.BOOLEAN: "a condition", Kind.NUMBER: "numbers", Kind.STRING: "strings"}
_OPEN_PREFIXES = ("JMSX", "JMS_")
"""Properties that JMS defines, and those of providers; no other property has a name that begins with JMS."""
_OTHER_HEADERS = ("JMSDeliveryTime", "JMSDestination", "JMSExpiration", "JMSRedelivered", "JMSReplyTo")


def identifier(name: str, at: int) -> Identifier:
    """Return a property, or a header field that selectors may name."""
    if name.startswith(HEADER_PREFIX) and name not in HEADERS and not name.startswith(_OPEN_PREFIXES):
        fields = tuple(HEADERS)
        hint = "" if name in _OTHER_HEADERS else nearest(name, fields, cutoff=NEAR)
        allowed = f"not a header field that a selector may use; those are {listed(fields, 'and')}"
        raise Fault(at, f"{shortened(name)} is {allowed}{hint}")
    return Identifier(name)


def need(wanted: Kind, node: Node, at: int, where: str) -> None:
    """Refuse a node that is known to be of another type than is wanted there."""
    if kind(node) not in (wanted, _ANY):
        raise Fault(at, f"{where} needs {_NEEDED[wanted]}; {_described(node)}", TYPE)


def named_string(node: Node, at: int, where: str) -> Identifier:
    """Return the identifier of IN or LIKE."""
    found = named(node, at, where)
    need(Kind.STRING, found, at, where)
    return found


def named(node: Node, at: int, where: str) -> Identifier:
    """Return the identifier before an operator that allows nothing else."""
    if not isinstance(node, Identifier):
        raise Fault(at, f"{where} needs an identifier before it; {_described(node)}", TYPE)
    return node


def comparison(symbol: str, left: Node, right: Node, places: tuple[int, int]) -> None:
    """Refuse a comparison that no message could make true; `places` are those of the operands."""
    if symbol not in _EQUALITY:
        for node, at in zip((left, right), places, strict=True):
            need(Kind.NUMBER, node, at, f"{symbol!r}")
    elif kind(left) is not kind(right) and _ANY not in (kind(left), kind(right)):
        raise Fault(
            places[1],
            f"{symbol!r} must compare values of the same type; {_described(left)}, and {_described(right)}",
            TYPE,
        )


def _described(node: Node) -> str:
    if isinstance(node, Identifier):
        return f"{node.name} is {kind(node).value}"
    if isinstance(node, Literal):
        return f"{shortened(node.text)} is {kind(node).value}"
    return f"this is {kind(node).value}"
