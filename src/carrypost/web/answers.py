"""Answers of the pages' server and parameters of its questions: values as JSON, mistakes as sentences."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from carrypost.errors import LocalError

_TEXT_MAX = 1_000
_T = TypeVar("_T")


class NotFoundError(LocalError):
    """A name that is not there: a run, a node, a message."""


def json_answer(value: object, status: int = 200) -> Response:
    """Return a value as JSON."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def error_answer(status: int, text: str) -> Response:
    """Return a mistake, as pages show it."""
    return json_answer({"error": text}, status)


async def in_thread(work: Callable[[], _T]) -> _T:
    """Return what a function returns that runs in a thread of its own.

    The thread is a daemon: Ctrl-C need not wait until a large file is read.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_T] = loop.create_future()

    def settle(set_it: Callable[[Any], None], value: object) -> None:
        if not done.cancelled():
            set_it(value)

    def run() -> None:
        try:
            found = work()
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            outcome: tuple[Any, Any] = done.set_exception, error
        else:
            outcome = done.set_result, found
        try:
            loop.call_soon_threadsafe(settle, *outcome)
        except RuntimeError:
            return  # The loop is closed: nobody waits.

    threading.Thread(target=run, daemon=True).start()
    return await done


def seconds(request: Request, name: str, otherwise: float) -> float:
    """Return a time among the parameters."""
    text = request.query_params.get(name)
    try:
        found = otherwise if text is None else float(text)
    except ValueError:
        found = math.nan
    if not (math.isfinite(found) or text is None):
        raise LocalError(f"{name} must be a number of seconds, not {text[:40]!r}" if text else f"{name} is empty")
    return found


def whole(request: Request, name: str, otherwise: int, most: int, least: int = 0) -> int:
    """Return a whole number among the parameters."""
    text = request.query_params.get(name)
    if text is None:
        return otherwise
    if not (text.removeprefix("-").isascii() and text.removeprefix("-").isdigit() and len(text) < 16):  # noqa: PLR2004
        raise LocalError(f"{name} must be a whole number, not {text[:40]!r}")
    if not least <= int(text) <= most:
        raise LocalError(f"{name} must be from {least:,} to {most:,}, not {int(text):,}")
    return int(text)


def text_of(request: Request, name: str) -> str:
    """Return a text among the parameters."""
    found = request.query_params.get(name, "")
    if len(found) > _TEXT_MAX:
        raise LocalError(f"{name} must have at most {_TEXT_MAX:,} characters, not {len(found):,}")
    return found
