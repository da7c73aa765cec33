"""Choice of relays: every node two hops away is covered, and a choice is kept as long as it covers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrypost.island.island import choose, two_hops

Heard = dict[bytes, frozenset[bytes]]


def graph(**heard: str) -> Heard:
    """Return the neighbours of each neighbour, by letters; `o` is this host."""
    return {name.encode(): frozenset(each.encode() for each in others) for name, others in heard.items()}


@pytest.mark.parametrize(
    ("heard", "expected"),
    [
        pytest.param(graph(), "", id="alone"),
        pytest.param(graph(a="ob", b="oa"), "", id="a clique needs none"),
        pytest.param(graph(a="ox", b="o"), "a", id="the only way"),
        pytest.param(graph(a="ox", b="oxy", c="oy"), "b", id="one instead of two"),
        pytest.param(graph(a="oxy", b="oyz", c="oz"), "ab", id="the only way first, then the most useful"),
        pytest.param(graph(a="obx", b="oax"), "b", id="of equals the highest prefix"),
    ],
)
def test_the_fewest_neighbours_are_chosen(heard: Heard, expected: str) -> None:
    assert choose(b"o", heard) == {each.encode() for each in expected}


def test_a_choice_that_covers_is_kept_though_a_smaller_one_would_do() -> None:
    heard = graph(a="ox", b="oxy", c="oy")

    assert choose(b"o", heard, kept=[b"a", b"c"]) == {b"a", b"c"}


def test_what_is_missing_is_added_and_what_became_superfluous_goes() -> None:
    heard = graph(a="ox", b="oxyz", c="oy")

    assert choose(b"o", heard, kept=[b"a", b"c"]) == {b"b"}


def test_who_is_no_neighbour_any_more_is_not_kept() -> None:
    assert choose(b"o", graph(a="ox"), kept=[b"a", b"gone"]) == {b"a"}


names = st.sampled_from([bytes([each]) for each in range(12)])
neighbourhoods = st.dictionaries(names, st.frozensets(names, max_size=6), max_size=8)


@given(heard=neighbourhoods, kept=st.frozensets(names))
def test_everything_two_hops_away_is_covered(heard: Heard, kept: frozenset[bytes]) -> None:
    own = b"o"

    chosen = choose(own, heard, kept)

    reached_by = two_hops(own, heard)
    assert chosen <= heard.keys()
    assert all(by & chosen for by in reached_by.values())
    assert choose(own, heard, chosen) == chosen
    left = kept & heard.keys()
    if all(by & left for by in reached_by.values()):
        assert chosen == left
    else:
        for each in chosen:
            assert any(by & chosen == {each} for by in reached_by.values()), "a superfluous relay was chosen"
