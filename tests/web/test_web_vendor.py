"""Libraries of the pages: unmodified, with their licences, and all that is loaded comes from here."""

from __future__ import annotations

import json
import re

from tools.vendor import FOLDER, LIBRARIES, LIST, digest

STATIC = FOLDER.parent


def test_the_files_are_those_that_were_fetched() -> None:
    known = json.loads((FOLDER / LIST).read_text(encoding="utf-8"))
    assert {each.name: each.version for each in LIBRARIES} == {name: each["version"] for name, each in known.items()}
    files = {name: value for each in known.values() for name, value in each["files"].items()}
    assert {file.name: digest(file) for file in FOLDER.iterdir() if file.name != LIST} == files
    assert {each.licence for each in LIBRARIES} <= files.keys()


def test_pages_load_nothing_from_elsewhere() -> None:
    for file in (*STATIC.glob("*.html"), *STATIC.glob("*.js"), *STATIC.glob("*.css")):
        text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"(https?:)?//[\w-]+\.\w", re.sub(r"(?m)^\s*//.*$", "", text)), file.name


def test_pages_have_neither_scripts_nor_styles_in_their_text() -> None:
    for file in STATIC.glob("*.html"):
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"<style|style=|\son\w+=|<script(?![^>]*src=)", text), file.name


def test_no_script_is_long() -> None:
    lines = {}
    for file in STATIC.glob("*.js"):
        text = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
        lines[file.name] = sum(1 for line in text if line and not line.startswith(("//", "/*", "*")))
        assert max(map(len, text)) <= 200, file.name
    assert max(lines.values()) <= 300, lines
