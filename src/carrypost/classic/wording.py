"""Errors of the engine in the words of the classic API, which has sessions where the engine has contexts."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from carrypost.errors import JMSException

P = ParamSpec("P")
T = TypeVar("T")
_WORDS = (
    (r"\(ctx\.create_context\(\)\)", "(connection.create_session())"),
    (r"SessionMode\.SESSION_TRANSACTED", "create_session(True)"),
    (r"InitialContext\(ctx\)(.*)timeout=SECONDS", r"InitialContext()\1timeout=MILLISECONDS"),
    (r"\bctx\b", "session"),
    (r"\bcontext(s?)\b", r"session\1"),
)


def reworded(error: JMSException) -> JMSException:
    """Return an error whose text speaks of sessions."""
    if error.args and isinstance(error.args[0], str):
        text = error.args[0]
        for pattern, words in _WORDS:
            text = re.sub(pattern, words, text)
        error.args = (text, *error.args[1:])
    return error


def wording(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Let the errors of an async method speak of sessions."""

    @wraps(method)
    async def worded(*given: P.args, **named: P.kwargs) -> T:
        try:
            return await method(*given, **named)
        except JMSException as error:
            raise reworded(error) from error.__cause__

    return worded
