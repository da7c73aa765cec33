"""The part of a context that creates consumers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from carrypost.jms.consumer import Consumer
from carrypost.jms.destinations import Destination
from carrypost.jms.modes import Acknowledge
from carrypost.jms.openable import Openable
from carrypost.jms.topic_declaration import TopicDeclaration

if TYPE_CHECKING:
    from carrypost.overlay.modulators.modulator import Modulator

Relocation = Literal["strict", "stateless", "lossy", "light"]


class ConsumerCreation(TopicDeclaration):
    """The part of a context that creates consumers of topics, channels and queues."""

    def create_consumer(
        self,
        destination: Destination | str,
        selector: str | None = None,
        *,
        no_local: bool = False,
        patterns: Mapping[str, str] | None = None,
        prefetch: int | None = None,
        modulator: Modulator | None = None,
        relocation: Relocation | None = None,
        acknowledge: Acknowledge | None = None,
    ) -> Openable[Consumer]:
        """Return a consumer of a topic or a queue, to be awaited or entered by ``async with``; it lasts while open.

        `selector`: receive only messages that match it; other messages of a queue wait for other consumers.
        `no_local`: leave out messages of this connection. `patterns`: receive only messages whose attributes match
        these regular expressions. Both are for topics. `prefetch`: number of messages that the node hands over ahead of
        the program. With 1, at most one message is in doubt after a crash. With 0, for queues, the node requests a
        message only while `receive` waits, and leaves the rest to other consumers.

        `acknowledge`: the mode of this consumer alone, in a session of its own, which closes with it: "auto", "client",
        "dups-ok" or "individual". Raises `IllegalStateException` in a transacted context.

        For a channel, the consumer's home broker runs the selector, or the `modulator`, on every event. `relocation`
        selects how its seat moves to another broker: "strict" loses nothing; "stateless", "lossy" and "light" give up
        the modulator's state, events, or both. Raises `IllegalStateException` if the overlay is off.
        """
        return self._opening(
            "create_consumer", destination, selector=selector, no_local=no_local, patterns=patterns, prefetch=prefetch,
            modulator=modulator, relocation=relocation, acknowledge=acknowledge,
        )  # fmt: skip

    def create_durable_consumer(
        self,
        topic: Destination | str,
        name: str,
        selector: str | None = None,
        *,
        no_local: bool = False,
        patterns: Mapping[str, str] | None = None,
        prefetch: int | None = None,
        modulator: Modulator | None = None,
        relocation: Relocation | None = None,
        acknowledge: Acknowledge | None = None,
    ) -> Openable[Consumer]:
        """Return a consumer of a durable subscription, which collects messages while it has none, until `unsubscribe`.

        It belongs to the connection's client id and has one consumer at a time. Opening it with another topic or
        selector creates it anew; another modulator, for a channel, replaces its present one.
        """
        return self._opening(
            "create_durable_consumer", topic, name, durable=True, selector=selector, no_local=no_local,
            patterns=patterns, prefetch=prefetch, modulator=modulator, relocation=relocation, acknowledge=acknowledge,
        )  # fmt: skip

    def create_shared_consumer(
        self,
        topic: Destination | str,
        name: str,
        selector: str | None = None,
        *,
        patterns: Mapping[str, str] | None = None,
        prefetch: int | None = None,
        modulator: Modulator | None = None,
        relocation: Relocation | None = None,
        acknowledge: Acknowledge | None = None,
    ) -> Openable[Consumer]:
        """Return one of several consumers of a subscription, on this node: each message goes to one of them."""
        return self._opening(
            "create_shared_consumer", topic, name, shared=True, selector=selector, patterns=patterns, prefetch=prefetch,
            modulator=modulator, relocation=relocation, acknowledge=acknowledge,
        )  # fmt: skip

    def create_shared_durable_consumer(
        self,
        topic: Destination | str,
        name: str,
        selector: str | None = None,
        *,
        patterns: Mapping[str, str] | None = None,
        prefetch: int | None = None,
        modulator: Modulator | None = None,
        relocation: Relocation | None = None,
        acknowledge: Acknowledge | None = None,
    ) -> Openable[Consumer]:
        """Return one of several consumers of a durable subscription, on this node: each message goes to one of them."""
        return self._opening(
            "create_shared_durable_consumer", topic, name, shared=True, durable=True, selector=selector,
            patterns=patterns, prefetch=prefetch, modulator=modulator, relocation=relocation, acknowledge=acknowledge,
        )  # fmt: skip
