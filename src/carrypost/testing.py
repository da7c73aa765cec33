"""A network in memory and in virtual time, for tests.

The nodes are the same hosts that run on real sockets, with a store in memory; no radio, no waiting, no
threads. A link gives the hosts no hint: their beacons find it. The same seed and the same calls give the same
run, and one more node does not change the chance of the others.

::

    async def scene():
        async with testing.network("a", "b", "c", seed=1, altruistic=True) as net:
            net.link("a", "b")
            net.subscribe("c", "news")
            net.publish("a", "news", b"hello")
            await net.run(60)

    testing.run(scene)

Without asyncio the same is ``with testing.network(...) as net`` and ``net.advance(60)``.
"""

from __future__ import annotations

from pathlib import Path

from carrypost.config import Settings
from carrypost.emu.engine.application import DeliveredMessage as Delivery
from carrypost.emu.engine.loop import DeadlockError, TimeLimitError, run
from carrypost.emu.engine.network import Network, NetworkOptions, Watcher
from carrypost.emu.engine.playback import RecordFile
from carrypost.emu.engine.radio import LinkModel, Traffic
from carrypost.emu.scenario.checks import (
    check_callable,
    check_flag,
    check_keywords,
    check_record,
    check_seed,
    microseconds,
)
from carrypost.emu.traces.contacts import read_contacts
from carrypost.errors import RunawayError
from carrypost.events import (
    ClaimLost,
    Delivered,
    Done,
    Dropped,
    Event,
    Handed,
    NeighbourDown,
    NeighbourUp,
    Received,
    Undone,
)
from carrypost.gossip.wire.pieces import Blank
from carrypost.model.privilege import Privilege
from carrypost.model.privilege import privilege as by_the_papers
from carrypost.record import Record

__all__ = [
    "Blank",
    "ClaimLost",
    "DeadlockError",
    "Delivered",
    "Delivery",
    "Done",
    "Dropped",
    "Event",
    "Handed",
    "NeighbourDown",
    "NeighbourUp",
    "Network",
    "Received",
    "Record",
    "RunawayError",
    "TimeLimitError",
    "Traffic",
    "Undone",
    "Watcher",
    "network",
    "run",
]


def network(
    *names: str,
    seed: int | str = 0,
    confirm: bool = True,
    disk_delay_s: float = 0.0,
    delay_s: float = 0.001,
    loss: float = 0.0,
    duplicate: float = 0.0,
    reorder: float = 0.0,
    rate_bytes_per_s: int | None = None,
    encoded: bool = False,
    contacts: str | Path | None = None,
    record: Record | str | Path | None = None,
    privilege: Privilege = by_the_papers,
    **settings: object,
) -> Network:
    """A network of these nodes, all out of reach, to be used by ``async with`` or ``with``.

    The further keywords are `Settings`, on top of those of emulation (security off, no lifetimes).
    `confirm`: the application confirms what it is given, at once. `disk_delay_s`: how long a batch takes to
    become durable. `delay_s`, `loss`, `duplicate`, `reorder` (the last three are probabilities, per
    datagram) and `rate_bytes_per_s` are those of every link that does not say otherwise. `encoded`: every
    frame goes through its bytes. `contacts` is a file of contacts (`a,b,start,end`, or The ONE's connection events),
    which are played from the opening on; nodes that only it names are there too. `record` takes the event log, whose
    first row tells how the run was made; as a path, it is written when the network is closed, as lines of JSON if it
    ends in .jsonl, else as Parquet.
    `privilege` is the application's rule for which of two messages matters more.
    """
    check_keywords(settings)
    check_record(record)
    check_seed(seed)
    check_flag("confirm", confirm)
    check_flag("encoded", encoded)
    check_callable("privilege", privilege)
    model = LinkModel(
        delay_us=microseconds(delay_s, "delay_s"),
        loss=loss,
        duplicate=duplicate,
        reorder=reorder,
        rate_bytes_per_s=rate_bytes_per_s,
    )
    file = RecordFile(record) if isinstance(record, str | Path) else None
    if isinstance(record, str | Path):
        record = Record(f"{Path(record).stem}/default/{seed}")
    options = NetworkOptions(
        seed=seed,
        confirm=confirm,
        disk_delay_us=microseconds(disk_delay_s, "disk_delay_s"),
        model=model,
        encoded=encoded,
        record=record,
        privilege=privilege,
        contacts=() if contacts is None else tuple(read_contacts(contacts)),
        file=file,
    )
    return Network(names, options, Settings.emulated(**settings))
