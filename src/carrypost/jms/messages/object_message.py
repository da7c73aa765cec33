"""`ObjectMessage`: a body that is an object of a registered class (`registry`)."""

from __future__ import annotations

from typing import ClassVar

from carrypost.jms.messages import registry
from carrypost.jms.messages.message import Message
from carrypost.model.headers import BodyType


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
        made = registry.encode_object(value)
        self._write()
        self._payload = made

    def get_object(self) -> object:
        """Return a new copy of the object, or None.

        Raises `MessageFormatException` if its class is not registered here, or the payload is none of it; `object_name`
        and `payload` can still be read.
        """
        return registry.decode_object(self.payload)

    @property
    def object(self) -> object:
        """The same as `get_object()`, for ``match``."""
        return self.get_object()

    @property
    def object_name(self) -> str | None:
        """The name under which the object's class was registered by the sender; None without an object."""
        return registry.object_name(self.payload)

    def _whole(self) -> object:  # type: ignore[valid-type]  # here `object` is the property
        return self.get_object()

    def _encoded(self) -> bytes:
        return registry.encode_object(None)
