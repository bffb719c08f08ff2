"""What the files of a stopped broker say, and how they are made ready for a controller: by one file of epochs, one of identity.

A store of static roles has no epochs, and a Java 5.5.0 master of such a store has none for what it wrote before
(docs/adr/0026-stores-of-another-deployment-are-taken-over.md). So the log as it is becomes epoch 1, from offset 0.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
import re
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rocketmq_remoting.message_record import BLANK_HEADER_BYTES, EntryKind, MessageRecordError, inspect_entry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COMMIT_LOG: Final = "commitlog"
EPOCHS: Final = "epochFileCheckpoint"
IDENTITY: Final = "brokerIdentity"
UNFINISHED_IDENTITY: Final = "brokerIdentity-temp"
# The one epoch of a log that was written without any.
FIRST_EPOCH: Final = (1, 0)
# So many files of two logs are compared, from their common end on.
COMPARED_FILES: Final = 2
_LOG_FILE: Final = re.compile(r"[0-9]{20}")
_ENTRY: Final = re.compile(r"([0-9]+)-([0-9]+)")


class StoreError(Exception):
    """The store can't be taken over as it is; the message says which file shows it, and what would help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a broker in controller mode has on its disk: by this it registers."""

    cluster_name: str
    broker_name: str
    broker_id: int

    def __str__(self) -> str:
        """Return the content of the file."""
        return f"{self.cluster_name}#{self.broker_name}#{self.broker_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreReport:
    """One store. `begin` and `end` are offsets in bytes of its log, `epochs` pairs of epoch and first offset.

    `tails`: SHA-256 of the log in the file with its end, up to the end, then of the file before. `stopped_cleanly`: no file `abort`
    is left. `identity`: None for a store of static roles. `has_topics`: config/topics.json is there.
    """

    begin: int
    end: int
    file_bytes: int
    tails: tuple[str, ...]
    epochs: tuple[tuple[int, int], ...] = ()
    identity: Identity | None = None
    stopped_cleanly: bool = True
    has_topics: bool = True

    @property
    def last_epoch(self) -> int:
        """Return 0 for a log without epochs."""
        return self.epochs[-1][0] if self.epochs else 0


@dataclass(frozen=True, slots=True)
class Place:
    """A volume, and the folder of the store in it; empty: the volume is the store.

    A BrokerGroup's volume is the store itself. So `lift` moves the folder's content up, and until it has ended each file may lie at
    either place.
    """

    volume: Path
    folder: str = ""

    def path(self, name: str) -> Path:
        """Return where a file or folder of the store lies; the volume for one that is nowhere. StoreError if it lies at both."""
        inside, above = self.volume / self.folder / name, self.volume / name
        if self.folder and inside.exists() and above.exists():
            raise StoreError(f"{self.folder}/{name} and {name} are both there: which one is the store's? Move one away")
        return inside if self.folder and inside.exists() else above

    def lift(self) -> None:
        """Move the store from its folder to the volume's top; what has been moved stays moved."""
        source = self.volume / self.folder
        if not self.folder or not source.is_dir():
            return
        moves = [(self.path(path.name), self.volume / path.name) for path in sorted(source.iterdir())]
        for inside, above in moves:
            inside.replace(above)
        _sync(self.volume)
        source.rmdir()
        _sync(source.parent)


def inspect(place: Place) -> StoreReport:
    """Read a store on which no broker runs; nothing is changed. Raises StoreError."""
    top = place.volume / place.folder
    if not place.volume.is_dir():
        raise StoreError(f"{place.volume}: expected the folder of a broker's store (storePathRootDir)")
    ledgers = sorted(path.name for path in (*place.volume.glob("dledger-*"), *top.glob("dledger-*")))
    if ledgers:
        raise StoreError(
            f"{ledgers[0]} is a DLedger commit log: its format is another one, and RocketMQ reads it in DLedger mode only."
            " Copy its messages, or let them be consumed, and begin with empty disks"
        )
    log = place.path(COMMIT_LOG)
    files = sorted(path for path in log.iterdir() if _LOG_FILE.fullmatch(path.name)) if log.is_dir() else []
    if not files:
        shown = f"{place.folder}/{COMMIT_LOG}" if place.folder else COMMIT_LOG
        raise StoreError(f"there is no commit log in {shown}: expected files such as {0:020d}; is it on another disk?")
    with _no_broker(place.path("lock")):
        end = _end_of(files)
        return StoreReport(
            begin=int(files[0].name),
            end=end,
            file_bytes=files[0].stat().st_size,
            tails=tuple(_fingerprints(files, end)),
            epochs=_epochs_of(place.path(EPOCHS)),
            identity=_identity_of(place.path(IDENTITY)),
            stopped_cleanly=not place.path("abort").exists(),
            has_topics=place.path("config/topics.json").is_file(),
        )


