"""Cuts the text of a selector into tokens, in one pass.

A token is a triple: its kind, its value, and the index of its first character. Reserved words, operators and
punctuation are their own kinds. Numbers keep their text: what it stands for depends on the sign before it.
"""

from __future__ import annotations

import re
import unicodedata

from carrypost.model.selector import names
from carrypost.model.selector.fault import Fault, shortened
from carrypost.model.selector.numerals import NUMERAL

Token = tuple[str, str, int]

NAME = "an identifier"
NUMBER = "a number"
STRING = "a string"
END = "the end"

_TOKEN = re.compile(
    rf"""[ \t\f\r\n]*+(?:
    (?P<word>[A-Za-z_$\x80-\U0010ffff][A-Za-z0-9_$\x00-\x08\x0e-\x1b\x7f-\U0010ffff]*+)
  | (?P<operator><>|<=|>=|=(?!=)|[<>+\-*/(),])
  | '(?P<string>[^']*+(?:''[^']*+)*+)'
  | (?P<number>{NUMERAL})(?![A-Za-z0-9_$.\x80-\U0010ffff])
  | (?P<end>\Z)
  | (?P<stray>.))""",
    re.VERBOSE | re.DOTALL,
)
_RESERVED = {word: word for word in names.RESERVED}
_FOREIGN = {
    "==": "=", "!=": "<>", "&&": "AND", "||": "OR", "!": "NOT", "≠": "<>", "≤": "<=", "≥": ">=",
    "\N{EN DASH}": "-", "\N{EM DASH}": "-", "\N{MINUS SIGN}": "-", '"': "'", "`": "'",
    "\N{LEFT SINGLE QUOTATION MARK}": "'", "\N{RIGHT SINGLE QUOTATION MARK}": "'",
    "\N{LEFT DOUBLE QUOTATION MARK}": "'", "\N{RIGHT DOUBLE QUOTATION MARK}": "'",
}  # fmt: skip
"""Signs of other languages and of word processors, and their equivalents here."""
_NUMBER_LIKE = re.compile(r"[\w.$]+")


def tokens(text: str) -> list[Token]:
    """Return all tokens, including the end; raises `Fault` at an invalid character."""
    found: list[Token] = []
    for match in _TOKEN.finditer(text):
        group = match.lastgroup or ""
        start, end = match.span(group)
        token = text[start:end]
        if group == "word":
            if token.isascii():
                found.append((_RESERVED.get(token.upper(), NAME), token, start))
            else:
                _check(token, start)
                found.append((NAME, token, start))
        elif group == "operator":
            found.append((token, token, start))
        elif group == "string":
            found.append((STRING, token.replace("''", "'"), start - 1))
        elif group == "number":
            found.append((NUMBER, token, start))
        elif group == "stray":
            raise _stray(text, start)
    found.append((END, "", len(text)))
    return found


def source(text: str, at: int) -> str:
    """Return the token that begins there, as it is written."""
    match = _TOKEN.match(text, at)
    return "" if match is None else text[at : match.end()]


def _check(word: str, at: int) -> None:
    index = names.stranger(word)
    if index is not None:
        raise _stray(word, index, at)


def _stray(text: str, index: int, offset: int = 0) -> Fault:
    """Return the fault for a character that begins no token."""
    character = text[index]
    at = index + offset
    if character == "'":
        return Fault(at, "the string that begins here does not end; a quote inside a string is doubled")
    if character.isascii() and (character.isdigit() or character == "."):
        found = _NUMBER_LIKE.match(text, index)
        run = shortened(found[0] if found else character)
        return Fault(at, f"{run!r} is neither a number nor part of an identifier")
    for foreign in (text[index : index + 2], character):
        if foreign in _FOREIGN:
            return Fault(at, f"{foreign!r} is not an operator of selectors; write {_FOREIGN[foreign]!r}")
    name = "" if character.isascii() else f" ({unicodedata.name(character, 'no character')})"
    return Fault(at, f"{character!r}{name} cannot begin an identifier, literal or operator")
