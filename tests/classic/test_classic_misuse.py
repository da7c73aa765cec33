"""Misuse of the classic API: closed objects, and input that no call takes. Each raises its own sentence."""

# ruff: noqa: SLF001 - the connections of sessions

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.classic_world import raised
from tests.support.jms_scenes import scene

from carrypost import (
    Context,
    DeliveryMode,
    IllegalArgumentException,
    IllegalStateException,
    InvalidClientIDException,
    InvalidDestinationException,
    JMSException,
    JMSSecurityException,
    MessageFormatException,
    TextMessage,
    Topic,
    testing,
)
from carrypost.classic import (
    Connection,
    InitialContext,
    MessageConsumer,
    MessageProducer,
    QueueBrowser,
    QueueConnection,
    QueueReceiver,
    QueueRequestor,
    QueueSender,
    QueueSession,
    Session,
    TopicConnection,
    TopicPublisher,
    TopicRequestor,
    TopicSession,
    TopicSubscriber,
    XAConnectionFactory,
)
from carrypost.java_names import is_java_name
from carrypost.jms.context_sessions import Openable
from carrypost.naming import NamingException

NEWS = Topic("news")
MESSAGE = TextMessage("x")
NONE: Any = None
ANY_TOPIC: Any = NEWS

# ------------------------------------------------------------------------------------------------- closed objects

OPENED: dict[type, Callable[[Any, Any, Any], Any]] = {
    MessageProducer: lambda s, _q, _t: s.create_producer(None),
    MessageConsumer: lambda s, _q, _t: s.create_consumer(NEWS),
    QueueBrowser: lambda s, _q, _t: s.create_browser("queue/box"),
    QueueSender: lambda _s, q, _t: q.create_sender(None),
    QueueReceiver: lambda _s, q, _t: q.create_receiver("queue/box"),
    TopicPublisher: lambda _s, _q, t: t.create_publisher(None),
    TopicSubscriber: lambda _s, _q, t: t.create_subscriber(NEWS),
    QueueRequestor: lambda s, _q, _t: QueueRequestor(s, "queue/box"),
    TopicRequestor: lambda s, _q, _t: TopicRequestor(s, NEWS),
    Session: lambda s, _q, _t: s,
    QueueSession: lambda _s, q, _t: q,
    TopicSession: lambda _s, _q, t: t,
    Connection: lambda s, _q, _t: s._connection,
    QueueConnection: lambda _s, q, _t: q._connection,
    TopicConnection: lambda _s, _q, t: t._connection,
}
"""Functions that return an object of each class, given a session, a queue session and a topic session."""
GIVEN: dict[str, tuple[Any, ...]] = {
    "send": (NEWS, MESSAGE), "publish": (NEWS, MESSAGE), "set_delivery_mode": (DeliveryMode.PERSISTENT,),
    "set_priority": (4,), "set_time_to_live": (0,), "set_delivery_delay": (0,), "set_disable_message_id": (True,),
    "set_disable_message_timestamp": (True,), "set_message_listener": (print,), "request": (MESSAGE, 1_000),
    "create_consumer": (NEWS,), "create_durable_subscriber": (NEWS, "x"), "create_durable_consumer": (NEWS, "x"),
    "create_shared_consumer": (NEWS, "x"), "create_shared_durable_consumer": (NEWS, "x"), "unsubscribe": ("x",),
    "create_browser": ("queue/box",), "create_queue": ("box",), "create_topic": ("x",), "declare_queue": ("x",),
    "create_sender": ("queue/box",), "create_receiver": ("queue/box",), "create_publisher": (NEWS,),
    "create_subscriber": (NEWS,), "set_client_id": ("x",), "set_exception_listener": (print,),
}  # fmt: skip
"""Arguments of calls that have any."""


def calls(kind: type) -> list[str]:
    """Return the public calls and attributes of a class, without constants and `close`."""
    return [
        name
        for name in dir(kind)
        if not name.startswith("_") and name != "close" and name.islower() and not is_java_name(kind, name)
    ]


CELLS = [(kind, name) for kind in OPENED for name in calls(kind)]


