"""What a value in a map or a stream may be read as, by the type as which it was written (JMS §3.11.3): 32 of 100."""

from __future__ import annotations

from carrypost.jms.messages.conversions import Table
from carrypost.jms.messages.values import ValueType

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
"""As of properties; a char is itself or text, and bytes are nothing else."""
