"""Settings of a real node: those of its host, where it listens, stores and records; and their effects, in sentences.

One TOML file has all of it: top-level keys and the table ``[limits]`` are the host's (`carrypost.config`), the tables
``[node]``, ``[udp]``, ``[record]``, ``[stomp]``, ``[openwire]``, ``[metrics]`` and ``[trace]`` are those below.
Environment variables lie over the file (``CARRYPOST_UDP_PORT``), keywords over both. Everything has a default: an empty
file is a node that works.

By default a node carries nothing for others: it has what its programs publish and subscribe to, and gives that to
neighbours that ask for it. A user that starts a third node between two and expects it to relay has to see that, so
`Carrying` says what a node carries, for whom and how long. Settings that are valid and have no effect, most likely by
oversight, are named in the log of a starting node (`oversights`).
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import shlex
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from carrypost.config import DAY_S, KIB, MIB, UNBOUNDED, YEAR_S, Settings
from carrypost.config.document import Document
from carrypost.config.rules import Fields, changed, number, size, table, text, texts, texts_or, whole
from carrypost.config.rules import differences as tables_differ
from carrypost.config.settings import ROUTING
from carrypost.errors import ConfigError, LocalError
from carrypost.log.files import read_text
from carrypost.printing import length_of_time
from carrypost.security.identity import PLAIN_NAME_BYTES_MAX

CONTROL_FILE = "control.sock"
_SOCKET_PATH_BYTES_MAX = 100
"""Unix sockets have short names: 104 bytes on macOS, 108 on Linux."""


@table("node")
class PlaceSettings:
    """The folder of a node, and its name where security is off."""

    data: str = text("", "a folder")
    """Folder of the key, the store and the control socket; empty: the user's data folder."""
    name: str = text("", "a name")
    """Node name where `security` is "off"; empty: the machine's name."""
    control: str = text("", "a path")
    """Path of the control socket; empty: in the data folder."""
    log: Literal["debug", "info", "warning", "error"] = "warning"
    """Least severe level that `carrypost node` logs on stderr."""
    plugins: tuple[str, ...] = texts("a list of Python modules")
    """Python modules imported before the node starts. They register policies of queues or modulators, or define
    `privilege`.
    """


@table("udp")
class UdpSettings:
    """UDP settings of a node: ports, interfaces, multicast groups and peers."""

    port: int = whole(17_232, 1, 65_535)
    """Port that all nodes of a link share, for multicast and broadcast."""
    unicast_port: int = whole(0, 0, 65_535)
    """Port from which this node sends; 0: any free port. Set it if other nodes list this one in `peers`."""
    interfaces: tuple[str, ...] = texts("a list of interface names or patterns such as wlan*")
    """Interfaces to use; empty: all that are up and can multicast or broadcast, loopback only if there is no other."""
    ipv4_multicast: bool = True
    """Announce by IPv4 multicast."""
    ipv4_broadcast: bool = True
    """Announce by IPv4 broadcast: some access points and drivers lose multicast."""
    ipv6_multicast: bool = True
    """Announce by IPv6 multicast on the link: needs no configured address."""
    group_v4: str = text("239.255.67.80", "an IPv4 multicast address")
    """Group for IPv4 multicast."""
    group_v6: str = text("ff12::4350", "an IPv6 multicast address")
    """Group for IPv6 multicast."""
    peers: tuple[str, ...] = texts("a list of addresses such as 10.0.0.5:17232")
    """Nodes that are reached by unicast, in any network."""
    hear: tuple[str, ...] | None = texts_or("all", "a list of addresses")
    """Addresses from which datagrams are accepted at the start. Demonstrations use it to move nodes apart."""
    poll_s: float = number(5.0, 0.05, 3_600.0)
    """Interval at which interfaces are checked."""
    receive_buffer_bytes: int = size(4 * MIB, 4 * KIB, UNBOUNDED)
    """Size of the system's receive buffer for datagrams, as far as the system allows it."""

    def __post_init__(self) -> None:
        for name, family, group in (("v4", socket.AF_INET, self.group_v4), ("v6", socket.AF_INET6, self.group_v6)):
            if not _multicast(family, group):
                raise ConfigError(f"udp.group_{name} must be an IP{name} multicast address, not {group!r}")


def _multicast(family: socket.AddressFamily, group: str) -> bool:
    try:
        first = socket.inet_pton(family, group)[0]
    except OSError:
        return False
    return first == 0xFF if family == socket.AF_INET6 else first >> 4 == 0xE  # noqa: PLR2004 - address classes


