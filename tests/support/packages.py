"""carrypost as a package: the wheel is built and installed into an environment of its own, outside the source tree."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_BUILD_S = 600


def build(folder: Path, *kinds: str) -> list[Path]:
    """Build the package as `make package` does; `kinds`: only these, such as --wheel."""
    _run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), *kinds, str(ROOT)])
    return sorted(folder.iterdir())


class Environment:
    """A virtual environment in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        venv.create(folder, symlinks=True)

    @property
    def python(self) -> str:
        """Path of its interpreter."""
        return str(self.folder / "bin" / "python")

    @property
    def carrypost(self) -> str:
        """Path of its command `carrypost`."""
        return str(self.folder / "bin" / "carrypost")

    def install(self, *given: str) -> None:
        """Install packages by the pip of these tests."""
        _run([sys.executable, "-m", "pip", "--python", self.python, "install", "--quiet", *given])

    def borrow_libraries(self) -> None:
        """Import what this environment lacks from the libraries of these tests, which cost much to install.

        Packages that are installed there in editable form, as carrypost may be, are not found this way.
        """
        found = sysconfig.get_path("purelib", vars={"base": str(self.folder), "platbase": str(self.folder)})
        paths = [each for each in sys.path if Path(each).name == "site-packages"]
        Path(found, "borrowed.pth").write_text("\n".join(paths))


def _run(command: Sequence[str]) -> None:
    ran = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_S, check=False)  # noqa: S603 - ours
    assert ran.returncode == 0, ran.stdout + ran.stderr
