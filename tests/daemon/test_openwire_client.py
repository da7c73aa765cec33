"""OpenWire clients of nodes in virtual time: what each command does, and what is refused."""

from __future__ import annotations

import pytest
from tests.support.jms_scenes import got, scene
from tests.support.openwire_wire import TRANSCRIPTS, Node, Replay, Wire, place_of, transcript
from tests.support.stomp_wire import Wire as StompWire

from carrypost import BytesMessage, MapMessage, StreamMessage, TextMessage, testing
from carrypost.daemon.openwire import codec, receiving
from carrypost.daemon.openwire import commands as wire
from carrypost.daemon.openwire import server as client_module
from carrypost.jms.messages import ObjectMessage
from carrypost.jms.messages.values import Value
from carrypost.model.properties import ValueType

JOBS, NEWS = wire.QueueName("jobs"), wire.TopicName("news")
DELIVERED, POISON, STANDARD, REDELIVERED, INDIVIDUAL, EXPIRED = 0, 1, 2, 3, 4, 6
BEGIN, PREPARE, COMMIT, ROLLBACK = 0, 1, 2, 4


def failed(found: wire.Response, name: str, match: str = "") -> None:
    assert isinstance(found, wire.ExceptionResponse), found
    assert found.error is not None
    assert found.error[0] == f"javax.jms.{name}"
    assert match in found.error[1]


def done(found: wire.Response) -> None:
    assert type(found) is wire.Response, found


# --- transcripts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(each.stem for each in TRANSCRIPTS.glob("*.bin")))
def test_what_javas_client_said_once_is_answered_the_same(name: str) -> None:
    @scene("a")
    async def played(net: testing.Network) -> None:
        assert await Replay(Node(net, "a")).play(transcript(name)) > 5

    played()


# --- connecting ------------------------------------------------------------------------------------------------


@scene("a")
async def test_a_client_connects_with_the_highest_common_version(net: testing.Network) -> None:
    node = Node(net, "a")
    for offered, agreed in ((9, 9), (12, 12), (13, 12)):
        client = Wire(node)
        await client.say(wire.WireFormatInfo(version=offered))
        assert (await client.take(wire.WireFormatInfo)).version == agreed
    old = Wire(node)
    await old.say(wire.WireFormatInfo(version=8))
    assert old.ended
    assert not old.commands  # It does not speak what an error could be written in.


@scene("a")
async def test_a_wrong_password_is_refused_and_the_right_one_is_not(net: testing.Network) -> None:
    node = Node(net, "a")
    for password in (None, "wrong"):
        client = Wire(node, token="secret")  # noqa: S106 - no secret
        with pytest.raises(AssertionError, match="JMSSecurityException"):
            await client.connect(password=password)
        assert client.ended
    await Wire(node, token="secret").connect(password="secret")  # noqa: S106 - likewise


@scene("a")
async def test_a_client_id_is_one_connections_unless_the_client_made_it_up(net: testing.Network) -> None:
    node = Node(net, "a")
    await Wire(node).connect(client="me")
    with pytest.raises(AssertionError, match="InvalidClientIDException"):
        await Wire(node).connect(client="me")
    await Wire(node).connect(client="ID:x")
    await Wire(node).connect(client="ID:x")


@scene("a")
async def test_a_client_that_connects_again_takes_its_id_over(net: testing.Network) -> None:
    node = Node(net, "a")
    first, second = Wire(node), Wire(node)
    second.name = first.name
    await first.connect(client="me")
    await second.connect(client="me", reconnects=True)
    await first.error("JMSException", "connected again")
    done(await second.send(NEWS, "x"))


@scene("a")
async def test_commands_that_come_again_after_an_interruption_count_once(net: testing.Network) -> None:
    client = Wire(Node(net, "a"))
    await client.say(wire.WireFormatInfo(version=12))
    await client.take(wire.WireFormatInfo)
    await client.take(wire.BrokerInfo)
    await client.say(wire.ConnectionControl())  # `failover:` begins with it.
    connection = wire.ConnectionId(client.name)
    transaction = wire.LocalTransactionId(1, connection)
    for _ in range(2):
        done(await client.ask(wire.ConnectionInfo, connection=connection))
        done(await client.consume(1, NEWS))
        done(await client.ask(wire.DestinationInfo, connection=connection, destination=wire.TemporaryQueueName("t")))
        done(await client.ask(wire.TransactionInfo, transaction=transaction, kind=BEGIN))
    await client.say(client.text(NEWS, "x", transaction=transaction))
    done(await client.ask(wire.TransactionInfo, transaction=transaction, kind=COMMIT))
    assert (await client.message())[0] == "x"
    assert not client.commands


