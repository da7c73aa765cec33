"""The laboratory: traces to contacts, contacts to campaigns of emulated runs, runs to the papers' tables, on Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from carrypost.lab.report.study import frame

__all__ = ["frame"]


def __getattr__(name: str) -> object:
    if name != "frame":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from carrypost.lab.report.study import frame  # noqa: PLC0415 - needs pyarrow, which most modules here do not

    return frame
