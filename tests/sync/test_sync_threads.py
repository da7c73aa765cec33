"""Threads of blocking programs: Ctrl-C, listeners, forks, exits, and several threads on one context."""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar, cast

import pytest
from tests.support.blocking import WITHIN_S, context, factory, fresh, node_folder
from tests.support.waiting import eventually
from tests.support.ways import running

from carrypost import (
    DeliveryMode,
    IllegalStateException,
    InvalidDestinationException,
    JMSException,
    ListenerException,
    SessionMode,
)
from carrypost.jms.intake import Batch
from carrypost.jms.provider.local import LocalProvider
from carrypost.messaging.commands import Command, Recover
from carrypost.model.descriptor import Descriptor
from carrypost.sync import ConnectionFactory, Context, Message, blocking_calls

R = TypeVar("R")

__all__ = ["context", "factory"]
Make = Callable[..., Context]


@pytest.fixture(autouse=True)
def _ctrl_c_raises() -> Iterator[None]:
    """Let Ctrl-C raise, even if the tests were started with it ignored, as by `&` in a shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def program(text: str, folder: Path, *, limit_s: float = WITHIN_S) -> str:
    """Run a program in its own process, and return its output."""
    begun = "from carrypost.sync import ConnectionFactory\n"
    text = begun + text.replace("FACTORY", node_folder(folder))
    done = subprocess.run([sys.executable, "-W", "error", "-c", text], capture_output=True, text=True, timeout=limit_s)  # noqa: S603, PLW1510 - our own, seen below
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


# --- Ctrl-C --------------------------------------------------------------------------------------------------


def interrupted(context: Make, count: int, chance: random.Random, *, iterates: bool) -> tuple[list[int], int]:
    """Receive all numbers while Ctrl-C comes at random moments; return the numbers, and how often it interrupted."""
    ctx, sender, topic, hits = context(), context(), fresh(), 0
    inbox = ctx.create_consumer(topic)
    ends, raised = threading.Event(), threading.Semaphore(0)
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        for number in range(count):
            time.sleep(chance.random() * 0.01)
            sender.send(topic, str(number))
            time.sleep(chance.random() * chance.choice([0.0, 0.0002, 0.01]))
            signal.pthread_kill(main, signal.SIGINT)
            raised.acquire(timeout=10)  # Python notes only one signal that it has not handled yet.
        ends.set()

    seen: list[Message] = []
    message: Message | None = None
    thread = threading.Thread(target=interrupt)
    thread.start()

    def keep(message: Message | None) -> None:
        """Note a message that the program got, even if it was interrupted right then."""
        if message is not None and message not in seen[-1:]:
            seen.append(message)

    while True:
        try:  # Around everything that may be interrupted.
            if len(seen) == count and ends.is_set():
                break
            if iterates:
                for message in inbox.messages(timeout=1):
                    keep(message)
            else:
                message = inbox.receive(timeout=1)
            keep(message)
        except KeyboardInterrupt:
            hits += 1
            keep(message)
            raised.release()
    thread.join()
    return [int(each.get_body(str) or "") for each in seen], hits


@pytest.mark.parametrize("iterates", [False, True], ids=["receive", "for"])
def test_ctrl_c_in_a_waiting_receive_loses_nothing_and_repeats_nothing(context: Make, iterates: bool) -> None:
    seen, hits = interrupted(context, 20, random.Random(1), iterates=iterates)
    assert seen == list(range(20))
    assert hits == 20


@pytest.mark.soak
@pytest.mark.parametrize("iterates", [False, True], ids=["receive", "for"])
def test_ctrl_c_at_many_moments(context: Make, iterates: bool) -> None:
    seen, hits = interrupted(context, 200, random.Random(2), iterates=iterates)
    assert seen == list(range(200))
    assert hits == 200


def test_ctrl_c_while_something_opens_leaves_nothing_open(context: Make) -> None:
    ctx = context()
    queue = ctx.declare_queue(fresh("queue").removeprefix("queue/"))
    main = threading.main_thread().ident
    assert main is not None
    hits = 0
    for number in range(20):
        timer = threading.Timer(number * 0.0001, signal.pthread_kill, (main, signal.SIGINT))
        try:
            timer.start()
            with ctx.create_consumer(queue):
                timer.join()
                time.sleep(0.01)
        except KeyboardInterrupt:
            hits += 1
    assert hits == 20
    ctx.end_queue(queue)  # It would raise if a consumer were open.


def test_ctrl_c_that_ends_the_block_of_a_context_cuts_its_listeners_off(tmp_path: Path) -> None:
    said = program(
        "import os, signal, threading, time\n"
        "begun = threading.Event()\n"
        "try:\n"
        "    with FACTORY.create_context() as ctx:\n"
        "        @ctx.listener('topic/x')\n"
        "        def hang(_):\n"
        "            begun.set()\n"
        "            time.sleep(3_600)\n"
        "        ctx.start()\n"
        "        ctx.send('topic/x', 'x')\n"
        "        begun.wait()\n"
        "        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "        ctx.create_consumer('topic/y').receive()\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', ctx)\n",
        tmp_path,
    )
    assert said == "interrupted <Context AUTO_ACKNOWLEDGE, closed>\n"


# --- listeners -----------------------------------------------------------------------------------------------


ENDS: dict[str, Callable[[Context], None]] = {"close": Context.close, "stop": Context.stop, "drain": Context.drain}


@pytest.mark.parametrize("ends", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("place", ["listener", "decorated", "responder", "completion", "task"])
def test_a_listener_that_waits_for_itself_is_told(context: Make, ends: Callable[[Context], None], place: str) -> None:
    ctx, topic = context(), fresh()
    outcome: list[object] = []
    done = threading.Event()

    def end(*_: object) -> None:
        try:
            ends(ctx)
            outcome.append(None)
        except IllegalStateException as error:
            outcome.append(str(error))
        done.set()

    class Completion:
        on_completion = on_exception = end

    if place == "listener":
        ctx.create_consumer(topic).set_message_listener(end)
    elif place == "completion":
        ctx.create_producer().set_async(Completion()).send(topic, "x")
    elif place == "responder":
        ctx.responder(topic)(end)
    elif place == "task":
        ctx.listener(topic)(lambda _: asyncio.run(asyncio.to_thread(end)))
    else:
        ctx.listener(topic)(end)
    ctx.start()
    ctx.send(topic, "x")
    assert done.wait(WITHIN_S)
    (said,) = outcome
    assert "a completion listener cannot" in str(said) or "it would wait for itself" in str(said)


def test_each_session_has_a_thread_of_its_own_and_a_listener_may_block(context: Make) -> None:
    ctx, first, second = context(), fresh(), fresh()
    both = threading.Barrier(2, timeout=WITHIN_S)
    threads: list[str] = []
    done = threading.Semaphore(0)

    def meet(message: Message) -> None:
        both.wait()  # Neither would get here if one thread called both.
        threads.append(threading.current_thread().name)
        assert message.get_body(str) == ctx.create_text_message("x").text
        done.release()

    ctx.listener(first)(meet)
    ctx.listener(second)(meet)
    ctx.start()
    for topic in (first, second):
        ctx.send(topic, "x")
    assert done.acquire(timeout=WITHIN_S)
    assert done.acquire(timeout=WITHIN_S)
    assert threads == ["carrypost listeners"] * 2
    ctx.close()
    eventually(
        lambda: all(each.name != "carrypost listeners" for each in threading.enumerate()),
        "the threads of a closed context end",
    )


def test_start_raises_what_a_decorated_listener_failed_with(context: Make) -> None:
    ctx, name = context(), fresh("queue")
    done = threading.Event()
    ctx.listener(name)(lambda _: done.set())
    with pytest.raises(InvalidDestinationException, match=name.removeprefix("queue/")):
        ctx.start()
    ctx.declare_queue(name.removeprefix("queue/"))
    ctx.listener(name)(lambda _: done.set())
    ctx.start()
    ctx.send(name, "x")
    assert done.wait(WITHIN_S)


def test_listeners_of_one_context_are_called_one_at_a_time_in_order(context: Make) -> None:
    ctx, sender, topic = context(), context(), fresh()
    inside = threading.Lock()
    seen: list[str | None] = []
    done = threading.Event()

    def listen(message: Message) -> None:
        assert inside.acquire(blocking=False)
        time.sleep(0.001)
        seen.append(message.get_body(str))
        inside.release()
        if len(seen) == 40:
            done.set()

    for _ in range(2):
        ctx.create_consumer(topic).set_message_listener(listen)
    for number in range(20):
        sender.send(topic, str(number))
    assert done.wait(WITHIN_S)
    assert sorted(seen, key=str) == sorted((str(number) for number in [*range(20)] * 2), key=str)
    assert list(dict.fromkeys(seen)) == [str(number) for number in range(20)]


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), StopIteration()], ids=["error", "exit", "stop"])
def test_a_listener_that_fails_gets_the_message_again_until_it_is_given_up(
    context: Make, factory: object, error: BaseException
) -> None:
    assert factory is not None
    ctx, topic = context(SessionMode.SESSION_TRANSACTED), fresh()
    told: list[JMSException] = []
    done = threading.Event()

    def fail(message: Message) -> None:
        if message.get_int_property("JMSXDeliveryCount") > 1:
            done.set()
            ctx.commit()
            return
        threading.Timer(0.05, ctx.rollback).start()
        raise error

    ctx.set_exception_listener(told.append)
    ctx.create_consumer(topic).set_message_listener(fail)
    context().send(topic, "x")
    assert done.wait(WITHIN_S)
    assert not any(isinstance(each, ListenerException) for each in told)


def test_a_drain_leaves_a_listener_that_never_returns_to_itself(context: Make) -> None:
    ctx, topic = context(), fresh()
    begun, ends = threading.Event(), threading.Event()

    @ctx.listener(topic)
    def hang(_: Message) -> None:
        begun.set()
        ends.wait()

    ctx.start()
    ctx.send(topic, "x")
    assert begun.wait(WITHIN_S)
    ctx.drain(timeout=0.1)
    with pytest.raises(IllegalStateException, match="closed"):
        ctx.send(topic, "y")
    ends.set()


# --- several threads -----------------------------------------------------------------------------------------


def test_two_threads_use_one_context(context: Make) -> None:
    ctx, topic = context(), fresh()
    inboxes = [ctx.create_consumer(topic) for _ in range(2)]
    seen: list[list[str | None]] = [[], []]

    def receive(at: int) -> None:
        for message in inboxes[at].messages(timeout=WITHIN_S):
            seen[at].append(message.get_body(str))
            if len(seen[at]) == 100:
                return

    threads = [threading.Thread(target=receive, args=(at,)) for at in range(2)]
    for thread in threads:
        thread.start()
    for number in range(100):
        ctx.send(topic, str(number))
    for thread in threads:
        thread.join(WITHIN_S)
    assert seen == [[str(number) for number in range(100)]] * 2


def test_two_threads_that_take_from_one_consumer_get_each_message_once(context: Make) -> None:
    ctx, sender, topic = context(), context(), fresh()
    inbox = ctx.create_consumer(topic)
    for number in range(200):
        sender.send(topic, str(number))
    seen: list[int] = []

    def receive() -> None:
        while len(seen) < 200:
            try:
                for message in inbox.messages(timeout=0.2):
                    seen.append(int(message.get_body(str) or ""))  # noqa: PERF401 - the other thread adds as well
            except IllegalStateException as error:
                assert "another task receives from this consumer" in str(error)  # noqa: PT017 - they take turns

    threads = [threading.Thread(target=receive) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WITHIN_S)
    assert sorted(seen) == list(range(200))


def test_what_one_thread_recovers_while_another_iterates_comes_again_and_nothing_is_lost(context: Make) -> None:
    ctx, sender, topic = context(SessionMode.CLIENT_ACKNOWLEDGE), context(), fresh()
    inbox = ctx.create_consumer(topic)
    for number in range(100):
        sender.send(topic, str(number), delivery_mode=DeliveryMode.NON_PERSISTENT)
    seen: set[str | None] = set()

    def recover() -> None:
        for _ in range(4):  # With a fifth the message that came each time would be given up.
            time.sleep(0.005)
            ctx.recover()

    thread = threading.Thread(target=recover)
    thread.start()
    for message in inbox.messages(timeout=1):
        seen.add(message.get_body(str))
        time.sleep(0.0005)
    thread.join()
    seen.update(message.get_body(str) for message in inbox.messages(timeout=0.2))
    assert seen == {str(number) for number in range(100)}


@pytest.mark.parametrize("ends", ["recover", "close", "stop"])
def test_what_is_read_ahead_while_another_thread_recovers_closes_or_stops_is_not_taken(
    context: Make, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """Let the second body come late, as a long one does over the socket of a node."""
    ctx, topic = context(SessionMode.CLIENT_ACKNOWLEDGE), fresh()
    inbox = ctx.create_consumer(topic)
    for number in range(3):
        ctx.send(topic, str(number))
    payload, execute = LocalProvider.payload, LocalProvider.execute
    waits, goes_on, reads = threading.Event(), threading.Event(), itertools.count()

    async def late(provider: LocalProvider, descriptor: Descriptor) -> bytes | None:
        if next(reads) == 1:
            waits.set()
            await asyncio.to_thread(goes_on.wait, WITHIN_S)
        return await payload(provider, descriptor)

    async def slow(provider: LocalProvider, command: Command[R]) -> R:
        if isinstance(command, Recover):
            goes_on.set()
            await asyncio.sleep(0.1)
        return await execute(provider, command)

    monkeypatch.setattr(LocalProvider, "payload", late)
    monkeypatch.setattr(LocalProvider, "execute", slow)
    seen: list[str | None] = []

    def iterate() -> None:
        for message in inbox.messages(timeout=WITHIN_S):
            seen.append(message.get_body(str))
            if len(seen) == 3:
                return

    thread = threading.Thread(target=iterate, daemon=True)
    thread.start()
    assert waits.wait(WITHIN_S)
    {"recover": ctx.recover, "close": inbox.close, "stop": ctx.stop}[ends]()
    goes_on.set()
    if ends == "stop":
        time.sleep(0.1)
        assert seen == []
        ctx.start()
    thread.join(WITHIN_S)
    assert not thread.is_alive()
    assert seen == ([] if ends == "close" else ["0", "1", "2"])
    ctx.send(topic, "a call that ends")


def test_an_error_before_a_call_begins_ends_that_call_and_no_other(context: Make) -> None:
    class Broken:
        is_over = False

        def report(self) -> None:
            if not self.is_over:
                self.is_over = True
                raise ZeroDivisionError

    ctx, topic = context(), fresh()
    blocking_calls.loop().batches.append(cast("Batch", Broken()))
    with pytest.raises(ZeroDivisionError):
        ctx.send(topic, "y")
    ctx.send(topic, "z")


def test_a_thread_that_waits_is_woken_when_another_closes(context: Make) -> None:
    ctx = context()
    inbox = ctx.create_consumer(fresh())
    threading.Timer(0.1, ctx.close).start()
    assert inbox.receive(WITHIN_S) is None


def test_threads_that_wait_hear_of_the_end_of_the_node(tmp_path: Path) -> None:
    told: list[JMSException] = []
    with running(tmp_path / "node", "-m", "carrypost", "node") as node:
        factory = ConnectionFactory(data=tmp_path / "node", attach=True, reconnect=False)
        with factory.create_context() as ctx:
            ctx.set_exception_listener(told.append)
            threading.Timer(0.2, node.kill).start()
            with pytest.raises(IllegalStateException, match="node"):
                ctx.create_consumer(fresh()).receive(WITHIN_S)
            with pytest.raises(IllegalStateException, match="node"):
                ctx.send(fresh(), "x")
    assert len(told) == 1


def test_an_iteration_that_ends_where_blocking_is_refused_is_quiet(context: Make) -> None:
    ctx, topic = context(), fresh()
    inbox = ctx.create_consumer(topic)
    for number in range(3):
        ctx.send(topic, str(number))
    messages = inbox.messages()
    assert next(messages).get_body(str) == "0"

    async def leave() -> None:
        messages.close()  # type: ignore[attr-defined]  # a generator has it

    asyncio.run(leave())
    assert inbox.receive_body(str, WITHIN_S) == "1"


# --- processes -----------------------------------------------------------------------------------------------


def test_a_process_that_was_forked_off_is_told(tmp_path: Path) -> None:
    said = program(
        "import os, carrypost\n"
        "with FACTORY.create_context() as ctx:\n"
        "    inbox = ctx.create_consumer('topic/x')\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        try:\n"
        "            ctx.send('topic/x', 'from the child')\n"
        "        except carrypost.IllegalStateException as error:\n"
        "            print(error, flush=True)\n"
        "        os._exit(0)\n"
        "    os.waitpid(child, 0)\n"
        "    ctx.send('topic/x', 'from the parent')\n"
        "    print(inbox.receive_body(str, 10))\n",
        tmp_path,
    )
    assert "carrypost.sync was used before this process was forked" in said
    assert said.endswith("\nfrom the parent\n")


def test_a_process_that_was_forked_before_is_free(tmp_path: Path) -> None:
    said = program(
        "import os\n"
        "child = os.fork()\n"
        "if child:\n"
        "    os.waitpid(child, 0)\n"
        "with FACTORY.create_context() as ctx:\n"
        "    inbox = ctx.create_consumer('topic/x')\n"
        "    ctx.send('topic/x', 'parent' if child else 'child')\n"
        "    print(inbox.receive_body(str, 10), flush=True)\n",
        tmp_path,
    )
    assert said == "child\nparent\n"


def test_what_is_open_when_the_program_ends_is_closed(tmp_path: Path) -> None:
    said = program(
        "from carrypost import DeliveryMode\n"
        "ctx = FACTORY.create_context()\n"
        "other = ctx.create_context()\n"
        "for number in range(100):\n"
        "    ctx.send('topic/x', str(number), delivery_mode=DeliveryMode.NON_PERSISTENT)\n"
        "import atexit\n"
        "print(ctx, end=' ')\n",
        tmp_path,
    )
    assert said == "<Context AUTO_ACKNOWLEDGE, open> "
    said = program(
        "with FACTORY.create_context() as ctx:\n"
        "    print(sum(1 for _ in ctx.create_consumer('topic/x').messages(timeout=0.5)))\n",
        tmp_path,
    )
    assert said == "100\n"  # On disk: the node was stopped as it should be.


def test_a_listener_that_never_returns_does_not_keep_the_program(tmp_path: Path) -> None:
    begun = time.monotonic()
    said = program(
        "import threading, time\n"
        "begun = threading.Event()\n"
        "ctx = FACTORY.create_context()\n"
        "@ctx.listener('topic/x')\n"
        "def hang(_):\n"
        "    begun.set()\n"
        "    time.sleep(3_600)\n"
        "ctx.start()\n"
        "ctx.send('topic/x', 'x')\n"
        "begun.wait()\n"
        "print('ends', flush=True)\n",
        tmp_path,
    )
    assert said == "ends\n"
    assert time.monotonic() - begun < WITHIN_S
