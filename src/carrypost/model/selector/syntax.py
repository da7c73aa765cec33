"""The syntax of selectors: from text to tree, with type rules and bounds, and from tree to the normal form.

The parser works by recursive descent: one method per level of precedence, loosest first.

::

    disjunction  =  conjunction { OR conjunction }
    conjunction  =  negation { AND negation }
    negation     =  NOT negation | predicate
    predicate    =  sum [ relation sum | [NOT] BETWEEN sum AND sum | [NOT] IN ( string { , string } )
                        | [NOT] LIKE string [ ESCAPE string ] | IS [NOT] NULL ]
    sum          =  product { (+ | -) product }
    product      =  factor { (* | /) factor }
    factor       =  (+ | -) factor | literal | identifier | ( disjunction )

Every token is looked at once. Only parentheses, NOT and signs nest, and no deeper than `DEPTH_MAX`, so that neither
this nor the evaluation of a stranger's selector can use up the stack.

Types are checked as soon as they are known, while it is known where they stand: those of literals, operations and
header fields. JMS lets providers check them when a selector is made, and its test suite expects it of strings in order
and of booleans beside numbers. What depends on the types of properties shows when a message is there: it makes a
comparison false.

The normal form has words in upper case, single spaces, and no parentheses that change nothing. Literals are printed as
the numbers that they are, strings of IN in ascending order. Parsing the normal form gives the same tree.

Bounds of all selectors are constants of the wire version, not settings. Both sides of a contact have to come to the
same answer for a selector; otherwise one would offer for ever what the other does not want. So the bounds are the same
on every node, and no program may make a selector beyond them.
"""

# Selectors come from strangers. To translate them to Python and compile that would be quicker to
# write, but a stranger's text would then be one forgotten case away from being run as code. A
# parser of its own has a bound on depth, and errors that name the place.

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from carrypost.config.rules import nearest
from carrypost.model.selector import tree
from carrypost.model.selector.evaluation import RELATIONS, SIGNS
from carrypost.model.selector.tokens import (
    BOUND,
    END,
    NAME,
    NEAR,
    NUMBER,
    RESERVED,
    STRING,
    TYPE,
    Fault,
    listed,
    shortened,
    source,
    tokens,
    value_of,
)
from carrypost.model.selector.tree import HEADER_PREFIX, HEADERS, Identifier, Kind, Literal, Node, kind, quoted

TEXT_MAX = 65_536
"""Length of a text in characters. What is sent is shorter: see `Limits.selector_bytes_max`."""
DEPTH_MAX = 32
"""Nesting depth of parentheses, NOT and signs."""
STEPS_MAX = 16_384
"""Weight of a selector, see `tree.weight`, and of all selectors of a profile together. A step was measured to take 0.1
to 0.3 microseconds, so that these take up to 6 milliseconds for a descriptor; the patterns of a profile take 7 to 10 at
worst (`carrypost bench hostile`)."""


_EQUALITY = ("=", "<>")
_ANY = Kind.ANY
_NEEDED = {Kind.BOOLEAN: "a condition", Kind.NUMBER: "numbers", Kind.STRING: "strings"}
_OPEN_PREFIXES = ("JMSX", "JMS_")
"""Properties that JMS defines, and those of providers; no other property has a name that begins with JMS."""
_OTHER_HEADERS = ("JMSDeliveryTime", "JMSDestination", "JMSExpiration", "JMSRedelivered", "JMSReplyTo")


def identifier_of(name: str, at: int) -> Identifier:
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
    found = identifier_before(node, at, where)
    need(Kind.STRING, found, at, where)
    return found


def identifier_before(node: Node, at: int, where: str) -> Identifier:
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


_MORE = ("AND", "OR", "NOT", "BETWEEN", "IN", "LIKE", "IS", "ESCAPE")
"""Words that can follow a complete expression."""
_ADDITIVE = ("+", "-")
_MULTIPLICATIVE = ("*", "/")
_LITERALS = {"TRUE": True, "FALSE": False}


def parse(text: str) -> Node:
    """Return the tree of a selector that is not blank; raises `Fault`."""
    parser = _Parser(text)
    at = parser.at
    node = parser.disjunction()
    if parser.kind != END:
        parser.refuse_more(END)
    need(Kind.BOOLEAN, node, at, "a selector")
    return node