@table("record")
class RecordSettings:
    """The event log of a real node, as lines of JSON."""

    folder: str = text("", "a folder")
    """Folder of the record; empty: none is written."""
    rotate_bytes: int = size(16 * MIB, KIB, UNBOUNDED)
    """Size at which a file is closed and a new one started."""
    rotate_s: float = number(60.0, 0.1, 86_400.0)
    """Age at which a file is closed and a new one started."""
    files_max: int = whole(1_000, 1, UNBOUNDED)
    """Closed files that are kept; the oldest are removed."""
    sample_s: float = number(60.0, 0.1, 86_400.0)
    """Interval at which traffic and sizes are recorded."""


@table("stomp")
class StompSettings:
    """The port at which `carrypost node` serves STOMP clients on this machine."""

    port: int = whole(0, 0, 65_535)
    """TCP port for STOMP clients, usually 61613; 0: none."""
    host: str = text("127.0.0.1", "an address of the loopback interface")
    """Address for STOMP clients: 127.0.0.1, ::1 or localhost, since STOMP is not encrypted."""
    open: bool = False
    """Serve every program on this machine, not only those that know the passcode in `stomp.token`."""
    declare: bool = True
    """Declare a queue on this node when a client subscribes to an unknown one."""
    heart_beat_s: float = number(10.0, 0.0, 3_600.0)
    """Interval of heart-beats to clients and from them; 0: none."""
    connections_max: int = whole(256, 1, 10_000)
    """Clients connected at the same time. Sockets without a valid CONNECT do not count."""

    def __post_init__(self) -> None:
        if not _loopback(self.host):
            raise ConfigError(
                f"stomp.host must be an address of the loopback interface, such as 127.0.0.1, ::1 or localhost, not "
                f"{self.host!r}: what clients say is not encrypted"
            )


@table("openwire")
class OpenwireSettings:
    """The port of 127.0.0.1 at which `carrypost node` serves Java programs, which speak OpenWire."""

    port: int = whole(0, 0, 65_535)
    """TCP port for OpenWire clients, usually 61616; 0: none."""
    open: bool = False
    """Serve every program on this machine, not only those that know the password in `openwire.token`."""
    declare: bool = True
    """Declare a queue on this node when a client consumes from an unknown one."""
    connections_max: int = whole(256, 1, 10_000)
    """Clients connected at the same time. Sockets without a valid ConnectionInfo do not count."""

    @property
    def host(self) -> str:
        """The address for clients, since what they say is not encrypted."""
        return "127.0.0.1"


def _loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@table("metrics")
class MetricsSettings:
    """The port at which `carrypost node` serves its metrics to Prometheus."""

    port: int = whole(0, 0, 65_535)
    """TCP port of 127.0.0.1 for metrics in the OpenMetrics format; 0: none."""


@table("trace")
class TraceSettings:
    """The history of messages that `carrypost trace` shows."""

    enabled: bool = False
    """Keep the history of messages. It is written to `trace.sqlite` in the data folder every second."""
    messages_max: int = whole(10_000, 1, UNBOUNDED)
    """Messages whose history is kept, with 4 KiB each on average; the oldest are forgotten."""
    keep_s: float = number(30 * DAY_S, 1.0, YEAR_S)
    """Time for which the history is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """Everything about one real node."""

    core: Settings = field(default_factory=Settings)
    """Settings of its host."""
    place: PlaceSettings = field(default_factory=PlaceSettings)
    udp: UdpSettings = field(default_factory=UdpSettings)
    record: RecordSettings = field(default_factory=RecordSettings)
    stomp: StompSettings = field(default_factory=StompSettings)
    openwire: OpenwireSettings = field(default_factory=OpenwireSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    trace: TraceSettings = field(default_factory=TraceSettings)
    base: Path = field(default_factory=Path.cwd)
    """Folder that relative paths start from: that of the settings file, or the current one."""

    def __post_init__(self) -> None:
        if self.core.strategy in ROUTING:
            raise ConfigError(
                f'strategy = "{self.core.strategy}" is for emulation only, because its state is not stored: use '
                '"exchange" or "anti-entropy"'
            )

    @property
    def data(self) -> Path:
        """The node's folder."""
        return _utf8(self._path(self.place.data) if self.place.data else default_data())

    @property
    def control(self) -> Path:
        """Path of its control socket."""
        if self.place.control:
            return _utf8(self._path(self.place.control))
        path = self.data / CONTROL_FILE
        if len(os.fsencode(path)) <= _SOCKET_PATH_BYTES_MAX:
            return path
        short = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
        return Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"carrypost-{short}.sock"

    @property
    def name(self) -> str:
        """Name of the node where security is off."""
        machine = socket.gethostname().replace(":", "-").encode()[:PLAIN_NAME_BYTES_MAX].decode(errors="ignore")
        return self.place.name or machine or "node"

    @property
    def record_folder(self) -> Path | None:
        """Folder of the record, if one is written."""
        return self._path(self.record.folder) if self.record.folder else None

    def _path(self, given: str) -> Path:
        try:
            return self.base / Path(given).expanduser()
        except RuntimeError:
            raise ConfigError(f"there is no home folder of that user: {given}") from None


