"""ActiveMQ's own client for Java at a node: programs as they run at a broker.

`ROWS` names the rows of `docs/conformance.md` that each program asserts. Requirements that the client meets by itself,
without its node, are not named: conversions, messages that are read-only, connections that were not started.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.daemon.test_openwire_codec import CLASSES, VERSIONS, filled
from tests.support.java_agent import WAIT_S, Agent
from tests.support.java_programs import WAIT_MS, connected, java, port_of, process, raises, serving
from tests.support.nodes import scene
from tests.support.stomp_clients import free_port

from carrypost import ConnectionFactory
from carrypost.daemon.openwire import codec
from carrypost.daemon.openwire import commands as wire

AUTO, CLIENT, DUPS_OK, TRANSACTED, INDIVIDUAL = 1, 2, 3, 0, 4
EACH = 20
"""Messages that each program of `sharing` sends."""

SELECTORS = {
    28: ("quoted = 'it''s'", "quoted = 'IT''S'"),
    29: ("count = 3", "count = -3"),
    30: ("ratio = 25e-1", "ratio = 2.6"),
    31: ("flag = TRUE", "flag = FALSE"),
    32: ("count = 3 AND Count IS NULL", "Count = 3"),
    33: ("JMSType = 't' AND JMSPriority = 4 AND JMSCorrelationID = 'c'", "JMSType = 'u'"),
    34: ("JMSDeliveryMode = 'PERSISTENT'", "JMSDeliveryMode = 'NON_PERSISTENT'"),
    35: ("digits = '3'", "digits = 3"),
    36: ("count >= 3 AND count < 4 AND count <> 2", "count > 3"),
    38: ("count * 2 + 1 = 7", "count - 1 = 3"),
    39: ("count BETWEEN 2 AND 3", "count NOT BETWEEN 2 AND 3"),
    40: ("digits IN ('3', 'x')", "digits NOT IN ('3', 'x')"),
    41: ("quoted LIKE 'i_''%' AND escaped LIKE 'a!_b' ESCAPE '!'", "escaped LIKE '!_%' ESCAPE '!'"),
    42: ("absent IS NULL", "count IS NULL"),
    43: ("absent = 1 OR count = 3", "NOT (absent = 1)"),
    44: ("count = 0 AND count = 0 OR count = 3", "count = 0 AND (count = 0 OR count = 3)"),
    45: ("single <> 1.1", "single = 1.1"),
}
"""By row: a selector that matches the message of `selecting`, and one that does not."""


def text(message: Any) -> str:  # noqa: ANN401 - Java's
    assert message is not None, "nothing came"
    return str(message.getText())


def texts(consumer: Any, count: int) -> list[str]:  # noqa: ANN401 - Java's
    found = [text(consumer.receive(WAIT_MS)) for _ in range(count)]
    assert consumer.receive(100) is None
    return found


def is_same(found: Any, expected: Any) -> bool:  # noqa: ANN401 - Java's
    return type(found) is type(expected) and (
        list(found) == list(expected) if "[]" in str(type(found)) else found == expected
    )


# --- programs --------------------------------------------------------------------------------------------------


def jndi(port: int) -> None:
    """Find everything by names, and use a queue with a selector."""
    table = java().JClass("java.util.Hashtable")()
    for name, value in {
        "java.naming.factory.initial": "org.apache.activemq.jndi.ActiveMQInitialContextFactory",
        "java.naming.provider.url": f"tcp://127.0.0.1:{port}", "queue.jobs": "example.jobs", "topic.news": "news",
    }.items():  # fmt: skip
        table.put(name, value)
    context = java().JClass("javax.naming.InitialContext")(table)
    connection = context.lookup("ConnectionFactory").createConnection()
    connection.start()
    session = connection.createSession(False, AUTO)
    queue = context.lookup("jobs")
    urgent = session.createConsumer(queue, "level > 2 AND kind = 'a'")
    producer, message, start_ms = session.createProducer(queue), session.createMessage(), int(time.time() * 1_000)
    producer.setDisableMessageID(True)
    producer.setDisableMessageTimestamp(True)
    for level in (1, 3):
        message = session.createTextMessage(f"level {level}")
        message.setIntProperty("level", level)
        message.setStringProperty("kind", "a")
        producer.send(message)
    found = urgent.receive(WAIT_MS)
    assert (text(found), found.getIntProperty("level")) == ("level 3", 3)
    assert found.getJMSDestination().equals(queue)
    assert str(found.getJMSMessageID()) == str(message.getJMSMessageID()) != ""
    assert start_ms <= found.getJMSTimestamp() <= time.time() * 1_000
    assert found.getJMSExpiration() > found.getJMSTimestamp() + 60_000  # The node's, as the producer gave none.
    assert found.getJMSDeliveryMode() == 2
    assert urgent.receiveNoWait() is None
    urgent.close()
    for _ in range(2):
        assert [text(each) for each in session.createBrowser(queue).getEnumeration()] == ["level 1"]
    assert [text(each) for each in session.createBrowser(queue, "level = 7").getEnumeration()] == []
    connection.close()


def selecting(port: int) -> None:
    """Browse a queue with selectors of each kind."""
    with connected(port) as connection:
        session = connection.createSession(False, AUTO)
        queue, kind = session.createQueue("selecting"), java()
        session.createConsumer(queue, "absent = 1")  # Declares the queue, and gets nothing.
        message = session.createTextMessage("x")
        message.setJMSType("t")
        message.setJMSCorrelationID("c")
        message.setIntProperty("count", 3)
        message.setDoubleProperty("ratio", 2.5)
        message.setFloatProperty("single", kind.JFloat(1.1))
        message.setBooleanProperty("flag", True)
        for name, value in ("quoted", "it's"), ("digits", "3"), ("escaped", "a_b"):
            message.setStringProperty(name, value)
        session.createProducer(queue).send(message)
        for row, selectors in SELECTORS.items():
            browsers = [session.createBrowser(queue, each) for each in selectors]
            assert [len(list(each.getEnumeration())) for each in browsers] == [1, 0], row
            for each in browsers:
                each.close()


def topics(port: int) -> None:
    """Use wildcards, noLocal, a durable subscription over two connections, and a listener."""
    with connected(port, client="me") as connection, connected(port) as other:
        session, sender = connection.createSession(False, AUTO), other.createSession(False, AUTO)
        topic = session.createTopic("village.roads")
        wild = session.createConsumer(session.createTopic("village.>"))
        deaf = session.createConsumer(topic, None, True)
        durable = session.createDurableSubscriber(topic, "mine", "level > 1", False)
        session.createProducer(topic).send(session.createTextMessage("local"))
        message = sender.createTextMessage("far")
        message.setIntProperty("level", 2)
        sender.createProducer(sender.createTopic("village.roads")).send(message)
        first = wild.receive(WAIT_MS)
        assert (text(first), str(first.getJMSDestination().getTopicName())) == ("local", "village.roads")
        assert texts(wild, 1) == texts(deaf, 1) == texts(durable, 1) == ["far"]
        durable.close()
        message.setStringProperty("more", "x")
        sender.createProducer(topic).send(message)
        with raises("InvalidClientIDException"), connected(port, client="me"):
            pass
    with connected(port, client="me") as connection:
        session = connection.createSession(False, AUTO)
        again = session.createDurableSubscriber(topic, "mine", "level > 1", False).receive(WAIT_MS)
        assert (text(again), again.getStringProperty("more")) == ("far", "x")
    with connected(port, client="me") as connection:
        session, name = connection.createSession(False, AUTO), "a_B.9-" + "x" * 122
        session.unsubscribe("mine")
        durable = session.createDurableSubscriber(topic, name)
        with raises("JMSException"):
            session.unsubscribe(name)
        durable.close()
        session.unsubscribe(name)
        with raises("InvalidDestinationException"):
            session.unsubscribe(name)


def listening(port: int) -> None:
    """Get messages in a listener, and one of them again after an error."""
    came, all_came = list[tuple[str, bool, int]](), threading.Event()

    def on_message(message: Any) -> None:  # noqa: ANN401 - Java's
        count = int(message.getIntProperty("JMSXDeliveryCount"))
        came.append((text(message), bool(message.getJMSRedelivered()), count))
        if len(came) == 1:
            raise java().JClass("java.lang.RuntimeException")("once more")
        if len(came) == 3:
            all_came.set()

    with connected(port, "?jms.redeliveryPolicy.initialRedeliveryDelay=10") as connection:
        session = connection.createSession(False, AUTO)
        queue = session.createQueue("heard")
        consumer = session.createConsumer(queue)
        consumer.setMessageListener(java().JProxy("javax.jms.MessageListener", dict={"onMessage": on_message}))
        producer = session.createProducer(queue)
        for each in "ab":
            producer.send(session.createTextMessage(each))
        assert all_came.wait(WAIT_MS / 1_000)
    assert came == [("a", False, 1), ("a", True, 2), ("b", False, 1)]


def transacted(port: int) -> None:
    """Commit and roll back sends and receipts, together."""
    with connected(port, "?jms.redeliveryPolicy.initialRedeliveryDelay=10") as connection:
        session, outside = connection.createSession(True, TRANSACTED), connection.createSession(False, AUTO)
        incoming, outgoing = session.createQueue("in"), session.createQueue("out")
        consumer, results = session.createConsumer(incoming), outside.createConsumer(outgoing)
        outside.createProducer(incoming).send(outside.createTextMessage("work"))
        producer = session.createProducer(outgoing)
        for end, redelivered in (session.rollback, False), (session.commit, True):
            found = consumer.receive(WAIT_MS)
            assert (text(found), found.getJMSRedelivered()) == ("work", redelivered)
            producer.send(session.createTextMessage("done"))
            assert results.receive(50) is None
            end()
        assert texts(results, 1) == ["done"]
        assert consumer.receive(50) is None
        session.createProducer(session.createQueue("nowhere")).send(session.createTextMessage("lost"))
        producer.send(session.createTextMessage("not sent"))
        with raises("TransactionRolledBackException", "nowhere"):
            session.commit()
        assert results.receive(100) is None
        outside.createProducer(incoming).send(outside.createTextMessage("unfinished"))
        assert text(consumer.receive(WAIT_MS)) == "unfinished"
    with connected(port) as connection:
        found = connection.createSession(False, AUTO).createConsumer(incoming).receive(WAIT_MS)
        assert (text(found), found.getJMSRedelivered()) == ("unfinished", True)


def acknowledged(port: int) -> None:
    """Acknowledge by hand: all before, one alone, none; and a message that fails too often."""
    options = "?jms.redeliveryPolicy.initialRedeliveryDelay=10&jms.redeliveryPolicy.maximumRedeliveries=3"
    with connected(port, options) as connection:
        session = connection.createSession(False, CLIENT)
        queue = session.createQueue("byhand")
        consumer, producer = session.createConsumer(queue), session.createProducer(queue)
        for each in "abc":
            producer.send(session.createTextMessage(each))
        first = consumer.receive(WAIT_MS)
        assert text(first) == "a"
        assert text(consumer.receive(WAIT_MS)) == "b"
        session.recover()
        again = consumer.receive(WAIT_MS)
        assert (text(again), again.getJMSRedelivered()) == ("a", True)
        again.acknowledge()
        assert text(consumer.receive(WAIT_MS)) == "b"
        session.close()
        single = connection.createSession(False, INDIVIDUAL)
        consumer = single.createConsumer(queue)
        found = [consumer.receive(WAIT_MS) for _ in range(2)]
        assert list(map(text, found)) == ["b", "c"]
        assert [bool(each.getJMSRedelivered()) for each in found] == [True, False]
        found[1].acknowledge()
        single.close()
        failing = connection.createSession(True, TRANSACTED)
        consumer = failing.createConsumer(queue)
        for _ in range(2):
            assert text(consumer.receive(WAIT_MS)) == "b"
            failing.rollback()
        assert consumer.receive(200) is None
        failing.commit()


def bodies(port: int) -> None:  # noqa: C901 - one after the other
    """Send each type of body, each type of value, and every header."""
    with connected(port) as connection, connected(port, "?jms.useCompression=true") as packed:
        for session in connection.createSession(False, AUTO), packed.createSession(False, AUTO):
            queue = session.createQueue("bodies")
            consumer, producer = session.createConsumer(queue), session.createProducer(queue)
            kind = java()
            full = session.createMapMessage()
            for name, value in (
                ("Boolean", True), ("Byte", kind.JByte(-1)), ("Char", kind.JChar("ü")), ("Short", kind.JShort(7)),
                ("Int", kind.JInt(-8)), ("Long", kind.JLong(2**40)), ("Float", kind.JFloat(0.5)),
                ("Double", kind.JDouble(1e300)), ("String", "nul \0 \U0001f600" * 100),
                ("Bytes", kind.JArray(kind.JByte)([1, -2])),
            ):  # fmt: skip
                getattr(full, f"set{name}")(name, value)
                if name not in ("Char", "Bytes"):
                    getattr(full, f"set{name}Property")(name, value)
            full.setObject("null", None)
            stream, plain, data = session.createStreamMessage(), session.createMessage(), session.createBytesMessage()
            stream.writeLong(kind.JLong(5))
            stream.writeString("x")
            data.writeUTF("bytes " * 100)
            for each in (full, stream, plain, data, session.createObjectMessage(kind.JClass("java.util.Date")(5)),
                         session.createTextMessage(), session.createTextMessage("t" * 10_000)):  # fmt: skip
                each.setJMSType("kind")
                each.setJMSCorrelationID("about")
                each.setJMSReplyTo(session.createTopic("answers"))
                each.setStringProperty("JMSXGroupID", "group")
                each.setIntProperty("JMSXGroupSeq", 3)
                producer.send(each, 1, 7, 100_000)
                got = consumer.receive(WAIT_MS)
                assert got.getClass().getSimpleName() == each.getClass().getSimpleName()
                for header in ("JMSMessageID", "JMSType", "JMSCorrelationID", "JMSReplyTo", "JMSPriority",
                               "JMSDeliveryMode", "JMSExpiration", "JMSDestination"):  # fmt: skip
                    assert getattr(got, f"get{header}")() == getattr(each, f"get{header}")(), header
                assert (got.getStringProperty("JMSXGroupID"), got.getIntProperty("JMSXGroupSeq")) == ("group", 3)
                for name in each.getPropertyNames():
                    assert is_same(got.getObjectProperty(name), each.getObjectProperty(name)), name
                if each is full:
                    for name in full.getMapNames():
                        assert is_same(got.getObject(name), full.getObject(name)), name
                elif each is stream:
                    assert (got.readLong(), got.readString()) == (5, "x")
                elif each is data:
                    assert got.readUTF() == "bytes " * 100
                elif each.getClass().getSimpleName() == "ActiveMQObjectMessage":
                    got.getContent()
                elif each.getClass().getSimpleName() == "ActiveMQTextMessage":
                    assert got.getText() == each.getText()
            session.close()


def requests(port: int) -> None:
    """Ask by requestors, answered by another connection; temporary topics; what is temporary is guarded."""
    with connected(port) as asking, connected(port) as answering:
        session, server = asking.createSession(False, AUTO), answering.createSession(False, AUTO)
        queue, asked = server.createQueue("questions"), server.createTopic("questions")
        consumer = server.createConsumer(queue)

        def answer(consumer: Any) -> None:  # noqa: ANN401 - Java's
            found = consumer.receive(WAIT_MS)
            reply = server.createTextMessage(f"re: {text(found)}")
            reply.setJMSCorrelationID(found.getJMSMessageID())
            server.createProducer(found.getJMSReplyTo()).send(reply)

        for domain, destination, inbox in ("Queue", queue, consumer), ("Topic", asked, server.createConsumer(asked)):
            thread = threading.Thread(target=answer, args=(inbox,))
            thread.start()
            asker = getattr(asking, f"create{domain}Session")(False, AUTO)
            requestor = java().JClass(f"javax.jms.{domain}Requestor")(asker, destination)
            question = session.createTextMessage("how?")
            reply = requestor.request(question)
            thread.join()
            assert text(reply) == "re: how?"
            assert str(reply.getJMSCorrelationID()) == str(question.getJMSMessageID())
            requestor.close()
        topic = session.createTemporaryTopic()
        inbox = session.createConsumer(topic)
        note = session.createTextMessage("note")
        note.setJMSReplyTo(topic)
        session.createProducer(queue).send(note)
        found = consumer.receive(WAIT_MS)
        server.createProducer(found.getJMSReplyTo()).send(server.createTextMessage("heard"))
        assert texts(inbox, 1) == ["heard"]
        with raises("JMSException"):
            topic.delete()
        inbox.close()
        topic.delete()
        with raises("InvalidDestinationException"):
            server.createConsumer(session.createTemporaryQueue())


def pulled(port: int) -> None:
    """Receive without a prefetch, and share a queue."""
    with connected(port, "?jms.prefetchPolicy.all=0") as connection:
        session = connection.createSession(False, AUTO)
        queue = session.createQueue("pulled")
        consumer, other = session.createConsumer(queue), session.createConsumer(queue)
        assert consumer.receiveNoWait() is None
        assert other.receive(50) is None
        producer = session.createProducer(queue)
        for each in "abcd":
            producer.send(session.createTextMessage(each))
        assert [text(each.receive(WAIT_MS)) for each in (consumer, other, consumer, other)] == list("abcd")
    with connected(port, "?jms.prefetchPolicy.all=2&jms.producerWindowSize=3000&jms.useAsyncSend=true") as connection:
        session = connection.createSession(False, AUTO)
        consumer, producer = session.createConsumer(queue), session.createProducer(queue)
        for number in range(30):
            producer.send(session.createTextMessage(str(number)))
        assert texts(consumer, 30) == list(map(str, range(30)))
    with connected(port, "?jms.prefetchPolicy.all=2") as connection:
        session = connection.createSession(False, CLIENT)
        consumer, producer = session.createConsumer(queue), session.createProducer(queue)
        for number in range(10):
            producer.send(session.createTextMessage(str(number)))
        found = [consumer.receive(WAIT_MS) for _ in range(10)]
        assert list(map(text, found)) == list(map(str, range(10)))
        found[-1].acknowledge()
    with connected(port) as connection:
        session = connection.createSession(False, DUPS_OK)
        assert list(session.createBrowser(queue).getEnumeration()) == []
        session.createProducer(queue).send(session.createTextMessage("waiting"))  # The queue has no consumer now.
        assert texts(session.createConsumer(queue), 1) == ["waiting"]
    with connected(port) as connection:
        session = connection.createSession(False, AUTO)
        assert list(session.createBrowser(queue).getEnumeration()) == []


def refused(port: int) -> None:
    """Do what a node refuses."""
    with connected(port) as connection:
        session = connection.createSession(False, AUTO)
        with raises("InvalidSelectorException"):
            session.createConsumer(session.createQueue("jobs"), "JMSXDeliveryCount > 1")
        with raises("InvalidDestinationException", "there is no queue 'nowhere'"):
            session.createProducer(session.createQueue("nowhere")).send(session.createMessage())
        with raises("InvalidDestinationException"):
            session.createBrowser(session.createQueue("nowhere")).getEnumeration().hasMoreElements()
        with raises("JMSException"):
            session.createDurableSubscriber(session.createTopic("x"), "mine")
        with raises("InvalidDestinationException"):
            session.createConsumer(session.createQueue("a,b"))
        with raises("JMSException"):
            session.createProducer(session.createTopic("x.>")).send(session.createMessage())
        with raises("IllegalStateException"):
            connection.createQueueSession(False, AUTO).createTopic("x")
    heard, news = list[str](), threading.Event()

    def on_exception(error: Any) -> None:  # noqa: ANN401 - Java's
        heard.append(str(error.getMessage()))
        news.set()

    with connected(port, "?jms.useAsyncSend=true") as connection:
        listener = java().JProxy("javax.jms.ExceptionListener", dict={"onException": on_exception})
        connection.setExceptionListener(listener)
        session = connection.createSession(False, AUTO)
        queue = session.createQueue("nowhere")
        producer = session.createProducer(queue)
        producer.send(session.createTextMessage("lost"))
        assert news.wait(WAIT_MS / 1_000)
        assert "there is no queue 'nowhere'" in heard[0]
        consumer = session.createConsumer(queue)  # This declares it.
        producer.send(session.createTextMessage("found"))
        assert texts(consumer, 1) == ["found"]


def many(port: int) -> None:
    """Open 100 consumers."""
    with connected(port) as connection:
        session = connection.createSession(False, AUTO)
        topic = session.createTopic("many")
        consumers = [session.createConsumer(topic) for _ in range(100)]
        session.createProducer(topic).send(session.createTextMessage("all"))
        assert {text(each.receive(WAIT_MS)) for each in consumers} == {"all"}


def alike(_port: int) -> None:
    """Read each class of command as OpenWire's own classes, of each version, and write it alike."""
    found = java()
    sequence = found.JClass("org.apache.activemq.util.ByteSequence")
    names = "BrokerInfo", "WireFormatInfo", "ConnectionControl", "Destination", "Message", "MessageDispatch"
    odd = tuple(getattr(wire, each) for each in names)
    for version in VERSIONS:
        form = found.JClass("org.apache.activemq.openwire.OpenWireFormat")(version)
        for flag in ("CacheEnabled", "TightEncodingEnabled", "StackTraceEnabled"):
            getattr(form, f"set{flag}")(False)
        for kind in [each for each in CLASSES if not issubclass(each, odd)]:  # Those refuse random values.
            for seed in range(3):
                data = codec.encode(filled(kind, random.Random(seed)), version)
                read = form.unmarshal(sequence(found.JArray(found.JByte)(data)))
                written = form.marshal(read)
                first = written.getOffset()
                again = bytes(bytearray(written.getData()[first : first + written.getLength()]))
                assert again == data, (kind, version, read)


