"""Explanations of Spark's failures, in a sentence.

Spark reports a failure as pages of two languages' stack traces. Nearly always one line among them is what people need:
a full disk, a file that is not Parquet, an error of our own code in an executor. `explained` finds it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from carrypost.errors import CarrypostError, LabError, LocalError

_OURS = re.compile(r"carrypost\.errors\.(?:Local|Config)Error: (.+)")
_FILE = re.compile(r"(?:file:(?://)?)(/[^\s,;'\"]*[^\s,;'\".])")
_SENTENCES = (
    (re.compile(r"No space left on device|Disk quota exceeded"), "the disk is full"),
    (re.compile(r"Permission denied"), "permission denied"),
    (re.compile(r"is not a Parquet file|Could not read footer|CANNOT_READ_FILE_FOOTER"), "it is not a Parquet file"),
    (re.compile(r"FAILED_READ_FILE|can not read class|ParquetDecodingException|could not read page"), "it is damaged"),
    (re.compile(r"java\.lang\.OutOfMemoryError"), "Spark ran out of memory; give it more with --memory"),
)
_FIRST_MAX = 500


@contextmanager
def explained() -> Iterator[None]:
    """Turn failures of Spark into one of our errors."""
    from py4j.protocol import Py4JError, Py4JNetworkError  # noqa: PLC0415 - loaded only where Spark is
    from pyspark.errors import PySparkException  # noqa: PLC0415

    try:
        yield
    except CarrypostError:
        raise
    except (Py4JNetworkError, ConnectionError) as error:
        raise LabError(f"Spark's driver is gone: {_first(str(error))}") from error
    except (Py4JError, PySparkException) as error:
        raise _known_cause(str(error)) from error


def _known_cause(text: str) -> CarrypostError:
    if ours := _OURS.search(text):
        return LocalError(ours[1].strip())
    for pattern, sentence in _SENTENCES:
        if pattern.search(text):
            file = _FILE.search(text)
            return LabError(f"{file[1]}: {sentence}" if file else f"Spark failed: {sentence}")
    return LabError(f"Spark failed: {_first(text)}")


def _first(text: str) -> str:
    """Return the first line that says something."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")[:_FIRST_MAX]
