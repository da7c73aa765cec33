"""Blocking programs: the same classes as the asyncio API, the same names, parameters and documentation."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.blocking import WITHIN_S, context, factory, fresh
from tests.support.loopback import apart
from tests.support.waiting import eventually

import carrypost
from carrypost import (
    DeliveryMode,
    DeliveryTimeoutException,
    IllegalArgumentException,
    IllegalStateException,
    InvalidDestinationException,
    JMSException,
    MessageFormatException,
    Modulator,
    SendState,
    SessionMode,
    UnitWarning,
    classic,
    here,
    most_receiving,
    naming,
    sync,
    testing,
)
from carrypost.java_names import is_java_name
from carrypost.jms import durations, listener_calls
from carrypost.security.identity import Identity
from carrypost.sync import classic as blocking_classic
from carrypost.sync.blocking_calls import reworded

__all__ = ["context", "factory"]
Make = Callable[..., sync.Context]
SHARED = {"ConnectionMetaData", *(name for name in classic.__all__ if name.startswith("XA"))}
"""Classes of the classic API without calls that wait."""
PAIRS: list[tuple[type, type]] = [
    *((getattr(carrypost, name), getattr(sync, name)) for name in sync.__all__ if hasattr(carrypost, name)),
    *((getattr(naming, name), getattr(sync, name)) for name in ("InitialContext", "NamingContext")),
    *((getattr(classic, name), getattr(blocking_classic, name)) for name in classic.__all__ if name not in SHARED),
]


# --- the same text -------------------------------------------------------------------------------------------


def public(kind: type) -> dict[str, object]:
    names = {name for name in dir(kind) if not name.startswith("_") and not is_java_name(kind, name)}
    return {name: inspect.getattr_static(kind, name) for name in names}


@pytest.mark.parametrize(("awaited", "blocking"), PAIRS, ids=[kind.__name__ for _, kind in PAIRS])
def test_a_class_has_the_methods_parameters_and_documentation_of_the_awaited_one(awaited: type, blocking: type) -> None:
    theirs, ours = public(awaited), public(blocking)
    assert ours.keys() == theirs.keys()
    assert blocking.__doc__ == reworded(awaited.__doc__)
    for name, their in theirs.items():
        our = ours[name]
        if inspect.isfunction(their):
            assert inspect.isfunction(our), name
            assert inspect.signature(our).parameters == inspect.signature(their).parameters, name
            assert not inspect.iscoroutinefunction(our), name
        if their.__doc__ and not inspect.ismemberdescriptor(their):
            assert our.__doc__ == reworded(their.__doc__), name
            assert "await " not in (our.__doc__ or ""), name


def test_the_classic_api_has_the_same_classes_where_it_blocks() -> None:
    assert blocking_classic.__all__ == classic.__all__
    for name in SHARED:
        assert getattr(blocking_classic, name) is getattr(classic, name)


def test_all_classes_that_are_awaited_have_a_blocking_one() -> None:
    awaiting = {
        name
        for name in carrypost.__all__
        if inspect.isclass(kind := getattr(carrypost, name))
        and any(inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each) for each in vars(kind).values())
    }
    assert awaiting <= set(sync.__all__)


# --- what programs do ----------------------------------------------------------------------------------------


def test_a_program_sends_receives_and_iterates(context: Make) -> None:
    ctx, topic = context(), fresh()
    with ctx.create_consumer(topic) as inbox:
        sent = ctx.send(topic, "hello", properties={"n": 1})
        assert (sent.state, sent.is_tracked) == (SendState.STORED, False)
        message = inbox.receive(WITHIN_S)
        assert isinstance(message, sync.TextMessage)
        assert isinstance(message, carrypost.TextMessage)
        assert (message.text, message.get_int_property("n"), message.jms_message_id) == ("hello", 1, sent.message_id)
        producer = ctx.create_producer().set_delivery_mode(DeliveryMode.NON_PERSISTENT).set_property("n", 2)
        for number in range(100):
            producer.send(topic, str(number))
        assert [each.get_body(str) for each in inbox.messages(timeout=0.2)] == [str(number) for number in range(100)]
        assert inbox.receive_no_wait() is None
        assert inbox.receive_body(str, 0, default="none") == "none"
    with pytest.raises(IllegalStateException, match="this consumer is closed"):
        inbox.receive(0)


def test_an_iteration_that_ends_early_leaves_the_rest(context: Make) -> None:
    ctx, topic = context(), fresh()
    inbox = ctx.create_consumer(topic)
    for number in range(10):
        ctx.send(topic, str(number))
    seen = []
    for message in inbox:
        seen.append(message.get_body(str))
        if len(seen) == 3:
            break
    assert inbox.receive_body(str, WITHIN_S) == "3"
    assert [each.get_body(str) for each in inbox.messages(timeout=0.2)] == ["4", "5", "6", "7", "8", "9"]


@pytest.mark.parametrize("mode", SessionMode)
def test_what_an_iteration_took_counts_as_received_by_the_next_call(context: Make, mode: SessionMode) -> None:
    ctx, topic = context(mode), fresh()
    other = context()
    inbox = ctx.create_consumer(topic)
    for number in range(8):
        other.send(topic, str(number))
    seen: list[str | None] = []
    for message in inbox.messages(timeout=1):
        seen.append(message.get_body(str))
        if len(seen) == 3:
            (ctx.commit if ctx.transacted else ctx.acknowledge)()
        if len(seen) == 5:
            (ctx.rollback if ctx.transacted else ctx.recover)()
        if seen[-1] == "7":
            break
    again = ["3", "4"] if mode not in {SessionMode.AUTO_ACKNOWLEDGE, SessionMode.DUPS_OK_ACKNOWLEDGE} else []
    assert seen == ["0", "1", "2", "3", "4", *again, "5", "6", "7"]


def test_what_was_taken_is_acknowledged_soon_also_if_the_program_does_nothing_more(context: Make) -> None:
    """Look from another connection, since a call of this context would report it: 50 ms later the queue is empty."""
    ctx, name = context(), fresh("queue")
    ctx.declare_queue(name.removeprefix("queue/"))
    ctx.send(name, "x")
    inbox = ctx.create_consumer(name)
    taken = next(iter(inbox))
    batch = sync.blocking_calls.loop().batches[0]
    eventually(lambda: batch.is_over)
    assert taken.get_body(str) == "x"


def test_a_consumer_that_is_closed_or_stopped_gives_no_more_of_what_was_read_ahead(context: Make) -> None:
    ctx, topic = context(), fresh()
    with ctx.create_consumer(topic) as inbox:
        for number in range(4):
            ctx.send(topic, str(number))
        messages = inbox.messages(timeout=0.1)
        assert next(messages).get_body(str) == "0"
        ctx.stop()
        assert list(messages) == []
        ctx.start()
        messages = inbox.messages(timeout=WITHIN_S)
        assert next(messages).get_body(str) == "1"
    assert list(messages) == []


def test_a_message_that_expires_in_the_program_s_thread_is_not_given(context: Make) -> None:
    ctx, topic = context(), fresh()
    inbox = ctx.create_consumer(topic)
    ctx.send(topic, "lasting")
    ctx.send(topic, "brief", time_to_live=0.3)
    ctx.send(topic, "last")
    seen = []
    for message in inbox.messages(timeout=0.1):
        seen.append(message.get_body(str))
        time.sleep(0.4)
    assert seen == ["lasting", "last"]


def test_messages_are_acknowledged_released_and_processed_by_plain_calls(context: Make) -> None:
    ctx, topic = context(SessionMode.INDIVIDUAL_ACKNOWLEDGE), fresh()
    inbox = ctx.create_consumer(topic)
    for text in ("a", "b", "c"):
        ctx.send(topic, text)
    first, second, third = (inbox.receive(WITHIN_S) for _ in range(3))
    assert first is not None
    assert second is not None
    assert third is not None
    assert ctx.create_text_message("own").acknowledge() is None
    first.acknowledge()
    second.release()
    with third.processing():
        pass
    back = inbox.receive(WITHIN_S)
    assert back is not None
    assert (back.get_body(str), back.jms_redelivered) == ("b", True)
    with pytest.raises(ZeroDivisionError), back.processing():
        raise ZeroDivisionError
    again = inbox.receive(WITHIN_S)
    assert again is not None
    assert again.get_body(str) == "b"
    ctx.recover()
    assert inbox.receive_body(str, WITHIN_S) == "b"


def test_a_loop_over_jobs_goes_on_after_a_failure(context: Make) -> None:
    ctx, topic = context(), fresh()
    with ctx.create_consumer(topic, acknowledge="individual") as inbox:
        for text in ("a", "b"):
            ctx.send(topic, text)
        done: list[tuple[str | None, bool]] = []
        for job in inbox.processing(timeout=WITHIN_S):
            with job as message:
                assert isinstance(message, sync.TextMessage)
                if message.text == "a" and not message.jms_redelivered:
                    raise ZeroDivisionError
                done.append((message.text, message.jms_redelivered))
            if len(done) == 2:
                break
        assert done == [("b", False), ("a", True)]
        with pytest.raises(KeyboardInterrupt):
            interrupt(inbox, ctx, topic)
        back = inbox.receive(WITHIN_S)
        assert back is not None
        assert (back.text, back.jms_redelivered) == ("c", True)
    with pytest.raises(IllegalStateException, match='acknowledge="individual"'):
        ctx.create_consumer(topic).processing()


def interrupt(inbox: sync.Consumer, ctx: sync.Context, topic: str) -> None:
    ctx.send(topic, "c")
    for job in inbox.processing():
        with job:
            raise KeyboardInterrupt


def test_transactions_commit_and_roll_back(context: Make) -> None:
    ctx, topic = context(SessionMode.SESSION_TRANSACTED), fresh()
    inbox = context().create_consumer(topic)
    with ctx.transaction():
        ctx.send(topic, "in")
    with pytest.raises(JMSException), ctx.transaction():
        _ = ctx.send(topic, "out"), ctx.send("nowhere", "x")
    drafted = ctx.send(topic, "out, too")
    ctx.rollback()
    assert drafted.state is SendState.FAILED
    assert [each.get_body(str) for each in inbox.messages(timeout=0.1)] == ["in"]


def test_what_lists_its_recipients_is_delivered_to_no_one_else(context: Make) -> None:
    ctx, topic, other = context(), fresh(), "a" * 26
    inbox = ctx.create_consumer(topic)
    assert ctx.send(topic, "theirs", recipients=[other]).state is SendState.STORED
    ctx.create_producer().send(topic, "theirs, too", recipients=(other, other))
    ctx.send(topic, "ours")
    assert [each.get_body(str) for each in inbox.messages(timeout=0.1)] == ["ours"]
    with pytest.raises(IllegalArgumentException, match="26 lower-case letters"):
        ctx.send(topic, "nobody's", recipients=["beth"])


def test_queues_browsers_names_and_temporary_destinations(context: Make) -> None:
    ctx, name = context(), fresh("queue").removeprefix("queue/")
    queue = ctx.declare_queue(name)
    for number in range(40):
        ctx.send(queue, str(number))
    with ctx.create_browser(queue) as browser:
        assert [each.get_body(str) for each in browser] == [str(number) for number in range(40)]
        assert next(iter(browser)).get_body(str) == "0"
        assert browser.age is not None
        assert 0 <= browser.age < WITHIN_S
    with pytest.raises(IllegalStateException, match="this browser is closed"):
        list(browser)
    names = sync.InitialContext(ctx)
    assert names.lookup(name) == queue
    found = names.discover(WITHIN_S)
    assert (found.names[f"{name}@{ctx.node_id}"], found.silent) == (queue, ())
    village = names.create_subcontext(f"{name}-village")
    village.bind("anna", queue)
    inner = names.lookup(f"{name}-village")
    assert isinstance(inner, sync.NamingContext)
    assert inner.list() == ["anna"]
    assert (f"{name}-village", inner.name) in [
        (each.name, each.bound.name) for each in names.list_bindings() if isinstance(each.bound, sync.NamingContext)
    ]
    mine = ctx.create_temporary_queue()
    ctx.send(mine, "x")
    mine.delete()
    ctx.create_temporary_topic().delete()
    with pytest.raises(IllegalArgumentException, match=r"a context of carrypost\.sync"):
        sync.InitialContext("nothing")  # type: ignore[arg-type]


def test_queues_are_placed_by_a_function_also_from_inside_a_listener(context: Make) -> None:
    ctx, name = context(), fresh("queue").removeprefix("queue/")
    assert ctx.declare_queue(name, placement=here) == ctx.declare_queue(name, placement=most_receiving)
    topic, made = fresh(), threading.Event()

    @ctx.listener(topic)
    def declare(_: object) -> None:
        ctx.declare_queue(f"{name}.2", placement=lambda _, node: node)
        made.set()

    ctx.start()
    ctx.send(topic, "x")
    assert made.wait(WITHIN_S)
    nobody = Identity.generate().node
    with pytest.raises(DeliveryTimeoutException, match=f"{nobody} did not answer in time"):
        ctx.declare_queue(name, placement=lambda _, __: nobody, timeout=0.1)


def test_channels_are_consumed_from_and_modulated_also_after_the_node_was_closed(tmp_path: Path) -> None:
    alone: dict[str, Any] = {"island": True, "overlay": {"enabled": True, "broker": True}, "udp": apart()}
    factory = sync.ConnectionFactory(data=tmp_path, client_id="c", **alone)
    with factory.create_context(SessionMode.SESSION_TRANSACTED) as ctx:
        flood = ctx.create_topic("flood", model="channel")
        inbox = ctx.create_durable_consumer(flood, "inbox", modulator=Modulator.named("synthetic", ratio=0.5))
        ctx.send(flood, "It rises")
        ctx.commit()
        first = inbox.receive(timeout=WITHIN_S)
        assert first is not None
        assert (first.get_body(str), first.jms_destination) == ("It r", flood)
        ctx.rollback()
        assert inbox.receive_body(str, timeout=WITHIN_S) == "It r"
        ctx.commit()
        inbox.set_modulator(None)
        ctx.send(flood, "It rises more")
        ctx.commit()
        eventually(lambda: inbox.overlay.home is not None)
        assert (inbox.overlay.home, inbox.overlay.hops, inbox.overlay.faults) == (ctx.node_id, 0, 0)
    with sync.ConnectionFactory(data=tmp_path, client_id="c", **alone).create_context() as ctx:
        again = ctx.create_durable_consumer("channel/flood", "inbox")
        assert again.receive_body(str, timeout=WITHIN_S) == "It rises more"


def test_requests_are_answered_and_followed(context: Make) -> None:
    ctx, topic, unheard = context(), fresh(), fresh()

    @ctx.responder(topic)
    def forecast(question: sync.Message) -> str:
        question.acknowledge()  # The commit of its reply does so, and this is no mistake.
        return f"{question.get_body(str)} sunny"

    ctx.start()
    assert ctx.ask(topic, "today", timeout=WITHIN_S).get_body(str) == "today sunny"
    request = ctx.request(topic, "tomorrow", time_to_live=WITHIN_S)
    assert request.sent is not None
    assert list(request.sent.states())[-1] is SendState.STORED
    assert request.reply().get_body(str) == "tomorrow sunny"
    with pytest.raises(IllegalStateException, match="no request"):
        ctx.open_request(request.correlation_id)
    with pytest.raises(DeliveryTimeoutException):
        ctx.ask(unheard, "anybody?", timeout=0.1)


def test_a_send_to_a_queue_is_followed_to_its_receiver(context: Make) -> None:
    ctx = context()
    queue = ctx.declare_queue(fresh("queue").removeprefix("queue/"))
    sent = ctx.send(queue, "x")
    waiting = threading.Thread(target=lambda: context().create_consumer(queue).receive(WITHIN_S))
    waiting.start()
    assert sent.delivered(WITHIN_S) is SendState.DELIVERED
    waiting.join()
    assert SendState.DELIVERED in list(sent.states())
    assert sent.message_id is not None
    assert ctx.sent(sent.message_id).state is SendState.DELIVERED


def test_recipients_that_have_a_message_are_told_one_by_one(tmp_path: Path) -> None:
    udp, topic = apart(), fresh()
    here, there = (sync.ConnectionFactory(data=tmp_path / name, udp=udp, acked_s=0.1) for name in ("here", "there"))
    with here.create_context() as ctx, there.create_context() as other:
        node = other.send(fresh(), "").descriptor.node  # type: ignore[union-attr]  # nothing waits for a commit
        inbox = other.create_consumer(topic)
        sent = ctx.send(topic, "hello", recipients=[node])
        acknowledgements = sent.acknowledgements()
        assert inbox.receive_body(str, WITHIN_S) == "hello"
        assert next(acknowledgements) == node
        assert sent.delivered(WITHIN_S) is SendState.DELIVERED
        assert list(acknowledgements) == [], "it was the last one"
        unheard = ctx.send(topic, "anybody?", recipients=["a" * 26], time_to_live=0.5)
        for wait in (lambda: unheard.delivered(WITHIN_S), lambda: next(unheard.acknowledgements())):
            with pytest.raises(DeliveryTimeoutException, match="EXPIRED"):
                wait()


# --- what goes wrong -----------------------------------------------------------------------------------------


def test_what_the_awaited_call_raises_is_raised(context: Make) -> None:
    ctx, topic = context(), fresh()
    inbox = ctx.create_consumer(topic)
    ctx.send(topic, b"bytes")
    with pytest.raises(MessageFormatException):
        inbox.receive_body(str, WITHIN_S)
    assert inbox.receive_body(bytes, WITHIN_S) == b"bytes"
    with pytest.raises(JMSException, match="no transactions"):
        ctx.commit()
    inbox.close()
    durations._warned.discard("receive")  # noqa: SLF001 - each call warns once per process
    with pytest.warns(UnitWarning), pytest.raises(IllegalStateException, match="closed"):
        inbox.receive(5_000)


def test_a_thread_that_runs_an_event_loop_cannot_block_it(context: Make) -> None:
    ctx, topic = context(), fresh()

    async def program() -> None:
        with pytest.raises(IllegalStateException, match="would block the event loop of this thread"):
            ctx.send(topic, "x")
        assert (await asyncio.to_thread(ctx.send, topic, "x")).state is SendState.STORED

    async def virtual_program() -> None:
        with pytest.raises(IllegalStateException, match="would block the event loop of this thread"):
            ctx.send(topic, "x")

    asyncio.run(program())
    testing.run(virtual_program)


def test_an_async_function_is_refused_as_a_listener(context: Make) -> None:
    ctx = context()

    async def listener(_: object) -> None: ...

    class Listener:
        async def on_message(self, _: object) -> None: ...

        async def on_completion(self, message: object) -> None: ...

        async def on_exception(self, message: object, exception: JMSException) -> None: ...

    for refused in (
        lambda: ctx.listener(fresh())(listener),
        lambda: ctx.set_exception_listener(listener),
        lambda: ctx.create_consumer(fresh()).set_message_listener(Listener()),
        lambda: ctx.create_producer().set_async(Listener()),
    ):
        with pytest.raises(IllegalArgumentException, match="calls plain functions"):
            refused()


def test_a_context_that_is_left_open_is_warned_of(factory: sync.ConnectionFactory) -> None:
    ctx = factory.create_context()
    inner = ctx._inner  # noqa: SLF001 - what a program cannot reach any more
    with pytest.warns(ResourceWarning, match="was not closed: use `with`"):
        ctx = None  # type: ignore[assignment]
    sync.Context(inner).close()


def test_the_caller_of_the_asyncio_api_stays_what_it_was() -> None:
    assert carrypost.ConnectionFactory._callers is listener_calls.Caller  # noqa: SLF001 - what blocking factories replace


def test_an_error_advises_as_blocking_programs_are_written(context: Callable[[], sync.Context]) -> None:
    ctx = context()
    with pytest.raises(InvalidDestinationException) as refused:
        ctx.send("queue/nowhere", "x")
    assert "`ctx.declare_queue('nowhere')`" in str(refused.value)
    assert "await" not in str(refused.value)
