"""`TextMessage`: a body that is text."""

from __future__ import annotations

from typing import ClassVar

from carrypost.errors import MessageFormatException
from carrypost.jms.messages import codec
from carrypost.jms.messages.json_text import read_json
from carrypost.jms.messages.message import Message
from carrypost.jms.messages.values import plain
from carrypost.model.headers import BodyType


class TextMessage(Message):
    """A message whose body is text."""

    __slots__ = ("_text",)
    __match_args__: ClassVar[tuple[str, ...]] = ("text",)
    body_type: ClassVar[BodyType] = BodyType.TEXT

    def __init__(self, text: str | None = None) -> None:
        super().__init__()
        self._text: str | None = None
        if text is not None:
            self.text = text

    @property
    def text(self) -> str | None:
        """The text, or None. Raises `MessageFormatException` if what was received is none."""
        if self._text is None and self._payload is not None:
            self._text = codec.decode_text(self._payload)
        return self._text

    @text.setter
    def text(self, text: str | None) -> None:
        found = plain(text)
        if found is not None and not isinstance(found, str):
            raise MessageFormatException(f"the body of a TextMessage must be a str or None, not {type(text).__name__}")
        self._write()
        self._text = found

    def set_text(self, text: str | None) -> None:
        """Set the text, as assigning to `text` does."""
        self.text = text

    def clear_body(self) -> None:
        """Make the text None, and let it be set. Properties and header fields stay."""
        super().clear_body()
        self._text = None

    def json(self) -> object:
        """Return what the text says as JSON; None without a text."""
        return None if self.text is None else read_json(self.text)

    def _whole(self) -> str | None:
        return self.text

    def _encoded(self) -> bytes:
        return codec.encode_text(self._text)
