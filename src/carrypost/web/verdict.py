"""The verdict on one message: what became of it as far as this node knows, and what a person can do.

It follows from answers of the node alone: its history of the message, copies, sends, queues, neighbours and channels.
The surest knowledge comes first: queues of this node, then what was reported of a send, then the history, then the copy
and the neighbours that may take it. Pages and `carrypost trace` show it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from carrypost.model import address
from carrypost.model.times import MICROSECONDS
from carrypost.printing import many

Facts = Mapping[str, Any]
HISTORY_OFF = "This node keeps no history of messages: set trace.enabled = true to keep it from now on."
_NAMES = 3
_REASONS = {
    "there is no such queue": ("queue-unknown", "Check its name and node, or declare the queue there."),
    "dead letter": ("dead-letter", "At the queue's node, DLQ.NAME has it with the last error. Retry it there."),
    "dead letters is full": ("dead-letter", "Consume the dead letters at the queue's node."),
    "timeout": ("timeout", "Nothing was heard of it in time; it may still arrive before it expires."),
    "queue is full": ("queue-full", "Let programs consume from the queue, or raise limits.queue_messages_max there."),
}
"""Verdict and remedy by words in the reason of a failure."""
_ROOM = "Raise cache_messages_max and cache_bytes_max"
_DROPS = {
    "evicted": ("evicted", f"{_ROOM}, or send it PERSISTENT: such messages are evicted last."),
    "no-room": ("evicted", f"{_ROOM} on this node."),
    "share": ("evicted", f"Its author has more than its share of a full cache. {_ROOM} on this node."),
    "expired": ("expired", "Send it again with a longer lifetime, or set altruistic=true on nodes that travel."),
    "payload-gone": ("lost", "Its bytes are not in the store any more: check the disk."),
    "withdrawn": ("withdrawn", "It was deleted here (carrypost cache purge)."),
    "dead-letter": ("dead-letter", "Consume the dead letters of this node: their queue is full."),
    "pending": ("waiting", "Too many messages wait for predecessors, or its queue is full; it is invited again."),
}
"""Verdict and remedy by the reason for which a copy left."""
_ROWS = {
    ("receipt", ""): ("delivered", "Delivered, according to its receipt.", ""),
    ("drop", "purged"): ("delivered", "Every node that it was for has it, so the copy here was dropped.", ""),
    ("expire", ""): ("expired", "Expired before its predecessors came.", "Set a longer lifetime."),
    ("refuse", "message-size"): (
        "too-large",
        "Refused here: it is longer than limits.message_bytes_max allows.",
        "Send it in parts, or raise the limit on every node.",
    ),
    ("refuse", ""): ("refused", "Refused here: {detail}.", "The threat model explains the reasons."),
}
"""Verdict, sentence and remedy by the last telling row of a history: its kind, and its detail or any."""
_STANDING = {
    "handed": (
        "A program of this node has it from {queue}, and has not acknowledged it yet.",
        "If the program hangs, end it: the message then comes again.",
    ),
    "delayed": ("In {queue}: its delivery time has not come, or a program deferred it.", ""),
}
"""Sentence and remedy by the state of a queue's entry."""


_SENTENCES = {
    "publish": "stored here: a program of this node sent it to {destination}",
    "receive": "received from {peer}, hop {hops}",
    "pass": "passed to {peer}",
    "deliver": "matched a subscription or a queue of this node",
    "assign": "assigned to a receiver at {detail}",
    "receipt": "delivered, according to its receipt {peer}",
    "failure": "failed: {detail}",
    "drop": "left this node: {detail}",
    "expire": "expired before it could be delivered",
    "refuse": "refused: {detail}",
}
"""Sentence by the kind of a row of a history."""


class Verdict(msgspec.Struct, frozen=True):
    """The verdict on a message."""

    verdict: str
    """One word for programs."""
    sentence: str
    remedy: str = ""
    """Advice to a person; empty: nothing needs to be done."""
    facts: tuple[str, ...] = ()