def outliving(port: int) -> None:
    """Send and receive while the node is killed and starts again."""
    url = "failover:(tcp://127.0.0.1:{port})?initialReconnectDelay=50&maxReconnectDelay=200&timeout=60000"
    with connected(port, url=url) as connection:
        session = connection.createSession(False, AUTO)
        queue = session.createQueue("jobs")
        consumer = session.createConsumer(queue)
        producer = connection.createSession(False, AUTO).createProducer(queue)
        for number in range(40):
            producer.send(session.createTextMessage(str(number)))
            time.sleep(0.03)
        found = [text(consumer.receive(WAIT_MS)) for _ in range(40)]
        assert found == list(map(str, range(40)))
        assert consumer.receive(200) is None


def sharing(port: int) -> list[str]:
    """Send to a queue that other programs use, too, and return what this one consumes before a message says "end"."""
    with connected(port, "?jms.prefetchPolicy.all=1") as connection:
        session, found = connection.createSession(False, AUTO), list[str]()
        queue = session.createQueue("shared")
        consumer, producer = session.createConsumer(queue), session.createProducer(queue)
        for number in range(EACH):
            producer.send(session.createTextMessage(f"{connection.getClientID()}/{number}"))
        session.createProducer(session.createQueue("ready")).send(session.createMessage())
        while (came := text(consumer.receive(WAIT_MS))) != "end":
            found.append(came)
            time.sleep(0.005)  # Else one program may consume all of them.
        return found


