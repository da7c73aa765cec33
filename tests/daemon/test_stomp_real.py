"""Real STOMP clients at a real node: stomp.py with 1.1 and 1.2, stompman, and @stomp/stompjs where Node is present."""

from __future__ import annotations

import asyncio
import os
import queue
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import stomp
import stompman
from stomp.utils import Frame
from tests.support.nodes import PATIENCE_S, scene
from tests.support.stomp_clients import Process, node_process

EXAMPLE = Path(__file__).parents[2] / "examples" / "stomp_client.mjs"
VERSIONS = ("1.1", "1.2")
CONNECTIONS = {"1.0": stomp.Connection10, "1.1": stomp.Connection, "1.2": stomp.Connection12}
BEAT_MS = 300


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with node_process(tmp_path_factory.mktemp("node"), heart_beat_s=BEAT_MS / 1_000) as made:
        yield made


class Client(stomp.ConnectionListener):  # type: ignore[misc]  # stomp.py has no types
    """A client of stomp.py, and the frames that it gets."""

    def __init__(self, node: Process, version: str = "1.2", client_id: str = "", **options: object) -> None:
        self.messages, self.receipts = queue.Queue[Frame](), queue.Queue[str]()
        self.beats, self.ends = queue.Queue[str](), queue.Queue[str]()
        self._node, self._client_id, self._receipt = node, client_id, 0
        self.connection = CONNECTIONS[version]([("127.0.0.1", node.port)], **options)
        self.connection.set_listener("", self)
        self.connect()

    def connect(self) -> None:
        headers = {"client-id": self._client_id} if self._client_id else {}
        self.connection.connect("me", self._node.token, wait=True, headers=headers)

    def on_message(self, frame: Frame) -> None:
        self.messages.put(frame)

    def on_receipt(self, frame: Frame) -> None:
        self.receipts.put(frame.headers["receipt-id"])

    def on_heartbeat(self) -> None:
        self.beats.put("came")

    def on_heartbeat_timeout(self) -> None:
        self.ends.put("silent")

    def on_disconnected(self) -> None:
        self.ends.put("disconnected")

    def on_error(self, frame: Frame) -> None:
        self.ends.put(frame.headers["message"])

    def confirmed(self, function: Any, *args: object, **headers: object) -> None:  # noqa: ANN401 - a method of stomp.py
        """Call a function of the connection with a receipt, and wait for that."""
        self._receipt += 1
        more = headers.pop("headers", {})
        assert isinstance(more, dict)
        function(*args, **headers, headers={**more, "receipt": str(self._receipt)})
        assert self.receipts.get(timeout=PATIENCE_S) == str(self._receipt)

    def subscribe(self, destination: str, ack: str = "auto", id_: str = "s", **headers: object) -> None:
        self.confirmed(self.connection.subscribe, destination, id_, ack, headers=headers)

    def send(self, destination: str, *bodies: str, **headers: object) -> None:
        for body in bodies:
            self.confirmed(self.connection.send, destination, body, headers={"persistent": "true", **headers})

    def take(self, count: int = 1) -> list[Frame]:
        return [self.messages.get(timeout=PATIENCE_S) for _ in range(count)]

    def ack(self, frame: Frame, **headers: object) -> None:
        """Acknowledge a message as its version has it."""
        self._of(self.connection.ack, frame, **headers)

    def nack(self, frame: Frame, **headers: object) -> None:
        self._of(self.connection.nack, frame, **headers)

    def _of(self, function: Any, frame: Frame, **headers: object) -> None:  # noqa: ANN401 - likewise
        named = ["ack"] if "ack" in frame.headers else ["message-id", "subscription"]
        function(*(frame.headers[name] for name in named), **headers, receipt="said")
        assert self.receipts.get(timeout=PATIENCE_S) == "said"

    def disconnect(self) -> None:
        if self.connection.is_connected():
            self.connection.disconnect()
            while self.ends.get(timeout=PATIENCE_S) != "disconnected":
                pass


@contextmanager
def client(node: Process, version: str = "1.2", **options: Any) -> Iterator[Client]:  # noqa: ANN401 - as `Client` has them
    made = Client(node, version, **options)
    try:
        yield made
    finally:
        made.disconnect()


def bodies(frames: list[Frame]) -> list[str]:
    return [frame.body for frame in frames]