def _utf8(path: Path) -> Path:
    """Return the path, which logs, JSON and other programs need as text; raises `ConfigError` if it is not UTF-8."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise ConfigError(
            f"the name of the folder or file {str(path)!r} is not UTF-8 text: choose another one"
        ) from None
    return path


_TABLES: Mapping[str, tuple[str, type]] = {
    "core": ("", Settings), "place": ("node", PlaceSettings), "udp": ("udp", UdpSettings),
    "record": ("record", RecordSettings), "stomp": ("stomp", StompSettings),
    "openwire": ("openwire", OpenwireSettings), "metrics": ("metrics", MetricsSettings),
    "trace": ("trace", TraceSettings),
}  # fmt: skip
"""Tables of the file, by the fields of `NodeSettings`."""
FIELDS = Fields(dict(_TABLES.values()))


def parse(
    toml: str = "",
    environment: Mapping[str, str] = {},
    keywords: Mapping[str, object] = {},
    *,
    base: Path | None = None,
    file: str = "the settings",
) -> NodeSettings:
    """Return settings from TOML text, overridden by environment variables, and those by keywords.

    Keywords are fields of `Settings`, or of a table: ``{"udp": {"port": 4000}}`` or ``{"udp.port": 4000}``. Messages
    about the text begin with `file`.
    """
    given = Document(toml, file).fields(FIELDS) | FIELDS.read_environment(environment) | FIELDS.check(keywords)
    made = {field: changed(kind(), given, f"{table}." if table else "") for field, (table, kind) in _TABLES.items()}
    return NodeSettings(**made, base=base or Path.cwd())


def load(
    file: Path | None = None, environment: Mapping[str, str] = {}, keywords: Mapping[str, object] = {}
) -> NodeSettings:
    """Return settings from a TOML file or, without one, the defaults, overridden by environment and keywords."""
    if file is None:
        return parse("", environment, keywords)
    content = read_text(file, f"cannot read the settings file {file}", ConfigError)
    return parse(content, environment, keywords, base=file.resolve().parent, file=str(file))


def differences(settings: NodeSettings, usual: NodeSettings) -> dict[str, str]:
    """Return the settings that differ, by their names, as they would be written."""
    return {
        f"{table}.{name}" if table else name: text
        for field, (table, _) in _TABLES.items()
        for name, text in tables_differ(getattr(settings, field), getattr(usual, field)).items()
    }


def start_command(file: Path | None = None, data: Path | None = None) -> str:
    """Return the command that starts a node: with a settings file, in a folder, or the user's own."""
    options = [("--config", file), ("--data", data)]
    return shlex.join(["carrypost", "node", *(str(each) for pair in options if pair[1] is not None for each in pair)])


def start_command_at(control: Path) -> str:
    """Return the command that starts the node with this control socket, as far as the path tells."""
    return command_in(control.parent) if control.name == CONTROL_FILE else start_command()


def command_in(folder: Path, name: str = "node") -> str:
    """Return a command for the node in a folder, by default the one that starts it; it names all but the user's own."""
    try:
        own = folder == default_data()
    except ConfigError:
        own = False
    return shlex.join(["carrypost", name, *([] if own else ["--data", str(folder)])])


def default_data() -> Path:
    """Return the user's data folder for a node."""
    try:
        if os.name == "nt":
            return Path(os.environ.get("LOCALAPPDATA") or Path.home()) / "carrypost"
        return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "carrypost"
    except RuntimeError:
        raise ConfigError("this user has no home folder: name a folder for the node with --data") from None