PROGRAMS = (jndi, selecting, topics, listening, transacted, acknowledged, bodies, requests, pulled, refused, many)
ROWS: dict[Callable[[int], object], tuple[int, ...]] = {
    jndi: (1, 2, 3, 4, 9, 27, 81, 104),
    selecting: (8, *SELECTORS),
    topics: (52, 58, 90, 91, 93, 94, 95, 96, 97),
    listening: (7, 25, 66, 102),
    transacted: (7, 60, 72),
    acknowledged: (67, 69, 77),
    bodies: (1, 2, 5, 8, 9, 10, 16, 23, 47, 87),
    requests: (6, 82, 85),
    pulled: (66, 67, 68, 70, 74, 78, 80, 84),
    refused: (26, 46, 63, 83, 103),
    many: (90,),
    outliving: (71,),
    sharing: (78,),
}
"""The rows of `tools/conformance.py` that each program shows; the tests below run all of these programs."""


@pytest.fixture(scope="module")
def agent() -> Iterator[Agent]:
    with Agent() as found:
        yield found


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.__name__)
def test_a_program_of_java_runs_as_it_does_at_a_broker(tmp_path: Path, program: Any, agent: Agent) -> None:  # noqa: ANN401
    @scene
    async def played() -> None:
        async with serving(tmp_path) as (server, _):
            await asyncio.to_thread(agent.run, program.__name__, port_of(server))

    played()


