"""Fetch ActiveMQ's client for Java from Debian, for tests and for trying `docs/java.md`: 4.5 MB, nothing is installed.

Run: python tools/java_client.py [FOLDER]

The packages are unpacked into FOLDER, by default build/java, and a class path is printed that has the five archives of
the client. Tests find them there, or in the folder that JMS_JARS names. It needs apt-get and dpkg, and a list of
packages that is up to date (`apt-get update`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

DEFAULT: Final = Path(__file__).parents[1] / "build" / "java"
_PACKAGES: Final = (
    "libactivemq-java", "libgeronimo-jms-1.1-spec-java", "libgeronimo-j2ee-management-1.1-spec-java", "libhawtbuf-java",
    "libslf4j-java",
)  # fmt: skip
_ARCHIVES: Final = (
    "activemq-client", "geronimo-jms_1.1_spec", "geronimo-j2ee-management-1.1-spec", "hawtbuf", "slf4j-api",
    "slf4j-nop",
)  # fmt: skip


def archives() -> list[Path]:
    """Return the archives of the client; empty if they are not there."""
    folder = Path(os.environ.get("JMS_JARS") or DEFAULT / "usr" / "share" / "java")
    found = [folder / f"{name}.jar" for name in _ARCHIVES]
    return found if all(each.exists() for each in found) else []


def fetch(folder: Path) -> None:
    """Download the packages, and unpack them in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    download = ["apt-get", "download", *_PACKAGES]
    subprocess.run(download, cwd=folder, check=True, stdout=sys.stderr)  # noqa: S603 - fixed words
    for each in folder.glob("*.deb"):
        subprocess.run(["dpkg", "-x", each, folder], check=True)  # noqa: S603, S607 - likewise
        each.unlink()


def prepare(environment: Mapping[str, str] = os.environ) -> str | None:
    """Fetch the client where `CI=true` and Debian's tools are; return what people should know."""
    if archives():
        return None
    if environment.get("CI") == "true" and shutil.which("apt-get") and shutil.which("dpkg"):
        print("fetching ActiveMQ's client for the tests of Java programs", flush=True)
        # Only root may, and the list may be there already.
        subprocess.run(["apt-get", "update"], check=False, capture_output=True)  # noqa: S607 - found by PATH, as apt is
        with contextlib.suppress(subprocess.CalledProcessError):  # Whose reason apt-get has printed.
            fetch(DEFAULT)
        if archives():
            return None
    return "tests of Java programs are skipped, as ActiveMQ's client is not there: python tools/java_client.py"


def main() -> int:
    """Fetch the client unless it is there, and print its class path."""
    folder = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else DEFAULT
    os.environ["JMS_JARS"] = str(folder / "usr" / "share" / "java")
    if not archives():
        fetch(folder)
    print(":".join(map(str, archives())))
    return 0 if archives() else 1


if __name__ == "__main__":
    sys.exit(main())