# --- stomp.py ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_stomp_py_selects_by_typed_properties_and_gets_back_what_it_sent(node: Process, version: str) -> None:
    text = "Grüße: a\\b\nc"
    with client(node, version) as one, client(node, "1.2" if version == "1.1" else "1.1") as other:
        other.subscribe(f"/topic/{version}.>", selector="level > 2 AND place = 'a:b\\\nc'")
        for level in (1, 3):
            headers = {"level": level, "place": "a:b\\\nc", "carrypost-types": "level=int", "x-y.z": "kept"}
            one.send(f"/topic/{version}.roads", f"{text} {level}", **headers)
        (frame,) = other.take()
        assert frame.body == f"{text} 3"
        told = {name: frame.headers[name] for name in ("level", "place", "carrypost-types", "x-y.z", "persistent")}
        assert told == {
            "level": "3", "place": "a:b\\\nc", "carrypost-types": "level=int", "x-y.z": "kept", "persistent": "true",
        }  # fmt: skip
        assert other.messages.empty()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("mode", "left"), [("auto", []), ("client", ["2", "3"]), ("client-individual", ["0", "2", "3"])]
)
def test_stomp_py_acknowledges_and_the_rest_comes_again(
    node: Process, version: str, mode: str, left: list[str]
) -> None:
    place = f"/queue/acks-{version}-{mode}"
    with client(node, version) as one:
        one.subscribe(place, mode)
        one.send(place, "0", "1", "2", "3")
        frames = one.take(4)
        assert bodies(frames) == ["0", "1", "2", "3"]
        if mode != "auto":
            one.ack(frames[1])
    with client(node, version) as other:
        other.subscribe(place, "client-individual")
        other.send(place, "last")
        frames = other.take(len(left) + 1)
        assert sorted(bodies(frames)) == [*left, "last"]
        other.nack(frames[0])
        assert other.take()[0].headers["redelivered"] == "true"


@pytest.mark.parametrize("version", VERSIONS)
def test_stomp_py_transacts_over_two_subscriptions(node: Process, version: str) -> None:
    places = [f"/queue/{name}-{version}" for name in ("one", "two", "out")]
    with client(node, version) as one:
        for id_, place in enumerate(places):
            one.subscribe(place, "client" if id_ < 2 else "auto", str(id_))
        one.send(places[0], "a", "b")
        one.send(places[1], "c")
        frames = one.take(3)
        for end in (one.connection.abort, one.connection.commit):
            transaction = one.connection.begin()
            for frame in frames:  # In the mode `client` the second is for the first, too.
                one.ack(frame, transaction=transaction)
            one.send(places[2], end.__name__, transaction=transaction)
            assert one.messages.empty()
            one.confirmed(end, transaction)
        assert bodies(one.take()) == ["commit"]
    with client(node, version) as other:
        for id_, place in enumerate(places[:2]):
            other.subscribe(place, id_=str(id_))
            other.send(place, "last")
        assert bodies(other.take(2)) == ["last", "last"]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_durable_subscription_of_stomp_py_collects_while_it_is_away(node: Process, version: str) -> None:
    place, name = f"/topic/durable-{version}", {"durable-subscription-name": "mine"}
    with client(node, version) as author:
        with client(node, version, client_id=version) as one:
            one.subscribe(place, **name)
        author.send(place, "meanwhile")
        with client(node, version, client_id=version) as one:
            one.subscribe(place, **name)
            assert bodies(one.take()) == ["meanwhile"]
            one.confirmed(one.connection.unsubscribe, "s", headers=name)
        with client(node, version) as other:
            other.subscribe(place)
            author.send(place, "too late")
            assert bodies(other.take()) == ["too late"]
        with client(node, version, client_id=version) as one:
            one.subscribe(place, **name)
            author.send(place, "new")
            assert bodies(one.take()) == ["new"]


def test_stomp_py_speaks_the_first_version(node: Process) -> None:
    with client(node, "1.0") as one:
        one.subscribe("/queue/first", "client")
        one.send("/queue/first", "0", "1", "2")
        frames = one.take(3)
        one.connection.ack(frames[1].headers["message-id"], receipt="said")
        assert one.receipts.get(timeout=PATIENCE_S) == "said"
    with client(node, "1.0") as other:
        other.subscribe("/queue/first")
        assert bodies(other.take()) == ["2"]


