"""Faults of selectors, with their place, and the exception made of them."""

from __future__ import annotations

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