def prepare(place: Place, holder: Identity) -> StoreReport:
    """Make the store ready for a broker of this identity in controller mode; done again, it changes nothing more.

    Messages, topics, groups and offsets stay as they are. Epochs that the log has are kept. Raises StoreError.
    """
    before = inspect(place)
    place.lift()
    if not before.epochs:
        _write(place.volume / EPOCHS, encoded_epochs([FIRST_EPOCH]))
    # The broker reads its id from here, and asks for none. A request that was cut off would come first.
    (place.volume / UNFINISHED_IDENTITY).unlink(missing_ok=True)
    if before.identity != holder:
        _write(place.volume / IDENTITY, str(holder).encode())
    return inspect(Place(place.volume))


def encoded_epochs(epochs: list[tuple[int, int]]) -> bytes:
    """Return the content of an epoch file as Java writes it: the count, a check sum, then `epoch-offset` a line."""
    lines = "".join(f"{epoch}-{offset}\n" for epoch, offset in epochs)
    return f"{len(epochs)}\n{_check_sum(lines)}\n{lines}".encode()


def _check_sum(lines: str) -> int:
    return zlib.crc32(lines.encode()) & 0x7FFFFFFF


@contextmanager
def _no_broker(lock: Path) -> Iterator[None]:
    """Hold the store's lock as a reader: a Java broker of this host holds it as writer for as long as it runs."""
    if not lock.exists():
        yield
        return
    with lock.open("rb") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB, 1)
        except OSError as error:
            raise StoreError(f"{lock.name} is held: a broker runs on this store. Stop it first") from error
        yield


def _end_of(files: list[Path]) -> int:
    """Return the offset behind the last whole message. Files are made ahead, full of zeros: the last one with a message decides."""
    for path in reversed(files):
        if end := _end_in(path):
            return int(path.name) + end
    return int(files[0].name)


def _end_in(path: Path) -> int:
    size, start, position = path.stat().st_size, int(path.name), 0
    if size == 0:
        return 0
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as content,
    ):
        while size - position >= BLANK_HEADER_BYTES:
            try:
                entry = inspect_entry(content, position, size, physical_offset=start + position)
            except MessageRecordError:
                break  # a message that came in part: a broker's start cuts it off too
            if entry.kind is EntryKind.END:
                break
            if entry.kind is EntryKind.BLANK:
                return size
            position += entry.size_bytes
    return position


def _fingerprints(files: list[Path], end: int) -> Iterator[str]:
    """Yield the SHA-256 of the log in its last files, newest first. Both logs of a comparison are cut into the same files."""
    written = [path for path in files if int(path.name) < end]
    for path in reversed(written[-COMPARED_FILES:]):
        left = min(end - int(path.name), path.stat().st_size)
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while left > 0 and (chunk := file.read(min(left, 1 << 20))):
                digest.update(chunk)
                left -= len(chunk)
        yield digest.hexdigest()


def _epochs_of(path: Path) -> tuple[tuple[int, int], ...]:
    if not path.exists():
        return ()
    lines = path.read_text("ascii", "replace").split()
    found = [_ENTRY.fullmatch(line) for line in lines[2:]]
    epochs = tuple((int(entry[1]), int(entry[2])) for entry in found if entry is not None)
    text = "".join(f"{epoch}-{offset}\n" for epoch, offset in epochs)
    is_whole = len(epochs) == len(found) and lines[:1] == [str(len(epochs))] and list(epochs) == sorted(epochs)
    # RocketMQ checks nothing where the sum is 0.
    if not is_whole or lines[1] not in {"0", str(_check_sum(text))}:
        raise StoreError(f"{path.name} is damaged: expected a count, a check sum, and as many lines epoch-offset")
    return epochs


def _identity_of(path: Path) -> Identity | None:
    if not path.exists():
        return None
    text = path.read_text("utf-8", "replace").strip()
    cluster, _, rest = text.partition("#")
    name, _, number = rest.rpartition("#")
    if not (cluster and name and number.isdecimal()):
        raise StoreError(f"{path.name} is {text[:100]!r}, expected <cluster>#<brokerName>#<brokerId>")
    return Identity(cluster_name=cluster, broker_name=name, broker_id=int(number))


def _write(path: Path, content: bytes) -> None:
    """Replace a file as a whole, durably."""
    temporary = path.with_name(f"{path.name}.adopting")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    _sync(path.parent)


def _sync(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
