"""A node's folder: its key, its pet names for others, and the lock that keeps a second node out.

Nothing here is ever overwritten because it could not be read: the key is the node, and a store belongs to one key. A
key that comes back without its store (a backup on a new device) begins at an incarnation that no earlier run of the
node can have reached, so that its numbers never repeat.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from carrypost.errors import CarrypostError, ConfigError, LocalError, NodeError, RunningError
from carrypost.log.files import FULL, keep_entry, reason, refused
from carrypost.model.ids import NodeId, base32, from_base32, is_node_id
from carrypost.node.settings import NodeSettings
from carrypost.security.identity import Identity

try:
    import fcntl
except ImportError:  # Windows: best effort
    fcntl = None  # type: ignore[assignment]

_log = logging.getLogger("carrypost.node")
KEY_FILE = "node.key"
STORE_FILE = "store.sqlite"
TRACE_FILE = "trace.sqlite"
OWNER_FILE = "node.id"
NAMES_FILE = "names.json"
LOCK_FILE = "lock"
PET_NAME_MAX = 64
_TOKEN_BYTES = 24
_PRIVATE_FILE, _PRIVATE_FOLDER = 0o600, 0o700
_OTHERS = 0o077
_KEY_WORDS = 2
"""The node's id, and the seed of its key."""
_KEY_HEADER = """\
# The key of a carrypost node. Whoever has this file can act as the node: keep it secret, with a copy in a safe place.
"""


