"""The syntax tree of a selector, the types that are known before a message is seen, and the patterns of LIKE.

Nodes are values: what the parser makes, the printer prints, the compiler turns into closures.
AND, OR and arithmetic of one precedence are chains, not pairs: ``a AND b AND c`` is one node with three terms. So a
tree is as deep as its text is nested, however long that is.

In patterns of LIKE ``_`` matches any one character, ``%`` any sequence, including line breaks and the empty one. A
pattern is cut at each ``%`` into segments of fixed length. The first is compared with the beginning of a value and the
last with its end; those in between are searched one after the other, each behind the one before: the leftmost place is
always as good as any later one, so nothing is tried twice. A segment without ``_`` is found by `str.find`. One with
``_`` is found by the shift-and method: the places at which it may have begun are the bits of an integer, which is
shifted by one for every character. Either way the time is linear in the length of the value, whatever the pattern,
which a stranger may have written; backtracking, as in `re`, would be exponential in the number of ``%``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

import msgspec

VALUE_STEPS = 1_024
"""Length of the longest value that `Limits.attribute_bytes_max` allows by default: one step per character."""
_FIND_STEPS = 5
"""Steps per character of a segment that `str.find` searches in such a value, measured with the worst values. It is
linear only in longer ones: in short ones trying every place is faster."""
_SHIFTED = 256
"""Length of a segment up to which the integers of the shift-and method are small enough to cost one step."""
_ONE = "_"
_MANY = "%"


class Segment(msgspec.Struct, frozen=True):
    """The part of a pattern between two ``%``."""

    runs: tuple[tuple[int, str], ...]
    """Literal characters by their places; between them any character matches."""
    length: int

    @property
    def plain(self) -> bool:
        """True if it has no ``_``."""
        return not self.length or (len(self.runs) == 1 and len(self.runs[0][1]) == self.length)

    @property
    def text(self) -> str:
        """The characters of a plain segment."""
        return self.runs[0][1] if self.runs else ""


class LikePattern(msgspec.Struct, frozen=True):
    """A pattern, parsed."""

    text: str
    escape: str | None
    """Character that makes ``_`` and ``%`` literal, if there is one."""
    segments: tuple[Segment, ...]

    @property
    def weight(self) -> int:
        """Largest number of steps for a value. Each of its characters is examined for one segment at most."""
        sought = self.segments[1:-1]
        found = max((segment.length for segment in sought if segment.plain), default=0)
        shifted = max((segment.length for segment in sought if not segment.plain), default=0)
        return len(self.text) + _FIND_STEPS * found + VALUE_STEPS * -(-shifted // _SHIFTED)


def read(text: str, escape: str | None) -> LikePattern:
    """Parse a pattern; raises `ValueError` if the escape character escapes nothing."""
    if escape is None or escape not in text:
        escape = None
        if _ONE not in text:
            return LikePattern(text, None, _trimmed([_plain(part) for part in text.split(_MANY)]))
    segments: list[Segment] = []
    characters: list[str | None] = []
    rest = iter(text)
    for character in rest:
        if character == escape:
            escaped = next(rest, None)
            if escaped not in (_ONE, _MANY, escape):
                raise ValueError(f"the pattern has {escape + (escaped or '')!r}{'' if escaped else ' at its end'}")
            characters.append(escaped)
        elif character == _MANY:
            segments.append(_segment(characters))
            characters.clear()
        else:
            characters.append(None if character == _ONE else character)
    segments.append(_segment(characters))
    return LikePattern(text, escape, _trimmed(segments))


def _plain(text: str) -> Segment:
    return Segment(((0, text),) if text else (), len(text))


def _segment(characters: list[str | None]) -> Segment:
    """Return a segment of these characters; None matches any."""
    runs: list[tuple[int, str]] = []
    start = 0
    for place, character in enumerate([*characters, None]):
        if character is None:
            if place > start:
                runs.append((start, "".join(filter(None, characters[start:place]))))
            start = place + 1
    return Segment(tuple(runs), len(characters))


def _trimmed(segments: list[Segment]) -> tuple[Segment, ...]:
    """Return the segments without empty ones in between: ``%%`` is the same as ``%``."""
    if len(segments) < 3:  # noqa: PLR2004 - first and last
        return tuple(segments)
    return segments[0], *(segment for segment in segments[1:-1] if segment.length), segments[-1]


# ------------------------------------------------------------------------------------------------- matching


def matcher(pattern: LikePattern) -> Callable[[str], bool]:
    """Return a function that matches a value; the common forms need one call of `str`."""
    first, last = pattern.segments[0], pattern.segments[-1]
    if len(pattern.segments) == 1:
        return first.text.__eq__ if first.plain else _fixed(first)
    if all(segment.plain for segment in pattern.segments):
        beginning, end = first.text, last.text
        if len(pattern.segments) == 2:  # noqa: PLR2004 - one %
            if not end:
                return lambda value: value.startswith(beginning)
            if not beginning:
                return lambda value: value.endswith(end)
        elif len(pattern.segments) == 3 and not beginning and not end:  # noqa: PLR2004 - %...%
            middle = pattern.segments[1].text
            return lambda value: middle in value
    return _between(first, [(_search(segment), segment.length) for segment in pattern.segments[1:-1]], last)


def _fixed(only: Segment) -> Callable[[str], bool]:
    length = only.length
    return lambda value: len(value) == length and _is_at(value, 0, only)


def _between(first: Segment, sought: list[tuple[_Search, int]], last: Segment) -> Callable[[str], bool]:
    ends = first.length + last.length

    def fits(value: str) -> bool:
        stop = len(value) - last.length
        if len(value) < ends or not _is_at(value, 0, first) or not _is_at(value, stop, last):
            return False
        start = first.length
        for search, length in sought:
            start = search(value, start, stop)
            if start < 0:
                return False
            start += length
        return True

    return fits


def _is_at(value: str, start: int, segment: Segment) -> bool:
    return all(value.startswith(run, start + place) for place, run in segment.runs)


_Search = Callable[[str, int, int], int]
"""Function that finds the leftmost place between start and stop, or -1."""


def _search(segment: Segment) -> _Search:
    if segment.plain:
        text = segment.text
        return lambda value, start, stop: value.find(text, start, stop)
    return _shift_and(segment)


def _shift_and(segment: Segment) -> _Search:
    anything = (1 << segment.length) - 1
    for place, run in segment.runs:
        anything &= ~(((1 << len(run)) - 1) << place)
    allowed: dict[str, int] = {}
    """By character, the places of the segment at which it may occur; other characters match only a ``_``."""
    for place, run in segment.runs:
        for offset, character in enumerate(run, place):
            allowed[character] = allowed.get(character, anything) | 1 << offset
    last = segment.length - 1
    whole = 1 << last

    def search(value: str, start: int, stop: int) -> int:
        matched = 0
        for place in range(start, stop):
            matched = (matched << 1 | 1) & allowed.get(value[place], anything)
            if matched & whole:
                return place - last
        return -1

    return search


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