def test_activemq_reads_each_class_of_command_and_writes_it_alike(agent: Agent) -> None:
    agent.run("alike")


def test_javas_client_waits_for_a_node_that_is_killed_and_goes_on(tmp_path: Path, agent: Agent) -> None:
    port, errors = free_port(), list[BaseException]()

    def run() -> None:
        try:
            agent.run("outliving", port)
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    for lasts_s in (0.8, 0.4, 0.6, WAIT_S):
        with process(tmp_path, port):
            if not thread.ident:
                thread.start()
            thread.join(lasts_s)
    assert not thread.is_alive(), "the client waits for ever"
    assert not errors, errors[0]


def test_two_java_machines_and_a_python_program_share_a_queue_of_one_node(tmp_path: Path, agent: Agent) -> None:
    port = free_port()

    async def share() -> list[str]:
        """Do as the Java programs do; say "end" to each program when all have sent."""
        async with ConnectionFactory(data=tmp_path, attach=True, reconnect=False).create_context() as ctx:
            queue, found = await ctx.declare_queue("shared"), list[str]()
            ready = await ctx.create_consumer(await ctx.declare_queue("ready"))

            async def send() -> None:
                for _ in others:
                    assert await ready.receive(timeout=WAIT_S) is not None
                for each in (*(f"python/{number}" for number in range(EACH)), *["end"] * 3):
                    await ctx.send(queue, each)

            async with asyncio.TaskGroup() as tasks, ctx.create_consumer(queue, prefetch=1) as consumer:
                others = [tasks.create_task(asyncio.to_thread(each.run, "sharing", port)) for each in (agent, second)]
                tasks.create_task(send())
                while (came := await consumer.receive_body(str, timeout=WAIT_S)) != "end":
                    assert came is not None
                    found.append(came)
                    await asyncio.sleep(0.005)
            shares = [found, *(each.result() for each in others)]
            assert all(shares), "a program got nothing"
            assert await (await ctx.create_consumer(queue)).receive(timeout=0.1) is None
            return [each for share in shares for each in share]

    with process(tmp_path, port), Agent() as second:
        found = asyncio.run(share())
    assert set(Counter(found).values()) == {1}
    senders = Counter(each.rpartition("/")[0] for each in found)
    assert len(senders) == 3
    assert set(senders.values()) == {EACH}