def verdict(message: str, found: Facts, peers: Sequence[Facts], messaging: Facts) -> Verdict:
    """Return the verdict from the answers of a node to `trace`, `peers` and `messaging`."""
    asked = _Asked(message, found, peers, messaging)
    parts = (asked.of_entries, asked.of_send, asked.of_history, asked.of_channel, asked.of_copy)
    made = next((made for part in parts if (made := part()) is not None), None) or asked.unknown()
    return msgspec.structs.replace(made, facts=(*made.facts, *asked.facts()))


class _Asked:
    """One message, and what the node says of it."""

    def __init__(self, message: str, found: Facts, peers: Sequence[Facts], messaging: Facts) -> None:
        self._message = message
        self._rows, self._kept = found["rows"], found["kept"]
        self._copy: Facts | None = next(iter(found["held"]), None)
        self._send: Facts | None = next(iter(found["sends"]), None)
        self._entries = found["entries"]
        self._names = {each["node"]: each["name"] or each["node"] for each in peers}
        self._in_reach = {each["node"] for each in peers if each["state"] in {"linked", "relayed"}}
        self._linked = [each["node"] for each in peers if each["state"] == "linked"]
        self._one_way = [each["node"] for each in peers if each["state"] in {"one-way", "heard"}]
        self._channels: Sequence[Facts] = messaging["channels"] or ()
        self._destination = _destination(self._copy, self._send, self._rows)

    def _named(self, nodes: Sequence[str]) -> str:
        """Return nodes by the names that people gave them."""
        names = [self._names.get(each, each) for each in nodes]
        more = f" and {len(names) - _NAMES:,} more" if len(names) > _NAMES else ""
        return ", ".join(names[:_NAMES]) + more

    def facts(self) -> tuple[str, ...]:
        """Return the facts that the verdict rests on, for people."""
        found = [f"Linked neighbours: {self._named(self._linked) or 'none'}."]
        if self._one_way:
            found.append(f"Heard, but not hearing this node: {self._named(self._one_way)}.")
        if self._copy is not None:
            found.append(f"The copy here is {self._copy['role']}, of {self._copy['size']:,} bytes.")
            if self._copy["asked_by"]:
                found.append(f"Neighbours that ask for such messages: {self._named(self._copy['asked_by'])}.")
        if not self._kept:
            found.append(HISTORY_OFF)
        return tuple(found)

    # --- queues of this node -------------------------------------------------------------------------------

    def of_entries(self) -> Verdict | None:
        """Return the verdict on a message in a queue of this node."""
        if not self._entries:
            return None
        entry = self._entries[0]
        queue, state = entry["queue"], entry["state"]
        if queue.startswith("queue/DLQ."):
            sentence = f"A dead letter in {queue}: {entry['error'] or 'no program could consume it'}."
            return Verdict("dead-letter", sentence, "Mend the program that failed with it, then retry the dead letter.")
        if state == "assigned":
            return self._assigned(entry, self._named([entry["receiver"]]))
        if state in _STANDING:
            sentence, remedy = _STANDING[state]
            return Verdict(state, sentence.format(queue=queue), remedy)
        return self._waiting(entry, queue)

    def _assigned(self, entry: Facts, receiver: str) -> Verdict:
        since = "" if entry["assigned_us"] is None else f" at {_clock(entry['assigned_us'])}"
        sentence = f"Assigned to {receiver}{since}, which did not answer yet"
        if entry["receiver"] in self._in_reach:
            return Verdict("assigned", f"{sentence}, and is in reach.", "Wait, or look at the program there.")
        remedy = f"Bring {receiver} back in reach. Queues declared with redelivery='after_lease' assign messages again."
        if entry["lease_us"] is not None:
            remedy = f"Its lease ends at {_clock(entry['lease_us'])}: then another consumer may have it."
        return Verdict("assigned-silent", f"{sentence} and is not in reach.", remedy)

    def _waiting(self, entry: Facts, queue: str) -> Verdict:
        if entry["silent"]:
            who = self._named(entry["silent"])
            sentence = f"Waits in {queue}: {who} had messages and let their leases end in silence."
            return Verdict("assigned-silent", sentence, f"Bring {who} back in reach, or start another consumer.")
        if not entry["consumers"]:
            return Verdict("waiting", f"Waits in {queue}, which no consumer receives from.", "Start its consumer.")
        taking = many(entry["consumers"], "consumer")
        sentence = f"Waits in {queue}: none of its {taking} takes it now, because of selectors, credit or order."
        return Verdict("waiting", sentence, "Compare its properties with the selectors of the consumers.")

    # --- sends and history ---------------------------------------------------------------------------------

    def of_send(self) -> Verdict | None:
        """Return the verdict on a send that is followed."""
        send = self._send
        if send is None:
            return None
        if send["state"] == "DELIVERED":
            return Verdict("delivered", "Delivered, according to its receipt.")
        if send["state"] == "FAILED":
            return self._failed(send["reason"])
        if send["state"] == "EXPIRED":
            sentence = f"Expired at {_clock(send['expires_us'])}: nothing was heard of a delivery."
            return Verdict("expired", sentence, _DROPS["expired"][1])
        return self._open_send(send)

    def _open_send(self, send: Facts) -> Verdict | None:
        left, acknowledged = send["left"], send["acknowledged"]
        if left:
            sentence = f"{acknowledged:,} of {many(acknowledged + left, 'recipient')} have it; "
            sentence += f"{self._named(send['left_nodes'])} {'lacks' if left == 1 else 'lack'} it."
            return Verdict("recipients-left", sentence, "It is offered to every node that may meet them.")
        if send["handed_over"]:
            sentence = f"In {send['destination']} at its manager; nobody consumed it, as far as is known here."
            return Verdict("waiting", sentence, "Start a consumer, or ask the manager's node for this message.")
        return self._carried(self._passed()) if send["state"] == "CARRIED" else None

    def _failed(self, reason: str) -> Verdict:
        found = (made for words, made in _REASONS.items() if words in reason)
        key, remedy = next(found, ("failed", ""))
        return Verdict(key, f"Failed: {reason}.", remedy)

    def of_history(self) -> Verdict | None:
        """Return the verdict on a message that is not here any more, from its history."""
        if self._copy is not None or not self._rows:
            return None
        for row in reversed(self._rows):
            if (made := self._of_row(row, row.get("detail") or "")) is not None:
                return made
        return Verdict("gone", f"It is not here any more; the last row of its history is {self._rows[-1]['kind']!r}.")

    def _of_row(self, row: Facts, detail: str) -> Verdict | None:
        kind = row["kind"]
        if kind == "failure":
            return self._failed(detail)
        if kind == "drop" and detail in _DROPS:
            key, remedy = _DROPS[detail]
            gone = "Expired" if key == "expired" else f"Dropped here ({detail})"
            return Verdict(key, f"{gone} at {_clock(row['t'] * MICROSECONDS)}.", remedy)
        found = _ROWS.get((kind, detail)) or _ROWS.get((kind, ""))
        return None if found is None else Verdict(found[0], found[1].format(detail=detail), found[2])

    # --- channels, copies and neighbours -------------------------------------------------------------------

    def of_channel(self) -> Verdict | None:
        """Return the verdict on an event, or on an unknown message: trouble with channels of this node."""
        if self._copy is not None and not self._destination.startswith("channel/"):
            return None
        name = self._destination.removeprefix("channel/")
        known = "" if self._copy is not None else f"This node knows no message {self._message}. "
        troubles = (_trouble(each) for each in self._channels if name in {"", each["channel"]})
        found = next(filter(None, troubles), None)
        return None if found is None else msgspec.structs.replace(found, sentence=known + found.sentence)

    def of_copy(self) -> Verdict | None:
        """Return the verdict on a copy here, by the programs and the neighbours that may take it."""
        copy = self._copy
        if copy is None:
            return None
        if copy["role"] == "wanted" and copy["owed_to"]:
            sentence = f"Here, for {', '.join(copy['owed_to'][:_NAMES])}: no program acknowledged it yet."
            return Verdict("here", sentence, "Start the program that consumes it.")
        if copy["role"] == "wanted":
            return Verdict("delivered", "It arrived: a program of this node has it.")
        if passed := self._passed():
            return self._carried(passed)
        stored = "Stored" if copy["role"] == "own" else "Carried for others"
        return self._offered(copy, stored) if self._linked else self._alone(stored)

    def _alone(self, stored: str) -> Verdict:
        if self._one_way:
            sentence = f"{stored}; {self._named(self._one_way)} is heard, but does not hear this node."
            return Verdict("one-way", sentence, "Come nearer, or look for a firewall there: carrypost doctor.")
        sentence = f"{stored}; no neighbour is in reach."
        return Verdict("no-neighbour", sentence, "If one should be in reach: carrypost doctor.")

    def _offered(self, copy: Facts, stored: str) -> Verdict:
        who = self._named(copy["asked_by"])
        if not who:
            none, nor = f"none of your {len(self._linked):,} neighbours subscribes", "or"
            if len(self._linked) == 1:
                none, nor = f"your only neighbour, {self._named(self._linked)}, neither subscribes", "nor"
            sentence = f"{stored}; {none} to {self._destination} {nor} carries for others."
            return Verdict("none-asks", sentence, "Set altruistic=true on a node that travels.")
        if not self._kept:
            sentence = f"{stored}; {who} asks for such messages. Without a history it is not known who has it."
            return Verdict("history-off", sentence, "Set trace.enabled = true, or send with a receipt.")
        sentence = f"{stored}; {who} asks for it, and has not acknowledged it yet."
        return Verdict("on-its-way", sentence, "Wait; a long message takes several contacts.")

    def unknown(self) -> Verdict:
        """Return the verdict on a message that the node knows nothing of."""
        sentence = f"This node knows no message with the id or label {self._message}."
        if not self._kept:
            return Verdict("history-off", sentence, "Set trace.enabled = true: then what is gone is known, too.")
        return Verdict("unknown", sentence, "Ask the node that sent it, or one that it met.")

    def _passed(self) -> list[str]:
        return list(dict.fromkeys(row["peer"] for row in self._rows if row["kind"] == "pass"))

    def _carried(self, passed: Sequence[str]) -> Verdict:
        who = self._named(passed) or "A neighbour"
        sentence = f"{who} {'have' if passed[1:] else 'has'} it, too; nothing was heard of it since."
        return Verdict("carried", sentence, "Wait until a carrier meets a receiver; a receipt says when (--receipt).")