@scene("a")
async def test_a_connection_has_one_id(net: testing.Network) -> None:
    client = Wire(Node(net, "a"))
    await client.connect()
    await client.say(wire.ConnectionInfo(connection=wire.ConnectionId("another")))
    await client.error("JMSException", "the id of the first")


@scene("a")
@pytest.mark.parametrize(
    ("command", "match"),
    [
        (wire.SessionInfo(), "before the ConnectionInfo"), (wire.MessageDispatch(), "nothing that clients send"),
        (wire.TextMessage(), "before the ConnectionInfo"), (wire.ConnectionInfo(), "with the id"),
    ],
)  # fmt: skip
async def test_commands_that_come_too_early_end_the_connection(
    net: testing.Network, command: wire.Structure, match: str
) -> None:
    client = Wire(Node(net, "a"))
    await client.say(wire.WireFormatInfo(version=12))
    await client.say(command)
    await client.error("JMSException", match)


@pytest.mark.parametrize(
    "data",  # A ConnectionInfo, a KeepAliveInfo and a SessionInfo in the tight encoding of ActiveMQ 5.17.2
    [
        b"\0\0\0'\3\3\xff#\0\0\0\0\1x\0\x08ID:tight\0\nID:tight:0\0\1x\0\2me", b"\0\0\0\7\n\1\0\0\0\0\0",
        b"\0\0\0\x14\4\1.\0\0\0\0y\0\x08ID:tight\0\1",
    ],
)  # fmt: skip
@scene("a")
async def test_the_tight_encoding_which_was_not_agreed_upon_ends_the_connection(
    net: testing.Network, data: bytes
) -> None:
    client = Wire(Node(net, "a"))
    await client.say(wire.WireFormatInfo(version=12))
    await client.feed(data)
    await client.error("JMSException", "")


@scene("a")
async def test_invalid_bytes_end_one_connection_and_others_go_on(net: testing.Network) -> None:
    node = Node(net, "a")
    good, bad = Wire(node), Wire(node)
    await good.connect()
    await bad.connect()
    await bad.feed(b"\0\0\0\2\xfe\0")
    await bad.error("JMSException", "type 254")
    done(await good.send(NEWS, "x"))


# --- sending ---------------------------------------------------------------------------------------------------


@scene("a")
async def test_each_type_of_body_reaches_programs_in_python_and_back(net: testing.Network) -> None:
    client, context = Wire(Node(net, "a")), await net.context("a")
    await client.connect()
    consumer = await context.create_consumer(context.create_topic("news"))
    done(await client.consume(1, NEWS))
    text = client.text(NEWS, "Grüße", correlation="c", type="t", priority=7, group="g", group_sequence=3,
                       properties=codec.map_bytes({"level": (ValueType.SHORT, 5)}))  # fmt: skip
    await client.say(text)
    found = await got(consumer)
    assert isinstance(found, TextMessage)
    assert (found.text, found.jms_correlation_id, found.jms_type, found.jms_priority) == ("Grüße", "c", "t", 7)
    assert (found.properties["level"], found.properties["JMSXGroupID"], found.properties["JMSXGroupSeq"]) == (5, "g", 3)
    assert found.descriptor is not None
    assert found.descriptor.label == f"{client.name}:1:1:1"
    shown, dispatched = await client.message()
    assert shown == "Grüße"
    assert dispatched.message is not None
    assert dispatched.message.id is not None
    assert dispatched.message.id.text == found.descriptor.label
    producer = context.create_producer()
    values = [Value(ValueType.INT, 5), Value(ValueType.STRING, "x")]
    for message, kind, content in (
        (MapMessage({"a": 1}), wire.MapMessage, codec.map_bytes({"a": (ValueType.INT, 1)})),
        (StreamMessage([5, "x"]), wire.StreamMessage, codec.stream_bytes(values)),
        (BytesMessage(b"\0x"), wire.BytesMessage, b"\0x"),
    ):  # fmt: skip
        await producer.send(context.create_topic("news"), message)
        dispatched = await client.take(wire.MessageDispatch)
        assert type(dispatched.message) is kind
        assert dispatched.message.content == content
        assert (await got(consumer)).payload == message.payload
        assert dispatched.message.id is not None
        id_ = wire.MessageId(None, wire.ProducerId(client.name, 1, 2), dispatched.message.id.place)
        again = kind(destination=NEWS, id=id_, content=content)
        await client.say(again)
        back = await got(consumer)
        assert (type(back), back.payload) == (type(message), message.payload)
        await client.take(wire.MessageDispatch)
    java = wire.ObjectMessage(destination=NEWS, id=wire.MessageId(None, wire.ProducerId(client.name, 1, 3), 1),
                              content=b"\xac\xed\0\5p")  # fmt: skip
    await client.say(java)
    back = await got(consumer)
    assert isinstance(back, ObjectMessage)
    assert back.object_name == "java"
    dispatched = await client.take(wire.MessageDispatch)
    assert isinstance(dispatched.message, wire.ObjectMessage)
    assert dispatched.message.content == b"\xac\xed\0\5p"
    await context.close()


