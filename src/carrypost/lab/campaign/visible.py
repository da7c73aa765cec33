"""Checks that the executors of a cluster can do a campaign's work: they see its folder, may write, and have the code.

A path that looks right to the driver may be another folder elsewhere, or none. So the driver leaves a token there,
executors look for it and answer by a file with the same token, and the driver looks for that. As an executor may join
later, every run looks for the token again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import carrypost
from carrypost.errors import LabError, LocalError
from carrypost.lab.campaign.states import CampaignFolder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ANSWER = "seen-"


class Answer(NamedTuple):
    """The finding of one process of an executor."""

    host: str
    python: str
    missing: str
    """Fault of the code there; empty: none."""
    refused: str
    """Why it cannot write to the folder; empty: it can, or does not see it."""
    file: str
    """File that is its answer; empty: it does not see the folder."""


def check(spark: SparkSession, place: CampaignFolder, token: str) -> None:
    """Refuse what cannot work."""
    context = spark.sparkContext
    count = max(1, context.defaultParallelism)  # One for each processor: tasks are dealt out to all of them.
    try:
        answers = context.parallelize(range(count), count).mapPartitions(_probe(str(place.states), token)).collect()
        for row in answers:
            answer = Answer(*row)
            _judge(answer, place)
            if not _answered(place, answer, token):
                raise LocalError(_unseen(place, answer.host))
    finally:
        for left in place.states.glob(f"{_ANSWER}*"):
            left.unlink(missing_ok=True)


def _judge(answer: Answer, place: CampaignFolder) -> None:
    if answer.missing:
        raise LabError(
            f"the executor on {answer.host} cannot run carrypost {carrypost.__version__} ({answer.missing}; "
            f"Python {answer.python}): install 'carrypost[lab]' there, or ship an environment with --conf "
            "spark.archives"
        )
    if answer.refused:
        raise LocalError(f"the executor on {answer.host} cannot write to {place.root}: {answer.refused}")
    if not answer.file:
        raise LocalError(_unseen(place, answer.host))


def _answered(place: CampaignFolder, answer: Answer, token: str) -> bool:
    try:
        return (place.states / answer.file).read_text(encoding="ascii") == token
    except (OSError, UnicodeDecodeError):
        return False


def _unseen(place: CampaignFolder, host: str) -> str:
    return (
        f"the executor on {host} does not see {place.root}: all machines of the cluster must share the "
        "folder of a campaign under the same path"
    )


def _probe(folder: str, token: str) -> Callable[[Iterable[int]], Iterator[tuple[str, ...]]]:
    """Return the function that executors run: sent as it is, as it has to work where our package does not."""
    version = carrypost.__version__

    def probe(_: Iterable[int]) -> Iterator[tuple[str, ...]]:
        import os  # noqa: PLC0415 - nothing of this module is there where this runs
        import platform  # noqa: PLC0415
        import uuid  # noqa: PLC0415

        about = (platform.node(), platform.python_version())
        try:
            import carrypost as there  # noqa: PLC0415
            import carrypost.lab.campaign.task  # noqa: PLC0415 - with all that it needs

            missing = "" if there.__version__ == version else f"it has carrypost {there.__version__}"
        except ImportError as error:
            missing = str(error)
        refused = file = ""
        try:
            with open(f"{folder}/lock", encoding="utf-8") as lock:  # noqa: PTH123 - no class of ours
                seen = token in lock.read()
        except OSError:
            seen = False
        if seen:
            file = f"seen-{uuid.uuid4().hex}"
            try:
                with open(f"{folder}/{file}", "x", encoding="ascii") as answer:  # noqa: PTH123
                    answer.write(token)
            except OSError as error:
                refused = os.strerror(error.errno or 0)
        yield (*about, missing, refused, file)

    return probe
