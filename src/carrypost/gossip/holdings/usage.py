"""The room that several copies use."""

from mypy_extensions import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class Usage:
    """A number of messages and their bytes."""

    __slots__ = ("bytes", "messages")

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0

    def add(self, messages: int, nbytes: int) -> None:
        """Count more, or less."""
        self.messages += messages
        self.bytes += nbytes