@scene("a")
async def test_a_message_that_is_sent_again_is_stored_once(net: testing.Network) -> None:
    node = Node(net, "a")
    client, receiver = Wire(node), Wire(node)
    await client.connect()
    await receiver.connect()
    done(await receiver.consume(1, JOBS))
    message = client.text(JOBS, "once", persistent=True)
    message.command, message.answered = 1_000, True
    for _ in range(2):
        await client.say(message)  # The second one while the first is being stored.
    await client.take(wire.Response)
    await client.take(wire.Response)
    again = Wire(node)
    again.name = client.name
    await again.connect(reconnects=True)
    await again.say(message)
    done(await again.take(wire.Response))
    assert (await receiver.message())[0] == "once"
    await net.run(5)
    assert not receiver.commands


@scene("a")
async def test_expired_messages_are_dropped_and_dates_are_kept(net: testing.Network) -> None:
    client = Wire(Node(net, "a"))
    await client.connect()
    done(await client.consume(1, NEWS))
    now_ms = client.node.provider.now_us() // 1_000
    done(await client.send(NEWS, "late", expiration=now_ms - 1))
    done(await client.send(NEWS, "in time", expiration=now_ms + 5_001))
    text, found = await client.message()
    assert text == "in time"
    assert found.message is not None
    assert found.message.expiration == now_ms + 5_001


@scene("a")
async def test_what_cannot_be_sent_is_refused_and_the_connection_goes_on(net: testing.Network) -> None:
    client = Wire(Node(net, "a"))
    await client.connect()
    failed(await client.send(JOBS, "x"), "InvalidDestinationException", "so far. A consumer, or")
    failed(await client.send(wire.TopicName("a.>"), "x"), "InvalidDestinationException")
    failed(await client.send(wire.TopicName("a,b"), "x"), "InvalidDestinationException", "one topic or queue")
    failed(await client.send(wire.TopicName(None), "x"), "InvalidDestinationException")
    failed(await client.send(wire.TemporaryQueueName("ID:gone:1"), "x"), "InvalidDestinationException", "deleted")
    nested = codec.map_bytes({"a b": (ValueType.INT, 1)})
    failed(await client.send(NEWS, "x", properties=nested), "JMSException", "cannot be the name")
    char = codec.map_bytes({"c": (ValueType.CHAR, "x")})
    failed(await client.send(NEWS, "x", properties=char), "MessageFormatException")
    xa = wire.XATransactionId(1, b"a", b"b")
    failed(await client.send(NEWS, "x", transaction=xa), "JMSException", "XA is not offered")
    await client.say(client.text(JOBS, "x"))
    assert (await client.take(wire.ConnectionError_)).error
    done(await client.send(NEWS, "x"))
    await client.say(wire.TextMessage(destination=NEWS))
    await client.error("JMSException", "needs an id")