def test_stomp_py_asks_and_is_answered_at_a_temporary_queue(node: Process) -> None:
    with client(node) as asking, client(node, "1.1") as answering:
        answering.subscribe("/queue/questions", "client-individual")
        asking.subscribe("/temp-queue/answers")
        asking.send("/queue/questions", "why", **{"reply-to": "/temp-queue/answers", "correlation-id": "7"})
        (question,) = answering.take()
        place = question.headers["reply-to"]
        assert place.startswith("/queue/")
        answering.send(place, "because", **{"correlation-id": question.headers["correlation-id"]})
        answering.ack(question)
        (answer,) = asking.take()
        assert (answer.body, answer.headers["correlation-id"]) == ("because", "7")


def test_stomp_py_and_the_node_hear_each_others_beats(node: Process) -> None:
    with client(node, heartbeats=(BEAT_MS, BEAT_MS), heart_beat_receive_scale=20) as one:
        for _ in range(8):
            one.beats.get(timeout=PATIENCE_S)
        assert one.ends.empty()
        os.kill(node.pid, signal.SIGSTOP)
        try:
            ends, expected = set[str](), {"disconnected", "silent"}
            while ends < expected:  # On a busy machine stomp.py may tell twice that it is disconnected.
                ends.add(one.ends.get(timeout=PATIENCE_S))
            assert ends == expected
        finally:
            os.kill(node.pid, signal.SIGCONT)


def test_stomp_py_connects_again_to_a_node_that_was_started_again(tmp_path: Path) -> None:
    with node_process(tmp_path) as first:
        one = Client(first, client_id="me")
        one.subscribe("/topic/t", **{"durable-subscription-name": "mine"})
        one.connection.unsubscribe("s")
        one.send("/topic/t", "kept")
    ends = [one.ends.get(timeout=PATIENCE_S) for _ in range(2)]
    assert ends == ["the node has ended", "disconnected"]
    with node_process(tmp_path, port=first.port):
        one.connect()
        one.subscribe("/topic/t", **{"durable-subscription-name": "mine"})
        assert bodies(one.take()) == ["kept"]
        one.disconnect()


# --- stompman ------------------------------------------------------------------------------------------------------


@scene
async def test_stompman_acknowledges_refuses_and_transacts(node: Process) -> None:
    came: asyncio.Queue[tuple[str, bool]] = asyncio.Queue()

    async def work(frame: stompman.MessageFrame) -> None:
        await came.put((frame.body.decode(), "redelivered" in frame.headers))
        if frame.body == b"bad" and "redelivered" not in frame.headers:
            raise ValueError

    server = stompman.ConnectionParameters("127.0.0.1", node.port, "me", node.token)
    beat = stompman.Heartbeat(BEAT_MS, BEAT_MS)
    async with asyncio.timeout(PATIENCE_S), stompman.Client([server], heartbeat=beat) as client:
        jobs = await client.subscribe(
            "/queue/man", work, on_suppressed_exception=lambda *_: None, receipt_timeout=PATIENCE_S,
            headers={"selector": "urgent = 'yes'"},
        )  # fmt: skip
        async with client.begin() as transaction:
            for body, urgent in ((b"good", "yes"), (b"other", "no"), (b"bad", "yes")):
                await transaction.send(body, "/queue/man", headers={"urgent": urgent})
        found = [await came.get() for _ in range(3)]
        assert found == [("good", False), ("bad", False), ("bad", True)]
        await client.send(b"more", "/queue/man", headers={"urgent": "yes"}, receipt_timeout=PATIENCE_S)
        assert await came.get() == ("more", False)
        assert client.is_alive()
        await jobs.unsubscribe()


# --- stompjs -------------------------------------------------------------------------------------------------------


def test_stompjs_works_through_a_queue_over_a_socket(node: Process, tmp_path: Path) -> None:
    modules, program = os.environ.get("CARRYPOST_STOMPJS"), shutil.which("node")
    if program is None or modules is None:
        pytest.skip("Node, and CARRYPOST_STOMPJS with a folder node_modules that has @stomp/stompjs, are not both here")
    shutil.copy(EXAMPLE, tmp_path)
    (tmp_path / "node_modules").symlink_to(modules)
    done = subprocess.run(  # noqa: S603 - our own example
        [program, EXAMPLE.name, str(node.port), str(node.data / "stomp.token")],
        cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [f"/queue/jobs: job {number}" for number in range(3)]
