"""The normal form of a selector: words in upper case, single spaces, no parentheses that change nothing.

Literals are printed as the numbers that they are, strings of IN in ascending order. Parsing the normal form gives
the same tree.
"""

from __future__ import annotations

from carrypost.model.selector import tree
from carrypost.model.selector.tree import Node, quoted

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
