"""Circles and letters as programs of every kind use them on real nodes, and owners that are killed."""

from __future__ import annotations

import asyncio
import logging
import random
from pathlib import Path

import pytest
from tests.support.letters import SIGNED
from tests.support.loopback import apart
from tests.support.nodes import Node, Nodes, scene, until
from tests.support.stomp_clients import Raw, free_port

from carrypost import ConnectionFactory, Context, sync, testing
from carrypost.log.journal import SEALING
from carrypost.log.record import Record

PLANS = "circle/rescue/plans"


def attached(node: Node) -> Context:
    """Return a context of a program that is attached to a node."""
    return ConnectionFactory(f"unix:{node.control}", reconnect=False).create_context()


def blocking(control: str, queue: str) -> tuple[str, str | None, str | None]:
    """Do what a blocking program does: send to the circle and a letter; return how they were sealed, and the circle."""
    with sync.ConnectionFactory(f"unix:{control}").create_context() as ctx:
        (circle,) = ctx.circles.show()
        plan = ctx.send(ctx.create_topic("plans", circle="rescue"), "from a blocking program")
        letter = ctx.send(f"queue/{queue}", "a letter", sealed=True)
        return circle.name, plan.sealed, letter.sealed


@pytest.mark.soak
@scene
async def test_attached_blocking_and_stomp_programs_use_circles_and_letters(tmp_path: Path) -> None:
    port = free_port()
    async with Nodes(tmp_path, udp=apart(), altruistic=True) as nodes:
        (a,) = await nodes.start("a")
        (b,) = await nodes.start("b", stomp={"port": port, "open": True})
        async with attached(a) as here, attached(b) as there:
            await here.circles.found("rescue")
            await there.circles.join(await here.circles.invite("rescue"))
            inbox = await here.create_consumer(PLANS)
            box = (await here.declare_queue("box", sealed=True)).queue_name
            letters = await here.create_consumer(f"queue/{box}")
            client = await Raw.connect(f"127.0.0.1:{port}")
            client.write(f"SUBSCRIBE\nid:s\ndestination:/{PLANS}\nreceipt:s\n\n^")
            await client.take("RECEIPT")
            await a.meet(b)
            await here.send(PLANS, "from an attached program")
            assert (await client.take("MESSAGE")).body == b"from an attached program"

            async def known() -> bool:
                try:
                    return (await there.send(f"queue/{box}", "first", sealed=True)).sealed == "letter"
                except Exception:  # noqa: BLE001 - the key has not come yet
                    return False

            await until(known)
            assert await asyncio.to_thread(blocking, b.control, box) == ("rescue", "rescue", "letter")
            client.write(f"SEND\ndestination:/{PLANS}\n\nfrom a client of STOMP^")
            client.write(f"SEND\ndestination:/queue/{box}\n\nanother letter^")
            got = [await inbox.receive(timeout=30) for _ in range(3)]
            assert {(each.text, each.sealed) for each in got if each is not None} == {
                (text, "rescue")
                for text in ("from an attached program", "from a blocking program", "from a client of STOMP")
            }
            read = [await letters.receive(timeout=30) for _ in range(3)]
            assert {(each.text, each.sealed) for each in read if each is not None} == {
                (text, "letter") for text in ("first", "a letter", "another letter")
            }
        Raw.close_all()


async def killed_while_it_rotates(folder: Path, kills: int) -> None:
    """Kill an owner in the middle of `rotate`, again and again; in the end there is one epoch, which both can use.

    An epoch that was begun and answered is not lost.
    """
    chance, answered = random.Random(1), 0
    async with Nodes(folder, udp=apart(), altruistic=True) as nodes:
        a, b = await nodes.start("a", "b")
        async with attached(a) as here, attached(b) as there:
            await here.circles.found("rescue")
            await there.circles.join(await here.circles.invite("rescue"))
            await a.meet(b)
        for _ in range(kills):
            owner = nodes["a"]
            ctx = await ConnectionFactory(f"unix:{owner.control}", reconnect=False).create_context()
            rotating = [asyncio.create_task(ctx.circles.rotate("rescue")) for _ in range(3)]
            await asyncio.gather(*rotating[: chance.randrange(2)])
            await asyncio.sleep(chance.random() * 0.01)
            await owner.kill()
            answered += sum(each is None for each in await asyncio.gather(*rotating, return_exceptions=True))
            await ctx.close()
            await nodes.start("a")
        async with attached(nodes["a"]) as here, attached(b) as there:
            await here.circles.rotate("rescue")
            (mine,) = await here.circles.show()
            assert mine.epoch > answered + 1

            async def agreed() -> bool:
                (theirs,) = await there.circles.show()
                return (theirs.number, theirs.epoch, theirs.readable) == (mine.number, mine.epoch, True)

            await until(agreed)
            inbox = await there.create_consumer(PLANS)
            await here.send(PLANS, "after all")
            message = await inbox.receive(timeout=30)
            assert message is not None
            assert (message.text, message.sealed) == ("after all", "rescue")


@scene
async def test_an_owner_that_is_killed_while_it_rotates_has_one_epoch_in_the_end(tmp_path: Path) -> None:
    await killed_while_it_rotates(tmp_path, 3)


@pytest.mark.soak
@scene
async def test_an_owner_that_is_killed_often_while_it_rotates_has_one_epoch_in_the_end(tmp_path: Path) -> None:
    await killed_while_it_rotates(tmp_path, 200)


@pytest.mark.pure("looks into objects by vars")
def test_secrets_are_in_no_text_error_record_log_or_status(caplog: pytest.LogCaptureFixture) -> None:
    """Look for every secret of the stores, and every code, in all that people and other programs are shown."""
    caplog.set_level(logging.DEBUG)
    shown: list[object] = []

    async def play() -> None:
        record = Record()
        async with testing.network(
            "a", "b", seed=1, record=record, **SIGNED | {"sealing": {"closed": "rescue"}}
        ) as net:
            net.watch(lambda *told: shown.append(told))
            net.link("a", "b")
            net.found("a", "rescue")
            code, root = net.invite("a", "rescue"), net.host("a").circles.export("rescue")
            net.join("b", code)
            await net.run(30)
            async with net.context("a") as a, net.context("b") as b:
                box = (await b.declare_queue("box")).queue_name
                inbox = await b.create_consumer(PLANS)
                await net.run(30)
                shown.extend([await a.send(PLANS, "body"), await a.send(f"queue/{box}", "letter", label="label")])
                shown.append(await inbox.receive(timeout=30))
                net.rotate("a", "rescue")
                await net.run(60)
                for wrong in (code[:-1], "x", code[:40] + "2" + code[41:]):
                    with pytest.raises(Exception, match="code") as raised:
                        net.join("b", wrong)
                    shown.append(raised.value)
            for node in "ab":
                host = net.host(node)
                shown.extend([host.overview(), host.messaging.overview(), host.circles.views(), list(host.holding())])
                shown.extend([vars(host), *(vars(each) for each in vars(host).values() if hasattr(each, "__dict__"))])
                shown.append(host.closed.keys)
            shown.extend(record.json_lines())
            found = [
                value[at : at + 32]
                for node in "ab"
                for key, value in net._driver(node).store.state()  # noqa: SLF001 - the whole store
                if key[0] == SEALING and key[1][:1] in (b"E", b"K") and isinstance(value, bytes)
                for at in range(3, 4)
            ]
            assert len(found) >= 6
            text = repr(shown) + caplog.text
            for secret in [bytes.fromhex(root), *found]:
                assert secret.hex() not in text
                assert repr(secret)[2:-1] not in text
            assert code not in text

    testing.run(play)
