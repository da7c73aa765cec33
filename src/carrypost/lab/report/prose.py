"""Texts of the pages about CAUSAL's and EMMA's experiments: what was done, and why ours and the papers' differ.

Figures in these texts that are not the paper's were measured with the shipped scenarios; `docs/causal.md` describes
how.
"""

from __future__ import annotations


def _text(lines: str) -> str:
    return " ".join(lines.split())


BUS_LEAD = "Buses of a town broadcast a message every 20 minutes to all other buses, in causal order."
WALKERS_LEAD = _text("""
    People walk through a district of Stockholm and leave it. Each broadcasts a message every minute to all others,
    in Δ-causal order.
""")
PART = _text("""
    Its counts cannot be compared with the paper's, which are of the complete experiment, so no differences are
    given.
""")
BUS_SCENE = _text("""
    The paper's buses are those of Vannes (France). Neither their routes nor the timetables are part of this
    project. Town, lines and timetable are ours, calibrated to this table and to the receptions of Table II, so
    these rows match by construction and are no evidence. The longest contact does not fit: about 1.5 % of our
    contacts are longer than the paper's longest, because two lines share streets in the same direction.
""")
WALKERS_SCENE = _text("""
    The paper's walkers are the set ostermalm_001_1 of CRAWDAD, which is not part of this project. Streets and
    arrivals are ours, calibrated to this table. The paper's numbers are not entirely consistent: 2,092 walkers who
    stay for 5 min 25 s would broadcast about 11,700 messages, not 10,557. Our walkers are therefore slightly fewer,
    stay slightly shorter, and broadcast slightly more. Our shortest contact is shorter because contacts are computed
    exactly; the original has a position every 0.6 s.
""")
VERDICT = _text("""
    Figures agree if they differ by at most a tenth of the paper's, shares by at most one percentage point. Movement is
    calibrated to the paper's table of nodes and contacts, and that of buses to its receptions as well: broadcasts and
    receptions match by construction and are no evidence. Reasons for differences are at the end of this part.
""")
NEITHER = _text("""
    “Neither, at the end”: messages received, and neither delivered nor expired when the node left or the run ended.
    The paper does not print these.
""")
BUS_SPREAD = _text("""
    The calibration fits the shortest lifetimes, and messages without a lifetime, best. With lifetimes in between,
    ours reach a few per cent more.
""")
WAITING = _text("""
    The paper's messages wait for their predecessors; ours hardly ever do. There are two reasons. First, the paper
    does not state the rate of links, so ours have no limit, and a contact that is cut short leaves few messages
    behind. Second, our hosts send the oldest messages first, which is nearly causal order; the layer below the
    paper's protocol delivers in any order. Without both, the paper's effect appears: walkers leave while many
    messages wait for the beginning of a chain:
""")
SLOW = (
    ("as shipped: no rate limit, oldest first", "99,283", "100 %", "0.1 ms", "0"),
    ("links of 20 kB/s, oldest first", "93,704", "99.83 %", '0.5"', "158"),
    ("links of 20 kB/s, in any order", "93,983", "96.90 %", '5.8"', "451"),
)
"""Measured on the first half hour of Östermalm with 20', seed 1; the last with a changed copy of the code."""
SLOW_HEADS = (
    "first half hour of Östermalm, lifetime 20 min", "received", "co-delivery ratio", "mean latency", "pending, most",
)  # fmt: skip
EXPIRY = _text("""
    With one lifetime for all messages, none can expire while it waits at a node that stays: a message's
    predecessors expire before it does, and at that moment it is delivered. The paper's algorithm examines waiting
    messages only when another one is delivered, so a message may still wait there when it expires.
""")
LEAST = _text("""
    A datagram takes 1 ms here, and a message without missing predecessors is delivered at the instant of its
    reception, so our least latency is 0. The paper's is 1 ms, measured on a real machine.
""")
CELLS = _text("""
    Co-delivery latency against transmission delay of every copy that was delivered to a node other than its author,
    counted in cells. Darker cells have more copies, by orders of magnitude. Dashed lines: the maximum of both in
    the paper, which draws one point for each copy.
""")
BUS_RUNNING = _text("""
    The paper shows the same for its 60 buses: they neither start nor stop together, and some run at school hours
    only.
""")
BUS_REGISTRIES = _text("""
    In the paper c_barrier shrinks to 1 with every broadcast and stays far below the number of nodes, pending stays
    within a few dozen, and co_delivered (a) grows all day without a lifetime, (b) grows and shrinks with a lifetime
    of 20 min.
""")
WALKER = _text("""
    In the paper all registries grow at once when the walker meets others. At 20 min almost 400 messages are pending
    within seconds, and co_delivered reaches 150 and then stays constant.
""")
TYPOS = _text("""
    Two cells of the paper's Table III have a wrong unit, both in the line without lifetime: the deviation of tdelay
    is printed as 1h22" and the maximum of codlvdelay as 11h47". They are shown here as 1 h 22 min and 11 h 47 min.
""")
ROUNDED = "The paper's 100 % is rounded: without lifetime, 4 of 108,584 messages were not delivered."
NOT_ALL = _text("""
    The two ratios of the paper do not add up to 100 %: messages that were pending when their node left count in
    neither.
""")
REACHED = _text("""
    Delivery ratio by age of messages: the share of all pairs of a message and a recipient in which the recipient
    had received the message by that age. Recipients are the nodes other than the author that were present while the
    message lived.
""")
FLOOD = _text("""
    Thin lines with circles: a flood over the same contacts, in which every transfer takes no time and every cache
    is unlimited. It is an upper bound for any protocol.
""")
NO_FLOOD = "Contacts are not known, so the flood bound cannot be computed."
GENERAL = _text("""
    Delivered includes own messages; “of these”: of all messages published or received. The delivery ratio of a
    message is the share of the nodes present during its lifetime that received it; the table shows the mean over
    messages.
""")
EMMA_LEAD = _text("""
    Hosts that move in groups send messages in a burst of 20 s, each to one other host or to 80 % of them. A message
    must arrive within 4 min. Emulated with carrypost's real hosts, scenario emma.
""")
EMMA_ALONE = "As in the paper, there is no synchronous protocol."
EMMA_ISLAND = _text("""
    Hosts with an island know which hosts they can reach over several hops, and send directly to these. The paper's
    evaluation has no synchronous protocol.
""")
EMMA_TRENDS = _text("""
    The paper's text has no figures, so only trends can be compared. Differences are those of means over seeds, at
    the buffer and load where they are smallest. Modes and priorities are compared at buffers that lose at least 1
    pp of the flood bound: in larger buffers nothing is evicted, and classes differ only by their recipients. With
    more than 24 hosts a decrease of up to 2 pp is ignored.
""")
EMMA_1 = _text("""
    Messages for one host, half of them persistent: share delivered, by the size of buffers. The paper: buffer size
    has a strong impact. Flood: a flood over the same contacts with unlimited buffers, an upper bound for any
    protocol.
""")
EMMA_2 = _text("""
    The same with buffers of 100: share of messages delivered, by the time since publication. The paper: a
    proportion of the messages is delivered more or less immediately, since the recipients are in the same cloud.
""")
EMMA_3 = _text("""
    300 persistent messages of three priorities, for one host each: share delivered, by the size of buffers. The
    paper: messages with higher priorities are treated in a preferential way.
""")
EMMA_4 = _text("""
    Buffers of 100: share of messages that reached at least this many of their recipients. The paper shows the
    distribution of delivery ratios.
""")
EMMA_5 = "Mean share of the recipients of a message that received it, by the size of buffers."
EMMA_6 = _text("""
    The same with buffers of 100, by the number of hosts. The paper: the delivery ratio increases as the population
    density increases.
""")