def test_there_are_enough_cells() -> None:
    assert len(CELLS) >= 180  # Each three times: closed itself, with its session, and with its connection.


async def use(found: object, name: str) -> None:
    """Read an attribute, or call a method, and await what that returns."""
    value = getattr(found, name)
    if inspect.ismethod(value):
        result: Any = value(*GIVEN.get(name, ()))
        if isinstance(result, Openable) or inspect.isawaitable(result):
            await result


@pytest.mark.parametrize("kind", OPENED)
@scene("a")
async def test_a_closed_object_raises_whatever_is_called(net: testing.Network, kind: type) -> None:
    for end in ("itself", "session", "connection"):
        sessions = [
            await (await net.connection("a", None, domain)).create_session() for domain in (None, "queue", "topic")
        ]
        if end == "itself":
            await sessions[0].declare_queue("box")
        found = OPENED[kind](*sessions)
        found = await found if isinstance(found, Openable) else found
        owner = getattr(found, "_session", found)
        connection = getattr(owner, "_connection", owner)
        closed = {"itself": found, "session": owner, "connection": connection}[end]
        await closed.close()
        await closed.close()
        for name in calls(kind):
            text = await raised(lambda name=name, found=found: use(found, name), IllegalStateException)  # type: ignore[misc]  # a lambda
            assert "is closed" in text, (end, name, text)
        await found.close()
        for session in sessions:
            await session._connection.close()  # type: ignore[attr-defined]


@scene("a")
async def test_messages_and_destinations_outlive_their_session(net: testing.Network) -> None:
    async with net.connection("a") as connection:
        session = await connection.create_session()
        message, topic = session.create_text_message("x"), session.create_topic("x")
        await session.close()
        message.set_text("y")
        assert (message.text, topic.topic_name) == ("y", "x")
        other = await connection.create_session()
        await other.create_producer(topic).send(message)


@scene("a")
async def test_a_connection_is_opened_before_it_is_used(net: testing.Network) -> None:
    connection = net.connection("a")
    assert "not open yet" in await raised(connection.create_session, IllegalStateException)
    assert await connection.__aenter__() is connection
    assert "open already" in await raised(connection.__aenter__, IllegalStateException)
    left = [connection.create_session()]
    with pytest.warns(RuntimeWarning, match="create_session was never awaited, so there is no session"):
        left.clear()
    text = await raised(lambda: connection.create_session().commit, IllegalStateException)
    assert text == "create_session must be awaited first: `session = await connection.create_session(…)`"
    await connection.close()
    never = net.connection("a")
    await never.close()
    assert "closed" in await raised(never.__aenter__, IllegalStateException)


@scene("a")
async def test_a_connection_that_is_closed_while_it_opens_is_closed(net: testing.Network) -> None:
    connection = net.connection("a")
    source = connection._inner_connection._source
    acquire = source.acquire

    async def slowly() -> Any:  # noqa: ANN401 - a provider
        await asyncio.sleep(1)
        return await acquire()

    source.acquire = slowly  # type: ignore[method-assign]
    opening = asyncio.ensure_future(connection.__aenter__())
    await asyncio.sleep(0)
    assert "being opened" in await raised(connection.__aenter__, IllegalStateException)
    await connection.close()
    assert "is closed" in await raised(lambda: opening, IllegalStateException)
    assert repr(connection) == "<Connection closed>"


@scene("a")
async def test_advice_for_a_queue_that_nobody_has_counts_in_milliseconds(net: testing.Network) -> None:
    async with net.connection("a") as connection:
        session = await connection.create_session()
        text = await raised(lambda: session.create_consumer("queue/nobody"), InvalidDestinationException)
        assert "`await session.declare_queue('nobody')`" in text
        assert "`await InitialContext().lookup('nobody', timeout=MILLISECONDS)`" in text


@scene("a")
async def test_an_enumeration_of_a_closed_session_speaks_of_sessions(net: testing.Network) -> None:
    async with net.connection("a") as connection:
        session = await connection.create_session()
        queue = await session.declare_queue("box")
        for _ in range(2):
            await session.create_producer(queue).send(MESSAGE)
        enumeration = session.create_browser(queue).enumeration
        await enumeration.next_element()
        await session.close()
        assert "this session is closed" in await raised(enumeration.next_element, IllegalStateException)


