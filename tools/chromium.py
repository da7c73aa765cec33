"""The system's Chromium, in which pages are tested: where it is, and how it comes to machines that only run checks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
COMMANDS = (("apt-get", "update"), ("apt-get", "install", "--yes", "--no-install-recommends", "chromium"))
INSTALL = " && ".join(map(" ".join, COMMANDS))


def executable() -> str | None:
    """Return the path of the system's Chromium; None: there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


def prepare(environment: Mapping[str, str] = os.environ) -> str | None:
    """Install Debian's package where `CI=true` and nobody else is root here; return what people should know."""
    if executable() is not None:
        return None
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    if environment.get("CI") == "true" and is_root and shutil.which("apt-get"):
        print(f"installing Chromium for the lane `browser`: {INSTALL}", flush=True)
        for command in COMMANDS:
            done = subprocess.run(  # noqa: S603 - fixed words
                command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False,
                env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            )  # fmt: skip
            if done.returncode:
                sys.stderr.write(done.stderr[-2_000:])
        if executable() is not None:
            return None
    return f"the lane `browser` is skipped, as there is no Chromium: {INSTALL}"
