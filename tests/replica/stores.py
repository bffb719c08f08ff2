"""Stores of replicas in a folder, and links between two of them: no sockets, no clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rocketmq_remoting.message_record import Host
from rocketmq_replica.ha.frames import Handshake
from rocketmq_replica.ha.links import MasterLink, SlaveLink
from rocketmq_replica.log.message_store import MessageStore, NewMessage, StorePaths

if TYPE_CHECKING:
    from pathlib import Path

HOST = Host("127.0.0.1", 10911)
FILE_BYTES = 4096


def open_store(root: Path, file_size_bytes: int = FILE_BYTES) -> MessageStore:
    paths = StorePaths(root, root / "commitlog", root / "epochFileCheckpoint")
    return MessageStore(paths, file_size_bytes=file_size_bytes, store_host=HOST)


@dataclass
class Stores:
    """Stores of one test, each in a folder of its name below ``root``; what the test leaves open is closed at its end."""

    root: Path
    _open: dict[str, MessageStore] = field(default_factory=dict)

    def open(self, name: str = "", file_size_bytes: int = FILE_BYTES) -> MessageStore:
        self._open[name] = store = open_store(self.root / name, file_size_bytes)
        return store

    def close(self, name: str = "") -> None:
        self._open.pop(name).close()

    def reopen(self, name: str = "", file_size_bytes: int = FILE_BYTES) -> MessageStore:
        """The store as a process finds it that starts after this one has ended."""
        self.close(name)
        return self.open(name, file_size_bytes)

    def close_all(self) -> None:
        while self._open:
            self.close(next(iter(self._open)))


def message(body: bytes, topic: str = "T", queue_id: int = 0, properties: bytes = b"k\x01v\x02") -> NewMessage:
    return NewMessage(topic, queue_id, body, properties, 1, HOST)


def put(store: MessageStore, body: bytes, **keys: Any) -> int:
    """Store a message and return where the log ends then."""
    return store.put(message(body, **keys), store_timestamp_ms=2).end_offset


def log_of(store: MessageStore, offset: int | None = None) -> bytes:
    """The log from an offset, or from its first file, to its end."""
    parts, offset = [], store.log.min_offset if offset is None else offset
    while part := store.log.read(offset, FILE_BYTES):
        parts.append(part)
        offset += len(part)
    return b"".join(parts)


def damage(path: Path, position: int) -> None:
    """Flip a bit of a file."""
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def handshake(
    master: MessageStore, slave: MessageStore, *, broker_id: int = 2, sync_flush: bool = False
) -> tuple[MasterLink, SlaveLink, bytes]:
    """Both ends of a link after the answer of the master, and the first acknowledgement; the slave may raise DivergedLogError."""
    up = SlaveLink(slave, handshake=Handshake(broker_id), now_seconds=0.0, sync_flush=sync_flush)
    down = MasterLink(master, now_seconds=0.0, keepalive_seconds=5.0)
    down.receive(up.introduction(), now_seconds=0.0)
    answer = b"".join(down.frames(confirm_offset=0, now_seconds=0.0, limit_bytes=0))
    return down, up, up.receive(answer, now_seconds=0.0)


def linked(master: MessageStore, slave: MessageStore) -> tuple[MasterLink, SlaveLink]:
    """Both ends of a link over which everything has been transferred."""
    down, up, to_master = handshake(master, slave)
    while to_master:
        down.receive(to_master, now_seconds=0.0)
        frames = down.frames(confirm_offset=0, now_seconds=0.0, limit_bytes=1 << 20)
        to_master = up.receive(b"".join(frames), now_seconds=0.0) if frames else b""
    return down, up
