"""Reading a value as another type than it was written as.

Which pairs are legal is a table, one for the values of maps and streams and one for properties; what a legal pair gives
is the same for both.
"""

from __future__ import annotations

from collections.abc import Mapping

from carrypost.errors import MessageFormatException, NullValueException, NumberFormatException
from carrypost.jms.messages import texts
from carrypost.jms.messages.values import BodyValue, Value, ValueType

Table = Mapping[ValueType, tuple[ValueType, ...]]
"""By the type as which a value was written: the types as which it may be read."""
_BOOLEAN, _CHAR, _STRING, _BYTES = ValueType.BOOLEAN, ValueType.CHAR, ValueType.STRING, ValueType.BYTES
_BYTE, _SHORT, _INT, _LONG = ValueType.BYTE, ValueType.SHORT, ValueType.INT, ValueType.LONG
_FLOAT, _DOUBLE = ValueType.FLOAT, ValueType.DOUBLE
BODY_TABLE: Table = {
    _BOOLEAN: (_BOOLEAN,                                                     _STRING),
    _BYTE:    (          _BYTE, _SHORT,        _INT, _LONG,                  _STRING),
    _SHORT:   (                 _SHORT,        _INT, _LONG,                  _STRING),
    _CHAR:    (                         _CHAR,                               _STRING),
    _INT:     (                                _INT, _LONG,                  _STRING),
    _LONG:    (                                      _LONG,                  _STRING),
    _FLOAT:   (                                             _FLOAT, _DOUBLE, _STRING),
    _DOUBLE:  (                                                     _DOUBLE, _STRING),
    _STRING:  (_BOOLEAN, _BYTE, _SHORT,        _INT, _LONG, _FLOAT, _DOUBLE, _STRING),
    _BYTES:   (                                                                       _BYTES,),
}  # fmt: skip
"""Values of maps and streams, 32 of 100 pairs (JMS §3.11.3): types as themselves, as wider ones and as text, and text
as anything but a char and bytes."""
PROPERTY_TABLE: Table = {kind: types for kind, types in BODY_TABLE.items() if kind not in (_CHAR, _BYTES)}
"""Properties, 29 of 64 pairs (JMS §3.5.4): the same types, but for chars and bytes, which no property has."""
_WHOLE = (_BYTE, _SHORT, _INT, _LONG)
_WITHOUT_NULL = (_FLOAT, _DOUBLE, _CHAR)


def read(value: Value, to: ValueType, table: Table, what: str) -> BodyValue | None:
    """Return a value as a type; raises `MessageFormatException` if the table lacks the pair. Errors name it `what`."""
    kind, found = value
    if found is None:
        return _null_as(to, what)
    if to is kind:
        return found
    if to not in table[kind]:
        others = " or ".join(each.text for each in table[kind])
        raise MessageFormatException(f"{what} is of type {kind.text}, which can be read as {others}, not as {to.text}")
    if to is _STRING:
        return texts.text_of(kind, found)
    if isinstance(found, str):
        return texts.parsed(to, found)
    return found  # A wider type has the same value.


def _null_as(to: ValueType, what: str) -> BodyValue | None:
    """Null as a type: what Java's `valueOf(null)` does."""
    if to is _BOOLEAN:
        return False
    if to in _WHOLE:
        raise NumberFormatException(f"{what} is null or missing, and cannot be read as {to.text}")
    if to in _WITHOUT_NULL:
        raise NullValueException(f"{what} is null or missing, and cannot be read as {to.text}")
    return None
