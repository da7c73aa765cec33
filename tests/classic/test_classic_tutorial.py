"""A tutorial program of JMS 1.1, ported by the rule of `docs/porting.md`: a shop, its storehouse and its accounts."""

from __future__ import annotations

import json
import threading
from pathlib import Path

from tests.support.loopback import apart

from carrypost import DeliveryMode, JMSException, MapMessage, Message, Queue, Topic
from carrypost.sync.classic import Connection, InitialContext, MessageConsumer, MessageProducer, Session


class Shop:
    """Sends orders in a transaction, and waits for confirmations on a temporary queue."""

    def __init__(self, connection: Connection, orders: Queue) -> None:
        self.session = connection.create_session(True, Session.SESSION_TRANSACTED)
        self.producer = self.session.create_producer(orders)
        self.producer.set_delivery_mode(DeliveryMode.PERSISTENT)
        self.producer.set_time_to_live(3_600_000)
        self.confirmations = self.session.create_temporary_queue()
        self.consumer = self.session.create_consumer(self.confirmations)

    def order(self, item: str, quantity: int, *, cancel: bool = False) -> None:
        order = self.session.create_map_message()
        order.set_string("item", item)
        order.set_int("quantity", quantity)
        order.set_int_property("quantity", quantity)
        order.set_jms_type("order")
        order.set_jms_reply_to(self.confirmations)
        self.producer.send(order)
        if cancel:
            self.session.rollback()
        else:
            self.session.commit()

    def confirmed(self, count: int) -> list[str | None]:
        found = []
        for _ in range(count):
            message = self.consumer.receive(30_000)
            if message is None:
                break
            found.append(message.text)
        self.session.commit()
        return found


class Storehouse:
    """Consumes orders by a listener, confirms them, and publishes large ones."""

    def __init__(self, connection: Connection, orders: Queue, news: Topic) -> None:
        self.session = connection.create_session(False, Session.AUTO_ACKNOWLEDGE)
        self.replies: MessageProducer = self.session.create_producer(None)
        self.publisher: MessageProducer = self.session.create_producer(news)
        self.consumer: MessageConsumer = self.session.create_consumer(orders, "JMSType = 'order' AND quantity > 0")
        self.consumer.set_message_listener(self)
        self.handled = threading.Semaphore(0)

    def on_message(self, message: Message) -> None:
        assert isinstance(message, MapMessage)
        item, quantity = message.get_string("item"), message.get_int("quantity")
        confirmation = self.session.create_text_message(f"{quantity} x {item}")
        confirmation.set_jms_correlation_id(message.jms_message_id)
        self.replies.send(message.jms_reply_to, confirmation, DeliveryMode.NON_PERSISTENT, 4, 60_000)
        if quantity >= 10:
            event = self.session.create_text_message(f"many {item}")
            event.set_boolean_property("large", True)
            self.publisher.send(event)
        self.handled.release()


def test_a_tutorial_program_runs_as_it_did(tmp_path: Path) -> None:
    udp = "".join(f"{name} = {json.dumps(value)}\n" for name, value in apart().items())
    (tmp_path / "node.toml").write_text(f"[node]\ndata = {json.dumps(str(tmp_path / 'data'))}\n[udp]\n{udp}")
    (tmp_path / "jndi.properties").write_text(
        "java.naming.factory.initial = org.example.InitialContextFactory\n"
        f"java.naming.provider.url = {tmp_path / 'node.toml'}\nqueue.orders = shop.orders\ntopic.news = shop.news\n"
    )
    jndi = InitialContext(tmp_path / "jndi.properties")
    connection = jndi.lookup("ConnectionFactory").create_connection()
    problems: list[JMSException] = []
    connection.set_exception_listener(problems.append)
    try:
        orders, news = jndi.lookup("orders"), jndi.lookup("news")
        accounts = connection.create_session(False, Session.CLIENT_ACKNOWLEDGE)
        large = accounts.create_consumer(news, "large = TRUE")
        shop = Shop(connection, orders)
        shop.order("tea", 2)
        shop.order("coffee", 1, cancel=True)
        shop.order("salt", 12)

        browser = accounts.create_browser(orders)
        enumeration, waiting = browser.enumeration, []
        while enumeration.has_more_elements():
            waiting.append(enumeration.next_element().get_string_property("quantity"))
        assert waiting == ["2", "12"]

        storehouse = Storehouse(connection, orders, news)
        connection.start()
        assert shop.confirmed(2) == ["2 x tea", "12 x salt"]
        event = large.receive(30_000)
        assert event is not None
        assert event.text == "many salt"
        event.acknowledge()
        storehouse.handled.acquire(timeout=30)
        connection.stop()
        assert list(browser.enumeration) == []
        assert connection.meta_data.jms_major_version == 1
    finally:
        connection.close()
        jndi.close()
    assert problems == []
