"""Tokens: the text of a selector is cut in one pass into names, words, numerals and strings, or is refused.

A token is a triple: its kind, its value, and the index of its first character. Reserved words, operators and
punctuation are their own kinds. Numbers keep their text: what it stands for depends on the sign before it.

Names are identifiers by the rules of Java (JMS §3.8.1.1). Java uses the Unicode category of a character. Categories of
new characters come with new versions of Python's `unicodedata`; a node that does not know a letter yet cannot parse the
selector, and over-forwards.

Numeric literals are Java's: decimal, hexadecimal, octal and binary longs, floats and doubles. All exact numbers of a
selector are longs: hexadecimal, octal and binary literals are patterns of 64 bits, so that ``0xFFFFFFFFFFFFFFFF`` is -1
as in Java. What a type has no value for is refused, as Java refuses it.

A `Fault` has its place in the selector, and makes the exception. Parser and type rules raise it, too.
"""

from __future__ import annotations

import math
import re
import struct
import unicodedata

from carrypost.errors import InvalidSelectorException

SYNTAX = "selector-syntax"
TYPE = "selector-type"
BOUND = "selector-bound"
NAMES = "selector-name"
NEAR = 0.6
"""Similarity of a word that was perhaps meant, as `difflib` counts."""
_SHOWN_MAX = 40


class Fault(Exception):  # noqa: N818 - never leaves the package
    """A fault of a text, at the character with this index or as a whole."""

    def __init__(self, at: int | None, reason: str, code: str = SYNTAX) -> None:
        super().__init__(reason)
        self.at = at
        self.reason = reason
        self.code = code

    def exception(self, text: str) -> InvalidSelectorException:
        """Return the exception for the author of the text, with a part of it."""
        if self.at is None:
            return InvalidSelectorException(self.reason, self.code)
        start = max(0, self.at - _SHOWN_MAX)
        before, after = text[start : self.at], text[self.at : self.at + _SHOWN_MAX]
        shown = f"{'...' * (start > 0)}{before}{after}{'...' * (len(text) > self.at + _SHOWN_MAX)}"
        position = self.at + 1
        return InvalidSelectorException(f"{shown!r}, character {position}: {self.reason}", self.code, position)


def shortened(text: str) -> str:
    """Return the text of a selector, short enough for a message."""
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."


def listed(words: tuple[str, ...], last: str = "or") -> str:
    """Return words joined as in a sentence."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"


RESERVED = frozenset({"NULL", "TRUE", "FALSE", "NOT", "AND", "OR", "BETWEEN", "LIKE", "IN", "IS", "ESCAPE"})
"""Words that are no identifiers, in any case."""
_START = frozenset({"Lu", "Ll", "Lt", "Lm", "Lo", "Nl", "Sc", "Pc"})
_PART = _START | {"Nd", "Mn", "Mc", "Cf"}
_IGNORABLE = frozenset(map(chr, (*range(0x09), *range(0x0E, 0x1C), *range(0x7F, 0xA0))))
"""Control characters that Java allows in identifiers."""


def stranger(word: str) -> int | None:
    """Return the index of the first character that is not allowed in an identifier, or None."""
    if not _is_start(word[0]):
        return 0
    return next((index for index, character in enumerate(word) if not _is_part(character)), None)


def _is_start(character: str) -> bool:
    return unicodedata.category(character) in _START


def _is_part(character: str) -> bool:
    return unicodedata.category(character) in _PART or character in _IGNORABLE


_BITS = 64
_MASK = (1 << _BITS) - 1
LONG_MAX = _MASK >> 1
_DIGITS = r"[0-9][0-9_]*+(?<!_)"
_HEX = r"[0-9a-fA-F][0-9a-fA-F_]*+(?<!_)"
NUMERAL = rf"""
    0[xX](?:{_HEX}(?:\.(?:{_HEX})?)?|\.{_HEX})[pP][+-]?{_DIGITS}[fFdD]?
  | 0[xX]{_HEX}[lL]?
  | 0[bB][01][01_]*+(?<!_)[lL]?
  | (?:{_DIGITS}\.(?:{_DIGITS})?|\.{_DIGITS})(?:[eE][+-]?{_DIGITS})?[fFdD]?
  | {_DIGITS}(?:[eE][+-]?{_DIGITS}[fFdD]?|[fFdDlL])?
"""
"""Regular expression, verbose, of all of them. Nothing in it is read twice, so that its time is linear."""


def wrapped(number: int) -> int:
    """Return the long with the last 64 bits of a number."""
    if -LONG_MAX <= number <= LONG_MAX:
        return number
    return ((number + LONG_MAX + 1) & _MASK) - LONG_MAX - 1


def value_of(numeral: str, *, negative: bool) -> int | float:
    """Return the number of a literal and the minus sign before it; raises `ValueError` with the reason.

    The least long has a literal only together with its sign: 9223372036854775808 alone is out of range.
    """
    text = numeral.replace("_", "").lower()
    prefix = text[:2]
    if "." in text or "p" in text or (prefix != "0x" and (text[-1] in "fd" or "e" in text)):
        value = _approximate(text)
        return -value if negative else value
    digits = text.removesuffix("l")
    if prefix in _BASES:
        number = _pattern(digits[2:], _BASES[prefix])
    elif digits[0] == "0" and len(digits) > 1:
        number = _pattern(digits, 8)
    else:
        return _decimal(digits, negative=negative)
    return wrapped(-number) if negative else number


_BASES = {"0x": 16, "0b": 2}


def _decimal(digits: str, *, negative: bool) -> int:
    # Python does not read numbers of thousands of digits, so their count has to do.
    if len(digits) > len(str(LONG_MAX)) or int(digits) > LONG_MAX + negative:
        raise ValueError("beyond the range of long")
    return -int(digits) if negative else int(digits)


def _pattern(digits: str, base: int) -> int:
    try:
        number = int(digits, base)
    except ValueError:  # The other bases have no digits that are none.
        raise ValueError("not an octal number, which a leading 0 means") from None
    if number > _MASK:
        raise ValueError(f"more than {_BITS} bits")
    return wrapped(number)


def _approximate(text: str) -> float:
    digits, single = text.rstrip("fd"), text[-1] == "f"
    hexadecimal = digits.startswith("0x")
    kind = "float" if single else "double"
    try:
        value = float.fromhex(digits) if hexadecimal else float(digits)
        if single:
            (value,) = struct.unpack("f", struct.pack("f", value))
    except OverflowError:
        value = math.inf
    if math.isinf(value):
        raise ValueError(f"beyond the range of {kind}")
    mantissa = digits[2:].partition("p")[0] if hexadecimal else digits.partition("e")[0]
    if not value and mantissa.strip("0."):
        raise ValueError(f"too small for a {kind}")
    return value


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
_RESERVED = {word: word for word in RESERVED}
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
    index = stranger(word)
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