def _trouble(channel: Facts) -> Verdict | None:
    """Return what is wrong with a channel of this node."""
    of = f"channel/{channel['channel']}"
    if channel["home"] is None:
        why = f" ({channel['refusal']})" if channel["refusal"] else ""
        sentence = f"The {channel['role']} of {of} on this node has no home broker{why}."
        return Verdict("no-home-broker", sentence, "Set overlay.broker=true on a node in reach.")
    if channel["fault"] or channel["faults"]:
        sentence = f"The modulator {channel['modulator']} of {of} fails: {channel['fault'] or 'ask its broker why'}."
        return Verdict("modulator-fails", sentence, "Mend the modulator: events that it fails with have no result.")
    if lost := channel["lost"]:
        sentence = f"{many(lost, 'event')} of {of} {'was' if lost == 1 else 'were'} lost."
        return Verdict("events-lost", sentence, "Raise the lifetime of events, and the cache of their producers.")
    return None


def _destination(copy: Facts | None, send: Facts | None, rows: Sequence[Facts]) -> str:
    if copy is not None:
        return str(copy["destination"])
    if send is not None:
        return str(send["destination"])
    return str(next((row["attrs"]["destination"] for row in rows if "destination" in row.get("attrs", {})), ""))


def _clock(date_us: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(date_us / MICROSECONDS))


def written(row: Facts) -> Facts:
    """Return a row with the destination as commands take it."""
    attrs = row.get("attrs", {})
    if "destination" not in attrs:
        return row
    return {**row, "attrs": {**attrs, "destination": address.written(attrs["destination"])}}


def sentence(row: Facts) -> str:
    """Return a row of a message's history, or the copy that is held, as a sentence."""
    if row["kind"] == "held":
        until = "" if row["expires"] is None else f", until {_clock(row['expires'] * MICROSECONDS)}"
        return f"held here ({row['role']}) for {', '.join(row['owed_to']) or 'others'}{until}"
    values = {"peer": "", "hops": "", "detail": "", "destination": "", **row.get("attrs", {}), **row}
    found = _SENTENCES.get(row["kind"], str(row["kind"])).format_map(values)
    path = row.get("attrs", {}).get("path")
    return f"{found}, by way of {path}" if path else found.strip()
