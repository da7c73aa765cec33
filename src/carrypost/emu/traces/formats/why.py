"""What is wrong with a word, in a sentence. Only words of bad lines are looked at so."""

from __future__ import annotations

import math
import re

from carrypost.errors import LocalError
from carrypost.security.identity import Identity

NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_MILLISECONDS = 1e11


def is_number(word: str) -> bool:
    """Whether this is how a number is written."""
    return re.fullmatch(NUMBER, word) is not None


def no_number(word: str, what: str) -> str:
    """Why a word is no number at all; nothing if it is one, finite or not."""
    if not word:
        return f"{what} must not be empty"
    return "" if is_number(word) or word.lower() in {"nan", "inf", "-inf"} else f"{what} must be a number, not {word!r}"


def out_of_bounds(word: str, what: str, least: float, most: float, unit: str) -> str:
    """Why a word is not a number within these bounds."""
    if math.isinf(most) or no_number(word, what):
        return no_number(word, what) or f"{what} must be a number, not {word!r}"
    hint = "; are these milliseconds?" if unit == "s" and float(word) > _MILLISECONDS else ""
    return f"{what} must be a number from {least:,.0f} to {most:,.0f} {unit}, not {float(word):g}{hint}"


def no_name(word: str, what: str) -> str:
    """Why a word is not the name of a node."""
    if not word:
        return f"{what} must not be empty"
    if not word.isprintable() or "\ufffd" in word:
        return f"{what} has characters that cannot be shown: {word!r}"
    try:
        Identity.plain(word)
    except LocalError as error:
        return str(error)
    return f"{what} cannot be {word!r}"
