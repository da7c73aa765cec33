"""The layout: nodes that are together for long lie near each other, and the same record has the same picture."""

from __future__ import annotations

import gzip
import os
import random
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrypost.web import run_places
from carrypost.web.run_files import LinesSource, Scan
from carrypost.web.run_places import Ties

DATA = os.environ.get("CARRYPOST_DATA")
Pairs = Iterable[tuple[int, int, float]]


def ties_of(pairs: Pairs) -> Ties:
    a, b, strength = (np.array(column) for column in zip(*pairs, strict=True))
    return Ties(a, b, strength)


def near(place: np.ndarray, count: int) -> np.ndarray:
    apart = np.linalg.norm(place[:, None] - place[None], axis=2)
    np.fill_diagonal(apart, np.inf)
    found: np.ndarray = apart.argsort(axis=1)[:, :count]
    return found


def test_groups_lie_together_and_the_same_bytes_come_each_time() -> None:
    chance = random.Random(1)
    pairs = {}
    for _ in range(1_500):
        a = chance.randrange(60)
        b = chance.choice([each for each in range(60) if each % 3 == a % 3 or chance.random() < 0.05])
        if a != b:
            pairs[min(a, b), max(a, b)] = chance.random() * (1.0 if a % 3 == b % 3 else 0.1)
    found = ties_of((a, b, strength) for (a, b), strength in pairs.items())
    place = run_places.places(found, 60)
    assert place.tobytes() == run_places.places(found, 60).tobytes()
    assert np.mean(near(place, 5) % 3 == np.arange(60)[:, None] % 3) > 0.9


@given(st.lists(st.tuples(st.integers(0, 19), st.integers(0, 19), st.integers(1, 9)), min_size=1, max_size=60))
def test_what_is_connected_stays_connected_by_the_strongest_ties(drawn: list[tuple[int, int, int]]) -> None:
    pairs = {(min(a, b), max(a, b)): float(weight) for a, b, weight in drawn if a != b}
    if not pairs:
        return
    found = ties_of((a, b, strength) for (a, b), strength in pairs.items())
    kept = run_places.spanning(found, 20)
    forest = Ties(found.a[kept], found.b[kept], found.strength[kept])
    whole = run_places.components(found, 20)
    assert (run_places.components(forest, 20) == whole).all()
    assert kept.sum() == 20 - (whole.max() + 1)
    assert forest.strength.sum() == pytest.approx(heaviest(pairs))
    place = run_places.places(found, 20)
    assert np.isfinite(place).all()


def heaviest(pairs: dict[tuple[int, int], float]) -> float:
    """Return the weight of a maximum spanning forest, after Kruskal."""
    root, total = list(range(20)), 0.0

    def find(node: int) -> int:
        return node if root[node] == node else find(root[node])

    for (a, b), weight in sorted(pairs.items(), key=lambda each: -each[1]):
        if find(a) != find(b):
            root[find(a)] = find(b)
            total += weight
    return total


def test_components_do_not_overlap() -> None:
    pairs = [(a, b, 1.0) for first in (0, 10, 20) for a in range(first, first + 10) for b in range(a + 1, first + 10)]
    place = run_places.places(ties_of(pairs), 35)
    boxes = [(each.min(0), each.max(0)) for each in (place[:10], place[10:20], place[20:30], *place[30:, None])]
    for one, (low, high) in enumerate(boxes):
        assert all((low > other[1]).any() or (high < other[0]).any() for other in boxes[:one] + boxes[one + 1 :])
    assert len({tuple(each) for each in place.tolist()}) == 35


def test_one_node_and_none_have_a_layout(tmp_path: Path) -> None:
    (tmp_path / "one.jsonl").write_text('{"t":1,"kind":"join","node":"a"}\n')
    source = LinesSource(tmp_path / "one.jsonl")
    source.changed()
    node, t, x, _ = run_places.laid_out(Scan(source))
    assert (node.tolist(), t.tolist(), len(x)) == ([0, 0], [1.0, 1.0], 2)
    (tmp_path / "none.jsonl").write_text("")
    assert len(run_places.laid_out(Scan(LinesSource(tmp_path / "none.jsonl")))[0]) == 0


@pytest.mark.skipif(DATA is None, reason="CARRYPOST_DATA names no folder with public traces")
def test_pupils_lie_near_their_classmates(tmp_path: Path) -> None:
    classes: dict[str, str] = {}
    lines = []
    with gzip.open(Path(DATA or "") / "sociopatterns-primary-school" / "primaryschool.tsv.gz", "rt") as file:
        for t, a, b, class_a, class_b in (line.split() for line in list(file)[1:]):
            classes |= {a: class_a, b: class_b}
            lines.append(f'{{"t":{t},"kind":"contact","node":"{a}","peer":"{b}","attrs":{{"end":"{int(t) + 20}"}}}}')
    (tmp_path / "school.jsonl").write_text("\n".join(lines) + "\n")
    source = LinesSource(tmp_path / "school.jsonl")
    source.changed()
    scan = Scan(source)
    _, _, x, y = run_places.laid_out(scan)
    neighbours = near(np.stack([x[::2], y[::2]], 1), 5)
    of = [classes[name] for name in scan.names.texts]
    same = [of[other] == of[node] for node in range(len(of)) if of[node] != "Teachers" for other in neighbours[node]]
    assert np.mean(same) >= 0.6
