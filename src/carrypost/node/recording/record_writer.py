"""The contents of a node's record: events, and samples of traffic and sizes."""

from __future__ import annotations

import asyncio
import platform
from collections import Counter
from pathlib import Path

from carrypost.config import Settings, differences
from carrypost.extensions import BUILD
from carrypost.log.events import Event
from carrypost.log.record import Kind
from carrypost.node.driver import NodeDriver
from carrypost.node.recording.archive import Archive
from carrypost.node.settings import NodeSettings
from carrypost.version import __version__

_FLUSH_S = 1.0
"""Interval at which rows are written, unless samples are wanted more often."""


class RecordWriter:
    """Writes one node's record."""

    def __init__(self, folder: Path, settings: NodeSettings, driver: NodeDriver) -> None:
        self._driver = driver
        self._node = driver.host.node
        self._sample_s = settings.record.sample_s
        self.archive = Archive(folder, self._node, run=f"node/{self._node}", settings=settings.record)
        self._traffic: Counter[str] = Counter()
        driver.traffic = self._traffic
        now = driver.date
        attrs = {"version": __version__, "build": BUILD, "python": platform.python_version()}
        self.archive.record.add(Kind.RUN, now, self._node, attrs=attrs | differences(settings.core, Settings()))
        self.archive.record.add(Kind.JOIN, now, self._node)
        self.archive.begin()
        self._chore = asyncio.get_running_loop().create_task(self._keep())

    def observe(self, event: Event) -> None:
        """Record an event of the host."""
        self.archive.record.observe(self._driver.date, self._node, event)

    def close(self) -> None:
        """Write the last rows, and give the last file its name."""
        self._chore.cancel()
        self._sample()
        self.archive.record.add(Kind.LEAVE, self._driver.date, self._node)
        self.archive.flush(final=True)

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time() + self._sample_s
        while True:
            await asyncio.sleep(min(_FLUSH_S, self._sample_s))
            if loop.time() >= due_s:
                due_s = loop.time() + self._sample_s
                self._sample()
            self.archive.flush()

    def _sample(self) -> None:
        record, now = self.archive.record, self._driver.date
        for kind, nbytes in sorted(self._traffic.items()):
            record.add(Kind.TRAFFIC, now, self._node, size=nbytes, detail=kind)
        self._traffic.clear()
        record.add(Kind.REGISTRY, now, self._node, size=self._driver.host.overview().messages, detail="cache")
