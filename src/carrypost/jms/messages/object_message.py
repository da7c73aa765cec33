"""`ObjectMessage`: a body that is an object, and the registered classes whose objects may travel, each under a name.

Java serializes whatever an object refers to, and a stranger's bytes choose the classes that are made of them. Here
bytes only name a class that this program registered, and `msgspec` checks every field against the class's annotations.
There is no pickle.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, TypeVar, overload

import msgspec

from carrypost.errors import IllegalArgumentException, MessageFormatException
from carrypost.jms.destinations import named
from carrypost.jms.messages.message import Message
from carrypost.jms.messages.values import pack, unpack
from carrypost.model.headers import BodyType

T = TypeVar("T")
NAME_MAX = 256
_ENVELOPE = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw] | None)


class _Entry(NamedTuple):
    name: str
    kind: type


_by_name: dict[str, _Entry] = {}
_by_class: dict[type, _Entry] = {}


@overload
def register(cls: type[T], *, name: str | None = None) -> type[T]: ...
@overload
def register(cls: None = None, *, name: str | None = None) -> Callable[[type[T]], type[T]]: ...
def register(cls: type[T] | None = None, *, name: str | None = None) -> type[T] | Callable[[type[T]], type[T]]:
    """Let objects of a dataclass or a `msgspec.Struct` be sent and received, under a name.

    The name is what travels: sender and receiver register their classes under the same one, by default the class's own
    name. Fields that the receiver's class does not have are skipped, and those that are missing need a default. Use it
    as a decorator, ``@register`` or ``@register(name="order")``, or as a call.
    """
    if cls is None:
        return lambda given: register(given, name=name)
    if not _can_travel(cls):
        raise IllegalArgumentException(f"only dataclasses and msgspec.Structs can be registered, not {cls!r}")
    entry = _Entry(named(cls.__name__ if name is None else name, "the name of a class"), cls)
    if len(entry.name) > NAME_MAX:
        raise IllegalArgumentException(f"the name of a class has at most {NAME_MAX} characters, not {len(entry.name)}")
    other = _by_name.get(entry.name)
    if other is not None and not _is_same(other.kind, cls):
        raise IllegalArgumentException(
            f"{entry.name!r} is the name of {other.kind.__module__}.{other.kind.__qualname__} already: choose "
            "another (name=)"
        )
    _check(cls)
    _by_name[entry.name] = _by_class[cls] = entry
    return cls


def _can_travel(cls: object) -> bool:
    return isinstance(cls, type) and (dataclasses.is_dataclass(cls) or issubclass(cls, msgspec.Struct))


def _is_same(known: type, cls: type) -> bool:
    """Return True if this is the known class, perhaps made anew as notebooks and reloads do."""
    return (known.__module__, known.__qualname__) == (cls.__module__, cls.__qualname__)


def _check(cls: type) -> None:
    """Raise for a class with fields that cannot travel."""
    try:
        msgspec.msgpack.Decoder(cls)
    except NameError:
        return  # An annotation names what comes later in its module, maybe this class; it is looked up when needed.
    except TypeError as error:
        raise IllegalArgumentException(f"{cls.__qualname__} has a field that cannot be encoded: {error}") from error


def encode_object(value: object) -> bytes:
    """Return an object of a registered class, or None, as payload; raises `MessageFormatException`.

    It is decoded again at once: so nothing is refused by the receiver that could have been refused here.
    """
    if value is None:
        return pack(None)
    entry = _by_class.get(type(value))
    if entry is None:
        raise MessageFormatException(
            f"an object of {type(value).__qualname__!r} cannot be sent: register its class, a dataclass or "
            "msgspec.Struct, with carrypost.register"
        )
    payload = pack((entry.name, value))
    decode_object(payload)
    return payload


def decode_object(payload: bytes) -> object:
    """Return the object in a payload, a new one each time; raises `MessageFormatException`."""
    found = unpack(_ENVELOPE.decode, payload, "object")
    if found is None:
        return None
    name, fields = found
    entry = _by_name.get(name)
    if entry is None:
        raise MessageFormatException(
            f"no class is registered as {name[:NAME_MAX]!r} here: register one (carrypost.register(cls, name=...))"
        )
    return _made(entry, fields)


def _made(entry: _Entry, fields: msgspec.Raw) -> Any:  # noqa: ANN401 - whatever was registered
    try:
        return msgspec.msgpack.decode(fields, type=entry.kind)
    except Exception as error:  # `__post_init__` is the application's, and may raise anything.
        kind = entry.kind.__qualname__
        raise MessageFormatException(f"the payload is not a {kind} ({entry.name!r}): {error}") from error


def object_name(payload: bytes) -> str | None:
    """Return the name of the class of the object in a payload, registered or not; None if it is null."""
    found = unpack(_ENVELOPE.decode, payload, "object")
    return None if found is None else found[0]


class ObjectMessage(Message):
    """A message whose body is an object of a class that was registered with `carrypost.register`."""

    __slots__ = ()
    __match_args__: ClassVar[tuple[str, ...]] = ("object",)
    body_type: ClassVar[BodyType] = BodyType.OBJECT

    def __init__(self, value: object = None) -> None:
        super().__init__()
        if value is not None:
            self.set_object(value)

    def set_object(self, value: object) -> None:
        """Make a copy of the object the body. Raises `MessageFormatException` if its class cannot travel."""
        made = encode_object(value)
        self._write()
        self._payload = made

    def get_object(self) -> object:
        """Return a new copy of the object, or None.

        Raises `MessageFormatException` if its class is not registered here, or the payload is none of it; `object_name`
        and `payload` can still be read.
        """
        return decode_object(self.payload)

    @property
    def object(self) -> object:
        """The same as `get_object()`, for ``match``."""
        return self.get_object()

    @property
    def object_name(self) -> str | None:
        """The name under which the object's class was registered by the sender; None without an object."""
        return object_name(self.payload)

    def _whole(self) -> object:  # type: ignore[valid-type]  # here `object` is the property
        return self.get_object()

    def _encoded(self) -> bytes:
        return encode_object(None)
