"""Numeric literals, which are Java's: decimal, hexadecimal, octal and binary longs, floats and doubles.

All exact numbers of a selector are longs: hexadecimal, octal and binary literals are patterns of 64 bits, so that
``0xFFFFFFFFFFFFFFFF`` is -1 as in Java. What a type has no value for is refused, as Java refuses it.
"""

from __future__ import annotations

import math
import struct

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
