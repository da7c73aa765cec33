"""Real nodes inside a program: shared by all users of one folder, and open while there are any."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from tests.support.loopback import apart
from tests.support.nodes import scene

from carrypost import (
    ConfigError,
    ConnectionFactory,
    DeliveryMode,
    IllegalArgumentException,
    IllegalStateException,
    InvalidClientIDException,
    JMSException,
    JMSSecurityException,
    Queue,
)
from carrypost.errors import NoNodeError, RunningError
from carrypost.naming import InitialContext
from carrypost.node.driver import NodeDriver
from carrypost.node.folder import NodeFolder
from carrypost.node.runtime import Node
from carrypost.node.settings import parse

WITHIN_S = 30.0


@functools.cache
def udp(_: Path) -> dict[str, object]:
    """Return the same value throughout one test."""
    return apart()


def factory(folder: Path, **settings: Any) -> ConnectionFactory:  # noqa: ANN401 - as programs give them
    return ConnectionFactory(data=folder / "node", udp=udp(folder), **settings)


@scene
async def test_factories_of_one_folder_share_one_node_which_ends_with_the_last_context(tmp_path: Path) -> None:
    one, other = factory(tmp_path, client_id="one"), factory(tmp_path, client_id="other")
    async with asyncio.timeout(WITHIN_S), one.create_context() as here:
        async with other.create_context() as there:
            assert here.node_id == there.node_id
            with pytest.raises(InvalidClientIDException, match="'one' is in use on this node"):
                _ = await one.create_context()
            inbox = await there.create_consumer(there.create_topic("news"))
            await here.create_producer().send(here.create_topic("news"), "hello")
            assert await inbox.receive_body(str) == "hello"
        with pytest.raises(IllegalStateException, match="with other settings: give both factories the same"):
            _ = await factory(tmp_path, altruistic=True).create_context()
        node = here.node_id
    async with asyncio.timeout(WITHIN_S), factory(tmp_path, altruistic=True).create_context() as again:
        assert again.node_id == node


@scene
async def test_contexts_that_come_and_go_at_the_same_time_find_the_node(tmp_path: Path) -> None:
    async def use(number: int) -> None:
        for _ in range(5):
            async with factory(tmp_path).create_context() as ctx:
                await ctx.create_producer().send(ctx.create_topic("news"), str(number))

    async with asyncio.timeout(WITHIN_S), asyncio.TaskGroup() as tasks:
        for number in range(4):
            tasks.create_task(use(number))
    async with factory(tmp_path).create_context() as ctx:
        inbox = await ctx.create_consumer(ctx.create_topic("news"))
        got = [await inbox.receive_body(str, timeout=WITHIN_S) for _ in range(20)]
    assert sorted(got, key=str) == sorted([str(number) for number in range(4)] * 5)


@scene
async def test_what_a_durable_subscription_collected_is_there_for_the_next_program(tmp_path: Path) -> None:
    async with factory(tmp_path, client_id="anna").create_context() as ctx:
        news = ctx.create_topic("news")
        await (await ctx.create_durable_consumer(news, "inbox")).close()
        await ctx.create_producer().set_delivery_mode(DeliveryMode.NON_PERSISTENT).send(news, "hello")
    async with factory(tmp_path, client_id="anna").create_context() as ctx:
        inbox = await ctx.create_durable_consumer(ctx.create_topic("news"), "inbox")
        message = await inbox.receive(timeout=WITHIN_S)
        assert message is not None
        assert (message.get_body(str), message.jms_redelivered) == ("hello", False)


@scene
async def test_a_name_is_found_on_another_node_and_is_there_for_the_next_program(tmp_path: Path) -> None:
    there = ConnectionFactory(data=tmp_path / "other", udp=udp(tmp_path))
    async with factory(tmp_path).create_context() as ctx, there.create_context() as other:
        found = asyncio.create_task(InitialContext(other).lookup("news", timeout=WITHIN_S))
        await InitialContext(ctx).bind("news", ctx.create_topic("village.news"))
        await InitialContext(ctx).bind("Anna", Queue(f"Anna@{ctx.node_id}"))
        assert await found == ctx.create_topic("village.news")
        assert await InitialContext(other).lookup("Anna", timeout=WITHIN_S) == Queue(f"Anna@{ctx.node_id}")
        full_name = f"Anna@{ctx.node_id}"
    async with there.create_context() as other:
        assert await InitialContext(other).list() == [full_name, "news"]


@scene
async def test_a_folder_that_another_process_uses_is_told(tmp_path: Path) -> None:
    async with Node(parse("", {}, {"udp": apart(), "node.data": str(tmp_path / "node")})):
        with pytest.raises(JMSException, match="the node cannot start: a node is already running in"):
            _ = await factory(tmp_path, attach=False).create_context()
    async with factory(tmp_path).create_context():
        pass


def folder(path: Path) -> NodeFolder:
    """Return the folder of the node of `factory`."""
    found = NodeFolder(parse("", {}, {"node.data": str(path / "node")}))
    found.create()
    return found


class Hurried(asyncio.SelectorEventLoop):
    """A loop on which twenty seconds pass in one, so that long waits are short."""

    def time(self) -> float:
        return super().time() * 20


def test_a_program_waits_for_a_node_that_starts_slowly(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def play() -> str | None:
        home, joining = folder(tmp_path), factory(tmp_path)
        with home.locked():  # As a node has it that does not answer yet.
            opening = asyncio.ensure_future(joining.create_context())
            await asyncio.sleep(10)
        opened = await opening
        await opened.close()
        return joining.mode

    with asyncio.Runner(loop_factory=Hurried) as runner:
        assert runner.run(play()) == "embedded"
    said = [record.getMessage() for record in caplog.records if record.name == "carrypost.jms"]
    assert said == [f"the node in {tmp_path / 'node'} is starting; trying again, up to 30 s"]


@pytest.mark.parametrize(("attach", "cause"), [(None, RunningError), (True, NoNodeError)])
def test_a_program_does_not_wait_for_ever_for_a_node_that_does_not_answer(
    tmp_path: Path, attach: bool | None, cause: type[Exception]
) -> None:
    async def play() -> None:
        with folder(tmp_path).locked():
            _ = await factory(tmp_path, attach=attach).create_context()

    told = rf"process {os.getpid()} uses the folder .*, and no node answered at .* within 30 s: try again later"
    with asyncio.Runner(loop_factory=Hurried) as runner, pytest.raises(JMSException, match=told) as caught:
        runner.run(play())
    assert isinstance(caught.value.__cause__, cause)


@scene
async def test_a_send_waits_while_the_disk_is_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    behind = [False]
    monkeypatch.setattr(NodeDriver, "overloaded", property(lambda _: behind[0]))
    async with asyncio.timeout(WITHIN_S), factory(tmp_path).create_context() as ctx:
        news = ctx.create_topic("news")
        producer = ctx.create_producer().set_delivery_mode(DeliveryMode.NON_PERSISTENT)
        stored = asyncio.create_task(ctx.create_producer().send(news, "on its way"))
        await asyncio.sleep(0)  # It is with the node, and the disk has not answered.
        behind[0] = True
        waiting = asyncio.create_task(producer.send(news, "later"))
        await asyncio.sleep(0)
        await stored
        assert not waiting.done()
        behind[0] = False
        node_answers = asyncio.create_task(ctx.create_producer().send(news, "one more"))
        await asyncio.gather(waiting, node_answers)


@scene
async def test_a_program_that_sends_in_a_loop_lets_others_go_on(tmp_path: Path) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with factory(tmp_path).create_context() as ctx:
        counting = asyncio.create_task(count())
        producer = ctx.create_producer().set_delivery_mode(DeliveryMode.NON_PERSISTENT)
        for _ in range(100):
            await producer.send(ctx.create_topic("news"), "x")
        counting.cancel()
    assert turns >= 3


@scene
async def test_a_node_without_messaging_says_so(tmp_path: Path) -> None:
    with pytest.raises(JMSException, match=r"messaging\.enabled = true"):
        _ = await factory(tmp_path, messaging={"enabled": False}).create_context()


def test_what_is_wrong_with_a_factory_is_told_when_it_is_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="altruistic"):
        ConnectionFactory(altruistisch=True)
    for wrong, meant in {"dta": "data", "clientid": "client_id", "pasword": "password", "udp_prt": "udp.port"}.items():
        given: dict[str, Any] = {wrong: "x"}
        with pytest.raises(ConfigError, match=rf"^{wrong} is not a setting; did you mean {meant}\?$"):
            ConnectionFactory(**given)
    with pytest.raises(ConfigError, match="cannot read the settings file"):
        ConnectionFactory(tmp_path / "none.toml")
    with pytest.raises(IllegalArgumentException, match="a client id"):
        ConnectionFactory(client_id="")
    with pytest.raises(IllegalArgumentException, match="privilege must be a function"):
        ConnectionFactory(privilege=3)  # type: ignore[arg-type]
    with pytest.raises(JMSSecurityException, match="no passwords"):
        _ = ConnectionFactory(data=tmp_path).create_context(user="anna", password="secret")  # noqa: S106 - refused


@scene
async def test_queues_are_used_between_real_nodes_and_a_request_survives_its_program(tmp_path: Path) -> None:
    shop = ConnectionFactory(data=tmp_path / "shop", udp=udp(tmp_path))
    guest = ConnectionFactory(data=tmp_path / "guest", udp=udp(tmp_path))
    async with asyncio.timeout(WITHIN_S):
        async with shop.create_context() as there:
            orders = await there.declare_queue("orders")
            async with guest.create_context() as here:
                await here.request(here.create_queue(orders.queue_name), "tea", time_to_live=600, correlation_id="1")
                inbox = await there.create_consumer(orders, prefetch=0)
                order = await inbox.receive()
            assert order is not None
            assert order.get_string_property("JMSXUserID") == order.get_string_property("JMS_carrypost_Author")
            async with guest.create_context() as here:
                await there.reply(order, f"{order.get_body(str)} for two")
                reply = await (await here.open_request("1")).reply()
                assert reply.get_body(str) == "tea for two"
                await here.create_producer().send(here.create_queue(orders.queue_name), "salt")
                browser = here.create_browser(here.create_queue(orders.queue_name))
                while not (found := [each.get_body(str) async for each in browser.messages(timeout=2)]):
                    pass
                assert found == ["salt"]
        async with shop.create_context() as there:
            inbox = await there.create_consumer(await there.declare_queue("orders"))
            assert await inbox.receive_body(str) == "salt"


@scene
async def test_receipts_come_from_real_nodes_and_are_found_by_the_next_program(tmp_path: Path) -> None:
    there = ConnectionFactory(data=tmp_path / "other", udp=udp(tmp_path))
    async with asyncio.timeout(WITHIN_S), there.create_context() as other:
        mail, news = await other.declare_queue("mail"), other.create_topic("news")
        letters, reports = await other.create_consumer(mail), await other.create_consumer(news)
        async with factory(tmp_path).create_context() as ctx:
            report = await ctx.create_producer().send(news, "hello", request_receipt=True)
            letter = await ctx.create_producer().send(mail, "hello")
            await reports.receive()
            await report.delivered()
            await letter.handed_over()
        await letters.receive()
        async with factory(tmp_path).create_context() as ctx:
            await (await ctx.sent(letter.message_id or "")).delivered()
            found = await ctx.sent(report.message_id or "")
            await found.delivered(timeout=1)


@scene
async def test_leaving_a_node_whose_store_is_gone_says_in_one_line_that_the_last_was_not_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncio.timeout(WITHIN_S), factory(tmp_path).create_context() as ctx:
        queue = await ctx.declare_queue("jobs")
        inbox = await ctx.create_consumer(queue)
        for number in range(3):
            await ctx.create_producer().send(queue, str(number))
        store = tmp_path / "node" / "store.sqlite"
        store.rename(store.with_name("elsewhere"))
        for _ in range(3):
            await inbox.receive()
            await asyncio.sleep(0)  # It is acknowledged.
    (record,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert f"the store {store} is gone" in record.message
    assert record.exc_info is None