# --- receiving -------------------------------------------------------------------------------------------------


@scene("a")
async def test_a_consumer_has_no_more_than_its_prefetch_and_what_programs_have_makes_room(net: testing.Network) -> None:
    client = Wire(Node(net, "a"))
    await client.connect()
    done(await client.consume(1, JOBS, 2))
    for number in range(6):
        done(await client.send(JOBS, str(number)))
    found = [await client.message() for _ in range(2)]
    await net.run(2)
    assert not client.commands
    await client.acknowledge(found[1][1], DELIVERED)
    await client.acknowledge(found[1][1], DELIVERED)
    found += [await client.message() for _ in range(2)]
    await net.run(2)
    assert not client.commands
    await client.acknowledge(found[1][1], STANDARD)  # It made room already.
    await net.run(2)
    assert not client.commands
    await client.acknowledge(found[3][1], STANDARD)
    found += [await client.message() for _ in range(2)]
    assert [text for text, _ in found] == list("012345")


@scene("a")
async def test_acknowledgements_are_of_ones_own_messages(net: testing.Network) -> None:
    node = Node(net, "a")
    client, other = Wire(node), Wire(node)
    for each in (client, other):
        await each.connect()
        done(await each.consume(1, NEWS))
    done(await client.send(NEWS, "x"))
    _, mine = await client.message()
    _, theirs = await other.message()
    assert theirs.message is not None
    assert mine.message is not None
    for wrong in (
        {"last": theirs.message.id}, {"last": None}, {"last": wire.MessageId(None, None, 1, 1)},
        {"last": wire.MessageId(None, wire.ProducerId("ID:x"), 1, place_of(mine))},
    ):  # fmt: skip
        done_or = await client.ask(wire.MessageAck, consumer=client.consumer(1), kind=STANDARD, count=1, **wrong)
        failed(done_or, "IllegalStateException", "no such message")
    failed(
        await client.ask(wire.MessageAck, consumer=other.consumer(1), kind=STANDARD, last=theirs.message.id),
        "IllegalStateException", "closed",
    )  # fmt: skip
    await client.acknowledge(mine, INDIVIDUAL)
    failed(
        await client.ask(wire.MessageAck, consumer=client.consumer(1), kind=STANDARD, last=mine.message.id),
        "IllegalStateException",
    )


@scene("a")
async def test_what_a_closed_consumer_had_comes_again_marked_if_a_program_saw_it(net: testing.Network) -> None:
    client = Wire(Node(net, "a"))
    await client.connect()
    done(await client.consume(1, JOBS))
    for each in "abc":
        done(await client.send(JOBS, each))
    found = [await client.message() for _ in range(3)]
    await client.acknowledge(found[0][1])
    done(await client.ask(wire.RemoveInfo, object=client.consumer(1), delivered=place_of(found[1][1])))
    done(await client.consume(2, JOBS))
    again = [await client.message() for _ in range(2)]
    assert [(text, each.redelivered) for text, each in again] == [("b", 1), ("c", 0)]
    done(await client.ask(wire.RemoveInfo, object=wire.SessionId(client.name, 1), delivered=-1))
    done(await client.consume(3, JOBS))
    again = [await client.message() for _ in range(2)]
    assert [(text, each.redelivered) for text, each in again] == [("b", 1), ("c", 0)]
    await client.acknowledge(again[0][1], POISON, cause=("x", "broken"))
    await client.acknowledge(again[1][1], EXPIRED)
    context = await net.context("a")
    dead = await got(await context.create_consumer("queue/DLQ.jobs@a"))
    assert dead.properties["JMS_carrypost_DeadError"] == "broken"
    await context.close()


@scene("a")
async def test_one_message_is_pulled_or_its_absence_is_told_in_time(net: testing.Network) -> None:
    node = Node(net, "a")
    client, other = Wire(node), Wire(node)
    for each in (client, other):
        await each.connect()
        done(await each.consume(1, JOBS, 0))
    for timeout in (-1, 700):
        await client.say(wire.MessagePull(consumer=client.consumer(1), timeout=timeout))
        assert (await client.take(wire.MessageDispatch)).message is None
    done(await client.send(JOBS, "x"))  # Given to the client that asked last, which waits no longer.
    await net.run(1)
    assert not client.commands
    await other.say(wire.MessagePull(consumer=other.consumer(1)))
    text, found = await other.message()
    assert text == "x"
    await other.acknowledge(found)
    await other.say(wire.ConsumerControl(consumer=other.consumer(1), prefetch=5))
    for text in "yz":
        done(await client.send(JOBS, text))
    assert [(await other.message())[0] for _ in range(2)] == list("yz")
    failed(await client.ask(wire.MessagePull, consumer=client.consumer(7)), "IllegalStateException")


