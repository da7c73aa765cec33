"""The syntax tree of a selector, and the types that are known before a message is seen.

Nodes are values: what the parser makes, the printer prints, the compiler turns into closures.
AND, OR and arithmetic of one precedence are chains, not pairs: ``a AND b AND c`` is one node with three terms. So a
tree is as deep as its text is nested, however long that is.
"""

from __future__ import annotations

import enum

import msgspec

from carrypost.model.selector.like import LikePattern


class Kind(enum.Enum):
    """The type of an expression, as far as it is known without a message."""

    BOOLEAN = "a condition"
    NUMBER = "a number"
    STRING = "a string"
    ANY = "a property"
    """Any type: the message decides."""


class Node(msgspec.Struct, frozen=True):
    """A part of a selector."""


class Literal(Node, frozen=True):
    """A number with its sign, a string, TRUE or FALSE."""

    value: bool | int | float | str

    @property
    def text(self) -> str:
        """The spelling in a selector."""
        if isinstance(self.value, str):
            return quoted(self.value)
        return repr(self.value).upper() if isinstance(self.value, bool) else repr(self.value)


def quoted(text: str) -> str:
    """Return a string literal."""
    doubled = text.replace("'", "''")
    return f"'{doubled}'"


class Identifier(Node, frozen=True):
    """A property, or one of the header fields that selectors may name."""

    name: str


HEADER_PREFIX = "JMS"
HEADERS = {
    "JMSCorrelationID": Kind.STRING,
    "JMSDeliveryMode": Kind.STRING,
    "JMSMessageID": Kind.STRING,
    "JMSPriority": Kind.NUMBER,
    "JMSTimestamp": Kind.NUMBER,
    "JMSType": Kind.STRING,
}
"""The header fields that a selector may name (JMS §3.8.1.1); JMSDeliveryMode is 'PERSISTENT' or 'NON_PERSISTENT'."""


class Sign(Node, frozen=True):
    """A plus or minus before something other than a literal."""

    symbol: str
    operand: Node


class Arithmetic(Node, frozen=True):
    """Sums and differences, or products and quotients, from left to right."""

    first: Node
    rest: tuple[tuple[str, Node], ...]


class Comparison(Node, frozen=True):
    """A comparison of two values."""

    symbol: str
    left: Node
    right: Node


class Between(Node, frozen=True):
    """A number from one bound to another, both included."""

    value: Node
    low: Node
    high: Node
    negated: bool


class In(Node, frozen=True):
    """A string among others, which are in ascending order."""

    identifier: Identifier
    values: tuple[str, ...]
    negated: bool


class Like(Node, frozen=True):
    """A string that fits a pattern."""

    identifier: Identifier
    pattern: LikePattern
    negated: bool


class IsNull(Node, frozen=True):
    """The test that a message has no value for the identifier."""

    identifier: Identifier
    negated: bool


class Not(Node, frozen=True):
    """True for false, false for true, unknown for unknown."""

    operand: Node


class Junction(Node, frozen=True):
    """Conditions that are joined."""

    terms: tuple[Node, ...]


class And(Junction, frozen=True):
    """False if any term is, else unknown if any is, else true."""


class Or(Junction, frozen=True):
    """True if any term is, else unknown if any is, else false."""


_LITERALS: dict[type, Kind] = {bool: Kind.BOOLEAN, int: Kind.NUMBER, float: Kind.NUMBER, str: Kind.STRING}


def kind(node: Node) -> Kind:
    """Return the type that is known of a node; most nodes are conditions."""
    match node:
        case Literal(value):
            return _LITERALS[type(value)]
        case Identifier(name):
            return HEADERS.get(name, Kind.ANY)
        case Sign() | Arithmetic():
            return Kind.NUMBER
        case _:
            return Kind.BOOLEAN


def weight(node: Node) -> int:
    """Count the steps that an evaluation takes at worst: one for each node, more for IN and LIKE by their length."""
    own, parts = 1, tuple[Node, ...]()
    match node:
        case Sign(_, operand) | Not(operand):
            parts = (operand,)
        case Comparison(_, left, right):
            parts = (left, right)
        case Junction(terms):
            parts = terms
        case Arithmetic(first, rest):
            own, parts = len(rest), (first, *(operand for _, operand in rest))
        case Between(value, low, high):  # Two comparisons and what joins them: the value is taken for each.
            own, parts = 3, (value, value, low, high)
        case In(_, values):
            own = 2 + len(values)
        case Like(_, pattern):  # Whatever the pattern is, the ends of the value are compared.
            own = 4 + pattern.weight
    return own + sum(map(weight, parts))
