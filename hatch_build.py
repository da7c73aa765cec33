"""Build hook: a wheel with compiled modules if `CARRYPOST_COMPILE=1` asks for one, else a pure one.

hatchling makes everything else. mypyc's recipe for setuptools would compile one file after the other.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledHook(BuildHookInterface):
    """Adds the extensions that `tools.compiled` makes."""

    @property
    def _wanted(self) -> bool:
        return os.environ.get("CARRYPOST_COMPILE") == "1" and self.target_name == "wheel"

    def dependencies(self) -> list[str]:
        """Return what the build needs beside hatchling: types of all libraries, and mypyc."""
        core = self.metadata.core
        extras = core.optional_dependencies
        return [*core.dependencies, *extras["emu"], *extras["compiled"]] if self._wanted else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and take the extensions into the wheel, which is then one for this platform."""
        if not self._wanted or version == "editable":
            return
        sys.path[:0] = [self.root, str(Path(self.root, "src"))]
        from tools import compiled  # noqa: PLC0415 - needs what `dependencies` lists

        self._folder = tempfile.TemporaryDirectory(prefix="carrypost-wheel-")
        found = compiled.wheel_files(Path(self._folder.name))
        build_data["force_include"].update({str(path): name for name, path in found.items()})
        build_data.update(pure_python=False, infer_tag=True)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002 - given
        """Remove what was compiled: the wheel has it."""
        if hasattr(self, "_folder"):
            self._folder.cleanup()
