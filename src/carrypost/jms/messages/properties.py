"""Properties of a message: a mapping from names to values, each of which keeps its type (JMS §3.5).

A program sets its own, and the two that JMS lets it set. Facts that this node adds to a message that it hands over
(delivery count, time of arrival, signer) are given beside them: they can be read like properties and do not travel.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

from carrypost.errors import IllegalArgumentException, MessageFormatException, MessageNotWriteableException
from carrypost.jms.destinations import named
from carrypost.jms.messages.conversions import PROPERTY_TABLE, read
from carrypost.jms.messages.values import Value, ValueType, inferred, value_of, value_or_null
from carrypost.model.descriptor import Descriptor
from carrypost.model.properties import Property
from carrypost.model.selector.names import RESERVED, stranger
from carrypost.model.visible import typed_properties

PropertyValue = bool | int | float | str
_RESERVED_PREFIX = "JMS"
_GIVEN_PREFIX = "JMS_carrypost_"
_GIVEN_NAMES = ("JMSXDeliveryCount", "JMSXRcvTimestamp", "JMSXUserID")
SETTABLE = {"JMSXGroupID": ValueType.STRING, "JMSXGroupSeq": ValueType.INT}
"""Properties that JMS defines and programs set, and their types."""
JMSX_NAMES = tuple(sorted((*SETTABLE, *_GIVEN_NAMES)))
"""Properties that JMS defines and messages may have."""
_ABSENT = Property(ValueType.NULL, None)
_NAME_SHOWN_MAX = 64


class Properties(Mapping[str, PropertyValue | None]):
    """The properties of one message. There is no way to remove one alone: JMS has none."""

    __slots__ = ("_descriptor", "_given", "_own", "_read_only")

    def __init__(self, descriptor: Descriptor | None = None, given: Mapping[str, Property] | None = None) -> None:
        self._descriptor = descriptor
        """Descriptor of a received message, until the first access: a stranger's may have types that JMS lacks."""
        self._own: dict[str, Property] = {}
        self._given = dict(given) if given else {}
        self._read_only = descriptor is not None

    def travelling(self) -> dict[str, Property]:
        """Return the properties that are sent with the message: all but those that this node sets."""
        return dict(self._loaded())

    def clear(self) -> None:
        """Forget all, and let new ones be set."""
        self._descriptor, self._read_only = None, False
        self._own, self._given = {}, {}

    def set(self, name: str, kind: ValueType, value: object) -> None:
        """Set a property of this type; raises `MessageFormatException` if the value is none of it."""
        self._set(name, value_or_null(kind, value) if kind is ValueType.STRING else value_of(kind, value))

    def get_as(self, name: str, kind: ValueType) -> object:
        """Return a property as this type; raises `MessageFormatException` where it cannot be read so."""
        found = self._find(name) or _ABSENT
        return read(Value(*found), kind, PROPERTY_TABLE, f"property {_shown(name)}")

    def type_of(self, name: str) -> ValueType:
        """Return the type with which a property was set; raises `KeyError`."""
        found = self._find(name)
        if found is None:
            raise KeyError(name)
        return found.type

    def update(self, values: Mapping[str, object]) -> None:
        """Set several, or none if one of them cannot be."""
        made = {name: _property(name, inferred(value)) for name, value in values.items()}
        self._check_writable()
        self._loaded().update(made)

    def __setitem__(self, name: str, value: PropertyValue | None) -> None:
        """Set a property with the type of its value's class: boolean, int or else long, double, String, null."""
        self._set(name, inferred(value))

    def __getitem__(self, name: str) -> PropertyValue | None:
        found = self._find(name)
        if found is None:
            raise KeyError(name)
        return found.value

    def __iter__(self) -> Iterator[str]:
        return iter(self._loaded() | self._given)

    def __len__(self) -> int:
        return len(self._loaded() | self._given)

    def __repr__(self) -> str:
        return f"Properties({dict(self)!r})"

    def _set(self, name: str, value: Value) -> None:
        made = _property(name, value)
        self._check_writable()
        self._loaded()[name] = made

    def _check_writable(self) -> None:
        if self._read_only:
            raise MessageNotWriteableException(
                "the properties of a received message are read-only: call clear_properties() first"
            )

    def _find(self, name: str) -> Property | None:
        return self._given.get(name) or self._loaded().get(name)

    def _loaded(self) -> dict[str, Property]:
        if self._descriptor is not None:
            found = typed_properties(self._descriptor)
            self._own = {name: each for name, each in found.items() if not is_given(name)}
            self._descriptor = None
        return self._own


def is_given(name: str) -> bool:
    """Return True if only the receiving node may set this: as an attribute it would be an unverified claim."""
    return name in _GIVEN_NAMES or name.startswith(_GIVEN_PREFIX)


def _property(name: str, value: Value) -> Property:
    check_name(name)
    if value.type is ValueType.BYTES or isinstance(value.value, bytes):
        raise MessageFormatException(
            f"property {_shown(name)}: a property must be a bool, int, float, str or None, not bytes"
        )
    wanted = SETTABLE.get(name, value.type)
    if value.type not in (wanted, ValueType.NULL):
        raise MessageFormatException(f"property {name} is of type {wanted.text}, not {value.type.text}")
    return Property(value.type, value.value)


def check_name(name: object) -> None:
    """Raise `IllegalArgumentException` for what is no name of a property that a program may set."""
    fault = _fault_of(named(name, "the name of a property"))
    if fault:
        raise IllegalArgumentException(f"{_shown(name)} cannot be the name of a property: {fault}")


@functools.lru_cache(maxsize=1024)
def _fault_of(name: str) -> str:
    """Return the fault of a name; empty if there is none. Programs have few names, and use them all the time."""
    if name.upper() in RESERVED:
        return "it is a reserved word of selectors"
    at = stranger(name)
    if at is not None:
        return (
            f"{name[at]!r} is not allowed there; names consist of letters, digits, _ and $, and do not begin "
            "with a digit"
        )
    if name.startswith(_RESERVED_PREFIX) and name not in SETTABLE:
        return f"names that begin with JMS are reserved, and programs may set only {' and '.join(SETTABLE)}"
    return ""


def _shown(name: object) -> str:
    return repr(name)[:_NAME_SHOWN_MAX]