class _Parser:
    __slots__ = ("_depth", "_next", "_text", "_tokens", "at", "kind", "value")

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = tokens(text)
        self._next = 1
        self._depth = 0
        self.kind, self.value, self.at = self._tokens[0]
        """The next token, see `tokens`."""

    def _advance(self) -> None:
        self.kind, self.value, self.at = self._tokens[self._next]
        self._next += 1

    # ---------------------------------------------------------------------------------------- conditions

    def disjunction(self) -> Node:
        at = self.at
        node = self._conjunction()
        return self._junction(node, at, tree.Or, self._conjunction) if self.kind == "OR" else node

    def _conjunction(self) -> Node:
        at = self.at
        node = self._negation()
        return self._junction(node, at, tree.And, self._negation) if self.kind == "AND" else node

    def _junction(self, node: Node, at: int, form: type[tree.Junction], term: Callable[[], Node]) -> Node:
        word = self.kind
        terms: list[Node] = []
        while True:
            need(Kind.BOOLEAN, node, at, word)
            if isinstance(node, form):
                terms.extend(node.terms)  # Parentheses that change nothing.
            else:
                terms.append(node)
            if self.kind != word:
                return form(tuple(terms))
            self._advance()
            at = self.at
            node = term()

    def _negation(self) -> Node:
        if self.kind != "NOT":
            return self._predicate()
        self._enter()
        at = self.at
        operand = self._negation()
        need(Kind.BOOLEAN, operand, at, "NOT")
        self._depth -= 1
        return tree.Not(operand)

    def _predicate(self) -> Node:
        at = self.at
        left = self._sum()
        symbol = self.kind
        if symbol in RELATIONS:
            self._advance()
            right_at = self.at
            right = self._sum()
            comparison(symbol, left, right, (at, right_at))
            return tree.Comparison(symbol, left, right)
        if symbol == "IS":
            return self._is_null(identifier_before(left, at, "IS"))
        negated = symbol == "NOT"
        if negated:
            self._advance()
            symbol = self.kind
        if symbol == "BETWEEN":
            return self._between(left, at, negated=negated)
        if symbol == "IN":
            return self._in(named_string(left, at, "IN"), negated=negated)
        if symbol == "LIKE":
            return self._like(named_string(left, at, "LIKE"), negated=negated)
        if negated:
            self._refuse("BETWEEN", "IN", "LIKE")
        return left

    def _is_null(self, identifier: tree.Identifier) -> Node:
        self._advance()
        negated = self.kind == "NOT"
        if negated:
            self._advance()
        self._expect("NULL", *(() if negated else ("NOT NULL",)))
        return tree.IsNull(identifier, negated)

    def _between(self, value: Node, at: int, *, negated: bool) -> Node:
        need(Kind.NUMBER, value, at, "BETWEEN")
        low = self._bound("BETWEEN")
        return tree.Between(value, low, self._bound("AND"), negated)

    def _bound(self, word: str) -> Node:
        self._expect(word)
        at = self.at
        bound = self._sum()
        need(Kind.NUMBER, bound, at, "BETWEEN")
        return bound

    def _in(self, identifier: tree.Identifier, *, negated: bool) -> Node:
        self._advance()
        self._expect("(")
        values = {self._string()}
        while self.kind == ",":
            self._advance()
            values.add(self._string())
        self._expect(")", ",")
        return tree.In(identifier, tuple(sorted(values)), negated)

    def _like(self, identifier: tree.Identifier, *, negated: bool) -> Node:
        self._advance()
        at, text, escape = self.at, self._string(), None
        if self.kind == "ESCAPE":
            self._advance()
            escape_at, escape = self.at, self._string()
            if len(escape) != 1:
                raise Fault(escape_at, "ESCAPE requires a string of one character")
        try:
            return tree.Like(identifier, tree.read(text, escape), negated)
        except ValueError as error:
            raise Fault(at, f"{error}; {escape!r} may stand before '_', '%' and itself") from None

    # --------------------------------------------------------------------------------------------- values

    def _sum(self) -> Node:
        at = self.at
        first = self._product()
        return self._arithmetic(first, at, _ADDITIVE, self._product) if self.kind in _ADDITIVE else first

    def _product(self) -> Node:
        at = self.at
        first = self._factor()
        return self._arithmetic(first, at, _MULTIPLICATIVE, self._factor) if self.kind in _MULTIPLICATIVE else first

    def _arithmetic(self, first: Node, at: int, symbols: tuple[str, str], operand: Callable[[], Node]) -> Node:
        need(Kind.NUMBER, first, at, repr(self.kind))
        rest: list[tuple[str, Node]] = []
        if isinstance(first, tree.Arithmetic) and first.rest[0][0] in symbols:  # In parentheses that change nothing.
            rest.extend(first.rest)
            first = first.first
        while self.kind in symbols:
            symbol = self.kind
            self._advance()
            at = self.at
            node = operand()
            need(Kind.NUMBER, node, at, repr(symbol))
            rest.append((symbol, node))
        return tree.Arithmetic(first, tuple(rest))

    def _factor(self) -> Node:
        kind, value, at = self.kind, self.value, self.at
        if kind == NAME:
            self._advance()
            return identifier_of(value, at)
        if kind == NUMBER:
            return self._number(negative=False)
        if kind == STRING:
            self._advance()
            return tree.Literal(value)
        if kind in _LITERALS:
            self._advance()
            return tree.Literal(_LITERALS[kind])
        if kind in _ADDITIVE:
            return self._sign(kind)
        if kind != "(":
            self._refuse_operand()
        self._enter()
        node = self.disjunction()
        if self.kind != ")":
            self.refuse_more(")")
        self._advance()
        self._depth -= 1
        return node

    def _sign(self, symbol: str) -> Node:
        self._enter()
        at = self.at
        if self.kind == NUMBER:
            operand: Node = self._number(negative=symbol == "-")
        else:
            operand = self._factor()
            need(Kind.NUMBER, operand, at, repr(symbol))
            number = SIGNS[symbol](operand.value) if isinstance(operand, tree.Literal) else None
            operand = tree.Sign(symbol, operand) if number is None else tree.Literal(number)
        self._depth -= 1
        return operand

    def _number(self, *, negative: bool) -> tree.Literal:
        try:
            number = value_of(self.value, negative=negative)
        except ValueError as error:
            raise Fault(self.at, f"{self._found()} is {error}") from None
        self._advance()
        return tree.Literal(number)

    def _string(self) -> str:
        value = self.value
        self._expect(STRING)
        return value

    # ------------------------------------------------------------------------------------------- refusals

    def _enter(self) -> None:
        """Consume a token after which the text is one level deeper."""
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise Fault(self.at, f"parentheses, NOT and signs nest more than {DEPTH_MAX} deep", BOUND)
        self._advance()

    def _expect(self, kind: str, *others: str) -> None:
        """Consume a token of this kind; `others` would be valid, too."""
        if self.kind != kind:
            self._refuse(*others, kind)
        self._advance()

    def refuse_more(self, end: str) -> NoReturn:
        """Raise a fault that lists what can follow a complete expression."""
        if self.kind in RELATIONS:
            raise Fault(self.at, f"a second {self.kind!r}: join comparisons with AND, or put one into parentheses")
        self._refuse("AND", "OR", "an operator", end, words=_MORE)

    def _refuse_operand(self) -> NoReturn:
        if self.kind == "NULL":
            raise Fault(self.at, "NULL can only be used in IS NULL and IS NOT NULL")
        self._refuse("an identifier", "a literal", "(")

    def _refuse(self, *expected: str, words: tuple[str, ...] = ()) -> NoReturn:
        """Raise a fault that lists what is expected; `words` may be misspelt."""
        hint = nearest(self.value, words or expected, cutoff=NEAR) if self.kind == NAME else ""
        named = tuple(each if each[0].isalpha() else repr(each) for each in expected)
        raise Fault(self.at, f"found {self._found()}, expected {listed(named)}{hint}")

    def _found(self) -> str:
        if self.kind == END:
            return END
        found = shortened(source(self._text, self.at))
        if self.kind in RESERVED:
            return f"the reserved word {found}"
        return found if self.kind in (NAME, NUMBER, STRING) else repr(found)


