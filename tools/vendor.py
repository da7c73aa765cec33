"""Fetches the libraries of the web pages, unmodified, into `web/static/vendor`.

``python tools/vendor.py`` needs npm and the network; nothing else in the project does. To renew a library, change its
version below and run it. `vendor.json` has the version and the SHA-256 of every file; a test compares them, so that no
file can be changed by hand.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).resolve().parents[1] / "src" / "carrypost" / "web" / "static" / "vendor"
LIST = "vendor.json"


class Library(NamedTuple):
    """A package of npm, and its files that pages load."""

    name: str
    version: str
    files: tuple[str, ...]

    @property
    def licence(self) -> str:
        """Name of its licence among the files."""
        return f"{self.name.rpartition('/')[2]}.LICENSE"


LIBRARIES = (
    Library("@uwdata/flechette", "2.7.0", ("dist/flechette.mjs",)),
    Library("htm", "3.1.1", ("dist/htm.mjs",)),
    Library("preact", "11.2.0", ("dist/preact.mjs",)),
    Library("uplot", "1.6.32", ("dist/uPlot.esm.js", "dist/uPlot.min.css")),
)


def fetch(library: Library, folder: Path) -> dict[str, str]:
    """Copy the files of a library into a folder; return the SHA-256 of each."""
    with tempfile.TemporaryDirectory() as scratch:
        asked = ["npm", "pack", "--silent", f"{library.name}@{library.version}"]
        done = subprocess.run(asked, cwd=scratch, check=True, capture_output=True, text=True)  # noqa: S603 - fixed
        packed = done.stdout.split()[-1]
        with tarfile.open(Path(scratch, packed)) as archive:
            archive.extractall(scratch, filter="data")
        for file in library.files:
            shutil.copyfile(Path(scratch, "package", file), folder / Path(file).name)
        shutil.copyfile(Path(scratch, "package", "LICENSE"), folder / library.licence)
    return {name: digest(folder / name) for name in (*(Path(file).name for file in library.files), library.licence)}


def digest(file: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def main() -> None:
    """Fetch all libraries anew."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    found = {each.name: {"version": each.version, "files": fetch(each, FOLDER)} for each in LIBRARIES}
    (FOLDER / LIST).write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(f"{len(found)} libraries, {sum(each.stat().st_size for each in FOLDER.iterdir()):,} bytes")


if __name__ == "__main__":
    main()
