"""Names of one device: their destinations, how they are listed, and which may be bound."""

from __future__ import annotations

import pytest

from carrypost.errors import (
    AmbiguousNameException,
    ContextNotEmptyException,
    InvalidNameException,
    NameAlreadyBoundException,
    NameNotFoundException,
    NamingException,
    NotContextException,
)
from carrypost.messaging.namespace import Bind, Binding, Entry, Namespace
from carrypost.model import address
from carrypost.model.address import Kind
from carrypost.model.descriptor import Ordering
from carrypost.model.ids import NodeId

HERE, X, Y = NodeId("here"), NodeId("x"), NodeId("y/z")


def space(*entries: tuple[NodeId, str, str]) -> Namespace:
    """Return a namespace with these names of nodes; a name without a destination is a context."""
    made = Namespace(HERE)
    for owner, name, destination in entries:
        made.add(Entry(owner, name, destination, deadline_us=7))
    return made


def meant(names: Namespace, name: str, kind: Kind | None = None) -> str | None:
    found = names.lookup(name, kind)
    return None if found is None else found.destination


def listed(names: Namespace, context: str = "") -> list[str]:
    return [each.name for each in names.listing(context)]


FULL = space(
    (HERE, "mine", "topic/mine"), (HERE, "office", ""), (HERE, "office/printer", address.queue("ink", HERE)),
    (X, "mine", "topic/other"), (X, "Alan", address.queue("Alan", X)), (Y, "Alan", address.queue("Alan", Y)),
    (X, "news", "topic/news"), (Y, "news", "topic/news"), (X, "clinic/doctor", address.queue("doctor", X)),
    (X, "plan", "topic/plan"), (Y, "plan", address.queue("plan", Y)), (X, "split", "topic/s1"),
    (Y, "split", "topic/s2"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "destination"),
    [
        ("mine", "topic/mine"),
        ("news", "topic/news"),
        ("office/printer", "queue/here/ink"),
        ("clinic/doctor", "queue/x/doctor"),
        ("mine@x", "topic/other"),
        ("mine@here", "topic/mine"),
        ("Alan@x", "queue/x/Alan"),
        ("Alan@y%2Fz", "queue/y%2Fz/Alan"),
        ("clinic/doctor@x", "queue/x/doctor"),
        ("Alan@nobody", "queue/nobody/Alan"),
        ("queue/Alan@x", "queue/x/Alan"),
        ("queue/doctor@x", "queue/x/doctor"),
        ("queue/mine@x", "queue/x/mine"),
        ("topic/news", "topic/news"),
        ("topic/never heard of", "topic/never heard of"),
        ("topic/a/b", "topic/a/b"),
        ("split@x", "topic/s1"),
        ("", ""),
        ("office", ""),
        ("clinic", ""),
        ("topic", ""),
        ("queue", ""),
        ("nothing", None),
        ("office/nothing", None),
        ("@x", None),
        ("Alan@", None),
        ("queue/clinic/doctor", "queue/x/doctor"),
        ("queue/office/printer", "queue/here/ink"),
        ("queue/plan", "queue/y%2Fz/plan"),
        ("queue/mine", None),
        ("queue/", None),
        ("topic/", None),
    ],
)
def test_what_a_name_stands_for(name: str, destination: str | None) -> None:
    assert meant(FULL, name) == destination


@pytest.mark.parametrize(
    ("name", "named"), [("Alan", ["'Alan@x'", "'Alan@y%2Fz'"]), ("plan", ["'plan@x'"]), ("queue/Alan", ["'Alan@x'"])]
)
def test_a_name_of_several_things_is_told_with_all_of_them(name: str, named: list[str]) -> None:
    with pytest.raises(AmbiguousNameException, match=name.removeprefix("queue/")) as raised:
        FULL.lookup(name)
    assert all(each in str(raised.value) for each in named)


@pytest.mark.parametrize(
    ("name", "kind", "destination"),
    [
        ("plan", Kind.QUEUE, "queue/y%2Fz/plan"), ("plan", Kind.TOPIC, "topic/plan"), ("news", Kind.QUEUE, None),
        ("mine", Kind.QUEUE, None), ("mine@x", Kind.QUEUE, None), ("Alan@nobody", Kind.QUEUE, "queue/nobody/Alan"),
        ("Alan@nobody", Kind.TOPIC, None), ("queue/plan", Kind.TOPIC, None),
        ("queue/plan", Kind.QUEUE, "queue/y%2Fz/plan"), ("topic/news", Kind.QUEUE, None), ("office", Kind.QUEUE, None),
    ],
)  # fmt: skip
def test_one_kind_may_be_meant(name: str, kind: Kind, destination: str | None) -> None:
    assert meant(FULL, name, kind) == destination


def test_everything_that_a_bare_name_may_stand_for_is_found_what_is_bound_here_first() -> None:
    assert [each.owner for each in FULL.find("mine")] == [HERE, X]
    assert [each.owner for each in FULL.find("Alan")] == [X, Y]
    assert FULL.find("office") == []


