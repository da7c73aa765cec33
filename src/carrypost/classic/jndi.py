"""`InitialContext`: JNDI for ported programs, with connection factories for one domain and Java's properties files.

A properties file names factories and destinations. Everything else is in the directory of the device
(`carrypost.naming`), which is asked over a connection of its own. The files are those of `java.util.Properties`, in
UTF-8: ``key = value``, comments, continued lines, escapes.

Factories of connections for one domain are those of JMS 1.0. `ConnectionFactory` is that of `carrypost`.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from carrypost.classic.connections import QueueConnection, TopicConnection
from carrypost.classic.parts import Closing, Milliseconds
from carrypost.classic.sessions import not_offered
from carrypost.config.rules import nearest
from carrypost.errors import (
    IllegalArgumentException,
    IllegalStateException,
    JMSSecurityException,
    NameNotFoundException,
    NamingException,
)
from carrypost.jms.context import Context
from carrypost.jms.destinations import Destination, Queue, destination_at, queue_of, topic_of
from carrypost.jms.durations import whole_milliseconds
from carrypost.jms.factory import ConnectionFactory
from carrypost.jms.provider import Provider
from carrypost.messaging.commands import Lookup
from carrypost.model import address
from carrypost.model.descriptor import Ordering
from carrypost.naming import NamingContext

_ENTRY = re.compile(r"((?:\\.|[^\\=:\s])+)(?:\s*[=:]\s*|\s+(?![=:]))(\S.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u([0-9a-fA-F]{4})|u|.)", re.DOTALL)
_SIGNS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def read_properties(path: Path) -> dict[str, str]:
    """Return the keys and values of a file; raises `NamingException`, which has the line."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise NamingException(
            f"{path} cannot be read: {error.strerror}. Name a properties file, or pass a dict"
        ) from error
    except UnicodeDecodeError as error:
        raise NamingException(
            f"{path} is not text in UTF-8: write it as UTF-8, or with escapes such as \\u00e9"
        ) from error
    found: dict[str, str] = {}
    for number, line in _logical_lines(text):
        entry = _ENTRY.fullmatch(line)
        if entry is None:
            raise NamingException(f"{path}, line {number}: {line[:60]!r} has no value: a line must be KEY = VALUE")
        key, value = (_unescaped(each, path, number) for each in entry.groups())
        if key in found:
            raise NamingException(f"{path}, line {number}: {key!r} was given before: leave one of both out")
        found[key] = value.rstrip()
    return found


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines with their numbers, without comments; those that end in a backslash go on in the next one."""
    begun: list[str] = []
    first = 0
    for number, line in enumerate(text.split("\n"), 1):  # Reading the file has left no other ends of lines.
        stripped = line.lstrip(" \t\f")
        if not begun and (not stripped or stripped[0] in "#!"):
            continue
        first = first if begun else number
        goes_on = (len(stripped) - len(stripped.rstrip("\\"))) % 2
        begun.append(stripped[: len(stripped) - goes_on])
        if not goes_on:
            yield first, "".join(begun)
            begun = []
    if begun:
        yield first, "".join(begun)


def _unescaped(text: str, path: Path, number: int) -> str:
    def sign(found: re.Match[str]) -> str:
        if found[1] == "u":
            raise NamingException(f"{path}, line {number}: \\u must be followed by four hexadecimal digits")
        return chr(int(found[2], 16)) if found[2] else _SIGNS.get(found[1], found[1])

    try:  # Java writes characters beyond U+FFFF as two escapes.
        return _ESCAPE.sub(sign, text).encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError as error:
        half = int.from_bytes(error.object[error.start : error.start + 2], "little")
        raise NamingException(
            f"{path}, line {number}: \\u{half:04x} is half of a character: write both halves"
        ) from error


class QueueConnectionFactory(ConnectionFactory):
    """Makes connections for queues alone; the parameters are those of `ConnectionFactory`."""

    def create_queue_connection(self, user: str | None = None, password: str | None = None) -> QueueConnection:
        """Return a connection for queues, to be opened by ``async with``, or by awaiting it."""
        return QueueConnection(self._connection(user, password))


class TopicConnectionFactory(ConnectionFactory):
    """Makes connections for topics alone; the parameters are those of `ConnectionFactory`."""

    def create_topic_connection(self, user: str | None = None, password: str | None = None) -> TopicConnection:
        """Return a connection for topics, to be opened by ``async with``, or by awaiting it."""
        return TopicConnection(self._connection(user, password))


class XAConnectionFactory:
    """A factory that is not offered: application servers alone use it. To make one raises `JMSException`."""

    def __init__(self, *_: object, **__: object) -> NoReturn:
        raise not_offered("connections for distributed transactions (XA) are")


XAQueueConnectionFactory = XATopicConnectionFactory = XAConnectionFactory
"""Likewise, for one domain."""


_URL = "java.naming.provider.url"
_IGNORED = frozenset({"java.naming.factory.initial", "java.naming.factory.url.pkgs"})
"""Keys that choose a provider in Java, and that ported files may keep."""
_CREDENTIALS = frozenset({"java.naming.security.principal", "java.naming.security.credentials"})
_KINDS = ("queue.", "topic.")


class InitialContext(Closing, NamingContext):
    """The names of a device, and those that a mapping or a properties file adds.

    `environment` may have ``java.naming.provider.url``, a settings file, the folder of a node or ``unix:PATH``;
    ``queue.NAME`` and ``topic.NAME``, the names of a queue and of a topic. A queue without a node in its name is that
    of the directory, and declared on this node if there is none. Without an environment, the node is that of this user.
    """

    _factories: ClassVar[Mapping[str, type[ConnectionFactory]]] = {
        "ConnectionFactory": ConnectionFactory,
        "QueueConnectionFactory": QueueConnectionFactory,
        "TopicConnectionFactory": TopicConnectionFactory,
    }
    """Classes of the factories that can be looked up; `carrypost.sync` has others."""

    def __init__(self, environment: Mapping[str, str] | str | os.PathLike[str] | None = None) -> None:
        self._name = ""
        self._opened: Context | None = None
        self._is_closed = False
        self._environment = _environment(environment)
        self._node = _node(self._environment.get(_URL))
        self._opening = asyncio.Lock()
        self._administered: dict[str, Destination] = {}
        for key, value in self._environment.items():
            if key.startswith(_KINDS):
                self._administer(key, value)

    def _administer(self, key: str, value: str) -> None:
        """Add a destination of the environment."""
        name = key.partition(".")[2]
        if name in self._factories or name in self._administered:
            raise NamingException(f"{key}: the name {name!r} is taken, by another key or by a factory: choose another")
        self._administered[name] = _destination(key, value)

    @property
    def environment(self) -> dict[str, str]:
        """The environment, as a dict."""
        return dict(self._environment)

    async def lookup(self, name: str, timeout: Milliseconds | None = None) -> Any:  # type: ignore[override]  # noqa: ANN401 - as in Java
        """Return the object of a name: a factory, a destination or a context.

        ``ConnectionFactory``, ``QueueConnectionFactory`` and ``TopicConnectionFactory`` are factories; then come the
        names of the environment; everything else is in the directory of the device. With a `timeout`, in milliseconds,
        waits that long for a node to advertise the name. Raises `NameNotFoundException`, which has the nearest names.
        """
        self._check_open()
        limit_s = None if timeout is None else whole_milliseconds(timeout, "a timeout")
        if isinstance(name, str):
            if name in self._factories:
                return self._factories[name](**self._node)
            if name in self._administered:
                return await self._found(self._administered[name])
        try:
            return await super().lookup(name, limit_s)
        except NameNotFoundException as error:
            raise NameNotFoundException(f"{error}{nearest(name, (*self._factories, *self._administered))}") from error

    async def _found(self, destination: Destination) -> Destination:
        """Return a destination of the environment; a queue that nobody has is declared here."""
        if not isinstance(destination, Queue) or "@" in destination.queue_name:
            return destination
        name, provider = destination.queue_name, await self._provider()
        try:
            return destination_at((await provider.execute(Lookup(name, address.Kind.QUEUE))).destination)
        except NameNotFoundException:
            assert self._opened is not None  # By `_provider`.
            return await self._opened.declare_queue(name)

    async def close(self) -> None:
        """End the connection to the directory. Idempotent."""
        self._is_closed = True
        async with self._opening:
            if self._opened is not None:
                await self._opened.close()

    async def _provider(self) -> Provider:
        async with self._opening:
            self._check_open()
            if self._opened is None:
                self._opened = self._context = await self._open()
        self._check_open()  # It may have been closed meanwhile.
        return await super()._provider()

    async def _open(self) -> Context:
        """Open the connection to the directory."""
        return await ConnectionFactory(**self._node).create_context()

    def _check_open(self) -> None:
        if self._is_closed:
            raise IllegalStateException("this InitialContext is closed: create another")


def _environment(given: object) -> dict[str, str]:
    """Return the keys and values of an environment, checked."""
    if isinstance(given, str | os.PathLike):
        found: Mapping[Any, Any] = read_properties(Path(given))
    elif given is None or isinstance(given, Mapping):
        found = given or {}
    else:
        raise IllegalArgumentException(f"an environment must be a mapping or a properties file, not {given!r}"[:200])
    for key, value in found.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise NamingException(f"keys and values of an environment must be text, not {key!r}: {value!r}"[:200])
        if key in _CREDENTIALS:
            raise JMSSecurityException(
                f"nodes have no users and no passwords: access is governed by the permissions of the node's folder. "
                f"Leave {key} out"
            )
        if key != _URL and key not in _IGNORED and not (key.startswith(_KINDS) and key.partition(".")[2]):
            known = (_URL, *sorted(_IGNORED), *(f"{kind}NAME" for kind in _KINDS))
            raise NamingException(f"unknown key {key!r}{nearest(key, known)}: the keys are {', '.join(known)}")
    return dict(found)


def _node(url: str | None) -> dict[str, Any]:
    """Return the arguments of a factory for the node of a URL."""
    if url is None:
        return {}
    if url.startswith("unix:") or "://" in url:
        return {"config": url}
    if not url or not Path(url).exists():
        raise NamingException(
            f"{_URL} is {url!r}, and there is no such file or folder: name the settings file or the folder of a node, "
            "or unix:PATH"
        )
    return {"data" if Path(url).is_dir() else "config": url}


def _destination(key: str, value: str) -> Destination:
    return queue_of(value) if key.startswith("queue.") else topic_of(value, Ordering.NONE, "epidemic")