class NodeFolder:
    """The folder of one node."""

    def __init__(self, settings: NodeSettings) -> None:
        self._settings = settings
        self.folder = settings.data
        self.key_file = self.folder / KEY_FILE
        self.store_file = self.folder / STORE_FILE
        self.trace_file = self.folder / TRACE_FILE
        self._mark = self.folder / OWNER_FILE

    def create(self) -> None:
        """Make the folder, for its owner alone."""
        with self._used(misnamed=ConfigError):
            self.folder.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)
        with self._used():
            (self.folder / LOCK_FILE).touch(mode=_PRIVATE_FILE)

    @property
    def is_new(self) -> bool:
        """True if no node was ever made in the folder; False if one was, or if that cannot be seen."""
        for file in (self.key_file, self._mark, self.store_file):
            try:
                file.lstat()
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError:
                return False
            return False
        return True

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other nodes out of the folder while the block lasts; raises `RunningError`."""
        with self._used():
            file = (self.folder / LOCK_FILE).open("r+b", buffering=0)
        with file:
            with self._used():
                try:
                    if fcntl is not None:
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    pid = file.read(32).strip().decode(errors="replace")
                    whose = f" (process {pid})" if pid.isdecimal() else ""
                    raise RunningError(
                        f"a node is already running in {self.folder}{whose}; another node needs its own folder (data)"
                    ) from None
            with contextlib.suppress(
                OSError
            ):  # The name of the owner is useful, but not a reason not to start on a full disk.
                file.truncate(0)
                file.write(f"{os.getpid()}\n".encode())
            try:
                yield
            finally:
                with contextlib.suppress(OSError):
                    file.truncate(0)

    @property
    def process(self) -> int | None:
        """The live process that has the folder, perhaps for a node that is starting or ending; None if none has."""
        try:
            process = int((self.folder / LOCK_FILE).read_bytes())
            with contextlib.suppress(PermissionError):  # It belongs to another user.
                os.kill(process, 0)
        except (OSError, ValueError, OverflowError):
            return None
        return process

    @contextlib.contextmanager
    def _used(self, *, misnamed: type[CarrypostError] = NodeError) -> Iterator[None]:
        """Explain a refusal of the system in the block as a sentence about the folder."""
        try:
            yield
        except OSError as error:
            what, advice = f"cannot use the folder {self.folder}", "; choose another folder (data)"
            raise refused(what, error, advice=advice, misnamed=misnamed, otherwise=NodeError) from None

    # --- identity ------------------------------------------------------------------------------------------

    @property
    def has_key(self) -> bool:
        """True if there is a key file, readable or not; raises `NodeError` where that cannot be seen."""
        with self._used():
            try:
                self.key_file.lstat()
            except (FileNotFoundError, NotADirectoryError):
                return False
        return True

    def identity(self) -> Identity:
        """Return the identity of this node; a new node gets a key.

        Raises `NodeError` if the folder is another user's.
        """
        if self._settings.core.security == "off":
            identity = Identity.plain(self._settings.name)
        elif self.has_key:
            identity = read_key(self.key_file)
        elif self.store_file.exists() or self._mark.exists():
            raise NodeError(
                f"{self._without_key()}: restore the key from its backup (carrypost keys restore), or start a new "
                "node in another folder"
            )
        else:
            identity = Identity.generate()
            write_key(identity, self.key_file)
        if not self._mark.exists():
            _write(self._mark, f"{identity.node}\n")
        self.check_owner(identity)
        return identity

    def _without_key(self) -> str:
        """Return the file that shows that a folder without a key file belongs to a node."""
        if self.store_file.exists():
            return f"the key file {self.key_file} is missing, but the node's store is there"
        readable = os.access(self._mark, os.R_OK)
        owner = self._mark.read_text(encoding="utf-8", errors="replace").strip() if readable else "(unreadable)"
        return f"the folder {self.folder} belongs to the node {owner}, whose key file is missing"

    def check_owner(self, identity: Identity) -> None:
        """Raise `NodeError` if the folder belongs to another node."""
        mark = self._mark
        try:
            owner = mark.read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            return
        except (OSError, UnicodeDecodeError) as error:
            why = reason(error) if isinstance(error, OSError) else "it is damaged"
            raise NodeError(
                f"cannot read {mark}, which names the node of this folder: {why}; remove the file if the folder "
                f"belongs to the node {identity.node}"
            ) from None
        if owner != identity.node:
            raise NodeError(
                f"the folder {self.folder} belongs to the node {owner or '(none)'}, and this is {identity.node}: "
                "use another folder (--data), or the key or name that belongs to this one"
            )

    def token(self, name: str) -> str:
        """Return the secret in a file of this name, which admits a program; it is made if missing."""
        file = self.folder / name
        try:
            if not file.exists():
                _write(file, f"{secrets.token_urlsafe(_TOKEN_BYTES)}\n")
            found = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise NodeError(f"cannot read the token in {file}: {reason(error)}; check its permissions") from None
        if not found or not found.isprintable():
            raise NodeError(f"{file} has no token, which is one line of text: write one, or remove the file")
        if exposed(file):
            _log.warning("other users of this machine can read the token: chmod 600 %s", file)
        return found

    # --- pet names -----------------------------------------------------------------------------------------

    def pet_names(self) -> dict[NodeId, str]:
        """Return the owner's names for other nodes."""
        file = self.folder / NAMES_FILE
        try:
            found = msgspec.json.decode(file.read_bytes(), type=dict[str, str])
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise NodeError(f"cannot read the pet names in {file}: {reason(error)}; check its permissions") from None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise NodeError(
                f"the pet names in {file} are damaged: repair the file, or move it away; it was left unchanged"
            ) from None
        return {NodeId(node): name for node, name in found.items()}

    def set_pet_name(self, node: str, pet_name: str) -> None:
        """Set the pet name of a node; an empty one removes it."""
        names = self.pet_names()
        if not pet_name:
            if names.pop(NodeId(node), None) is None:
                raise LocalError(f"the node {node} has no pet name")
        else:
            if len(pet_name) > PET_NAME_MAX or not pet_name.isprintable() or pet_name != pet_name.strip():
                raise LocalError(f"a pet name must have 1 to {PET_NAME_MAX} printable characters, not {pet_name!r}")
            if other := next((each for each, taken in names.items() if taken == pet_name and each != node), None):
                raise LocalError(f"{pet_name!r} is already the name of {other}")
            self.check_id(node)
            names[NodeId(node)] = pet_name
        text = msgspec.json.format(msgspec.json.encode(names, order="sorted").decode(), indent=2)
        _write(self.folder / NAMES_FILE, text + "\n")

    def check_id(self, node: str) -> None:
        """Raise `LocalError` if no node can be called so here."""
        if self._settings.core.security == "off":
            Identity.plain(node)
        elif not is_node_id(node):
            meant = f"; did you mean {node.lower()}?" if is_node_id(node.lower()) else ""
            raise LocalError(f"a node id has 26 letters and digits, as `carrypost peers` shows it, not {node!r}{meant}")


