"""The map of the packages."""

from __future__ import annotations

from tools import map as packages_map


def test_the_map_is_up_to_date() -> None:
    assert packages_map.PICTURE.read_text(encoding="utf-8") == packages_map.picture(), "run python tools/map.py"


def test_every_package_is_in_one_layer_and_has_a_sentence() -> None:
    names = [name for row in packages_map.layers() for name in row]
    assert len(set(names)) == len(names) > 20
    assert all(packages_map.first_sentence(name).endswith(".") for name in names)
