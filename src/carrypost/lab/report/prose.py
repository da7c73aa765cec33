"""Texts of the pages about CAUSAL's and EMMA's experiments: what was done, and why ours and the papers' differ.

Figures in these texts that are not the paper's were measured with the shipped scenarios; `docs/causal.md` tells how.
"""

from __future__ import annotations


def _text(lines: str) -> str:
    return " ".join(lines.split())


BUS_LEAD = _text("""
    Buses of a town broadcast a message every 20 minutes, which all other buses are to get, in causal order.
""")
WALKERS_LEAD = _text("""
    People walk through a district of Stockholm and leave it; each broadcasts a message every minute, which all others
    are to get, in Δ-causal order.
""")
PART = _text("""
    Its counts cannot be compared with the paper's, which stand beside them for the whole; no difference is given.
""")
BUS_SCENE = _text("""
    The paper's buses are those of Vannes (France); neither their routes nor the timetables are part of this project.
    Town, lines and timetable are ours, calibrated to this table and to the receptions of Table II: that these agree
    confirms nothing. What does not fit is the longest contact: about 1.5 % of ours are longer than the paper's longest,
    where two lines share streets in the same direction.
""")
WALKERS_SCENE = _text("""
    The paper's walkers are the set ostermalm_001_1 of CRAWDAD, which is not part of this project. Streets and arrivals
    are ours, calibrated to this table. The paper's numbers do not quite fit each other: 2,092 walkers who stay for
    5'25" would broadcast about 11,700 messages, not 10,557; so ours are a few less and stay a little shorter, and
    broadcast a little more. Our shortest contact is shorter because we solve for the instant, where the original has a
    place every 0.6 s.
""")
NEITHER = _text("""
    “Neither, at the end”: received, and neither delivered nor expired when the node left or the run ended; the paper
    does not print these.
""")
BUS_SPREAD = _text("""
    The calibration fits the shortest lifetimes, and none at all, better than those in between, where ours reach a few
    per cent more.
""")
WAITING = _text("""
    The paper's messages wait for their predecessors, ours hardly ever do. Two things make the difference. The paper
    names no rate of links, so ours have no limit, and a contact that is cut short leaves little behind. And our hosts
    send what is oldest first, which is nearly causal order, where the paper's layer below delivers in any order. Taking
    both away shows the paper's effect, walkers who leave while much waits because the beginning of a chain was still to
    come:
""")
SLOW = (
    ("as shipped: no rate limit, oldest first", "99,283", "100 %", "0.1 ms", "0"),
    ("links of 20 kB/s, oldest first", "93,704", "99.83 %", '0.5"', "158"),
    ("links of 20 kB/s, in any order", "93,983", "96.90 %", '5.8"', "451"),
)
"""Measured on the first half hour of Östermalm with 20', seed 1; the last with a changed copy of the code."""
SLOW_HEADS = (
    "first half hour of Östermalm, lifetime 20'", "received", "co-delivery ratio", "mean latency", "pending, most",
)  # fmt: skip
EXPIRY = _text("""
    With one lifetime for all, nothing can expire while it waits at a node that stays: what a message waits for dies
    before it does, and at that moment it is delivered. The paper's codes look at what waits only when something else is
    delivered, so there a message may still wait when its own time comes.
""")
LEAST = _text("""
    A datagram takes 1 ms here, and what waits for nothing is delivered in the instant of its reception, so our least
    latency is 0; the paper's is 1 ms of a real machine.
""")
CELLS = _text("""
    Co-delivery latency against transmission delay of every copy that was delivered to others than its author, counted
    in cells; darker is more, by orders of magnitude. Dashed: the longest of both in the paper, which has one point for
    each copy.
""")
BUS_RUNNING = _text("""
    The paper shows the same for its 60: they neither start nor stop together, and some run at school hours only.
""")
BUS_REGISTRIES = _text("""
    In the paper c_barrier shrinks to 1 with every broadcast and never comes near the number of nodes, pending stays
    within a few dozen, and co_delivered (a) grows all day without a lifetime, (b) grows and shrinks with one of 20'.
""")
WALKER = _text("""
    In the paper all registries grow at once when the walker meets others; at 20' almost 400 messages are pending within
    seconds, and co_delivered comes to 150 and then stays.
""")
TYPOS = _text("""
    Two cells of the paper's Table III have a wrong unit, both in the line without lifetime: the deviation of tdelay is
    printed 1h22" and the most of codlvdelay 11h47". Here they stand as 1h22' and 11h47'.
""")
ROUNDED = "The paper's 100 % is rounded: without lifetime, 4 of 108,584 messages were not delivered."
NOT_ALL = "The two ratios of the paper do not add up to 100 %: what was pending when its node left counts in neither."
REACHED = _text("""
    Delivery ratio by age of messages: the share of all pairs of a message and a recipient, a node other than the author
    that was there while the message lived, that had got it by then.
""")
FLOOD = _text("""
    Thin, with circles: what a flood over the same contacts would have reached, had every transfer taken no time and
    every cache been endless; no protocol can do more.
""")
NO_FLOOD = "Contacts are not known, so nothing can be said of what a flood would have reached."
GENERAL = _text("""
    Delivered counts own messages; “of these”: of what was published or received. The delivery ratio is the mean share
    of nodes, of those that were there while a message lived, that got it.
""")
EMMA_LEAD = _text("""
    Hosts that move in groups send messages in a burst of 20 s, each to one other host or to 80 % of them. A message has
    to be there within 4 min. Emulated with carrypost's real hosts, scenario emma.
""")
EMMA_ALONE = "There is no synchronous protocol, as in the paper."
EMMA_ISLAND = _text("""
    Hosts with an island know whom they can reach over several hops, and send straight to these; the paper's evaluation
    has no synchronous protocol.
""")
EMMA_TRENDS = _text("""
    The paper has no figures in its text, so trends are all there is to compare with. Differences are those of means
    over seeds, at the buffer and load where they are least. Modes and priorities are compared at buffers that lose 1 pp
    or more of what a flood would have brought: in larger ones nothing gives way, and classes differ by the recipients
    that they happen to have. With more than 24 hosts a fall of up to 2 pp counts as none.
""")
EMMA_1 = _text("""
    Messages for one host, half of them persistent: the share that was delivered, by the size of buffers. The paper:
    buffer size has a strong impact. Flood: what a flood over the same contacts would have reached with endless buffers;
    no protocol can do more.
""")
EMMA_2 = _text("""
    The same with buffers of 100: the share of messages that was delivered, by the time since publication. The paper: a
    proportion of the messages is delivered more or less immediately, since the recipients are in the same cloud.
""")
EMMA_3 = _text("""
    300 persistent messages of three priorities, for one host each: the share that was delivered, by the size of
    buffers. The paper: messages with higher priorities are treated in a preferential way.
""")
EMMA_4 = _text("""
    Buffers of 100: the share of messages that reached at least so many of their recipients. The paper shows how
    delivery ratios are distributed.
""")
EMMA_5 = "The mean share of the recipients of a message that got it, by the size of buffers."
EMMA_6 = _text("""
    The same with buffers of 100, by the number of hosts. The paper: the delivery ratio increases as the population
    density increases.
""")
