"""The package itself as a zip file, for executors that run elsewhere: they run the code that the driver runs.

Only carrypost travels so. What it needs (numpy, pyarrow, msgspec and so on) has compiled parts, and has to be installed
where executors run, or be sent along as a packed environment by Spark's own ``spark.archives``.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import carrypost

_EPOCH = (1980, 1, 1, 0, 0, 0)
_KEPT = {".py", ".properties", ".toml", ".css"}


def package_zip(folder: Path) -> Path:
    """Return a zip file of carrypost in this folder; the same code gives the same bytes."""
    root = Path(carrypost.__file__).parent
    path = folder / "carrypost.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(each for each in root.rglob("*") if each.suffix in _KEPT):
            name = file.relative_to(root.parent).as_posix()
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), file.read_bytes(), zipfile.ZIP_DEFLATED)
    return path
