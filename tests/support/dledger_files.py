"""The files of a member of a DLedger group: made by rule, and those that Java 5.5.0 has written, recorded once."""

from __future__ import annotations

import base64
import io
import lzma
import struct
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from brokergroup_operator.migrate.dledger_index import HEADER as INDEX_HEADER
from brokergroup_operator.migrate.dledger_index import ITEM, Shape
from brokergroup_operator.migrate.dledger_log import FILLER, HEADER, NOOP, NORMAL
from rocketmq_remoting.message_record import Host, encode_properties, encode_record

if TYPE_CHECKING:
    from collections.abc import Sequence

FILE_BYTES = 2048
INDEX_SHAPE = Shape(7, 20)
HOST = Host("10.1.0.2", 10911)
QUEUE_ENTRY = struct.Struct(">qiq")
_RECORDED = Path(__file__).with_name("dledger_store_5_5_0.txt")


@dataclass(frozen=True)
class Sent:
    """A message of a test's log; `topic` empty: an entry without a message."""

    topic: str = "orders"
    queue: int = 0
    offset: int = 0
    body: bytes = b"x" * 100
    term: int = 1
    sys_flag: int = 0
    due_ms: int | None = None
    host: Host = HOST

    def record(self, physical_offset: int) -> bytes:
        due = {} if self.due_ms is None else {"TIMER_OUT_MS": str(self.due_ms)}
        return encode_record(
            topic=self.topic, body=self.body, queue_id=self.queue, queue_offset=self.offset, physical_offset=physical_offset,
            born_timestamp_ms=1, born_host=self.host, store_timestamp_ms=2, store_host=self.host, sys_flag=self.sys_flag,
            properties=encode_properties({"KEYS": f"{self.queue}-{self.offset}", **due}),
        )  # fmt: skip


def entry(sent: Sent, index: int, position: int) -> bytes:
    body = sent.record(position + HEADER.size) if sent.topic else b""
    kind = NORMAL if sent.topic else NOOP
    return HEADER.pack(kind, HEADER.size + len(body), index, sent.term, position, 0, 0, 0, len(body)) + body


def filler(size: int) -> bytes:
    return struct.pack(">ii", FILLER, size).ljust(size, b"\0")


def write_member(
    store: Path,
    messages: Sequence[Sent],
    *,
    member: str = "n0",
    begin: int = 0,
    first_index: int = 0,
    file_bytes: int = FILE_BYTES,
) -> int:
    """Write the data files as DLedger does; return the offset behind the last entry."""
    data = store / f"dledger-{member}" / "data"
    data.mkdir(parents=True, exist_ok=True)
    content, end = b"", begin
    for index, sent in enumerate(messages, start=first_index):
        made = entry(sent, index, end)
        left = file_bytes - end % file_bytes
        if len(made) + 8 > left:
            content += filler(left)
            end += left
            made = entry(sent, index, end)
        content += made
        end += len(made)
    for at in range(0, max(len(content), 1), file_bytes):
        (data / f"{begin + at:020d}").write_bytes(content[at : at + file_bytes].ljust(file_bytes, b"\0"))
    (store / "config").mkdir(exist_ok=True)
    (store / "config" / "topics.json").write_text('{"topicConfigTable":{"orders":{"topicName":"orders"}}}')
    (store / "lock").write_text("lock")
    return end


def data_of(store: Path, member: str = "n0") -> list[Path]:
    return sorted((store / f"dledger-{member}" / "data").iterdir())


def change(store: Path, offset: int, content: bytes, *, member: str = "n0") -> None:
    """Write bytes over those at an offset of the log."""
    path = max(one for one in data_of(store, member) if int(one.name) <= offset)
    held = bytearray(path.read_bytes())
    at = offset - int(path.name)
    held[at : at + len(content)] = content
    path.write_bytes(held)


def write_queue(store: Path, topic: str, queue: int, places: Sequence[int], *, size: int = 200, first: int = 0) -> None:
    """Write a file of a consume queue: where in the log each message lies; at 0 of a size of 0 for a hole."""
    folder = store / "consumequeue" / topic / str(queue)
    folder.mkdir(parents=True)
    rows = [QUEUE_ENTRY.pack(place, size if place or not number else 0, 77) for number, place in enumerate(places)]
    (folder / f"{first * QUEUE_ENTRY.size:020d}").write_bytes(b"".join(rows).ljust(1000 * QUEUE_ENTRY.size, b"\0"))


def write_index(store: Path, name: str, items: Sequence[tuple[int, int]], *, shape: Shape = INDEX_SHAPE) -> None:
    """Write an index file as Java does: for each item the hash of a key, and where its message lies."""
    folder = store / "index"
    folder.mkdir(exist_ok=True)
    content, used = bytearray(shape.file_bytes), 0
    for number, (key, place) in enumerate(items, start=1):
        slot = INDEX_HEADER.size + 4 * (key % shape.slots)
        [before] = struct.unpack_from(">i", content, slot)
        used += not before
        ITEM.pack_into(content, shape.item_at(number), key, place, 0, before)
        struct.pack_into(">i", content, slot, number)
    places = [items[0][1], items[-1][1]] if items else [9_000_000, 9_000_000]
    INDEX_HEADER.pack_into(content, 0, 1, 2, *places, used, len(items) + 1)
    (folder / name).write_bytes(content)


def found_by_key(folder: Path, key: int, *, shape: Shape = INDEX_SHAPE) -> list[int]:
    """Return the places that Java finds for the hash of a key, the newest first."""
    found = []
    for path in sorted(folder.iterdir(), reverse=True):
        content = path.read_bytes()
        [number] = struct.unpack_from(">i", content, INDEX_HEADER.size + 4 * (key % shape.slots))
        while number:
            held, place, _, number = ITEM.unpack_from(content, shape.item_at(number))
            found += [place] if held == key else []
    return found


def recorded_store(folder: Path) -> Path:
    """Write the recorded store of a leader: 30 messages, a batch of 3, a transaction that was committed and one rolled back, then,
    after another leader's death, 30 messages of term 2, the half of a transaction, and a delayed message."""
    packed = lzma.decompress(base64.b64decode(_RECORDED.read_text("ascii")))
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return folder
