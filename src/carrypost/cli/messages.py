"""Commands about messages: pub, sub, send, ls, bind and others, and what the node of this machine knows of messages.

Those that send and receive, and those about the directory of names, attach to the node that runs in its folder, or run
one while they last. `cache` and `trace` ask the node that runs: which messages it holds, and what it knows of one.
"""

from __future__ import annotations

import functools
from typing import Annotated, Any

import typer

from carrypost.cli import _message_options as options
from carrypost.cli._options import Commands, Json, NewNode, Node, OptionGroup, Place, StreamJson, argument, option
from carrypost.cli._output import clock, line, say, size, table
from carrypost.errors import CarrypostError, LocalError
from carrypost.web.verdict import verdict


def pub(
    *,
    topic: options.NamedTopic,
    message: options.Outgoing,
    at: NewNode,
    json: StreamJson = False,
) -> None:
    """Publish to a topic: the message is stored here, and carried to subscribers until it expires.

    Delivery cannot be guaranteed. The command prints how many neighbours can take the message, and when it expires.
    With --receipt it waits for the first delivery, and exits with 3 if no receipt arrives.

    For example:

    * `carrypost pub -t village.roads "The bridge is closed."`

    * `carrypost pub -t village.roads -p Hello --prop language=English --ttl 6h`

    * `date | carrypost pub -t village.time --prop zone:string=1`

    * `carrypost pub -t village.load --count 3 --every 0.1 "n {n} {time}"`

    * `carrypost pub -t flood --channel "The river rises." --prop level=3`

    * `carrypost pub -t plans --circle rescue "North bridge at six"`
    """
    from carrypost.cli import _messages  # noqa: PLC0415 - keeps --help quick

    order = _messages.Order(topic.destination("send"), message)
    options.run(at, order.send, order.embedding, json=json)


def send(
    *,
    queue: options.NamedQueue,
    message: options.Outgoing,
    at: NewNode,
    json: StreamJson = False,
) -> None:
    """Send to a queue: one receiver gets the message, here or on another node.

    The queue is one that `carrypost ls` shows, or NAME@NODE. With --receipt the command waits until the receiver has
    acknowledged the message, and exits with 3 if no receipt arrives.

    For example:

    * `carrypost send -q Alan "Hello Alan"`

    * `carrypost send -q Alan --file letter.txt --ttl 2d --receipt --for 60`
    """
    from carrypost.cli import _messages  # noqa: PLC0415 - keeps --help quick

    order = _messages.Order(options.queue(queue.name("pub")), message)
    options.run(at, order.send, order.embedding, json=json)


def sub(
    *,
    topic: options.NamedTopic,
    durable: Annotated[str | None, option("--durable", "Name of a durable subscription.", "NAME")] = None,
    end: Annotated[bool, option("--end", "Delete the --durable subscription and its messages.")] = False,
    modulation: options.Modulation,
    wanted: options.Wanted,
    count: options.Count = None,
    at: NewNode,
    json: StreamJson = False,
) -> None:
    """Subscribe to a topic, and print its messages until Ctrl-C.

    Topics may contain wildcards: * matches one word, > the rest. With --count it stops after that many messages, and
    exits with 3 if fewer arrive within --for. A durable subscription also collects messages while no command runs.

    The events of a --channel travel over the brokers of the overlay, in the order of each producer. The selector, or
    the --modulator, runs at this node's home broker.

    For example:

    * `carrypost sub -t village.roads`

    * `carrypost sub -t "village.>" --select "language = 'English'" --count 1 --for 30`

    * `carrypost sub -t village.roads --durable inbox --for 1`

    * `carrypost sub --durable inbox --end`

    * `carrypost sub -t flood --channel --select "level > 2"`

    * `carrypost sub -t plans --circle rescue`

    * `carrypost sub -t flood --channel --modulator box --param "area=[10, 10, 42, 42]"`

    * `carrypost sub -t flood --channel --modulator every_nth.wasm --param hex=02`
    """
    from carrypost.cli import _messages  # noqa: PLC0415 - keeps --help quick

    if end:
        if durable is None:
            raise LocalError("--end requires the name of a subscription: carrypost sub --durable inbox --end")
        here = Node(at.config, at.data, at.changes)
        options.run(here, functools.partial(_messages.unsubscribe, name=durable), json=json)
        return
    destination = topic.destination("receive")
    if not destination.startswith(options.CHANNEL) and (modulation.modulator is not None or modulation.param):
        raise LocalError("--modulator requires an event channel: add --channel, or leave --modulator out")
    if wanted.limit_s == 0:
        raise LocalError("--for must be greater than 0, since messages need time to arrive: try --for 1")
    modulator = options.modulator(modulation.modulator, modulation.param)
    wish = _messages.SubscribeOptions(destination, wanted.select, durable, modulator)
    body = functools.partial(_messages.subscribe, wish=wish, count=count, limit_s=wanted.limit_s)
    options.run(at, body, json=json, reconnect=True)


