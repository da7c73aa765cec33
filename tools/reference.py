"""Makes the reference of the API, one page for each public module, from its docstrings: ``make docs``.

``python tools/reference.py FOLDER`` writes the pages into a folder; they need no network.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pdoc

MODULES = (
    "carrypost", "carrypost.sync", "carrypost.classic", "carrypost.sync.classic", "carrypost.naming",
    "carrypost.testing", "carrypost.config", "carrypost.host",
)  # fmt: skip
TEMPLATES = Path(__file__).with_name("templates")


def build(folder: Path) -> None:
    """Write the pages."""
    pdoc.render.configure(docformat="markdown", show_source=False, template_directory=TEMPLATES)
    # Names that only type checkers import are shown as they are written, and pdoc warns of each.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Error parsing type annotation")
        pdoc.pdoc(*MODULES, "!carrypost[.](?!sync[.]classic$)[a-z_]+[.]", output_directory=folder)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("name one folder for the pages")
    build(Path(sys.argv[1]))
    print(Path(sys.argv[1]) / "index.html")
