"""Reading a value as another type than it was written as.

Which pairs are legal is a table, one for properties (`property_table`) and one for bodies (`body_table`); what a legal
one gives is the same in both and stands here.
"""

from __future__ import annotations

from collections.abc import Mapping

from carrypost.errors import MessageFormatException, NullValueException, NumberFormatException
from carrypost.jms.messages import texts
from carrypost.jms.messages.values import BodyValue, Value, ValueType

Table = Mapping[ValueType, tuple[ValueType, ...]]
"""By the type as which a value was written: the types as which it may be read."""
_WHOLE = (ValueType.BYTE, ValueType.SHORT, ValueType.INT, ValueType.LONG)
_WITHOUT_NULL = (ValueType.FLOAT, ValueType.DOUBLE, ValueType.CHAR)


def read(value: Value, to: ValueType, table: Table, what: str) -> BodyValue | None:
    """A value as a type; raises `MessageFormatException` where the table has no such pair. `what`: who it is."""
    kind, found = value
    if found is None:
        return _null_as(to, what)
    if to is kind:
        return found
    if to not in table[kind]:
        others = " or ".join(each.text for each in table[kind])
        raise MessageFormatException(f"{what} is of type {kind.text}, which is read as {others}, not as {to.text}")
    if to is ValueType.STRING:
        return texts.text_of(kind, found)
    if isinstance(found, str):
        return texts.parsed(to, found)
    return found  # A wider type has the same value.


def _null_as(to: ValueType, what: str) -> BodyValue | None:
    """Null as a type: what Java's `valueOf(null)` does."""
    if to is ValueType.BOOLEAN:
        return False
    if to in _WHOLE:
        raise NumberFormatException(f"{what} is null or not there, and no {to.text}")
    if to in _WITHOUT_NULL:
        raise NullValueException(f"{what} is null or not there, and no {to.text}")
    return None