def receive(
    *,
    queue: options.NamedQueue,
    wanted: options.Wanted,
    count: Annotated[int, option("--count", "Stop after this many messages.", "N", min=1)] = 1,
    at: NewNode,
    json: StreamJson = False,
) -> None:
    """Receive messages from a queue, and print them. No other receiver gets them.

    A message that could not be printed stays in the queue. Exits with 3 if fewer than --count arrive within --for.

    For example:

    * `carrypost receive -q Alan --for 30`

    * `carrypost receive -q Alan --select "urgency > 3" --count 10 --for 60`
    """
    from carrypost.cli import _messages  # noqa: PLC0415 - keeps --help quick

    body = functools.partial(_messages.receive, queue=queue.name("sub"), wanted=wanted, count=count)
    options.run(at, body, json=json, reconnect=True)


def browse(
    *,
    queue: options.NamedQueue,
    wanted: options.Wanted,
    count: options.Count = None,
    at: Node,
    json: StreamJson = False,
) -> None:
    """List the messages in a queue, without removing them.

    For a queue of another node, that node must answer: exits with 3 if it does not within --for (30 s).

    For example: `carrypost browse -q Alan`, `carrypost browse -q Alan --select "urgency > 3" --count 1`
    """
    from carrypost.cli import _messages  # noqa: PLC0415 - keeps --help quick

    body = functools.partial(_messages.browse, queue=queue.name("sub"), wanted=wanted, count=count)
    options.run(at, body, json=json)


def console(at: NewNode) -> None:
    """Work with topics, queues and names at a prompt or from a script, as in the JOMS console.

    Subscriptions print their messages while you type. `help` lists the commands. A script is read from stdin, and
    stops at its first error. At its end it waits for every subscription that has -count or -for.

    For example:

    * `carrypost console`

    * `echo "pub -t ChatRoom1 -p Hello -ssl language=English" | carrypost console`
    """
    from carrypost.cli.console import run  # noqa: PLC0415 - keeps --help quick

    options.run(at, run)


def ls(
    at: Node,
    *,
    context: Annotated[str, argument("Only names below this one; also topic and queue.", "[NAME]")] = "",
    json: Json = False,
) -> None:
    """List the names of topics and queues known here: this node's, and those that other nodes advertise.

    For example: `carrypost ls`, `carrypost ls queue` for all queues by their full names
    """
    from carrypost.cli import _messages  # noqa: PLC0415 - keeps --help quick

    options.run(at, functools.partial(_messages.list_names, context=context), json=json)


def bind(
    name: Annotated[str, argument("The name, or queue/NAME to declare a queue.", "NAME")],
    at: NewNode,
    *,
    destination: Annotated[str | None, argument("topic/NAME or queue/NAME@NODE.", "[DESTINATION]")] = None,
    lease: Annotated[
        float | None,
        options.duration_option("--lease", "Queues: redeliver messages that are not acknowledged within this time."),
    ] = None,
    tries: Annotated[
        int | None, option("--tries", "Queues: deliveries before a message is a dead letter.", min=1)
    ] = None,
    private: Annotated[bool, option("--private", "Keep the name on this node.")] = False,
    replace: Annotated[bool, option("--replace", "Replace the name if it is bound already.")] = False,
    json: Json = False,
) -> None:
    """Declare a queue, which this node then manages, or bind a name to a topic or a queue.

    The name is advertised to other nodes. It survives restarts, until `carrypost unbind` removes it.

    For example:

    * `carrypost bind queue/Alan` declares the queue Alan

    * `carrypost bind roads topic/village.roads` makes roads a name of a topic
    """
    from carrypost.cli import _messages  # noqa: PLC0415 - keeps --help quick

    body = functools.partial(
        _messages.bind_name, name=name, destination=destination, private=private, replace=replace, lease_s=lease,
        tries=tries,
    )  # fmt: skip
    options.run(at, body, _messages.CHANGE_STORED, json=json)


