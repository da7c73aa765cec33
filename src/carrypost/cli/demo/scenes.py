"""The scenes: what is moved, sent and read, and what has to come of it; and the STOMP client that plays in one.

Nothing here says what becomes of a message: that is read from the nodes' records, and from what their programs get.
A scene waits for what it announced, and raises `UnexpectedError` if that does not come.

The STOMP client is a plain socket: it knows frames, and nothing of carrypost. Libraries do the same, and more.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass

from carrypost import Consumer, Destination, Message, Sent, Topic
from carrypost.cli.demo.cast import ALONE, HILL, LAKE, Cast, free_port
from carrypost.cli.demo.picture import PATIENCE_S, RECEIPT, STOMP, Ledger, Picture, UnexpectedError
from carrypost.daemon.stomp.server import TOKEN_FILE
from carrypost.errors import DeliveryTimeoutException
from carrypost.log.events import SendState


class StompClient:
    """One connection, with one subscription."""

    def __init__(self, port: int, timeout_s: float) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout_s)
        self._incoming = self._socket.makefile("rb")
        self._messages: list[str] = []

    def connect(self, passcode: str) -> None:
        """Be let in by the node."""
        self._ask("CONNECTED", "CONNECT", {"accept-version": "1.2", "host": "localhost", "passcode": passcode})

    def subscribe(self, destination: str) -> None:
        """Subscribe to what others send to a destination; return when nothing is missed any more."""
        self._ask("RECEIPT", "SUBSCRIBE", {"id": "0", "destination": destination, "no-local": "true", "receipt": "1"})

    def send(self, destination: str, text: str) -> None:
        """Send a text; return when the node has it on its disk."""
        self._ask("RECEIPT", "SEND", {"destination": destination, "persistent": "true", "receipt": "2"}, text)

    def receive(self) -> str:
        """Return the next text."""
        return self._messages.pop(0) if self._messages else self._read("MESSAGE")

    def close(self) -> None:
        """Hang up, also on a thread that waits."""
        with suppress(OSError):  # The node may have hung up first.
            self._socket.shutdown(socket.SHUT_RDWR)
        self._incoming.close()
        self._socket.close()

    def _ask(self, answer: str, command: str, headers: dict[str, str], body: str = "") -> None:
        head = "\n".join([command, *(f"{name}:{value}" for name, value in headers.items())])
        self._socket.sendall(f"{head}\n\n{body}\0".encode())
        self._read(answer)

    def _read(self, wanted: str) -> str:
        """Return the body of the next frame of a kind; keep messages that come before it."""
        while True:
            lines: list[str] = []
            while (line := self._incoming.readline()) != b"\n" or not lines:  # Empty ones before it are heart-beats.
                if not line:
                    raise ConnectionError("the node closed the connection")
                lines += [line.decode().rstrip("\n")] if line != b"\n" else []
            command, headers = lines[0], dict(line.split(":", 1) for line in lines[1:])
            body = self._incoming.read(int(headers.get("content-length", 0)) + 1)[:-1].decode()
            if command == wanted:
                return body
            if command != "MESSAGE":
                raise ConnectionError(f"expected {wanted}, received {command} {headers.get('message', '')}")
            self._messages.append(body)


INTRODUCTION = (
    "Six nodes on this machine, each a process with a key, a disk and a UDP port of its own. Anna "
    "and Bert live in one village, Carl and Dora in another, and no radio reaches from one to the "
    "other. A bus goes back and forth. Emil is away. There is no server: messages are stored, "
    "carried and forwarded.\n"
)
BUS_BYTES_MAX = 65_536
PHOTO_BYTES = 100_000
HOMES = {"anna": HILL, "bert": HILL, "carl": LAKE, "dora": LAKE}
_HURRY_S = 1.0
"""Time within which a program is handed what its node has."""


def nodes() -> dict[str, dict[str, object]]:
    """Return the settings of each node that the others do not have."""
    return {
        "anna": {},
        "bert": {"stomp.port": free_port(socket.SOCK_STREAM)},
        "bus": {"altruistic": True, "cache_bytes_max": BUS_BYTES_MAX},
        "emil": {},
        "carl": {},
        "dora": {},
    }


@dataclass(frozen=True)
class Played:
    """Messages of a scene, and the datagrams and bytes that all nodes sent meanwhile."""

    title: str
    messages: tuple[str, ...]
    sent: Counter[str]


class Play:
    """The scenes, one after the other."""

    def __init__(self, cast: Cast, ledger: Ledger, picture: Picture) -> None:
        self.cast, self.ledger, self.picture = cast, ledger, picture
        self.played: list[Played] = []
        self._chat: dict[str, Consumer] = {}

    async def play(self) -> None:
        """Play all scenes on nodes that run."""
        for name in HOMES:
            self._chat[name] = await self.cast[name].context.create_durable_consumer("topic/chat", "chat")
        await self.ledger.until(lambda: all(map(self.ledger.reached, HOMES)), "villagers reach each other")
        await self._chat_by_bus()
        await self._letter()
        await self._forums()
        await self._stomp()

    @asynccontextmanager
    async def _scene(self, title: str, about: str, *messages: str) -> AsyncIterator[None]:
        """Play one scene, and note what it cost."""
        title = f"{len(self.played) + 1}. {title}"
        before = await self.cast.count()
        await self.picture.scene(title, about, messages)
        try:
            yield
        except (UnexpectedError, DeliveryTimeoutException) as error:
            raise UnexpectedError(f"scene {title!r} did not come out as announced: {error}") from None
        self.played.append(Played(title, messages, await self.cast.count() - before))
        await self.picture.pause(3.0)

    async def _drive(self, place: str, what: str) -> None:
        """Let the bus leave the place where it is, and arrive at another one."""
        await self.picture.direct(f"The bus {what}")
        await self.cast.meet(bus=ALONE)
        await self.ledger.until(lambda: not self.ledger.reached("bus"), "the bus loses sight of the others")
        await self.cast.meet(bus=place)

    async def _read(self, who: str, consumer: Consumer, *expected: str) -> list[Message]:
        """Receive messages in the program of a node."""
        messages: list[Message] = []
        for each in expected:
            message = await consumer.receive(timeout=PATIENCE_S)
            if message is None:
                raise UnexpectedError(f"{who} did not get [{each}] within {PATIENCE_S:.0f} s")
            messages.append(message)
        return messages

    async def _send(
        self, who: str, to: Destination | str, text: str, label: str, *, photo: bytes | None = None
    ) -> Sent:
        """Send a text, or a photo with this caption, from the program of a node."""
        self.picture.texts[label] = text
        return await self.cast[who].context.send(to, text if photo is None else photo, label=label)

    async def _wait_for_copies(self, node: str, *messages: str) -> None:
        """Wait until a node has copies of messages."""
        shown = " and ".join(f"[{each}]" for each in messages)
        await self.ledger.until(lambda: self.ledger.has(node, *messages), f"{node} has copies of {shown}")

    # --- scenes ------------------------------------------------------------------------------------------------

    async def _chat_by_bus(self) -> None:
        """Let a chat cross by bus, which is killed on its way and starts again."""
        cast, picture, chat = self.cast, self.picture, self._chat
        about = (
            "Anna writes to the topic chat. Bert is near and hears it at once. Carl and Dora are out of reach: they "
            "hear it only if the bus carries it, although nobody on the bus has asked for it."
        )
        async with self._scene("A chat by bus", about, "hello", "answer"):
            await self._send("anna", "topic/chat", "The bridge is closed. Who has flour?", "hello")
            await self._read("bert", chat["bert"], "hello")
            await self._drive(HILL, "stops at Hill village")
            await self._wait_for_copies("bus", "hello")
            await self._drive(ALONE, "drives on; nobody is in reach of it")
            pid = await cast.kill("bus")
            await picture.direct(f"The bus loses power: kill -9 of process {pid}")
            await cast.start("bus")
            picture.remark("bus", f"starts again as process {cast['bus'].process.pid}, with what is on its disk")
            await self._drive(LAKE, "arrives at Lake village")
            for name in ("carl", "dora"):
                await self._read(name, chat[name], "hello")
            await self._send("carl", "topic/chat", "I have flour.", "answer")
            await self._wait_for_copies("bus", "answer")
            await self._drive(HILL, "goes back to Hill village")
            await self._read("bert", chat["bert"], "answer")
            await self._read("anna", chat["anna"], "hello", "answer")  # She has what she said herself, too.
            picture.conclude("Stored, carried through a crash, forwarded to whoever asked.")

    async def _letter(self) -> None:
        """Send a letter to a queue whose owner is away, and wait for its receipt."""
        cast, picture = self.cast, self.picture
        about = (
            "A message to a queue is for one receiver: this one is Emil's, who is out of reach of everybody. All nodes "
            "carry letters. Anna wants to know when he has hers."
        )
        mailbox = await cast["emil"].context.declare_queue("letters")
        inbox = await cast["emil"].context.create_consumer(mailbox)
        async with self._scene("A letter, Emil is away", about, "letter", RECEIPT):
            sent = await self._send("anna", mailbox, "Dear Emil, your roof leaks.", "letter")
            picture.remark("anna", f"is told: {sent.state}, it is on her disk")
            picture.remark("anna", f"is told: {await sent.carried(timeout=PATIENCE_S)}, a neighbour has it, too")
            await self._wait_for_copies("bus", "letter")
            await self._drive(LAKE, "brings it to Lake village, where Emil is not")
            await self._wait_for_copies("carl", "letter")
            await picture.direct("Emil comes home to Lake village")
            await cast.meet(emil=LAKE)
            await self._read("emil", inbox, "letter")
            await self._wait_for_copies("bus", RECEIPT)
            if sent.state is not SendState.CARRIED:
                raise UnexpectedError(f"anna's node says {sent.state} before a receipt can have reached it")
            picture.remark("anna", f"is still told: {sent.state}, because no receipt has reached her yet")
            await self._drive(HILL, "goes back to Hill village, with the receipt")
            state = await sent.delivered(timeout=PATIENCE_S)
            await self.ledger.until(lambda: "letter" in self.ledger.receipts, "anna's node records the receipt")
            picture.remark("anna", f"is told: {state}")
            picture.conclude("DELIVERED: Emil has read it, and his receipt came back by bus.")

    async def _forums(self) -> None:
        """Let answers overtake their questions, in a plain topic and in a causal one."""
        cast, ledger, picture = self.cast, self.ledger, self.picture
        about = (
            f"Carl asks with a photo of {PHOTO_BYTES:,} bytes. Dora's answer is short. The bus has room for "
            f"{BUS_BYTES_MAX:,} bytes, so the answer is faster than its question. They do so on two topics: a plain "
            "one, and a causal one, which delivers an answer only after its question."
        )
        topics = {"plain": Topic("forum.plain"), "causal": Topic("forum.causal", "causal")}
        readers = {
            kind: {name: await cast[name].context.create_consumer(topic) for name in ("anna", "dora", "emil")}
            for kind, topic in topics.items()
        }
        names = [f"{letter}-{kind}" for kind in topics for letter in "QA"]
        async with self._scene("Forums, plain and causal", about, *names):
            for kind, topic in topics.items():
                await self._send("carl", topic, "Who is this?", f"Q-{kind}", photo=os.urandom(PHOTO_BYTES))
                await self._read("dora", readers[kind]["dora"], f"Q-{kind}")
                await self._send("dora", topic, "That is a beaver.", f"A-{kind}")
                await self._read("emil", readers[kind]["emil"], f"Q-{kind}", f"A-{kind}")
            await self._drive(LAKE, "comes to Lake village")
            await self._wait_for_copies("bus", "A-plain", "A-causal")
            await self._drive(HILL, "goes to Hill village, with the answers alone")
            order = {"plain": await self._read("anna", readers["plain"]["anna"], "A-plain")}
            await self._wait_for_copies("anna", "A-causal")
            if await readers["causal"]["anna"].receive(timeout=_HURRY_S) is not None or ledger.has("anna", "Q-causal"):
                raise UnexpectedError("anna's program got a message of forum.causal before Emil brought the question")
            picture.remark("anna", "has the causal answer, but her program is not given it yet")
            await picture.direct("Emil, who has the questions on his phone, goes to Hill village")
            await cast.meet(emil=HILL)
            order["plain"] += await self._read("anna", readers["plain"]["anna"], "Q-plain")
            order["causal"] = await self._read("anna", readers["causal"]["anna"], "Q-causal", "A-causal")
            labels = {kind: [_label(each) for each in messages] for kind, messages in order.items()}
            for kind, read in labels.items():
                picture.remark("anna", f"has read on forum.{kind}: {', then '.join(f'[{each}]' for each in read)}")
            if labels != {"plain": ["A-plain", "Q-plain"], "causal": ["Q-causal", "A-causal"]}:
                raise UnexpectedError("answers and questions were not read in the order of their topics")
            await ledger.until(lambda: ("A-causal", "anna") in ledger.delivered, "anna's node records what she read")
            held_s = ledger.delivered["A-causal", "anna"]["t"] - ledger.received["A-causal", "anna"]["t"]
            picture.conclude(f"The causal answer waited {held_s:.1f} s on Anna's node for its question.")

    async def _stomp(self) -> None:
        """Let a program that speaks STOMP take part in the chat."""
        cast, picture, chat = self.cast, self.picture, self._chat
        port = int(str(cast["bert"].settings["stomp.port"]))
        about = (
            "Programs in any language speak STOMP with a node, as with a broker. This one has a plain socket to Bert's "
            "node, knows nothing of carrypost, and takes part in the chat of both villages."
        )
        async with self._scene("A STOMP client", about, STOMP, "news"):
            token = (cast.folder_of("bert") / TOKEN_FILE).read_text(encoding="utf-8").strip()
            try:
                with closing(StompClient(port, PATIENCE_S)) as client:
                    await asyncio.to_thread(client.connect, token)
                    picture.remark(STOMP, f"is connected to bert's node at 127.0.0.1:{port}")
                    await asyncio.to_thread(client.subscribe, "/topic/chat")
                    await asyncio.to_thread(client.send, "/topic/chat", question := "Where is the flour?")
                    picture.remark(STOMP, f"has sent: {question}")
                    await self._wait_for_copies("bus", STOMP)
                    await self._drive(LAKE, "brings the question to Lake village")
                    *_, last = await self._read("carl", chat["carl"], "answer", STOMP)  # He has his own answer, too.
                    if (found := last.get_body(str)) != question:
                        raise UnexpectedError(f"carl read {found!r}, and not what the client sent")
                    await self._send("carl", "topic/chat", answer := "It comes with this bus.", "news")
                    await self._wait_for_copies("bus", "news")
                    await self._drive(HILL, "goes back to Hill village")
                    if (found := await asyncio.to_thread(client.receive)) != answer:
                        raise UnexpectedError(f"the client got {found!r}, and not what Carl sent")
                    picture.remark(STOMP, f"gets a MESSAGE: {found}")
            except OSError as error:
                raise UnexpectedError(f"the STOMP client failed: {error}") from None
            await self.ledger.until(lambda: ("news", "bert") in self.ledger.delivered, "bert's node records [news]")
            picture.conclude("To the client the node is a broker; of the bus it knows nothing.")


def _label(message: Message) -> str:
    """Return the label of a message that was received."""
    return "" if message.descriptor is None else message.descriptor.label