@scene("a", "b")
async def test_a_queue_is_browsed_here_and_at_another_node(net: testing.Network) -> None:
    client, far = Wire(Node(net, "a")), Wire(Node(net, "b"))
    await client.connect()
    await far.connect()
    done(await client.consume(1, JOBS, 0))
    for each in "xy":
        done(await client.send(JOBS, each))
    for at, queue in ((client, JOBS), (far, wire.QueueName("jobs@a"))):
        await net.run(3)
        done(await at.consume(9, queue, browser=True))
        assert [(await at.message())[0] for _ in range(2)] == list("xy")
        assert (await at.take(wire.MessageDispatch)).message is None
    failed(await client.consume(8, wire.QueueName("none"), browser=True), "InvalidDestinationException")


@scene("a", "b")
async def test_temporary_destinations_of_other_nodes_are_announced_before_their_messages(net: testing.Network) -> None:
    asking, answering = Wire(Node(net, "a")), Wire(Node(net, "b"))
    await asking.connect()
    await answering.connect()
    advisory = wire.TopicName("ActiveMQ.Advisory.TempQueue,ActiveMQ.Advisory.TempTopic")
    done(await answering.consume(7, advisory))
    done(await answering.consume(1, NEWS))
    mine = wire.TemporaryQueueName(f"{asking.name}:1")
    made = {"connection": wire.ConnectionId(asking.name), "destination": mine}
    done(await asking.ask(wire.DestinationInfo, **made))
    done(await asking.ask(wire.DestinationInfo, **made))
    other = Wire(asking.node)
    await other.connect()
    failed(await other.ask(wire.DestinationInfo, **made), "IllegalStateException", "already")
    done(await asking.consume(1, mine))
    failed(await answering.consume(5, mine), "InvalidDestinationException", "only the connection")
    await net.run(5)
    for _ in range(2):
        done(await asking.send(NEWS, "how?", reply_to=mine))
    first, (_, second), (_, third) = (
        await answering.take(wire.MessageDispatch),
        *[await answering.message() for _ in "ab"],
    )
    assert first.message is not None
    assert first.message.about is not None
    assert first.consumer == answering.consumer(7)
    assert second.message is not None
    assert second.message.reply_to == first.message.about.destination
    assert isinstance(second.message.reply_to, wire.TemporaryQueueName)
    await answering.acknowledge(first)
    done(await answering.send(second.message.reply_to, "so"))
    text, found = await asking.message()
    assert (text, found.destination) == ("so", mine)
    assert found.message is not None
    assert found.message.destination == mine
    done(await asking.ask(wire.RemoveInfo, object=asking.consumer(1), delivered=-1))
    done(await asking.ask(wire.DestinationInfo, **made, operation=1))
    failed(await asking.send(mine, "x"), "InvalidDestinationException")
    assert third.message is not None


@scene("a", "b")
async def test_a_reply_that_names_the_nodes_id_names_the_clients_own(net: testing.Network) -> None:
    client, context = Wire(Node(net, "a")), await net.context("b")
    await client.connect()
    consumer = await context.create_consumer(context.create_topic("news"))
    replies = wire.TopicName("replies")
    await net.run(5)
    message = client.text(NEWS, "question", reply_to=replies)
    await client.say(message)
    question = await got(consumer)
    selector = f"JMSCorrelationID = '{client.name}:1:1:1'"
    done(await client.consume(1, replies, selector=selector))
    await net.run(5)
    assert question.jms_reply_to is not None
    assert question.jms_message_id != f"{client.name}:1:1:1"
    await context.create_producer().send(question.jms_reply_to, TextMessage("other"))
    answer = TextMessage("answer")
    answer.jms_correlation_id = question.jms_message_id
    await context.create_producer().send(question.jms_reply_to, answer)
    text, found = await client.message()
    assert text == "answer"
    assert found.message is not None
    assert found.message.correlation == f"{client.name}:1:1:1"
    await context.close()