_OR, _AND, _NOT, _PREDICATE, _SUM, _PRODUCT, _FACTOR = range(7)
"""Precedence of operators, the loosest first."""


def printed(node: Node, level: int = _OR) -> str:
    """Return the text of a node, in parentheses if it binds less tightly than `level`."""
    text, own = _form(node)
    return text if own >= level else f"({text})"


def _form(node: Node) -> tuple[str, int]:
    match node:
        case tree.Or(terms):
            return " OR ".join(printed(term, _AND) for term in terms), _OR
        case tree.And(terms):
            return " AND ".join(printed(term, _NOT) for term in terms), _AND
        case tree.Not(operand):
            return f"NOT {printed(operand, _NOT)}", _NOT
        case tree.Comparison() | tree.Between() | tree.In() | tree.Like() | tree.IsNull():
            return _predicate(node), _PREDICATE
        case _:
            return _value(node)


def _value(node: Node) -> tuple[str, int]:
    match node:
        case tree.Arithmetic(first, rest):
            level = _SUM if rest[0][0] in "+-" else _PRODUCT
            tail = "".join(f" {symbol} {printed(operand, level + 1)}" for symbol, operand in rest)
            return printed(first, level + 1) + tail, level
        case tree.Sign(symbol, operand):
            return f"{symbol}{printed(operand, _FACTOR)}", _FACTOR
        case tree.Literal():
            return node.text, _FACTOR
        case tree.Identifier(name):
            return name, _FACTOR
        case _:
            raise AssertionError(node)


def _predicate(node: Node) -> str:
    match node:
        case tree.Comparison(symbol, left, right):
            return f"{printed(left, _SUM)} {symbol} {printed(right, _SUM)}"
        case tree.Between(value, low, high, negated):
            low_text, high_text = printed(low, _SUM), printed(high, _SUM)
            return f"{printed(value, _SUM)}{_not(negated)} BETWEEN {low_text} AND {high_text}"
        case tree.In(identifier, values, negated):
            return f"{identifier.name}{_not(negated)} IN ({', '.join(map(quoted, values))})"
        case tree.Like(identifier, pattern, negated):
            escape = "" if pattern.escape is None else f" ESCAPE {quoted(pattern.escape)}"
            return f"{identifier.name}{_not(negated)} LIKE {quoted(pattern.text)}{escape}"
        case tree.IsNull(identifier, negated):
            return f"{identifier.name} IS{_not(negated)} NULL"
        case _:
            raise AssertionError(node)


def _not(negated: bool) -> str:
    return " NOT" if negated else ""