# ------------------------------------------------------------------------------------------------------ bad input

Bad = tuple[Callable[[Any], Any], type[JMSException], str]
WRONG_TIMES: list[tuple[Any, str]] = [(-1, "-1"), (1.5, "1.5"), ("10", "'10'"), (True, "True"), (10**16, "10000000")]
INPUT: dict[str, Bad] = {
    "a producer with a destination is given another": (
        lambda s: s.create_producer(NEWS).send(Topic("other"), MESSAGE), IllegalStateException, "to topic/news alone"),
    "a producer without a destination is given none": (
        lambda s: s.create_producer(None).send(MESSAGE), IllegalStateException, "has no destination of its own"),
    "a producer without a destination is given options alone": (
        lambda s: s.create_producer(None).send(MESSAGE, 2, 4, 0), IllegalStateException, "has no destination"),
    "a send without arguments": (
        lambda s: s.create_producer(None).send(), IllegalStateException, "no destination of its own"),
    "null as destination of a send": (
        lambda s: s.create_producer(None).send(None, MESSAGE), InvalidDestinationException, "must be a topic"),
    "null as message": (lambda s: s.create_producer(NEWS).send(None), MessageFormatException, "not None"),
    "a text as message": (lambda s: s.create_producer(NEWS).send("x"), MessageFormatException, "not 'x'"),
    "two of three options": (
        lambda s: s.create_producer(NEWS).send(MESSAGE, 2, 4), IllegalArgumentException, "all three or none, not 2"),
    "null as delivery mode": (
        lambda s: s.create_producer(NEWS).send(MESSAGE, None, 4, 0), IllegalArgumentException, "not None"),
    "a wrong delivery mode": (
        lambda s: s.create_producer(NEWS).send(MESSAGE, 7, 4, 0), IllegalArgumentException, "delivery_mode"),
    "a wrong priority": (
        lambda s: s.create_producer(NEWS).send(MESSAGE, 2, 10, 0), IllegalArgumentException, "0 to 9"),
    "a number as destination": (lambda s: s.create_producer(7), IllegalArgumentException, "not 7"),
    "null as destination of a consumer": (lambda s: s.create_consumer(None), InvalidDestinationException, "not None"),
    "null as queue of a browser": (lambda s: s.create_browser(None), InvalidDestinationException, "not None"),
    "null as topic of a subscriber": (
        lambda s: s.create_durable_subscriber(None, "x"), InvalidDestinationException, "not None"),
    "null as name of a subscription": (
        lambda s: s.create_durable_subscriber(NEWS, None), IllegalArgumentException, "name of a subscription"),
    "null as name of a queue": (lambda s: s.create_queue(None), IllegalArgumentException, "name of a queue"),
    "null as client id": (lambda s: s._connection.set_client_id(None), IllegalArgumentException, "a client id"),
    "a number as listener": (
        lambda s: listening(s, 7), IllegalArgumentException, "must be a function or have on_message, not 7"),
    "a number as exception listener": (
        lambda s: s._connection.set_exception_listener(7), IllegalArgumentException, "have on_exception, not 7"),
    "a requestor without deadline": (
        lambda s: QueueRequestor(s, "queue/box").request(MESSAGE), IllegalArgumentException, "must have a deadline"),
    "a requestor with deadline 0": (
        lambda s: TopicRequestor(s, NEWS).request(MESSAGE, 0), IllegalArgumentException, "must have a deadline"),
    "a requestor without message": (
        lambda s: TopicRequestor(s, NEWS).request(NONE, 10), IllegalArgumentException, "must be a message, not None"),
    "a requestor for queues with a topic": (
        lambda s: QueueRequestor(s, ANY_TOPIC), InvalidDestinationException, "a QueueRequestor must have a queue"),
    "a requestor for topics with a queue": (
        lambda s: TopicRequestor(s, "queue/box"), InvalidDestinationException, "a TopicRequestor must have a topic"),
    "a requestor without session": (
        lambda _: QueueRequestor(NONE, "queue/box"), IllegalArgumentException, "must have a session"),
    "a mode that there is not": (
        lambda s: s._connection.create_session(False, 77), IllegalArgumentException, "the mode of a session must be"),
    "XA": (lambda _: XAConnectionFactory(), JMSException, "not offered"),
    **{
        f"{given!r} as {what}": (call, IllegalArgumentException, shown)
        for given, shown in WRONG_TIMES
        for what, call in {
            "a timeout": lambda s, given=given: received(s, given),
            "a time to live": lambda s, given=given: s.create_producer(NEWS).set_time_to_live(given),
            "a delay": lambda s, given=given: s.create_producer(NEWS).set_delivery_delay(given),
            "the time to live of a send": lambda s, given=given: s.create_producer(NEWS).send(MESSAGE, 2, 4, given),
            "a deadline": lambda s, given=given: TopicRequestor(s, NEWS).request(MESSAGE, given),
        }.items()
    },
}  # fmt: skip


