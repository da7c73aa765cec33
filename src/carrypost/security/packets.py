"""Protected datagrams: a closed network reads and sends no others.

A protected datagram is the magic, version 2, the id of a key, a salt, a counter, and the frames encrypted. The key
comes from the secret of an epoch of the circle whose members make up the network. A stranger sees sizes, times and key
ids, and what it sends costs one lookup.

The salt is drawn with each start, and again before the counter ends, so no nonce is used twice. A window for each salt
drops datagrams that come again. A datagram to one node names that node in the authenticated data: repeated to another
node, it is refused there.

Datagrams under the key of an earlier epoch come from an address of their own (`under`), so that nobody who has an old
secret disturbs the link to a member.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from carrypost.config.settings import PACKET_BYTES
from carrypost.security.hpke import hkdf
from carrypost.security.identity import Entropy

HEAD = b"CP\x02"
"""Magic and version of protected datagrams."""
PLAIN_HEAD = b"CP\x01"
"""Magic and version of a datagram as the codec writes it, which a protected one leaves out."""
KEY_ID_BYTES, SALT_BYTES, COUNTER_BYTES, TAG_BYTES = 4, 8, 4, 16
_ID_END = len(HEAD) + KEY_ID_BYTES
_NONCE_END = _ID_END + SALT_BYTES + COUNTER_BYTES
_LEAST_BYTES = _NONCE_END + TAG_BYTES
assert _LEAST_BYTES - len(PLAIN_HEAD) == PACKET_BYTES  # What is left for frames is computed from it.
WINDOW = 1_024
"""Number of datagrams of one sender of which it is known whether they came."""
_CAME_MASK = (1 << WINDOW) - 1
_NONE_CAME = -1, 0
SALTS_MAX = 4_096
"""Number of senders, or of their starts, whose windows are kept; the one silent for longest is forgotten first."""
_TO_ONE = 1 << 31
"""Bit of the counter that is set in datagrams to one node."""
OLDER_MAX = 16
"""Number of earlier epochs whose keys are used."""
_UNDER = "!"


class PacketKey(NamedTuple):
    """The key of protected datagrams in one epoch."""

    id: bytes
    secret: bytes

    def __repr__(self) -> str:
        return f"<PacketKey {self.id.hex()}>"


@functools.lru_cache(256)
def packet_key(secret: bytes) -> PacketKey:
    """Return the key of datagrams in the epoch with this secret: HKDF-SHA-256 without a salt."""
    key, more = hkdf(secret, b"", b"carrypost packet 1\0")
    return PacketKey(more[:KEY_ID_BYTES], key)


class PacketKeys(NamedTuple):
    """The keys of one node of a closed network."""

    present: PacketKey
    older: tuple[PacketKey, ...] = ()
    """Keys of earlier epochs, the latest first."""


def under(peer: str, key: bytes) -> str:
    """Return the link address of a peer that sends under an older key; without a peer, of all nodes that have it."""
    return f"{peer}{_UNDER}{key.hex()}"


def parted(address: str) -> tuple[str, bytes]:
    """Return the address of the driver, and the id of the older key; empty: it is the present one."""
    peer, _, key = address.partition(_UNDER)
    return peer, bytes.fromhex(key)


def is_old(address: str) -> bool:
    """Return True if a link address is that of a peer under an older key."""
    return _UNDER in address


class Packets:
    """Protects and opens the datagrams of one node, which other nodes address by its prefix."""

    def __init__(self, prefix: bytes, entropy: Entropy) -> None:
        self._prefix, self._entropy = prefix, entropy
        self.keys: PacketKeys | None = None
        """The keys; without any, nothing is sent and nothing opened."""
        self.refused = 0
        """Number of datagrams that were dropped at a lookup: under keys that are not known here, or repeated."""
        self._ciphers: Mapping[bytes, ChaCha20Poly1305] = {}
        self._windows: dict[bytes, dict[bytes, tuple[int, int]]] = {}
        """By key and salt, the highest counter that came, and the bitset of those that came: bit n is for the one n
        below. By key, so that nobody who has an old secret can use up the counters of a member."""
        self._present, self._salt, self._counter = b"", b"", _TO_ONE

    def rekey(self, keys: PacketKeys | None) -> None:
        """Use these keys from now on."""
        if keys != self.keys:
            self.keys, self._present = keys, b"" if keys is None else keys.present.id
            every = () if keys is None else (keys.present, *keys.older)
            self._ciphers = {each.id: ChaCha20Poly1305(each.secret) for each in every}
            self._windows = {each.id: self._windows.get(each.id, {}) for each in every}

    def seal(self, datagrams: Iterable[bytes], key: bytes = b"", to: bytes = b"") -> list[bytes]:
        """Return datagrams protected under the present key, or the one with this id; none without such a key.

        `to`: the prefix of the one node that they are for.
        """
        name = key or self._present
        cipher, sealed = self._ciphers.get(name), list[bytes]()
        for datagram in datagrams if cipher is not None else ():
            if self._counter == _TO_ONE:
                self._salt, self._counter = self._entropy(SALT_BYTES), 0
            counter = self._counter | _TO_ONE if to else self._counter
            self._counter += 1
            nonce = self._salt + counter.to_bytes(COUNTER_BYTES, "big")
            head = HEAD + name + nonce
            assert cipher is not None  # Without it there is nothing to do.
            sealed.append(head + cipher.encrypt(nonce, datagram[len(PLAIN_HEAD) :], head + to))
        return sealed

    def open(self, datagram: bytes) -> tuple[bytes, bytes] | None:
        """Return a datagram as the codec wrote it, and the id of its key if that is an older one, else nothing.

        None: it is dropped at a lookup. One that has a known key and was changed is returned as it is, for the codec to
        refuse: its sender is charged for the work.
        """
        key = datagram[len(HEAD) : _ID_END]
        cipher = self._ciphers.get(key)
        if cipher is None or len(datagram) < _LEAST_BYTES or not datagram.startswith(HEAD):
            self.refused += 1
            return None
        head, nonce = datagram[:_NONCE_END], datagram[_ID_END:_NONCE_END]
        salt, counter = nonce[:SALT_BYTES], int.from_bytes(nonce[SALT_BYTES:], "big")
        if counter & _TO_ONE:
            head, counter = head + self._prefix, counter & ~_TO_ONE
        windows = self._windows[key]
        top, came = windows.get(salt, _NONE_CAME)
        ahead = counter - top
        if ahead <= 0 and (ahead <= -WINDOW or came >> -ahead & 1):
            self.refused += 1
            return None
        try:
            plain = cipher.decrypt(nonce, datagram[_NONCE_END:], head)
        except InvalidTag:
            return datagram, b""
        windows.pop(salt, None)  # It becomes the last one.
        windows[salt] = (
            (counter, came << min(ahead, WINDOW) & _CAME_MASK | 1) if ahead > 0 else (top, came | 1 << -ahead)
        )
        if len(windows) > SALTS_MAX:
            del windows[next(iter(windows))]
        return PLAIN_HEAD + plain, b"" if key == self._present else key