def unbind(
    name: Annotated[str, argument("The name, or queue/NAME to delete a queue.", "NAME")],
    at: Node,
) -> None:
    """Delete a queue of this node with all its messages, or remove a name.

    For example: `carrypost unbind queue/Alan`, `carrypost unbind roads`
    """
    from carrypost.cli import _messages  # noqa: PLC0415 - keeps --help quick

    options.run(at, functools.partial(_messages.unbind_name, name=name), _messages.CHANGE_STORED)


cache = Commands("cache", help="Show what the node on this machine holds, for which receivers, and until when.")

_NOTHING = "the node holds no such messages"


class Copies(OptionGroup, frozen=True):
    """The copies on a node that are meant."""

    message: Annotated[str, argument("The id of a message, or a label.", "[ID|LABEL]")] = ""
    to: Annotated[str, option("--to", "Only messages of this topic or queue.", "DESTINATION")] = ""
    foreign: Annotated[bool, option("--foreign", "Only messages carried for other nodes.")] = False

    def asked(self) -> dict[str, object]:
        """Return the words of the question to the node."""
        if self.to and "/" not in self.to:
            raise LocalError(f"is {self.to!r} a topic or a queue? Write --to topic/{self.to} or --to queue/{self.to}")
        return {"message": self.message, "destination": self.to, "foreign": self.foreign}


@cache.command()
def inspect(copies: Copies, at: Place, *, json: Json = False) -> None:
    """List the messages that the node holds, oldest first.

    A message is *own* if a program of this node sent it, *wanted* if one subscribes to it, otherwise *carried*.

    For example:

    * `carrypost cache inspect`

    * `carrypost cache inspect --to queue/Alan`

    * `carrypost cache inspect --foreign --json`
    """
    found = at.ask("cache", **copies.asked())
    if json:
        for each in found:
            line(_line(each))
    elif found:
        columns = ("message", "destination", "role", "for", "until", "size")
        table("", columns, list(map(_row, found)), breakable=["message", "destination", "for"])
    else:
        say(_NOTHING)


@cache.command()
def purge(
    copies: Copies,
    *,
    force: Annotated[bool, option("--force", "Also messages that programs of this node have yet to receive.")] = False,
    at: Place,
    json: Json = False,
) -> None:
    """Remove messages from this node for good. Copies on other nodes stay, and do not come back.

    Messages that subscriptions or queues of this node have yet to deliver are kept, unless `--force` is given. With
    `--force`, the senders of messages in this node's queues are notified of the failure.

    For example:

    * `carrypost cache purge --foreign` removes what is carried for others

    * `carrypost cache purge firstMSG`

    * `carrypost cache purge --to queue/Alan --force`
    """
    if copies == Copies():
        raise LocalError("name what to remove: a message's id or label, --to DESTINATION, or --foreign")
    found = at.ask("cache", purge=True, force=force, **copies.asked())
    if not found and not copies.foreign:
        say(_NOTHING)
    gone = [each for each in found if each["purged"]]
    if json:
        for each in found:
            line(_line(each) | {"purged": each["purged"]})
    else:
        typer.echo(f"messages removed: {len(gone):,} ({size(sum(each['held_bytes'] for each in gone))})")
    if spared := len(found) - len(gone):
        raise CarrypostError(
            f"messages kept: {spared:,}; programs here have yet to receive them, and --force removes them"
        )


def _line(copy: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in copy.items() if name not in ("serial", "purged")}


def _row(copy: dict[str, Any]) -> tuple[object, ...]:
    whom = ", ".join(copy["owed_to"] or copy["recipients"]) or ("messaging" if copy["owed"] else "others")
    until = "-" if copy["expires"] is None else clock(copy["expires"])
    return copy["label"] or copy["message"], copy["destination"], copy["role"], whom, until, size(copy["size"])


def trace(
    message: Annotated[str, argument("The id of a message, or a label.", "ID|LABEL")],
    at: Place,
    *,
    json: Json = False,
) -> None:
    """Show the history of a message on the node of this machine.

    Begins with a verdict: what became of the message, and what you can do. Then lists when the message was stored or
    received, and from which neighbour; the neighbours it was passed to; the subscriptions and queues it matched; for
    queues, the receivers it was assigned to; for own messages, their receipts; how it ended; and the copy held now. The
    history is kept only if the node has `trace.enabled = true`. Otherwise only the present state is shown.

    For example:

    * `carrypost trace firstMSG`, on a node that was started with `--set trace.enabled=true`

    * `carrypost trace firstMSG --json`
    """
    from carrypost.cli import _messages  # noqa: PLC0415 - keeps --help quick

    found = at.ask("trace", message)
    made = verdict(message, found, at.ask("peers"), at.ask("messaging")) if "sends" in found else None
    _messages.show_history(found, message, made, json=json)
