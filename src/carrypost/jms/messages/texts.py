"""Numbers as text and texts as numbers, as Java has them: `toString` and `valueOf` of its types (JMS §3.5.4, §3.11.3).

Both take time that is linear in the length of a text, whatever it holds: it may be a stranger's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from carrypost.errors import NumberFormatException
from carrypost.jms.messages.values import BodyValue, ValueType
from carrypost.model.properties import fits, nearest_float

_WHOLE = re.compile(r"[+-]?\d++")
_WHOLE_MAX = 20
"""More digits than a long has."""
_DECIMAL = r"(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?"
_HEXADECIMAL = r"0[xX](?:[0-9a-fA-F]++(?:\.[0-9a-fA-F]*+)?|\.[0-9a-fA-F]++)[pP][+-]?[0-9]++"
_NUMBER = re.compile(rf"(?P<sign>[+-]?)(?:(?P<name>NaN|Infinity)|(?P<digits>{_HEXADECIMAL}|{_DECIMAL})[fFdD]?)")
_SPACE = "".join(map(chr, range(0x21)))
_PLAIN_EXPONENTS = range(-3, 7)
"""Of numbers that Java writes without one."""
_DIGITS_MAX = 17
"""Enough for every double."""


def text_of(kind: ValueType, value: BodyValue) -> str:
    """Return a value as text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _text_of_float(value, single=kind is ValueType.FLOAT)
    return str(value)


def _text_of_float(value: float, *, single: bool) -> str:
    """Return the fewest digits that give the number back, but at least one after the point."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    found = ""
    for places in range(1, _DIGITS_MAX):
        found = f"{value:.{places}e}"
        read = float(found)
        if value == (nearest_float(read) if single else read):
            break
    digits, _, exponent = found.partition("e")
    power = int(exponent)
    if value and power not in _PLAIN_EXPONENTS:
        return f"{digits}E{power}"
    places = max(1, len(digits.partition(".")[2].rstrip("0")) - power)
    return f"{float(found):.{places}f}"


def parsed(kind: ValueType, text: str) -> BodyValue:
    """Return the value of a text in this type, which is not text; raises `NumberFormatException`."""
    return _PARSERS[kind](kind, text)


def _boolean(_: ValueType, text: str) -> bool:
    """Return True for "true", in any case; False for everything else, as Java does."""
    return text.lower() == "true"


def _whole(kind: ValueType, text: str) -> int:
    digits = text.lstrip("+-").lstrip("0") or "0"
    if not _WHOLE.fullmatch(text) or len(digits) > _WHOLE_MAX:
        raise _no(kind, text)
    value = -int(digits) if text[0] == "-" else int(digits)
    if not fits(kind, value):
        raise _no(kind, text)
    return value


def _float(kind: ValueType, text: str) -> float:
    found = _NUMBER.fullmatch(text.strip(_SPACE))
    if found is None:
        raise _no(kind, text)
    if found["name"]:
        value = math.nan if found["name"] == "NaN" else math.inf
    elif found["digits"][:2] in ("0x", "0X"):
        try:
            value = float.fromhex(found["digits"])
        except OverflowError:
            value = math.inf
    else:
        value = float(found["digits"])
    value = -value if found["sign"] == "-" else value
    return nearest_float(value) if kind is ValueType.FLOAT else value


def _no(kind: ValueType, text: str) -> NumberFormatException:
    shown = repr(text[:64]) + ("…" if len(text) > 64 else "")  # noqa: PLR2004 - enough to know it by
    return NumberFormatException(f"the text {shown} cannot be read as {kind.text}")


_PARSERS: dict[ValueType, Callable[[ValueType, str], BodyValue]] = {
    ValueType.BOOLEAN: _boolean,
    **dict.fromkeys((ValueType.BYTE, ValueType.SHORT, ValueType.INT, ValueType.LONG), _whole),
    **dict.fromkeys((ValueType.FLOAT, ValueType.DOUBLE), _float),
}