@scene("a")
async def test_durable_subscriptions_need_a_client_id_and_end_when_they_are_removed(net: testing.Network) -> None:
    node = Node(net, "a")
    nameless, client = Wire(node), Wire(node)
    await nameless.connect()
    failed(await nameless.consume(1, NEWS, subscription="mine"), "IllegalStateException", "client id")
    await client.connect(client="me")
    done(await client.consume(1, NEWS, subscription="mine"))
    failed(await client.ask(wire.RemoveSubscriptionInfo, name="mine", client="me"), "IllegalStateException")
    done(await client.ask(wire.RemoveInfo, object=client.consumer(1), delivered=-1))
    done(await client.send(NEWS, "kept"))
    done(await client.consume(2, NEWS, subscription="mine"))
    assert (await client.message())[0] == "kept"
    done(await client.ask(wire.RemoveInfo, object=client.consumer(2), delivered=-1))
    done(await client.ask(wire.RemoveSubscriptionInfo, name="mine", client="me"))


# --- transactions ----------------------------------------------------------------------------------------------


@scene("a")
async def test_a_transaction_is_committed_whole_or_not_at_all(net: testing.Network) -> None:
    client = Wire(Node(net, "a"))
    await client.connect()
    done(await client.consume(1, JOBS))
    done(await client.consume(2, NEWS))
    done(await client.send(JOBS, "work"))
    _, work = await client.message()
    name = None
    for number, end in enumerate((ROLLBACK, COMMIT)):
        name = wire.LocalTransactionId(number, wire.ConnectionId(client.name))
        done(await client.ask(wire.TransactionInfo, transaction=name, kind=BEGIN))
        await client.say(client.text(NEWS, f"done {number}", transaction=name))
        await client.acknowledge(work, transaction=name)
        await net.run(1)
        assert not client.commands
        done(await client.ask(wire.TransactionInfo, transaction=name, kind=end))
    assert (await client.message())[0] == "done 1"
    done(await client.ask(wire.RemoveInfo, object=client.consumer(1), delivered=-1))
    done(await client.consume(3, JOBS))
    await net.run(2)
    assert not client.commands
    failed(await client.ask(wire.TransactionInfo, transaction=name, kind=COMMIT), "JMSException", "no transaction")
    failed(await client.ask(wire.TransactionInfo, transaction=name, kind=PREPARE), "JMSException", "XA")


@scene("a")
async def test_a_transaction_with_an_error_cannot_be_committed(net: testing.Network) -> None:
    client = Wire(Node(net, "a"))
    await client.connect()
    done(await client.consume(1, NEWS))
    done(await client.consume(2, JOBS))
    done(await client.send(JOBS, "work"))
    _, work = await client.message()

    async def begun(number: int) -> wire.LocalTransactionId:
        name = wire.LocalTransactionId(number, wire.ConnectionId(client.name))
        done(await client.ask(wire.TransactionInfo, transaction=name, kind=BEGIN))
        await client.say(client.text(NEWS, "not sent", transaction=name))
        return name

    name = await begun(1)
    await client.say(client.text(wire.QueueName("none"), "x", transaction=name))
    found = await client.ask(wire.TransactionInfo, transaction=name, kind=COMMIT)
    failed(found, "TransactionRolledBackException", "'none'")
    name = await begun(2)
    await client.say(wire.MessageAck(consumer=client.consumer(2), kind=STANDARD, transaction=name))
    await client.take(wire.ConnectionError_)
    found = await client.ask(wire.TransactionInfo, transaction=name, kind=COMMIT)
    failed(found, "TransactionRolledBackException", "no such message")
    name = await begun(3)
    await client.acknowledge(work, transaction=name)
    done(await client.ask(wire.RemoveInfo, object=client.consumer(2), delivered=-1))
    found = await client.ask(wire.TransactionInfo, transaction=name, kind=COMMIT)
    failed(found, "TransactionRolledBackException", "was closed")
    await net.run(2)
    assert not client.commands


