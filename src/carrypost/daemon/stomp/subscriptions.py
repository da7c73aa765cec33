"""Subscriptions of one STOMP client: messages for each, and what the client says of these.

Each subscription is a session of the node with one consumer, so a cumulative acknowledgement is one number. What is
acknowledged, or in mode `auto` written, makes room for more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from carrypost.daemon import subscription
from carrypost.daemon.receiving import Receiving
from carrypost.daemon.stomp.codec import Version
from carrypost.daemon.stomp.mapping import beginning
from carrypost.daemon.subscription import opened, remote_prefetch
from carrypost.errors import IllegalArgumentException, ResourceAllocationException

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from carrypost.daemon.connection import Output
    from carrypost.daemon.copies import Copies
    from carrypost.daemon.stomp.codec import Decoder
    from carrypost.errors import CarrypostError
    from carrypost.jms.provider import Provider
    from carrypost.log.events import Handed
    from carrypost.messaging.commands import Receive, Subscribe

AUTO, CLIENT, INDIVIDUAL = "auto", "client", "client-individual"
SUBSCRIPTIONS_MAX: Final = 100
"""Subscriptions that one client may have."""
PREFETCH_MAX: Final = 10_000
_PREFETCH_HEADERS = ("prefetch-count", "activemq.prefetchSize")
_DIGITS_MAX = 9


class SubscribeRequest(NamedTuple):
    """A subscription as its client asks for it."""

    id: str
    """The client's id of the subscription."""
    wanted: Subscribe | Receive
    mode: str
    """Acknowledgement mode: `auto`, `client` or `client-individual`."""
    prefetch: int
    """Messages that the client may have and not have acknowledged."""


class Subscription(subscription.Subscription):
    """An open subscription."""

    def __init__(self, asked: SubscribeRequest, session: int, consumer: int, version: Version) -> None:
        super().__init__(session, consumer, asked.prefetch)
        self.id, self.mode = asked.id, asked.mode
        self.version, self.beginning = version, beginning(asked.id, version)
        """The client's version, and what each MESSAGE begins with."""

    def named(self, message: str) -> int | None:
        """Return the number of the message with this id; None if the client has no such message."""
        return next((number for number, each in self._held.items() if each.descriptor.id_text == message), None)

    def meant(self, number: int) -> list[Handed]:
        """Return the messages that an ACK or NACK of this number covers: in mode `client` all up to it."""
        # In mode `client` an acknowledgement is cumulative, as STOMP has it.
        return [self._held[number]] if self.mode == INDIVIDUAL else self.through(number)


class Subscriptions(Receiving[Subscription, Version, bytes]):
    """All subscriptions of one client."""

    def __init__(
        self,
        provider: Provider,
        output: Output,
        copies: Copies[Version, bytes],
        fail: Callable[[CarrypostError], None],
        *,
        decoder: Decoder,
    ) -> None:
        super().__init__(provider, output, copies, fail)
        self._decoder = decoder
        self._by_id: dict[str, Subscription] = {}

    @property
    def version(self) -> Version:
        """The client's version of STOMP."""
        return self._decoder.version or Version.V1_0

    async def open(self, connection: int, asked: SubscribeRequest) -> Subscription:
        """Open one more, which has no credit yet."""
        self._check_new(asked.id)
        session, consumer = await opened(self._provider, connection, asked.wanted)
        made = Subscription(asked, session, consumer, self.version)
        self._by_id[made.id] = self._by_consumer[consumer] = made
        return made

    def _check_new(self, id_: str) -> None:
        if id_ in self._by_id:
            raise IllegalArgumentException(f"there is a subscription {id_!r} already: choose another id"[:200])
        if len(self._by_id) >= SUBSCRIPTIONS_MAX:
            raise ResourceAllocationException(f"a client has at most {SUBSCRIPTIONS_MAX} subscriptions")

    async def remove(self, id_: str) -> None:
        """End the one with this id; raises `IllegalArgumentException` if there is none."""
        found = self._get(id_)
        del self._by_id[id_]
        await self.end(found, found.unread)

    def _get(self, id_: str) -> Subscription:
        found = self._by_id.get(id_)
        if found is None:
            raise IllegalArgumentException(f"there is no subscription {id_!r}: SUBSCRIBE first"[:200])
        return found

    def check_open(self, subscription: Subscription) -> None:
        """Raise if a subscription whose messages a transaction acknowledges has ended."""
        if not self.has(subscription):
            raise IllegalArgumentException(
                "the transaction was not committed: it acknowledges messages of the subscription "
                f"{subscription.id[:60]!r}, which has ended"
            )

    async def write(self, subscription: Subscription, handed: Handed, copy: bytes) -> None:
        """Write a message; in mode `auto` it counts as acknowledged then."""
        number, own = handed.number, b""
        subscription.unread.pop(number, None)
        if subscription.mode == AUTO:
            self.acknowledge(subscription, [handed])
        elif subscription.version is Version.V1_2:
            own = b"ack:%d\n" % number
        if handed.count > 1:
            own += b"redelivered:true\n"
        self._output.write(subscription.beginning + own + copy)

    def find(self, headers: Mapping[str, str]) -> tuple[Subscription, int]:
        """Return the subscription and the number of the message that an ACK or NACK names."""
        ack = headers.get("id")
        if ack is not None:
            # Numbers of any length would be converted here, which takes quadratic time.
            number = int(ack) if ack.isascii() and ack.isdigit() and len(ack) <= 2 * _DIGITS_MAX else 0
            candidates = [(each, number) for each in self if each.holds(number)]
        else:
            among = [self._get(headers["subscription"])] if "subscription" in headers else list(self)
            found = [(each, each.named(headers["message-id"])) for each in among]
            candidates = [(each, number) for each, number in found if number is not None]
        if not candidates:
            what = ack if ack is not None else headers["message-id"]
            raise IllegalArgumentException(
                f"there is no message {what[:60]!r} to acknowledge: it was acknowledged, is being redelivered, "
                "expired, or belongs to another subscription"
            )
        if candidates[0][0].mode == AUTO:
            raise IllegalArgumentException("the subscription acknowledges automatically: subscribe with ack:client")
        return candidates[0]


def asked(id_: str, wanted: Subscribe | Receive, headers: Mapping[str, str], provider: Provider) -> SubscribeRequest:
    """Return a subscription as a SUBSCRIBE asks for it."""
    mode = headers.get("ack", AUTO)
    if mode not in (AUTO, CLIENT, INDIVIDUAL):
        raise IllegalArgumentException(f"ack must be {AUTO}, {CLIENT} or {INDIVIDUAL}, not {mode!r}"[:200])
    return SubscribeRequest(id_, wanted, mode, _prefetch(wanted, headers, provider))


def _prefetch(wanted: Subscribe | Receive, headers: Mapping[str, str], provider: Provider) -> int:
    for name in _PREFETCH_HEADERS:
        text = headers.get(name)
        if text is None:
            continue
        if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX and 0 < int(text) <= PREFETCH_MAX):
            raise IllegalArgumentException(f"{name} must be a number from 1 to {PREFETCH_MAX:,}, not {text!r}"[:200])
        return int(text)
    remote = remote_prefetch(provider, wanted)
    return provider.node_info.settings.prefetch if remote is None else remote