async def listening(session: Session, listener: Any) -> None:  # noqa: ANN401 - it is refused
    (await session.create_consumer(NEWS)).set_message_listener(listener)


async def received(session: Session, timeout: Any) -> None:  # noqa: ANN401, ASYNC109 - it is refused
    await (await session.create_consumer(NEWS)).receive(timeout)


@pytest.mark.parametrize("what", INPUT)
@scene("a")
async def test_bad_input_raises_its_own_sentence(net: testing.Network, what: str) -> None:
    call, kind, text = INPUT[what]
    async with net.connection("a") as connection:
        session = await connection.create_session()
        told = await raised(lambda: call(session), kind)
        assert text in told, told
        assert len(told) < 250


@scene("a")
async def test_a_cancelled_request_leaves_no_reply_for_the_next_one(net: testing.Network) -> None:
    async with net.connection("a") as connection:
        session, server = await connection.create_session(), await connection.create_session()
        questions, requestor = await server.create_consumer(NEWS), TopicRequestor(session, NEWS)
        await connection.start()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(requestor.request(session.create_text_message("1"), 60_000), 1)
        asked = asyncio.ensure_future(requestor.request(session.create_text_message("2"), 60_000))
        for wanted in ("1", "2"):
            question = await questions.receive(1_000)
            assert question is not None
            assert question.text == wanted
            with suppress(InvalidDestinationException):  # The first question has no place for a reply any more.
                await server.create_producer(None).send(question.jms_reply_to, server.create_text_message(wanted))
        assert (await asked).text == "2"


@scene("a")
async def test_a_requestor_needs_a_session_without_transactions(net: testing.Network) -> None:
    async with net.connection("a") as connection:
        session = await connection.create_session(True)
        assert "transacted" in await raised(lambda: TopicRequestor(session, NEWS), IllegalStateException)


@scene("a")
async def test_a_client_id_that_is_set_twice_late_or_taken_says_so(net: testing.Network) -> None:
    async with net.connection("a", "me") as first, net.connection("a") as second:
        assert "the client id 'me' already" in await raised(lambda: first.set_client_id("me"), IllegalStateException)
        assert "'me'" in await raised(lambda: second.set_client_id("me"), InvalidClientIDException)
        second.set_exception_listener(None)
        assert "before any other call" in await raised(lambda: second.set_client_id("you"), IllegalStateException)
        assert second.client_id is None
    with pytest.raises(InvalidClientIDException):
        async with net.connection("a", "me"), net.connection("a", "me"):
            pass


def test_a_session_of_another_loop_is_refused() -> None:
    kept: list[tuple[Session, MessageConsumer, MessageProducer]] = []

    async def one(net: testing.Network) -> None:
        connection = await net.connection("a")
        session = await connection.create_session()
        kept.append((session, await session.create_consumer(NEWS), session.create_producer(NEWS)))

        async def other() -> list[str]:
            session, consumer, producer = kept[0]
            calls = (
                session.commit,
                lambda: consumer.receive(1),
                lambda: producer.send(MESSAGE),
                session.create_message,
            )
            return [await raised(call, IllegalStateException) for call in calls]

        told = _in_a_loop_of_its_own(other)
        assert all(text.startswith("this session belongs to another event loop") for text in told)
        await connection.close()

    async def play() -> None:
        async with testing.network("a", seed=1) as net:
            await one(net)

    testing.run(play)