# --- limits and ends -------------------------------------------------------------------------------------------


@scene("a")
async def test_what_a_client_may_have_open_is_bounded(net: testing.Network, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiving, "CONSUMERS_MAX", 2)
    client = Wire(Node(net, "a"), declares=False)
    await client.connect()
    failed(await client.consume(1, JOBS), "InvalidDestinationException")
    done(await client.consume(1, NEWS))
    done(await client.consume(2, NEWS))
    failed(await client.consume(3, NEWS), "ResourceAllocationException", "at most 2 consumers")
    advisories = wire.TopicName("ActiveMQ.Advisory.>")
    failed(await client.consume(4, advisories), "ResourceAllocationException", "at most 2 consumers")
    monkeypatch.setattr(client_module, "WINDOWS_MAX", 1)
    done(await client.ask(wire.ProducerInfo, producer=wire.ProducerId("x", 1, 1), window=9))
    refused = await client.ask(wire.ProducerInfo, producer=wire.ProducerId("x", 2, 1), window=9)
    failed(refused, "ResourceAllocationException", "at most 1 producers")


@scene("a")
async def test_a_client_that_does_not_read_gets_no_more_and_delays_nobody(net: testing.Network) -> None:
    node = Node(net, "a")
    slow, quick = Wire(node), Wire(node)
    for each in (slow, quick):
        await each.connect()
        done(await each.consume(1, NEWS))
    slow.reads.clear()
    for number in range(10):
        done(await quick.send(NEWS, str(number)))
    assert [(await quick.message())[0] for _ in range(10)] == list("0123456789")
    assert len(slow.commands) == 1
    slow.reads.set()
    assert [(await slow.message())[0] for _ in range(10)] == list("0123456789")


@scene("a")
async def test_a_client_that_ends_in_order_leaves_nothing_and_one_that_is_lost_leaves_marked_messages(
    net: testing.Network,
) -> None:
    node = Node(net, "a")
    for orderly in (True, False):
        client, other = Wire(node), Wire(node)
        await client.connect()
        done(await client.consume(1, JOBS))
        done(await client.send(JOBS, "x"))
        await client.message()
        if orderly:
            done(await client.ask(wire.RemoveInfo, object=wire.ConnectionId(client.name), delivered=-1))
            done(await client.ask(wire.ShutdownInfo))
            assert client.ended
        await client.client.close()
        await other.connect()
        done(await other.consume(1, JOBS))
        _, found = await other.message()
        assert bool(found.redelivered) is not orderly
        await other.acknowledge(found)
        await other.client.close()


@scene("a")
async def test_heartbeats_are_the_shorter_of_both_sides(net: testing.Network) -> None:
    client = Wire(Node(net, "a"))
    await client.connect()
    assert client.client.beats_ms == (20_000, 20_000)
    client.client.beat()
    await client.take(wire.KeepAliveInfo)
    done(await client.ask(wire.KeepAliveInfo))
    done(await client.ask(wire.FlushCommand))


@scene("a", "b")
async def test_stomp_and_openwire_clients_of_two_nodes_exchange_messages(net: testing.Network) -> None:
    java, stomp = Wire(Node(net, "a")), StompWire(net, "b")
    await java.connect()
    await stomp.connect()
    await stomp.feed("SUBSCRIBE\nid:1\ndestination:/topic/news\n\n^")
    done(await java.consume(1, wire.TopicName("replies")))
    await net.run(5)
    properties = codec.map_bytes({"level": (ValueType.SHORT, 5), "hot": (ValueType.BOOLEAN, True)})
    done(await java.send(NEWS, "Grüße", properties=properties, reply_to=wire.TopicName("replies")))
    frame = await stomp.message()
    assert (frame.body.decode(), frame.headers["level"], frame.headers["reply-to"]) == ("Grüße", "5", "/topic/replies")
    assert frame.headers["carrypost-types"] == "level=short,hot=boolean"
    await stomp.feed("SEND\ndestination:/topic/replies\nn:3\ncarrypost-types:n=long\n\nthanks^")
    text, found = await java.message()
    assert text == "thanks"
    assert found.message is not None
    assert codec.read_map(found.message.properties) == {"n": Value(ValueType.LONG, 3)}