class Carrying(msgspec.Struct, frozen=True, rename=lambda name: name.removeprefix("cache_")):
    """The settings that decide it, as `status` shows them."""

    altruistic: bool | tuple[str, ...]
    """Carry messages that no program here asked for: never, always, or if the destination matches one of these."""
    horizon_hops: int
    cache_messages_max: int
    cache_bytes_max: int
    lifetime_s_default: float | None
    lifetime_s_max: float | None

    @classmethod
    def of(cls, value: Settings | Mapping[str, object]) -> Carrying:
        """Return what a node with these settings carries, or what one reported at its control socket."""
        return msgspec.convert(value, cls, from_attributes=True)

    def sentences(self) -> tuple[tuple[str, str], ...]:
        """Return sentences for people: the carried messages, their recipients, and their end."""
        room = f"at most {self.cache_messages_max:,} messages and {self.cache_bytes_max / MIB:,.0f} MiB"
        return (
            ("carries", f"what programs here publish and subscribe to; {room}"),
            ("carries for", ", ".join(self._whom())),
            ("carries until", self._until()),
        )

    def _whom(self) -> Iterator[str]:
        if self.altruistic is True:
            yield "all nodes, also what no program here asked for (altruistic = true)"
            return
        yield "neighbours that ask for the same"
        if self.horizon_hops > 1:
            hops = self.horizon_hops - 1
            yield f"nodes up to {hops} hop{'s' * (hops > 1)} away, whatever they ask for (horizon_hops = {hops + 1})"
        if self.altruistic:
            yield f"all nodes, what matches {_listed(self.altruistic)} (altruistic)"
        else:
            yield "nothing for others (set altruistic = true to carry for all nodes)"

    def _until(self) -> str:
        if self.lifetime_s_default is None:
            default = "set only if the sender gives one"
        else:
            default = f"{length_of_time(self.lifetime_s_default)} after it was sent, unless the sender gives another"
        most = "" if self.lifetime_s_max is None else f", {length_of_time(self.lifetime_s_max)} at most"
        return f"each message's deadline: {default}{most}"


def fruitless(settings: Settings) -> tuple[str, ...]:
    """Return the patterns of `altruistic` that no topic and no queue can match, on a node with messaging.

    Messages of messaging have destinations such as ``topic/news``. A pattern that begins with anything else, and with
    no wildcard, was most likely written for the names of topics.
    """
    if isinstance(settings.altruistic, bool) or not settings.messaging.enabled:
        return ()
    return tuple(pattern for pattern in settings.altruistic if not _reaches_addresses(pattern))


def _reaches_addresses(pattern: str) -> bool:
    from carrypost.model.address import Kind  # noqa: PLC0415 - commands only read settings
    from carrypost.model.pattern import beginnings  # noqa: PLC0415 - likewise

    addresses = tuple(f"{kind}/" for kind in Kind)
    values, prefixes = beginnings(pattern)
    return any(value.startswith(addresses) for value in values) or any(
        prefix.startswith(kind) or kind.startswith(prefix) for prefix in prefixes for kind in addresses
    )


def _listed(patterns: Sequence[str], most: int = 3) -> str:
    more = f" and {len(patterns) - most} more" if len(patterns) > most else ""
    return ", ".join(patterns[:most]) + more


def oversights(settings: Settings) -> Iterator[str]:
    """Yield a sentence for each setting without effect: what is wrong with it, and what was expected."""
    for pattern in fruitless(settings):
        yield (
            f"altruistic: {pattern!r} matches no topic or queue and has no effect: destinations begin with topic/ or "
            r"queue/, as in 'topic/village\..*'"
        )
    if settings.overlay.enabled:
        yield from _unknown_nodes(settings)
        yield from _unused_modules(settings)


def _unknown_nodes(settings: Settings) -> Iterator[str]:
    """Yield sentences about lists of nodes. Without security any text is the name of a node."""
    from carrypost.model.ids import is_node_id  # noqa: PLC0415 - likewise

    for name in ("brokers", "authors") if settings.security == "signed" else ():
        for each in getattr(settings.overlay, name):
            if not is_node_id(each):
                yield (
                    f"overlay.{name}: {each!r} is not the id of a node and has no effect: ids have 26 letters and "
                    "digits; `carrypost status` prints that of a node"
                )


def _unused_modules(settings: Settings) -> Iterator[str]:
    from carrypost.overlay.modulators import programs  # noqa: PLC0415 - likewise

    overlay = settings.overlay
    if not overlay.broker or overlay.modulators == "named":
        return
    allowed = f'overlay.modulators = "{overlay.modulators}" has no effect'
    if overlay.modulators == "trusted" and not overlay.authors:
        yield f"{allowed}: list the nodes whose modules this broker runs in overlay.authors"
    try:
        programs.check_installed()
    except LocalError as error:
        yield f"{allowed}: {error}"
