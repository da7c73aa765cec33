"""Extras: packages that some commands need, and how to install them."""

from __future__ import annotations

import importlib.util
from typing import Literal

from carrypost.errors import LocalError


def needs_emulator() -> None:
    """Raise `LocalError` where what the emulator needs is not installed."""
    _needs("the emulator needs numpy and pyarrow", "emu", "numpy", "pyarrow")


def needs_reports() -> None:
    """Raise `LocalError` where what reports need is not installed."""
    what = "reports need numpy, pyarrow, jinja2 and vl-convert"
    _needs(what, "report", "numpy", "pyarrow", "jinja2", "vl_convert")


def needs_engine(engine: Literal["spark", "local"]) -> None:
    """Raise `LocalError` where what an engine of the laboratory needs is not installed."""
    _needs("the laboratory needs numpy and pyarrow", "emu", "numpy", "pyarrow")
    if engine == "spark":
        from carrypost.lab.spark.session import needs_extra  # noqa: PLC0415 - needed by some commands only

        needs_extra()


def needs_pages() -> None:
    """Raise `LocalError` where what web pages need is not installed."""
    _needs("web pages need starlette and uvicorn", "web", "starlette", "uvicorn")


def needs_records() -> None:
    """Raise `LocalError` where what web pages about records and campaigns need is not installed."""
    _needs("web pages about records and campaigns need numpy and pyarrow", "web,emu", "numpy", "pyarrow")


def needs_qr() -> None:
    """Raise `LocalError` where what QR codes need is not installed."""
    _needs("QR codes need segno", "qr", "segno")


def _needs(what: str, extra: str, *modules: str) -> None:
    """Say how to install what is missing, rather than which module is."""
    if not all(map(importlib.util.find_spec, modules)):
        raise LocalError(f"{what}: pip install 'carrypost[{extra}]'; in the source tree, '.[{extra}]'")
