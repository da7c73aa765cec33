"""Draw the map of the packages, with their first sentences: `docs/packages.svg`.

    python tools/map.py            draw it
    python tools/map.py --check    only say whether it is up to date

Layers are those that the check `imports` enforces (`[tool.importlinter]` in pyproject.toml), highest first. A package
imports only packages in rows below its own, and neighbours in its row where a colon is between them there.
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
import tomllib
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "packages.svg"
_PACKAGE = ROOT / "src" / "carrypost"
_WIDTH, _GAP, _LINE = 1_200, 10, 17
_PER_CHARACTER = 6.6
"""Width of a character of the sentences, about."""
_TITLE = """
<title>The packages of carrypost, by layers</title>
<style>
  rect { fill: #f3f6f8; stroke: #8aa0ad } text { font: 13px sans-serif; fill: #24323a } .name { font-weight: bold }
  @media (prefers-color-scheme: dark) { rect { fill: #24323a; stroke: #5d7683 } text { fill: #e6edf1 } }
</style>
""".strip()


def layers() -> list[list[str]]:
    """Return the packages of each layer, highest first."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    rows = next(each["layers"] for each in table["contracts"] if each["containers"] == ["carrypost"])
    return [re.findall(r"\w+", row) for row in rows]


def first_sentence(package: str) -> str:
    """Return the first sentence of the docstring of a package or a module."""
    folder = _PACKAGE / package
    source = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    text = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""
    return re.split(r"(?<=\.)\s", " ".join(text.split()), maxsplit=1)[0].replace("``", "'").replace("`", "'")


def picture() -> str:
    """Return the map as SVG."""
    parts, y = [], _GAP
    for row in layers():
        width = (_WIDTH - _GAP) / len(row) - _GAP
        texts = [textwrap.wrap(first_sentence(name), int((width - 20) / _PER_CHARACTER)) for name in row]
        height = _LINE * (1 + max(map(len, texts))) + 14
        for at, (name, lines) in enumerate(zip(row, texts, strict=True)):
            x = _GAP + at * (width + _GAP)
            parts.append(f'<rect x="{x:g}" y="{y}" width="{width:g}" height="{height}" rx="4"/>')
            for number, line in enumerate([name, *lines], 1):
                kind = "" if number > 1 else ' class="name"'
                parts.append(
                    f'<text x="{x + 10:g}" y="{y + 4 + _LINE * number}"{kind}>{escape(line, quote=False)}</text>'
                )
        y += height + _GAP
    size = f'viewBox="0 0 {_WIDTH} {y}" width="{_WIDTH}" height="{y}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    return "\n".join([head, _TITLE, *parts, "</svg>"]) + "\n"


def main(arguments: list[str]) -> int:
    """Draw the map, or check that it is up to date."""
    made = picture()
    if arguments == ["--check"]:
        current = PICTURE.exists() and PICTURE.read_text(encoding="utf-8") == made
        print("up to date" if current else f"{PICTURE.relative_to(ROOT)} is not up to date: run python tools/map.py")
        return int(not current)
    PICTURE.write_text(made, encoding="utf-8", newline="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
