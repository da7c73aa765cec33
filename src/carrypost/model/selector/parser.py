"""From text to tree, by recursive descent: one method per level of precedence, loosest first.

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
this nor the evaluation of a stranger's selector can use up the stack. Types are checked as soon as they are known,
while it is known where they stand.
"""
# Selectors come from strangers. To translate them to Python and compile that would be quicker to
# write, but a stranger's text would then be one forgotten case away from being run as code. A
# parser of its own has a bound on depth, and errors that name the place.

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from carrypost.config.rules import nearest
from carrypost.model.selector import checks, like, numerals, tree
from carrypost.model.selector.bounds import DEPTH_MAX
from carrypost.model.selector.fault import BOUND, NEAR, Fault, listed, shortened
from carrypost.model.selector.names import RESERVED
from carrypost.model.selector.tokens import END, NAME, NUMBER, STRING, source, tokens
from carrypost.model.selector.tree import Kind, Node
from carrypost.model.selector.values import RELATIONS, SIGNS

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
    checks.need(Kind.BOOLEAN, node, at, "a selector")
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
            checks.need(Kind.BOOLEAN, node, at, word)
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
        checks.need(Kind.BOOLEAN, operand, at, "NOT")
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
            checks.comparison(symbol, left, right, (at, right_at))
            return tree.Comparison(symbol, left, right)
        if symbol == "IS":
            return self._is_null(checks.named(left, at, "IS"))
        negated = symbol == "NOT"
        if negated:
            self._advance()
            symbol = self.kind
        if symbol == "BETWEEN":
            return self._between(left, at, negated=negated)
        if symbol == "IN":
            return self._in(checks.named_string(left, at, "IN"), negated=negated)
        if symbol == "LIKE":
            return self._like(checks.named_string(left, at, "LIKE"), negated=negated)
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
        checks.need(Kind.NUMBER, value, at, "BETWEEN")
        low = self._bound("BETWEEN")
        return tree.Between(value, low, self._bound("AND"), negated)

    def _bound(self, word: str) -> Node:
        self._expect(word)
        at = self.at
        bound = self._sum()
        checks.need(Kind.NUMBER, bound, at, "BETWEEN")
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
            return tree.Like(identifier, like.read(text, escape), negated)
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
        checks.need(Kind.NUMBER, first, at, repr(self.kind))
        rest: list[tuple[str, Node]] = []
        if isinstance(first, tree.Arithmetic) and first.rest[0][0] in symbols:  # In parentheses that change nothing.
            rest.extend(first.rest)
            first = first.first
        while self.kind in symbols:
            symbol = self.kind
            self._advance()
            at = self.at
            node = operand()
            checks.need(Kind.NUMBER, node, at, repr(symbol))
            rest.append((symbol, node))
        return tree.Arithmetic(first, tuple(rest))

    def _factor(self) -> Node:
        kind, value, at = self.kind, self.value, self.at
        if kind == NAME:
            self._advance()
            return checks.identifier(value, at)
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
            checks.need(Kind.NUMBER, operand, at, repr(symbol))
            number = SIGNS[symbol](operand.value) if isinstance(operand, tree.Literal) else None
            operand = tree.Sign(symbol, operand) if number is None else tree.Literal(number)
        self._depth -= 1
        return operand

    def _number(self, *, negative: bool) -> tree.Literal:
        try:
            number = numerals.value_of(self.value, negative=negative)
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
