"""An open connection, as its sessions see it."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from carrypost.jms.intake import Intake
    from carrypost.jms.provider import Provider
    from carrypost.jms.reports import Reports
    from carrypost.jms.temporary import Temporaries


class OpenConnection(NamedTuple):
    """What the sessions of one connection share."""

    provider: Provider
    number: int
    """The number of the connection at the node."""
    client_id: str
    """Empty if it has none."""
    reports: Reports
    intakes: MutableMapping[int, Intake]
    """The intakes of all its sessions, by number of the consumer: sessions enter theirs."""
    temporaries: Temporaries
