"""The reference of the API, which `make docs` makes of docstrings."""

from __future__ import annotations

import importlib
import re
import warnings
from pathlib import Path

import pdoc
import pytest
from tools.reference import MODULES, build


@pytest.mark.pure("reads signatures")
@pytest.mark.parametrize("name", MODULES)
def test_every_public_name_has_an_entry_and_every_class_and_function_a_text(name: str) -> None:
    module = importlib.import_module(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of annotations that only type checkers can read.
        entries = pdoc.doc.Module(module).members
        texts = {entry.name: entry.docstring for entry in entries.values() if entry.kind in {"class", "function"}}
    assert set(entries) == set(module.__all__)
    assert [entry for entry, text in texts.items() if not text] == []


@pytest.mark.soak
def test_pages_are_whole_and_link_to_each_other_only(tmp_path: Path) -> None:
    build(tmp_path)
    pages = {f"{name.replace('.', '/')}.html" for name in MODULES} | {"index.html"}
    assert {str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*.html")} == pages
    for page in pages:
        text = (tmp_path / page).read_text(encoding="utf-8")
        for link in re.findall(r'(?:href|src)="([^"]+)"', re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)):
            target = link.partition("#")[0]
            if target != "https://pdoc.dev" and not target.startswith("data:"):
                assert (tmp_path / page).parent.joinpath(target).exists(), link
    blocking = (tmp_path / "carrypost" / "sync.html").read_text(encoding="utf-8")
    assert '<span class="def">async def</span>' not in blocking
    assert '<span class="def">async def</span>' in (tmp_path / "carrypost.html").read_text(encoding="utf-8")
