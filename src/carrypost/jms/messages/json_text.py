"""Nested values as text in JSON: what a program sends as a dict or a list that no map or stream has room for.

Only what JSON can say exactly is taken: dicts whose keys are text, lists, tuples (as lists), texts, numbers that are
finite, booleans and None. Nothing is turned into text silently.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import NoReturn

from carrypost.errors import MessageFormatException
from carrypost.jms.messages.values import plain

JSON_TYPE = "application/json"
"""JMSType of such a text."""
_DEPTH_MAX = 200


def json_text(value: object) -> str:
    """Return a value as JSON; raises `MessageFormatException`, which says where, for what JSON cannot say."""
    checked = _checked(value, "", 0)
    try:
        return json.dumps(checked, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError as error:  # A whole number of thousands of digits.
        raise MessageFormatException(f"the body cannot be written as JSON: {error}") from None


def read_json(text: str) -> object:
    """Return what a text says as JSON; raises `MessageFormatException` if it is none."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise MessageFormatException(f"the text is not JSON: {error}") from None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"JSON has no number {constant}")


def _checked(value: object, where: str, depth: int) -> object:
    """Return the value, made of Python's own types alone; `where` it stands is the way to it, as Python writes that."""
    if depth > _DEPTH_MAX:
        raise MessageFormatException(f"a JSON body may nest dicts and lists at most {_DEPTH_MAX} deep")
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise _fault(where, f"keys must be str in JSON, not {type(key).__name__}", "str(key)")
        return {str(key): _checked(each, f"{where}[{key!r:.64}]", depth + 1) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_checked(each, f"{where}[{number}]", depth + 1) for number, each in enumerate(value)]
    found = plain(value)
    if isinstance(found, float) and not math.isfinite(found):
        raise _fault(where, f"JSON has no number {found}", "None, or text")
    if found is not None and not isinstance(found, str | int | float):
        raise _fault(
            where, f"JSON has no {type(value).__name__}", "text, such as str(value), or register a class for the whole"
        )
    return found


def _fault(where: str, what: str, remedy: str) -> MessageFormatException:
    return MessageFormatException(f"body{where}: {what}; send {remedy}")
