"""What the store of a stopped broker with a DLedger commit log says: its entries, and what else in it depends on their offsets."""

from __future__ import annotations

import hashlib
import re
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from brokergroup_operator.backup.log_end import LogError, log_end
from brokergroup_operator.migrate.dledger_index import INDEX, Index, index_files, indexing
from brokergroup_operator.migrate.dledger_log import HEADER, Entry, Ledger, LedgerError, ledger_of
from brokergroup_operator.migrate.dledger_queues import AROUND_A_FILE_BYTES, CONSUME_QUEUES, Queues, following
from brokergroup_operator.migrate.stores import COMMIT_LOG, LOG_FILE, TOPICS, Place, StoreError, no_broker
from rocketmq_remoting.errors import BodyError
from rocketmq_remoting.message_record import (
    decode_record,
)
from rocketmq_remoting.serialization import load_json_as

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Taken along as they are: what they say of a queue are offsets in that queue.
KEPT: Final = ("config", "kvStore")
# Made anew by the broker from the log, or of the moment.
MADE_ANEW: Final = frozenset(
    {
        COMMIT_LOG,
        CONSUME_QUEUES,
        INDEX,
        "checkpoint",
        "abort",
        "abort.bak",
        "lock",
        "timerwheel",
        "timerlog",
        "compaction",
    }
    | {".disk-probe", "lost+found"}
)
# Half transactions, timers or indexes, where a broker is set to keep them there.
ROCKSDB: Final = "rocksdbstore"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
TIMER_PROPERTY: Final = "TIMER_OUT_MS"
_LEDGER: Final = re.compile(r"dledger-(\w+)")
_TIMER_CHECKPOINT: Final = struct.Struct(">qqqq")


T = TypeVar("T")