def _in_a_loop_of_its_own(work: Callable[[], Any]) -> list[str]:
    """Run something in another loop, in this thread, while the first one waits."""
    running = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    try:
        return asyncio.run(work())
    finally:
        asyncio._set_running_loop(running)


# ----------------------------------------------------------------------------------------------------------- JNDI


def properties(folder: Path, text: str | bytes) -> Path:
    path = folder / "jndi.properties"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("queu.orders = orders", r"unknown key 'queu\.orders'.*: the keys are java\.naming\.provider\.url"),
        ("queue. = orders", "unknown key 'queue.'"),
        ("queue.orders", r"line 1: 'queue\.orders' has no value: a line must be KEY = VALUE"),
        ("# a comment\n\nqueue.orders =", r"line 3: .* has no value"),
        ("queue.a = x\nqueue.a = y", r"line 2: 'queue\.a' was given before"),
        ("queue.a = \\u00zz", r"line 1: \\u must be followed by four hexadecimal digits"),
        (b"queue.a = \xff", "is not text in UTF-8"),
        ("java.naming.provider.url = nowhere", "is 'nowhere', and there is no such file or folder"),
        ("topic.news = a b", "a b"),
        ("queue.orders = a.*", "without wildcards"),
        ("topic.a = \\ud83d", r"line 1: \\ud83d is half of a character"),
        ("queue.a = x\ntopic.a = y", r"topic\.a: the name 'a' is taken"),
        ("queue.ConnectionFactory = x", r"the name 'ConnectionFactory' is taken"),
    ],
)  # fmt: skip
def test_a_damaged_properties_file_says_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | bytes, told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((NamingException, InvalidDestinationException), match=told):
        InitialContext(properties(tmp_path, text))


def test_an_environment_is_a_mapping_of_texts_or_a_file(tmp_path: Path) -> None:
    with pytest.raises(NamingException, match="nowhere cannot be read: No such file"):
        InitialContext(tmp_path / "nowhere")
    with pytest.raises(IllegalArgumentException, match="must be a mapping or a properties file, not 7"):
        InitialContext(7)  # type: ignore[arg-type]
    with pytest.raises(NamingException, match=r"must be text, not 'queue\.a': 7"):
        InitialContext({"queue.a": 7})  # type: ignore[dict-item]
    with pytest.raises(JMSSecurityException, match=r"Leave java\.naming\.security\.principal out"):
        InitialContext({"java.naming.security.principal": "scott"})
    with pytest.raises(IllegalArgumentException, match="there is no server to connect to"):
        asyncio.run(_factory({"java.naming.provider.url": "tcp://localhost:61616"}))
    with pytest.raises(NamingException, match="is '', and there is no such file or folder"):
        InitialContext({"java.naming.provider.url": ""})
    with pytest.raises(IllegalArgumentException, match="unix: must be followed by the path of a node's socket"):
        asyncio.run(_factory({"java.naming.provider.url": "unix:"}))
    with pytest.raises(JMSException, match="no node"):
        asyncio.run(_connected({"java.naming.provider.url": f"unix:{tmp_path}/socket"}))


async def _factory(environment: dict[str, str]) -> object:
    return await InitialContext(environment).lookup("ConnectionFactory")


async def _connected(environment: dict[str, str]) -> None:
    async with (await InitialContext(environment).lookup("ConnectionFactory")).create_connection():
        pass


def test_a_properties_file_is_read_as_java_reads_it(tmp_path: Path) -> None:
    text = (
        "# comment\n! comment\n\n  java.naming.factory.initial=org.example.Factory\n"
        "topic.a: first\ntopic.b second\ntopic.c = thi\\\n    rd\ntopic.gr\\u00fc\\u00dfe=gr\\u00fcn\n"
        "topic.x\\=y = fourth  \ntopic.z=a\\:b\n"
    )
    found = InitialContext(properties(tmp_path, text)).environment
    assert found == {
        "java.naming.factory.initial": "org.example.Factory", "topic.a": "first", "topic.b": "second",
        "topic.c": "third", "topic.grüße": "grün", "topic.x=y": "fourth", "topic.z": "a:b",
    }  # fmt: skip


