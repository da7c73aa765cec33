"""The connection factory for programs that block."""

from __future__ import annotations

from typing import TypeVar

from carrypost.jms import factory
from carrypost.jms.modes import SessionMode
from carrypost.sync.classic_parts import Connection, close
from carrypost.sync.contexts import Context
from carrypost.sync.methods import documented
from carrypost.sync.process import loop
from carrypost.sync.worker import Worker

C = TypeVar("C", bound=Connection)


@documented(factory.ConnectionFactory)
class ConnectionFactory(factory.ConnectionFactory):
    _callers = Worker

    @documented(factory.ConnectionFactory.create_context)
    def create_context(  # type: ignore[override]  # it blocks
        self,
        mode: SessionMode = SessionMode.AUTO_ACKNOWLEDGE,
        *,
        user: str | None = None,
        password: str | None = None,
    ) -> Context:
        made = super().create_context(mode, user=user, password=password)

        async def opened() -> Context:
            return Context(await made)

        return loop().run(opened, close)

    @documented(factory.ConnectionFactory.create_connection)
    def create_connection(self, user: str | None = None, password: str | None = None) -> Connection:  # type: ignore[override]  # likewise
        return loop().run(lambda: self._opened(Connection, user, password), close)

    async def _opened(self, kind: type[C], user: str | None, password: str | None) -> C:
        """Open a connection of this class."""
        return kind(await kind._awaited(self._connection(user, password)))  # noqa: SLF001 - a part of the same API