class _Topic(msgspec.Struct):
    attributes: dict[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDigest:
    """The entries of one file: their first and last index, and the SHA-256 of their bytes."""

    offset: int
    first: int
    last: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Settings:
    """How new the settings are: the number of topics, and the sums of all offsets of delay levels and of consumers.

    Followers copy these from the leader now and then: a Java 5.5.0 follower copies consumers' offsets when their version has
    changed, by default with every 500th commit. Offsets grow, so of two members the one with the greater sums led later.
    """

    topics: int = 0
    delayed: int = 0
    consumed: int = 0

    def lacks_of(self, other: Settings) -> bool:
        return self.topics < other.topics or self.delayed < other.delayed or self.consumed < other.consumed

    def __str__(self) -> str:
        return f"{self.topics} topics, delayed offsets of {self.delayed} in sum, consumers' offsets of {self.consumed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberReport:
    """One member of a DLedger group. `begin` and `end` are offsets in bytes of its log, `terms` pairs of term and first index.

    `old_files`: files of a normal log, from before DLedger, that lie before it. `timers`: messages with an arbitrary delay that
    wait. `settings`: how new its topics and offsets are. `undispatched_files`: of so many files at the end the consume queues lack
    messages. `hidden`: messages that no consumer has got, since another one has their number in the queue. `deleted`: messages of
    topics that were deleted. `index_bytes`, `queue_bytes`, `settings_bytes`: what copies of these files take at most. `no_index`:
    why the index files are not copied.
    """

    member: str
    file_bytes: int
    begin: int
    end: int
    terms: tuple[tuple[int, int], ...]
    last_index: int
    messages: int
    files: tuple[FileDigest, ...]
    old_files: int = 0
    settings: Settings = Settings()
    stopped_cleanly: bool = True
    stale: bool = False
    timers: int = 0
    compacted: tuple[str, ...] = ()
    undispatched_files: int = 0
    hidden: int = 0
    deleted: int = 0
    index_bytes: int = 0
    queue_bytes: int = 0
    settings_bytes: int = 0
    no_index: str = ""
    left_out: tuple[str, ...] = ()

    @property
    def first_index(self) -> int:
        """Return -1 for a log without entries."""
        return self.terms[0][1] if self.terms else -1

    @property
    def last_term(self) -> int:
        return self.terms[-1][0] if self.terms else -1

    @property
    def log_bytes(self) -> int:
        """Return how much the copied log takes at most: a message loses 48 bytes, and files end elsewhere."""
        return self.end - self.begin + self.file_bytes

    @property
    def room_bytes(self) -> int:
        """Return how much the whole copy takes at most."""
        return self.log_bytes + self.queue_bytes + self.index_bytes + self.settings_bytes

    @property
    def entries(self) -> int:
        return self.last_index - self.first_index + 1 if self.terms else 0


@dataclass(slots=True)
class Tally:
    """What the entries of a log say, one after the other."""

    terms: list[tuple[int, int]] = field(default_factory=list)
    last_index: int = -1
    messages: int = 0
    files: list[FileDigest] = field(default_factory=list)
    # Up to which time, and to which offset of the timers' queue, the broker has delivered.
    timers_done: tuple[int, int] = (0, 0)
    timers: int = 0
    _file: int = -1
    _first: int = -1
    _digest: hashlib._Hash = field(default_factory=hashlib.sha256)

    def add(self, entry: Entry) -> None:
        if entry.file != self._file:
            self._end_file()
            self._file, self._first, self._digest = entry.file, entry.index, hashlib.sha256()
        if not self.terms or entry.term != self.terms[-1][0]:
            self.terms.append((entry.term, entry.index))
        self.last_index = entry.index
        self._digest.update(entry.raw)
        if entry.message is not None:
            self._add_message(entry)

    def digest(self) -> FileDigest:
        """Return that of the present file, up to here."""
        return FileDigest(offset=self._file, first=self._first, last=self.last_index, sha256=self._digest.hexdigest())

    def end(self) -> None:
        self._end_file()

    def _end_file(self) -> None:
        if self._first >= 0:
            self.files.append(self.digest())
            self._first = -1

    def _add_message(self, entry: Entry) -> None:
        self.messages += 1
        message = entry.message
        assert message is not None
        if message.topic == TIMER_TOPIC:
            due = decode_record(entry.raw, HEADER.size).properties.get(TIMER_PROPERTY, "")
            until_ms, offset = self.timers_done
            self.timers += message.queue_offset >= offset or not due.isdecimal() or int(due) >= until_ms


@dataclass(frozen=True, slots=True)
class LedgerStore:
    """The files of one stopped member."""

    place: Place
    member: str
    ledger: Ledger
    old_files: tuple[Path, ...]

    @property
    def begin(self) -> int:
        return int(self.old_files[0].name) if self.old_files else self.ledger.begin

    def state(self) -> list[tuple[Path, int, int]]:
        """Return what differs after a broker has written: each file of the log and of the settings, its size and time of change."""
        found = ((path, path.lstat()) for path in (*self.old_files, *self.ledger.files, *self._kept()))
        return sorted((path, one.st_size, one.st_mtime_ns) for path, one in found)

    def tally(self) -> Tally:
        """Return one for the next reading of the log."""
        return Tally(timers_done=_timers_done(self.place.path("config/timercheck")))

    def topics(self) -> frozenset[str] | None:
        """Return the names of all topics; None if they are not in a file, as where they are kept in RocksDB."""
        path = self.place.path(TOPICS)
        return frozenset(_table(path, "topicConfigTable", dict[str, Any])) if path.is_file() else None

    def report(self, tally: Tally, queues: Queues, index: Index) -> MemberReport:
        """Return the report on a log that was read to its end. StoreError if a queue has more than the log."""
        queues.check_ends(self.ledger.begin)
        index.end()
        clean = not self.place.path("abort").exists()
        pending = queues.pending_from
        return MemberReport(
            member=self.member,
            file_bytes=self.ledger.file_bytes,
            begin=self.begin,
            end=self.ledger.end,
            terms=tuple(tally.terms),
            last_index=tally.last_index,
            messages=tally.messages,
            files=tuple(tally.files),
            old_files=len(self.old_files),
            settings=_settings(self.place),
            stopped_cleanly=clean,
            stale=self.ledger.stale,
            timers=tally.timers,
            compacted=_compacted(self.place),
            undispatched_files=0 if pending < 0 else self.ledger.files_from(pending),
            hidden=queues.hidden,
            deleted=queues.deleted,
            index_bytes=index.used_bytes if clean else 0,
            queue_bytes=queues.used_bytes,
            settings_bytes=sum(one.stat().st_size + AROUND_A_FILE_BYTES for one in self._kept() if one.is_file()),
            # Java deletes the last index file of a broker that was killed, as it may be torn.
            no_index=index.fault if clean or not index.paths else "its broker was killed",
            left_out=tuple(self._left_out()),
        )

    def _kept(self) -> Iterator[Path]:
        yield from (path for top in KEPT for path in self.place.path(top).rglob("*"))

    def _left_out(self) -> Iterator[str]:
        top = self.place.volume / self.place.folder
        known = MADE_ANEW | {*KEPT, f"dledger-{self.member}"}
        yield from sorted(path.name for path in top.iterdir() if path.name not in known and not _is_empty(path))
        # A light queue has messages of other topics.
        yield from sorted(path.name for path in self.place.path(CONSUME_QUEUES).glob("%LMQ%*"))


def open_store(place: Place) -> LedgerStore:
    """Find the files of a stopped member. StoreError if there is no DLedger log, or it cannot be read."""
    top = place.volume / place.folder
    if not top.is_dir():
        raise StoreError(f"{top}: expected the folder of a broker's store (storePathRootDir)")
    place.check()
    members = [found[1] for path in sorted(top.iterdir()) if (found := _LEDGER.fullmatch(path.name))]
    if len(members) != 1:
        raise StoreError(f"expected one folder dledger-<dLegerSelfId> in the store, found {members or 'none'}")
    try:
        ledger = ledger_of(top / f"dledger-{members[0]}" / "data")
        old = place.path(COMMIT_LOG)
        files = sorted(path for path in old.iterdir() if LOG_FILE.fullmatch(path.name)) if old.is_dir() else []
        if files:
            _check_old(old, files, ledger)
    except (LedgerError, LogError) as error:
        raise StoreError(f"dledger-{members[0]}: {error}") from error
    return LedgerStore(place, members[0], ledger, tuple(files))


def survey(place: Place) -> MemberReport:
    """Read the whole log of a stopped member; nothing is changed. StoreError if it cannot be copied."""
    store = open_store(place)
    tally = store.tally()
    with (
        no_broker(place.path("lock")),
        following(place.path(CONSUME_QUEUES), store.topics()) as queues,
        indexing(index_files(place.path(INDEX)), store.ledger.begin) as index,
    ):
        for entry in entries_of(store):
            tally.add(entry)
            if entry.message is not None:
                queues.follow(entry.message, entry.place, entry.place)
                index.follow(entry.place, entry.place)
        tally.end()
        return store.report(tally, queues, index)


def entries_of(store: LedgerStore) -> Iterator[Entry]:
    """Yield the entries. StoreError for a damaged one."""
    try:
        yield from store.ledger.entries()
    except LedgerError as error:
        raise StoreError(f"dledger-{store.member}: {error}") from error


def _check_old(folder: Path, files: list[Path], ledger: Ledger) -> None:
    """Raise LedgerError unless the log from before DLedger is whole and ends where DLedger's begins."""
    if sizes := {path.stat().st_size for path in files} - {ledger.file_bytes}:
        raise LedgerError(f"{COMMIT_LOG} has files of {sizes.pop()} bytes, expected {ledger.file_bytes} as in its data")
    if (end := log_end(folder)) != ledger.begin:
        raise LedgerError(
            f"the log before it, in {COMMIT_LOG}, ends at {end}, expected {ledger.begin}, where its data begin"
        )


def _settings(place: Place) -> Settings:
    offsets = _table(place.path("config/consumerOffset.json"), "offsetTable", dict[str, dict[str, int]])
    return Settings(
        topics=len(_table(place.path(TOPICS), "topicConfigTable", dict[str, Any])),
        delayed=sum(_table(place.path("config/delayOffset.json"), "offsetTable", dict[str, int]).values()),
        consumed=sum(offset for queues in offsets.values() for offset in queues.values()),
    )


def _table(path: Path, name: str, kind: type[dict[str, T]]) -> dict[str, T]:
    """Return a table of one of Java's files; empty if there is none, as where topics are kept in RocksDB."""
    if not path.is_file():
        return {}
    try:
        found: dict[str, Any] = load_json_as(path.read_bytes(), dict[str, Any])
        return msgspec.convert({} if found.get(name) is None else found[name], kind, strict=False)
    except (BodyError, msgspec.ValidationError) as error:
        raise StoreError(f"config/{path.name} is damaged: {error}") from error


def _timers_done(checkpoint: Path) -> tuple[int, int]:
    """Return up to which time, and to which offset of the timers' queue, the broker says that it has delivered."""
    if not checkpoint.is_file() or checkpoint.stat().st_size < _TIMER_CHECKPOINT.size:
        return 0, 0
    read_until_ms, _, next_offset, _ = _TIMER_CHECKPOINT.unpack(checkpoint.read_bytes()[: _TIMER_CHECKPOINT.size])
    return read_until_ms, next_offset


def _compacted(place: Place) -> tuple[str, ...]:
    """Return the topics whose messages are compacted by their keys: what is left of them lies outside the log."""
    topics = _table(place.path(TOPICS), "topicConfigTable", dict[str, _Topic])
    return tuple(
        sorted(name for name, one in topics.items() if (one.attributes or {}).get("cleanup.policy") == "COMPACTION")
    )


def _is_empty(path: Path) -> bool:
    """Whether nothing is lost without it: a folder without files, or the RocksDB of all kinds of data, without a row."""
    if path.name == ROCKSDB:
        return not any(one.suffix == ".sst" or (one.suffix == ".log" and one.stat().st_size) for one in path.rglob("*"))
    return path.is_dir() and not any(path.iterdir())
