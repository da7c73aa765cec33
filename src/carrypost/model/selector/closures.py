"""From tree to closures over the properties of a message, made once and called for every message.

A condition returns True, False or None, which is unknown; an operand returns a value, None being NULL. None of them
raises, whatever the properties are: see `values`. The most frequent case, an identifier beside a literal, is one call.
"""

from __future__ import annotations

from collections.abc import Callable

from carrypost.model.selector import like, tree
from carrypost.model.selector.tree import Node
from carrypost.model.selector.values import RELATIONS, SIGNS, Properties, bare, compared, operation

Condition = Callable[[Properties], bool | None]
Operand = Callable[[Properties], object]

_MIRRORED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def everything(_: Properties) -> bool | None:
    """Return True, whatever the message: the condition of a blank selector."""
    return True


def condition(node: Node) -> Condition:
    """Return a function that evaluates a condition."""
    match node:
        case tree.And(terms):
            return _chain([condition(term) for term in terms], decisive=False)
        case tree.Or(terms):
            return _chain([condition(term) for term in terms], decisive=True)
        case tree.Not(operand):
            return _not(condition(operand))
        case tree.Identifier():
            return _comparison("=", node, tree.Literal(True))
        case tree.Literal(value):
            return lambda _: value is True
        case _:
            return _predicate(node)


def _predicate(node: Node) -> Condition:
    match node:
        case tree.Comparison(symbol, left, right):
            return _comparison(symbol, left, right)
        case tree.Between(value, low, high, negated):
            # JMS defines it so; hence the negation of what is no number is false, too.
            bounds = (("<", low), (">", high)) if negated else ((">=", low), ("<=", high))
            return _chain([_comparison(symbol, value, bound) for symbol, bound in bounds], decisive=negated)
        case tree.In(identifier, values, negated):
            return _string_test(identifier.name, frozenset(values).__contains__, negated=negated)
        case tree.Like(identifier, pattern, negated):
            return _string_test(identifier.name, like.matcher(pattern), negated=negated)
        case tree.IsNull(identifier, negated):
            return _is_null(identifier.name, negated=negated)
        case _:
            raise AssertionError(node)


def _chain(terms: list[Condition], *, decisive: bool) -> Condition:
    """Return a function for AND, where false is decisive, or OR, where true is; otherwise unknown if any term is."""

    def holds(properties: Properties) -> bool | None:
        outcome: bool | None = not decisive
        for term in terms:
            truth = term(properties)
            if truth is decisive:
                return decisive
            if truth is None:
                outcome = None
        return outcome

    return holds


def _not(operand: Condition) -> Condition:
    def holds(properties: Properties) -> bool | None:
        truth = operand(properties)
        return None if truth is None else not truth

    return holds


def _comparison(symbol: str, left: Node, right: Node) -> Condition:
    if isinstance(left, tree.Literal) and isinstance(right, tree.Identifier):
        symbol, left, right = _MIRRORED[symbol], right, left
    relation = RELATIONS[symbol]
    if isinstance(left, tree.Identifier) and isinstance(right, tree.Literal):
        name, literal = left.name, right.value
        kind = type(literal)

        def holds(properties: Properties) -> bool | None:
            value = properties.get(name)
            return relation(value, literal) if type(value) is kind else compared(relation, value, literal)

        return holds
    one, other = _operand(left), _operand(right)
    return lambda properties: compared(relation, one(properties), other(properties))


def _string_test(name: str, test: Callable[[str], bool], *, negated: bool) -> Condition:
    """Return a function for IN or LIKE: unknown for NULL, false for anything but a string, negated or not."""

    def holds(properties: Properties) -> bool | None:
        value: object = properties.get(name)
        if type(value) is not str:
            if value is None:
                return None
            value = bare(value)
            if type(value) is not str:
                return False
        return test(value) is not negated

    return holds


def _is_null(name: str, *, negated: bool) -> Condition:
    return lambda properties: (properties.get(name) is None) is not negated


def _operand(node: Node) -> Operand:
    """Return a function that evaluates an expression."""
    match node:
        case tree.Identifier(name):
            return lambda properties: properties.get(name)
        case tree.Literal(value):
            return lambda _: value
        case tree.Sign(symbol, operand):
            inner, sign = _operand(operand), SIGNS[symbol]
            return lambda properties: sign(inner(properties))
        case tree.Arithmetic(first, rest):
            return _arithmetic(_operand(first), [(operation(symbol), _operand(operand)) for symbol, operand in rest])
        case _:
            return condition(node)


def _arithmetic(first: Operand, rest: list[tuple[Callable[[object, object], int | float | None], Operand]]) -> Operand:
    def value(properties: Properties) -> object:
        total = first(properties)
        for apply, operand in rest:
            total = apply(total, operand(properties))
        return total

    return value
