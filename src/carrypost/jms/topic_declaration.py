"""Topics that a program declares on its node (`messaging.holder`)."""

from __future__ import annotations

from contextlib import suppress

from carrypost.errors import InvalidDestinationException, NameAlreadyBoundException
from carrypost.jms.destinations import RESERVED, HeldTopic, Topic, as_destination, check_one, named
from carrypost.jms.value_factory import ValueFactory
from carrypost.messaging.names.namespace import Bind
from carrypost.messaging.program_commands import BindName, DeclareTopic, EndTopic
from carrypost.model import address
from carrypost.model.headers import DESTINATION_MAX


class TopicDeclaration(ValueFactory):
    """The part of a context that makes its node the holder of topics."""

    async def declare_topic(self, name: str, *, advertise: bool = True) -> Topic:
        """Make this node the holder of a topic, ``NAME@NODE``. Repeated, it keeps the topic and its subscribers.

        Subscribers enrol with this node, and publications are sent to it. It forwards each to the subscribers, in one
        message that lists them. The topic outlives context and program, until `end_topic`. It is bound to its name in
        the directory, which is advertised to other nodes unless `advertise` is false.
        """
        found = named(name, "the name of a topic")
        if "@" in found or found.startswith(RESERVED):
            raise InvalidDestinationException(
                "a held topic is declared by its name alone, and this node is added to it: the name must not "
                f"contain '@' or begin with {RESERVED!r}, as {found!r} does"
            )
        check_one(Topic(found))
        self._opened()
        provider = (await self._ready()).units.provider
        destination = address.holder(found, provider.node_info.node)
        if len(destination.encode()) > min(DESTINATION_MAX, provider.node_info.limits.destination_bytes_max):
            raise InvalidDestinationException(f"{found!r} is too long for a topic of this node")
        await provider.execute(DeclareTopic(found))
        with suppress(NameAlreadyBoundException):  # It was declared before, or the program knows.
            await provider.execute(BindName(Bind(found, destination, advertise=advertise)))
        return HeldTopic(address.queue_name(found, provider.node_info.node))

    async def end_topic(self, topic: Topic | str) -> None:
        """Stop holding a topic of this node, and unbind its names here: its subscribers get nothing further.

        Raises `InvalidDestinationException` if this node does not hold it.
        """
        found = as_destination(topic)
        if not isinstance(found, HeldTopic):
            raise InvalidDestinationException(f"end_topic requires a topic, made by declare_topic, not {topic!r}"[:200])
        self._opened()
        await (await self._ready()).units.provider.execute(EndTopic(found.address))
