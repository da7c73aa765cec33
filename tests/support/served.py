"""Real nodes in this process on loopback, each with a program that is attached to it and a client for questions."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.loopback import apart
from tests.support.nodes import QUICK, until

from carrypost import ConnectionFactory, Context, SessionMode
from carrypost.attach.client import Client
from carrypost.attach.served_node import ServedNode
from carrypost.node.settings import NodeSettings, parse
from carrypost.web.verdict import Verdict, verdict


class Served:
    """A node in this process, a program that is attached to it, and a client."""

    def __init__(self, settings: NodeSettings, node: ServedNode, client: Client, ctx: Context) -> None:
        self.settings, self.node, self.client, self.ctx = settings, node, client, ctx

    async def verdict(self, message: str) -> Verdict:
        """Return the verdict on a message, as `carrypost trace` finds it."""
        found = await self.client.trace(message)
        return verdict(message, found, await self.client.peers(), await self.client.messaging())

    async def becomes(self, message: str, key: str) -> Verdict:
        """Return the verdict once it is this one."""

        async def is_it() -> Verdict | None:
            made = await self.verdict(message)
            return made if made.verdict == key else None

        try:
            return await until(is_it, 15)
        except AssertionError:
            raise AssertionError((await self.verdict(message), key)) from None

    async def linked(self, *others: str) -> None:
        """Wait until these are its only linked neighbours."""

        async def are() -> bool:
            found = await self.client.peers()
            return {each["node"] for each in found if each["state"] == "linked"} == set(others)

        await until(are)


class Scene:
    """Nodes of one test on loopback, by name."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self._folder, self._settings, self._udp = folder, settings, apart()
        self._nodes: list[Served] = []

    async def __aenter__(self) -> Self:
        return self

    async def start(self, name: str, **settings: Any) -> Served:  # noqa: ANN401 - any setting
        udp = {**self._udp, **settings.pop("udp", {})}
        place = {"data": str(self._folder / name), "name": name, **settings.pop("node", {})}
        given = {**QUICK, "security": "off", "trace": {"enabled": True}, **self._settings, **settings}
        of = parse("", {}, {**given, "udp": udp, "node": place})
        node = await ServedNode.start(of)
        factory = ConnectionFactory(f"unix:{of.control}", reconnect=False)
        ctx = await factory.create_context(SessionMode.INDIVIDUAL_ACKNOWLEDGE)
        self._nodes.append(Served(of, node, await Client.connect(of.control), ctx))
        return self._nodes[-1]

    async def stop(self, served: Served) -> None:
        self._nodes.remove(served)
        await served.client.close()
        await served.ctx.close()
        await served.node.stop()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for each in list(self._nodes):
            await self.stop(each)