def test_characters_and_lines_of_a_properties_file_are_those_of_java(tmp_path: Path) -> None:
    text = "\ufefftopic.a = \\ud83d\\ude00\r\njava.naming.factory.initial = x\u2028y\rtopic.b = \\\n  \\\n  z\n"
    found = InitialContext(properties(tmp_path, text)).environment
    assert found == {"topic.a": "\U0001f600", "java.naming.factory.initial": "x\u2028y", "topic.b": "z"}


def test_a_value_of_many_lines_is_read_in_linear_time(tmp_path: Path) -> None:
    path, begun = properties(tmp_path, "java.naming.factory.initial = " + "x\\\n" * 100_000), time.process_time()
    assert InitialContext(path).environment == {"java.naming.factory.initial": "x" * 100_000}
    assert time.process_time() - begun < 5


@scene("a")
async def test_lookups_at_a_time_share_one_connection_which_close_ends(net: testing.Network) -> None:
    opened: list[Context] = []

    class Names(InitialContext):
        async def _open(self) -> Context:
            await asyncio.sleep(1)
            opened.append(await net.context("a"))
            return opened[-1]

    names = Names({"queue.first": "first", "queue.second": "second"})
    await asyncio.gather(names.lookup("first"), names.lookup("second"))
    assert len(opened) == 1
    await names.close()
    other = Names()
    listing = asyncio.ensure_future(other.list())
    await asyncio.sleep(0)
    await other.close()
    assert "is closed" in await raised(lambda: listing, IllegalStateException)
    assert [repr(each) for each in opened] == ["<Context AUTO_ACKNOWLEDGE, closed>"] * 2


@scene("a")
async def test_a_timeout_may_be_a_timedelta(net: testing.Network) -> None:
    async with net.connection("a") as connection:
        session = await connection.create_session()
        consumer = await session.create_consumer(NEWS)
        assert await consumer.receive(timedelta(seconds=1)) is None


# ------------------------------------------------------------------------------------------------- nodes that end


@scene("a")
async def test_a_killed_node_ends_its_connections_which_can_still_be_closed(net: testing.Network) -> None:
    heard: list[JMSException] = []
    connection, bare = await net.connection("a"), await net.connection("a")
    connection.set_exception_listener(heard.append)
    session = await connection.create_session()
    consumer = await session.create_consumer(NEWS)
    await connection.start()
    receiving = asyncio.ensure_future(consumer.receive())
    await asyncio.sleep(1)
    net.kill("a")
    with pytest.raises(IllegalStateException, match="was killed"):
        await receiving
    await asyncio.sleep(1)
    assert len(heard) == 1
    assert "was killed" in await raised(lambda: session.create_producer(NEWS).send(MESSAGE), IllegalStateException)
    for each in (connection, bare):
        await each.close()
        assert "is closed" in await raised(each.start, IllegalStateException)
    net.restart("a")
    async with net.connection("a") as again:
        await again.create_session()


@scene("a")
async def test_an_exception_listener_may_close_its_connection(net: testing.Network) -> None:
    connection = await net.connection("a")
    session = await connection.create_session()

    async def close(_: JMSException) -> None:
        await connection.close()

    def fail(_: object) -> None:
        raise ValueError("no")

    connection.set_exception_listener(close)
    (await session.create_consumer(NEWS)).set_message_listener(fail)
    await connection.start()
    await session.create_producer(NEWS).send(MESSAGE)
    await net.run(3_600)
    assert "is closed" in await raised(connection.start, IllegalStateException)


@scene("a")
async def test_a_connection_that_is_not_closed_warns(net: testing.Network) -> None:
    left = [await net.connection("a")]
    with pytest.warns(ResourceWarning, match="<Connection open> was not closed"):
        left.clear()
