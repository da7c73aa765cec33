"""Old names of documented functions, classes and methods: they still work, and warn."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

import pytest

from carrypost.gossip.holdings.copies import Copy
from carrypost.gossip.layer import Layer
from carrypost.host.host import Host

RENAMED = [
    ("carrypost.gossip.wire.payloads", "filled", "fill_payloads"),
    ("carrypost.gossip.wire.payloads", "gathered", "assemble_payload"),
    ("carrypost.mom.commands", "Work", "UnitOfWork"),
]


@pytest.mark.parametrize(("module", "old", "new"), RENAMED)
def test_an_old_name_is_the_new_one_and_warns(module: str, old: str, new: str) -> None:
    found = import_module(module)
    with pytest.warns(DeprecationWarning, match=f"{old} is now called {new}"):
        assert getattr(found, old) is getattr(found, new)


def test_a_name_that_never_was_is_refused() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'emptied'"):
        _ = import_module("carrypost.gossip.wire.payloads").emptied


def test_a_layer_that_overrides_take_receives() -> None:
    with pytest.warns(DeprecationWarning, match="Old.take is now called receive"):

        class Old(Layer):
            def take(self, copies: Sequence[Copy]) -> Sequence[Copy]:
                return copies[1:]

    assert Old().receive([]) == []
    assert Old.receive is not Layer.receive


def test_a_layer_that_overrides_check_work_checks_units() -> None:
    with pytest.warns(DeprecationWarning, match="Old.check_work is now called check_unit"):

        class Old(Layer):
            def check_work(self, *_: object) -> None: ...

    assert Old.check_unit is not Layer.check_unit


def test_a_host_still_has_tell_links() -> None:
    with (
        pytest.warns(DeprecationWarning, match="Host.tell_links is now called set_links"),
        pytest.raises(AttributeError),  # Nothing of this host was made: the new method was called.
    ):
        Host.__new__(Host).tell_links(None, 0)