def test_names_are_listed_bare_where_that_says_enough() -> None:
    assert listed(FULL) == [
        "Alan@x", "Alan@y%2Fz", "clinic", "mine", "mine@x", "news", "office", "plan@x", "plan@y%2Fz", "split@x",
        "split@y%2Fz",
    ]  # fmt: skip
    assert listed(FULL, "office") == ["office/printer"]
    assert listed(FULL, "clinic") == ["clinic/doctor@x"]
    assert listed(FULL, "topic") == [f"topic/{each}" for each in ("mine", "news", "other", "plan", "s1", "s2")]
    assert listed(FULL, "queue") == [
        "queue/Alan@x",
        "queue/Alan@y%2Fz",
        "queue/doctor@x",
        "queue/ink@here",
        "queue/plan@y%2Fz",
    ]


@pytest.mark.parametrize("context", ["", "office", "clinic", "topic", "queue"])
def test_everything_that_is_listed_can_be_looked_up(context: str) -> None:
    for each in FULL.listing(context):
        assert meant(FULL, each.name) == each.destination


def test_a_binding_says_when_it_lapses_and_how_its_topic_is_opened() -> None:
    names = Namespace(HERE)
    names.add(Entry(X, "forum", "topic/forum", Ordering.CAUSAL, deadline_us=7))
    assert names.lookup("forum") == Binding("forum", "topic/forum", Ordering.CAUSAL, 7)
    assert names.lookup("topic/forum") == Binding("topic/forum", "topic/forum", Ordering.CAUSAL)


def test_what_is_hidden_is_not_seen() -> None:
    names = Namespace(HERE)
    names.add(Entry(X, "a/news", "topic/news", hidden=True))
    assert names.lookup("a/news") is None
    assert meant(names, "a/news@x") == "queue/x/a/news"
    assert names.lookup("a") is None
    assert listed(names) == listed(names, "topic") == []


def test_what_was_removed_leaves_nothing() -> None:
    names = Namespace(HERE)
    made = Entry(X, "a/news", "topic/news")
    names.add(made)
    names.remove(made)
    assert names.entry(X, "a/news") is None
    assert not names.of_owner(X)
    assert not names.of_others("topic/news")
    assert listed(names) == []


# --- what may be bound -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "/", "a/", "/a", "a//b", "Alan@x", "a/b@c", "topic", "queue/x", "a\nb", "\ud800"])
def test_what_is_no_name_cannot_be_bound(name: str) -> None:
    with pytest.raises(InvalidNameException):
        FULL.check_bindable(Bind(name, "topic/t"))


@pytest.mark.parametrize("name", ["new", "a topic", "news", "Alan", "clinic", "office/topic", "clinic/nurse", "grüße"])
def test_what_others_call_so_is_no_hindrance(name: str) -> None:
    FULL.check_bindable(Bind(name, "topic/t"))


@pytest.mark.parametrize(
    ("asked", "error", "text"),
    [
        (Bind("mine", "topic/t"), NameAlreadyBoundException, "topic/mine"),
        (Bind("mine"), NameAlreadyBoundException, "topic/mine"),
        (Bind("office", "topic/t"), NameAlreadyBoundException, "context"),
        (Bind("office", "topic/t", replace=True), NameAlreadyBoundException, "context"),
        (Bind("mine/x", "topic/t"), NotContextException, "not a context"),
        (Bind("news/x", "topic/t"), NotContextException, "not a context"),
        (Bind("ofice/x", "topic/t"), NameNotFoundException, "'office'"),
        (Bind("nowhere/at/all"), NameNotFoundException, "'nowhere/at'"),
    ],
)
def test_what_cannot_be_bound_is_told(asked: Bind, error: type[NamingException], text: str) -> None:
    with pytest.raises(error, match=text):
        FULL.check_bindable(asked)


def test_a_name_of_ones_own_may_be_replaced_by_who_says_so() -> None:
    FULL.check_bindable(Bind("mine", "topic/t", replace=True))


def test_only_an_empty_context_that_was_made_here_can_be_destroyed() -> None:
    with pytest.raises(ContextNotEmptyException, match="office/printer"):
        FULL.destructible("office")
    with pytest.raises(NotContextException, match="topic/mine"):
        FULL.destructible("mine")
    with pytest.raises(NameNotFoundException, match="clinic"):
        FULL.destructible("clinic")
    names = space((HERE, "office", ""), (X, "office/of x", "topic/t"))
    assert names.destructible("office").name == "office"


def test_who_unbinds_says_which() -> None:
    assert [each.owner for each in FULL.unbindable("mine")] == [HERE]
    assert [each.owner for each in FULL.unbindable("news")] == [X, Y]
    assert [each.owner for each in FULL.unbindable("Alan@x")] == [X]
    with pytest.raises(AmbiguousNameException):
        FULL.unbindable("Alan")
    with pytest.raises(NameNotFoundException):
        FULL.unbindable("Alan@nobody")
    with pytest.raises(NamingException, match="destroy_subcontext"):
        FULL.unbindable("office")


@pytest.mark.parametrize(
    ("names", "name", "text"),
    [
        (FULL, "mien", "near it: 'mine'"),
        (FULL, "zzz", "there are 'Alan@x', "),
        (space(), "zzz", "no names are bound"),
        (space(*((X, f"n{n}", f"topic/{n}") for n in range(30))), "zzz", "and 20 more"),
    ],
)
def test_a_name_that_is_missing_is_told_with_what_is_there(names: Namespace, name: str, text: str) -> None:
    assert text in str(names.missing(name))
