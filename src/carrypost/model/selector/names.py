"""Names in selectors: identifiers by the rules of Java, and reserved words (JMS §3.8.1.1).

Java uses the Unicode category of a character. Categories of new characters come with new versions of Python's
`unicodedata`; a node that does not know a letter yet cannot parse the selector, and over-forwards.
"""

from __future__ import annotations

import unicodedata

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
