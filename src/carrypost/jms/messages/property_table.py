"""What a property may be read as, by the type as which it was set (JMS §3.5.4): 29 of 64 pairs."""

from __future__ import annotations

from carrypost.jms.messages.conversions import Table
from carrypost.jms.messages.values import ValueType

_BOOLEAN, _STRING = ValueType.BOOLEAN, ValueType.STRING
_BYTE, _SHORT, _INT, _LONG = ValueType.BYTE, ValueType.SHORT, ValueType.INT, ValueType.LONG
_FLOAT, _DOUBLE = ValueType.FLOAT, ValueType.DOUBLE

PROPERTY_TABLE: Table = {
    _BOOLEAN: (_BOOLEAN,                                              _STRING),
    _BYTE:    (          _BYTE, _SHORT, _INT, _LONG,                  _STRING),
    _SHORT:   (                 _SHORT, _INT, _LONG,                  _STRING),
    _INT:     (                         _INT, _LONG,                  _STRING),
    _LONG:    (                               _LONG,                  _STRING),
    _FLOAT:   (                                      _FLOAT, _DOUBLE, _STRING),
    _DOUBLE:  (                                              _DOUBLE, _STRING),
    _STRING:  (_BOOLEAN, _BYTE, _SHORT, _INT, _LONG, _FLOAT, _DOUBLE, _STRING),
}  # fmt: skip
"""Types to their own, to wider ones, to text, and from text to anything."""
