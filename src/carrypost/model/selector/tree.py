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
    """What an expression is known to give, if it is not unknown; the value is for messages."""

    BOOLEAN = "a condition"
    NUMBER = "a number"
    STRING = "a string"
    ANY = "a property"
    """Of whatever type the message has it."""


class Node(msgspec.Struct, frozen=True):
    """A part of a selector."""

    @property
    def kind(self) -> Kind:
        """The type that is known of it; most nodes are conditions."""
        return Kind.BOOLEAN

    @property
    def weight(self) -> int:
        """How many steps an evaluation takes at worst: one for each node, more for IN and LIKE by their length."""
        return 1


class Literal(Node, frozen=True):
    """A number with its sign, a string, TRUE or FALSE."""

    value: bool | int | float | str

    @property
    def kind(self) -> Kind:
        """By its value."""
        return _LITERALS[type(self.value)]

    @property
    def text(self) -> str:
        """As a selector has it."""
        if isinstance(self.value, str):
            return quoted(self.value)
        return repr(self.value).upper() if isinstance(self.value, bool) else repr(self.value)


def quoted(text: str) -> str:
    """A string literal."""
    doubled = text.replace("'", "''")
    return f"'{doubled}'"


_LITERALS: dict[type, Kind] = {bool: Kind.BOOLEAN, int: Kind.NUMBER, float: Kind.NUMBER, str: Kind.STRING}


class Identifier(Node, frozen=True):
    """A property, or one of the header fields that selectors may name."""

    name: str

    @property
    def kind(self) -> Kind:
        """Header fields have types of their own."""
        return HEADERS.get(self.name, Kind.ANY)


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

    @property
    def kind(self) -> Kind:
        """A number."""
        return Kind.NUMBER

    @property
    def weight(self) -> int:
        """Of it and its operand."""
        return 1 + self.operand.weight


class Arithmetic(Node, frozen=True):
    """Sums and differences, or products and quotients, from left to right."""

    first: Node
    rest: tuple[tuple[str, Node], ...]

    @property
    def kind(self) -> Kind:
        """A number."""
        return Kind.NUMBER

    @property
    def weight(self) -> int:
        """Of the operands and the operations."""
        return self.first.weight + sum(1 + operand.weight for _, operand in self.rest)

    @property
    def additive(self) -> bool:
        """Whether it is made of + and -, which bind less than * and /."""
        return self.rest[0][0] in "+-"


class Comparison(Node, frozen=True):
    """Two values beside each other."""

    symbol: str
    left: Node
    right: Node

    @property
    def weight(self) -> int:
        """Of it and its operands."""
        return 1 + self.left.weight + self.right.weight


class Between(Node, frozen=True):
    """A number from one bound to another, both included."""

    value: Node
    low: Node
    high: Node
    negated: bool

    @property
    def weight(self) -> int:
        """Of two comparisons and what joins them: the value is taken for each."""
        return 3 + 2 * self.value.weight + self.low.weight + self.high.weight


class In(Node, frozen=True):
    """A string among others, which are in ascending order."""

    identifier: Identifier
    values: tuple[str, ...]
    negated: bool

    @property
    def weight(self) -> int:
        """By the number of strings."""
        return 2 + len(self.values)


class Like(Node, frozen=True):
    """A string that fits a pattern."""

    identifier: Identifier
    pattern: LikePattern
    negated: bool

    @property
    def weight(self) -> int:
        """By the length of the pattern; whatever it is, the ends of the value are compared."""
        return 4 + self.pattern.weight


class IsNull(Node, frozen=True):
    """Whether a message has no value for the identifier."""

    identifier: Identifier
    negated: bool


class Not(Node, frozen=True):
    """True for false, false for true, unknown for unknown."""

    operand: Node

    @property
    def weight(self) -> int:
        """Of it and its operand."""
        return 1 + self.operand.weight


class Junction(Node, frozen=True):
    """Conditions that are joined."""

    terms: tuple[Node, ...]

    @property
    def weight(self) -> int:
        """Of it and its terms."""
        return 1 + sum(term.weight for term in self.terms)


class And(Junction, frozen=True):
    """False if any term is, else unknown if any is, else true."""


class Or(Junction, frozen=True):
    """True if any term is, else unknown if any is, else false."""