def read_key(file: Path, remedy: str = "restore it from its backup") -> Identity:
    """Return the identity in a key file; raises `NodeError` with the fault of the file and the remedy."""
    try:
        lines = file.read_text(encoding="ascii").splitlines()
    except FileNotFoundError:
        raise NodeError(f"there is no key file {file}") from None
    except OSError as error:
        raise NodeError(
            f"cannot read the key file {file}: {reason(error)}; check its permissions; it was left unchanged"
        ) from None
    except UnicodeDecodeError:
        raise _damaged(file, "it is not text", remedy) from None
    words = " ".join(line for line in lines if not line.startswith("#")).split()
    if not words:
        raise _damaged(file, "there is no key in it", remedy)
    if len(words) != _KEY_WORDS:
        raise _damaged(file, f"it must have 2 words, a node's id and its key, and has {len(words)}", remedy)
    identity = _identity(words[1])
    if identity is None:
        raise _damaged(file, f"its last word, of {len(words[1])} characters, is not a key", remedy)
    if words[0] != identity.node:
        raise _damaged(file, "the id and the key in it do not belong together", remedy)
    return identity


def _damaged(file: Path, what: str, remedy: str) -> NodeError:
    return NodeError(f"{file} is not a key file, or is damaged ({what}): {remedy}; it was left unchanged")


def _identity(seed: str) -> Identity | None:
    try:
        return Identity.from_seed(from_base32(seed))
    except (ValueError, LocalError):
        return None


def write_key(identity: Identity, file: Path) -> None:
    """Keep an identity in a file of its owner's alone; never over another file."""
    # The id shows whether the seed is still what it was.
    content = f"{_KEY_HEADER}{identity.node} {base32(identity.seed)}\n"
    try:
        _write(file, content, what="the key file ", misnamed=LocalError, over=False)
    except FileExistsError:
        raise NodeError(f"{file} exists already; it was left unchanged") from None


def exposed(file: Path) -> bool:
    """Return True if others on this machine can read a file that is secret."""
    return os.name == "posix" and bool(file.stat().st_mode & _OTHERS)


def _write(
    file: Path, content: str, *, what: str = "", misnamed: type[CarrypostError] = NodeError, over: bool = True
) -> None:
    """Write the content completely or not at all, for the owner alone; raises `misnamed` or `NodeError`.

    Unless `over`, an existing file is not overwritten: that is a `FileExistsError`.
    """
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{file.name}-", suffix=".part", dir=file.parent)
        part = Path(name)
        try:
            with open(descriptor, "w", encoding="utf-8") as opened:  # noqa: PTH123 - a descriptor has no path
                opened.write(content)
                opened.flush()
                os.fsync(opened.fileno())
            if over:
                part.replace(file)
            else:
                _place(part, file)
        finally:
            part.unlink(missing_ok=True)
    except FileExistsError:
        raise
    except OSError as error:
        advice = "; make room on that disk" if error.errno in FULL else "; check the permissions"
        failed = f"cannot write {what}{file}"
        raise refused(failed, error, advice=advice, misnamed=misnamed, otherwise=NodeError) from None
    keep_entry(file)


def _place(part: Path, file: Path) -> None:
    """Give a file its name if nothing has it."""
    try:
        os.link(part, file)
    except FileExistsError:
        raise
    except (OSError, NotImplementedError):  # Sticks are often formatted so that a file has one name.
        if os.path.lexists(file):
            raise FileExistsError(str(file)) from None
        part.replace(file)
