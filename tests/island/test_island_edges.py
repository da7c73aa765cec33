"""The graph of link records, updated edge by edge, and the information of a digest about the records of a peer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from carrypost.gossip.wire.frames import LinkRecord
from carrypost.island.links import FORGET_US, Edges, Entry, Table, packed_prefixes
from carrypost.model.ids import NodeId, node_prefix
from carrypost.model.times import NEVER

OWN, *OTHERS = (bytes([number]) for number in range(6))
hosts = st.frozensets(st.sampled_from([OWN, *OTHERS]))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("know"), st.sampled_from(OTHERS)),
        st.tuples(st.just("forget"), st.sampled_from(OTHERS)),
        st.tuples(st.just("say"), st.sampled_from([OWN, *OTHERS]), hosts, hosts),
        st.tuples(st.just("hear"), st.dictionaries(st.sampled_from(OTHERS), hosts)),
    ),
    max_size=25,
)


class Told:
    """Claims so far, and the edges that follow from them by the rule."""

    def __init__(self) -> None:
        self.known = {OWN}
        self.said: dict[bytes, tuple[frozenset[bytes], frozenset[bytes]]] = {}
        self.heard: dict[bytes, frozenset[bytes]] = {}

    def _claims(self, one: bytes, other: bytes) -> bool:
        return other in self.said.get(one, ((), ()))[0] or other in self.heard.get(one, ())

    def _denies(self, one: bytes, other: bytes) -> bool:
        return other in self.said.get(one, ((), ()))[1]

    def counts(self, one: bytes, other: bytes) -> bool:
        if OWN in (one, other):
            return (one if other == OWN else other) in self.heard
        claimed = self._claims(one, other) or self._claims(other, one)
        return claimed and not (self._denies(one, other) or self._denies(other, one))

    def ends(self, host: bytes) -> set[bytes]:
        return {each for each in self.known - {host} if host in self.known and self.counts(host, each)}


@given(steps)
def test_edges_are_those_of_the_rule(done: list[tuple[object, ...]]) -> None:
    edges, told = Edges(OWN), Told()
    for kind, *arguments in done:
        before, version = {host: told.ends(host) for host in (OWN, *OTHERS)}, edges.version
        _step(edges, told, kind, *arguments)
        assert {host: edges.of(host) for host in (OWN, *OTHERS)} == {host: told.ends(host) for host in (OWN, *OTHERS)}
        assert edges.claimants == {host for host, (claimed, _) in told.said.items() if OWN in claimed}
        changed = {host for host in (OWN, *OTHERS) if before[host] != told.ends(host)}
        assert (edges.version > version) is bool(changed)
        assert edges.pop_changed() == changed & told.known


def _step(edges: Edges, told: Told, kind: object, *arguments: object) -> None:
    """Do the same to both, if it is allowed: hosts that make claims are known, and so are neighbours."""
    match kind, arguments:
        case "know", (bytes() as host,):
            told.known.add(host)
            edges.know(host)
        case "forget", (bytes() as host,) if host in told.known and host not in told.heard:
            told.known.discard(host)
            told.said.pop(host, None)
            edges.forget(host)
        case "say", (bytes() as host, frozenset() as claimed, frozenset() as denied) if host in told.known:
            told.said[host] = claimed, denied
            edges.set_claims(host, claimed, denied)
        case "hear", (dict() as heard,):
            told.heard = {host: each for host, each in heard.items() if host in told.known}
            edges.set_heard(told.heard)


def entry_of(table: Table, node: NodeId) -> Entry:
    """Return the record of a node that has one."""
    entry = table.get(node)
    assert entry is not None
    return entry


NODES = [NodeId(f"n{number}") for number in range(7)]
PREFIXES = [node_prefix(node) for node in NODES]
some = st.frozensets(st.sampled_from(PREFIXES))


@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from(NODES[1:]), some, some),
            st.dictionaries(st.sampled_from(NODES[1:]), some, max_size=3),
            st.just(FORGET_US + 1),
        ),
        max_size=20,
    ),
)
def test_distances_are_those_of_a_table_that_just_heard_all(steps: list[object]) -> None:
    table, now, heard = Table(NODES[0]), 0, dict[NodeId, frozenset[bytes]]()
    for sequence, step in enumerate(steps):
        match step:
            case (str() as node, frozenset() as claimed, frozenset() as denied):
                record = LinkRecord(node.encode(), 1, sequence, packed_prefixes(claimed), packed_prefixes(denied))
                table.enter(Entry.of(NodeId(node), record, now))
            case dict():
                heard = step
                table.meet(heard, now)
            case int():
                table.expire(now)
                now += step
                table.expire(now)
        fresh = Table(NODES[0])
        fresh.meet(heard, now)
        for entry in table:
            fresh.enter(entry)
        assert (table.distances(NODES[0]), table.digest) == (fresh.distances(NODES[0]), fresh.digest)


def test_of_two_hosts_with_the_same_four_bytes_the_first_is_known_until_it_is_gone() -> None:
    own, first, twin, far = (NodeId(name) for name in ("own", "n18622", "n41826", "far"))
    assert node_prefix(first) == node_prefix(twin)
    table = Table(own)
    claims = packed_prefixes([node_prefix(far)])
    for node, claimed in ((far, b""), (first, claims)):
        table.enter(Entry.of(node, LinkRecord(node.encode(), 1, 0, claimed), 0))
    table.meet({twin: frozenset(), first: frozenset()}, 0)
    assert table.distances(own) == {own: 0, first: 1, far: 2}
    table.meet({twin: frozenset()}, 1)
    assert table.distances(own) == {own: 0}, "the first one is known, and is no neighbour"
    table.meet({}, 2)
    assert table.holder(node_prefix(first)) == first, "it keeps its name when the other one goes"
    assert table.expire(FORGET_US) < NEVER
    table.expire(2 * FORGET_US)
    table.meet({twin: frozenset((node_prefix(far),))}, 3)
    assert table.distances(own) == {own: 0, twin: 1}


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=40))
def test_a_digest_shows_which_of_the_latest_records_somebody_lacks(changes: list[tuple[int, bool]]) -> None:
    nodes = [NodeId(f"n{number}") for number in range(10)]
    tables = Table(NodeId("one")), Table(NodeId("other"))
    for table in tables:
        table.meet({node: frozenset() for node in nodes}, 0)
        for node in nodes:
            table.enter(Entry.of(node, LinkRecord(node.encode(), 1, 0), 0))
        assert table.digest
    for sequence, (number, told) in enumerate(changes, 1):
        for table in tables if told else tables[:1]:
            table.enter(Entry.of(nodes[number], LinkRecord(nodes[number].encode(), 1, sequence), sequence))
            assert table.digest
    one, other = tables
    behind = {node for node in nodes if entry_of(other, node).record != entry_of(one, node).record}
    assert one.lacking(other.digest) == behind
    assert not behind or other.lacking(one.digest) == set(), "it cannot know what it never had"
    assert one.is_like(other.digest, 1), "it is only behind"
    assert one.is_like(other.digest ^ entry_of(one, nodes[0]).fingerprint, 1), "or does not count one more"
    assert not one.is_like(other.digest ^ 1, 1), "it knows something else"
