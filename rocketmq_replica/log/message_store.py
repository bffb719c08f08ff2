"""The store of one replica: commit log, consume queues, epoch history and confirm offset, consistent with each other.

Roles, replication and requests change the log only through these methods. So the queues always cover exactly the complete records
of the log, no epoch begins after its end, and the confirm offset is never above it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import msgspec

from rocketmq_remoting.message_record import (
    BLANK_HEADER_BYTES,
    SYS_FLAG_TRANSACTION_PREPARED,
    CorruptRecordError,
    EntryKind,
    Host,
    IncompleteRecordError,
    LogEntry,
    encode_record,
    inspect_entries,
    inspect_entry,
    offset_message_id,
    record_overhead_bytes,
)
from rocketmq_replica.log import disk
from rocketmq_replica.log.commit_log import CommitLog, Recovery
from rocketmq_replica.log.consume_queues import ConsumeQueues
from rocketmq_replica.log.disk import StoreFileError, make_folders, sync_names, sync_path
from rocketmq_replica.log.side_files import (
    Checkpoint,
    CheckpointFile,
    DeletedTopics,
    Deletion,
    IndexFiles,
    load_epochs,
    load_queue_offsets,
    save_epochs,
    save_queue_offsets,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from rocketmq_replica.log.consume_queues import QueuePart

_RECORD, _END = EntryKind.RECORD, EntryKind.END


@dataclass(frozen=True)
class StorePaths:
    """The store's files, where Java keeps them."""

    root: Path
    commit_log: Path
    epoch_file: Path

    @property
    def checkpoint(self) -> Path:
        """The checkpoint file."""
        return self.root / "checkpoint"

    @property
    def index(self) -> Path:
        """The folder of the indexes of full log files."""
        return self.root / "indexed"

    @property
    def queue_offsets(self) -> Path:
        """The offsets of the queues' next messages."""
        return self.root / "config" / "queueOffsets.json"

    @property
    def deleted_topics(self) -> Path:
        """The deleted topics."""
        return self.root / "config" / "deletedTopics.json"

    @property
    def lock(self) -> Path:
        """The lock file of the process that uses this store."""
        return self.root / "lock"


# In a folder of the store until the backup that is copied to it is whole; whatever the folder has then is no log of any group.
UNFINISHED_RESTORE: Final = "restore-unfinished"


class NewMessage(msgspec.Struct, frozen=True, gc=False):
    """A message before it is stored."""

    topic: str
    queue_id: int
    body: bytes
    properties: bytes
    born_timestamp_ms: int
    born_host: Host
    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int = 0


class Stored(msgspec.Struct, frozen=True, gc=False):
    """Where a message was stored. It is acknowledged once the replicas have the log up to ``end_offset``."""

    message_id: str
    queue_offset: int
    physical_offset: int
    end_offset: int


class MessageTooLargeError(ValueError):
    """The record does not fit into a file of the log."""


class MessageStore:
    """One store, used by one process."""

    def __init__(self, paths: StorePaths, *, file_size_bytes: int, store_host: Host) -> None:
        """Lock, read and repair the store. ``recovery`` says what was cut."""
        _refuse_unfinished(paths)
        self._paths = paths
        self._store_host = store_host
        make_folders(paths.root)
        sync_names(paths.root)
        sync_path(paths.root)
        self._lock = _lock_store(paths.lock)
        self.queues = ConsumeQueues()
        self._indexed_offset = 0
        self._unindexed = b""
        self._deleted = DeletedTopics(paths.deleted_topics)
        self._confirm_offset = 0
        self._epochs_unsaved = False
        self._checkpoint = CheckpointFile(paths.checkpoint)
        self.never_confirmed = True
        try:
            self.log = CommitLog(paths.commit_log, file_size_bytes=file_size_bytes)
            self.index = IndexFiles(paths.index, file_size_bytes=file_size_bytes, read=self.log.read)
            try:
                self.recovery = self._recover()
            except BaseException:
                self.log.close()
                raise
        except BaseException:
            os.close(self._lock)
            raise

    @property
    def max_offset(self) -> int:
        """The end of the log, on a slave possibly inside a record."""
        return self.log.max_offset

    @property
    def confirm_offset(self) -> int:
        """The whole SyncStateSet has the log up to here, as far as this replica knows. Consumers see nothing above it."""
        return self._confirm_offset

    @confirm_offset.setter
    def confirm_offset(self, offset: int) -> None:
        self._confirm_offset = min(offset, self.log.max_offset)
        if self.never_confirmed and self._confirm_offset > 0:
            self.save_checkpoint()  # once: no diverged master may cut a log with confirmed messages to 0
            self.never_confirmed = False

    def put(self, message: NewMessage, *, store_timestamp_ms: int) -> Stored:
        """Append a message as the master."""
        size = self.check_fits(message)
        if size + BLANK_HEADER_BYTES > self.log.space_left_in_file():
            self._fill_file()
        log, queue = self.log, self.queues.queue(message.topic, message.queue_id)
        physical_offset, queue_offset = log.max_offset, queue.next_offset
        log.append(self._record(message, queue_offset, physical_offset, store_timestamp_ms))
        queue.add(queue_offset, physical_offset, size, store_timestamp_ms)
        self._indexed_offset = end_offset = log.max_offset
        return Stored(offset_message_id(self._store_host, physical_offset), queue_offset, physical_offset, end_offset)

    def put_all(self, messages: Sequence[NewMessage], *, store_timestamp_ms: int) -> list[Stored]:
        """Append messages of one queue as the master, with one write for all that fit into the last file.

        After MessageTooLargeError nothing was stored; after OSError, none of the messages of the failed write.
        """
        sizes = [self.check_fits(message) for message in messages]
        stored: list[Stored] = []
        while len(stored) < len(messages):
            if sizes[len(stored)] + BLANK_HEADER_BYTES > self.log.space_left_in_file():
                self._fill_file()
            stored += self._put_row(messages, sizes, len(stored), store_timestamp_ms)
        return stored

    def _fill_file(self) -> None:
        """Fill the rest of the file. The blank stays if the record after it cannot be written, and slaves may have it by then."""
        self.log.fill_file()
        self._indexed_offset = self.log.max_offset

    def _put_row(
        self, messages: Sequence[NewMessage], sizes: Sequence[int], first: int, store_timestamp_ms: int
    ) -> list[Stored]:
        """Write the messages from ``first`` on that fit into this file."""
        log, queue = self.log, self.queues.queue(messages[first].topic, messages[first].queue_id)
        start_offset, space = log.max_offset, log.space_left_in_file() - BLANK_HEADER_BYTES
        records: list[bytes] = []
        stored: list[Stored] = []
        offset, queue_offset = start_offset, queue.next_offset
        for message, size in zip(messages[first:], sizes[first:], strict=True):
            if offset - start_offset + size > space:
                break
            records.append(self._record(message, queue_offset, offset, store_timestamp_ms))
            message_id = offset_message_id(self._store_host, offset)
            stored.append(Stored(message_id, queue_offset, offset, offset + len(records[-1])))
            offset, queue_offset = stored[-1].end_offset, queue_offset + 1
        log.append(records[0] if len(records) == 1 else b"".join(records))
        for each in stored:
            size = each.end_offset - each.physical_offset
            queue.add(each.queue_offset, each.physical_offset, size, store_timestamp_ms)
        self._indexed_offset = log.max_offset
        return stored

    def _record(self, message: NewMessage, queue_offset: int, physical_offset: int, store_timestamp_ms: int) -> bytes:
        return encode_record(
            topic=message.topic,
            body=message.body,
            queue_id=message.queue_id,
            queue_offset=queue_offset,
            physical_offset=physical_offset,
            born_timestamp_ms=message.born_timestamp_ms,
            born_host=message.born_host,
            store_timestamp_ms=store_timestamp_ms,
            store_host=self._store_host,
            properties=message.properties,
            flag=message.flag,
            sys_flag=message.sys_flag,
            reconsume_times=message.reconsume_times,
        )

    def check_fits(self, message: NewMessage) -> int:
        """Return the size of the message's record. Raise MessageTooLargeError if it exceeds a file of the log."""
        overhead = record_overhead_bytes(message.topic, message.born_host.ip, self._store_host.ip)
        size = overhead + len(message.body) + len(message.properties)
        if size + BLANK_HEADER_BYTES > self.log.file_size_bytes:
            raise MessageTooLargeError(f"a record of {size} bytes, log files have {self.log.file_size_bytes}")
        return size

    def append_replicated(self, offset: int, data: bytes) -> None:
        """Append a master's bytes as a slave. Every record is checked before anything is written."""
        if self.log.max_offset == 0 and offset != 0:
            self.log.start_at(offset)
            self._indexed_offset = offset
        if offset != self.log.max_offset:
            raise StoreFileError(f"bytes for offset {offset} arrived, the log ends at {self.log.max_offset}")
        unindexed = bytes(self._unindexed) + data if self._unindexed else data
        with memoryview(unindexed) as view:
            entries, taken = inspect_entries(view, physical_offset=self._indexed_offset)
        if entries and entries[-1].kind is _END:
            raise StoreFileError(
                f"the master sent zeros at offset {self._indexed_offset + taken} where a record was expected"
            )
        self.log.append(data)
        self._unindexed = unindexed[taken:]
        self._indexed_offset = self._index(self._indexed_offset, entries)

    @property
    def deleted_topics(self) -> Mapping[str, Deletion]:
        """The last deletion of each deleted topic."""
        return self._deleted.marks

    def delete_topic(self, topic: str) -> None:
        """Hide a topic's messages from consumers, durably, as the master. The log keeps them; no queue offset is reused.

        After TooManyDeletionsError or OSError nothing has changed.
        """
        epoch = self.epochs.last
        if epoch is not None and self.queues.has_topic(topic):
            mark = Deletion(self.log.max_offset, epoch.epoch, epoch.start_offset)
            self._deleted.add(topic, mark, log_begins_at=self.log.min_offset)
            self._hide_deleted()

    def take_deleted_topics(self, marks: Mapping[str, Deletion]) -> None:
        """Replace the deletions by those of the master."""
        if self._deleted.replace(marks):
            self._hide_deleted()

    def _hide_deleted(self) -> None:
        """Apply the deletions to the queues. Needed after each change of deletions or epochs, before records are added."""
        self.queues.hide_before({topic: mark.hidden_before(self.epochs) for topic, mark in self._deleted.marks.items()})

    def take_queue_offsets(self, offsets: Mapping[tuple[str, int], int]) -> None:
        """Continue queues without messages where they ended at the master, durably: this log may begin after their last messages.

        As master it would otherwise number new messages from 0 on, and consumers that have read further would skip them.
        """
        ahead = {name: offset for name, offset in offsets.items() if offset > self.queues.end(*name)}
        ahead = {name: offset for name, offset in ahead.items() if not len(self.queues.queue(*name))}
        if ahead:
            save_queue_offsets(self._paths.queue_offsets, self.queues.next_offsets() | ahead)
            self.queues.begin_at(ahead)

    def truncate(self, offset: int) -> None:
        """Cut the log, the queues and the epoch history at ``offset``, which must be a record boundary."""
        self.index.drop_beyond(offset)
        # Before the cut: the next start must not require bytes that were cut on purpose.
        if self._checkpoint.durable_offset > offset:
            self._confirm_offset = min(self._confirm_offset, offset)
            self._checkpoint.save(lambda: replace(self._checkpoint_now(), durable_offset=0))
        self.log.truncate(offset)
        self.queues.drop_from(offset)
        self._indexed_offset = min(self._indexed_offset, offset)
        self._unindexed = self._read_all(self._indexed_offset)
        self.confirm_offset = self._confirm_offset
        if self.epochs.drop_beyond_offset(offset):
            self._hide_deleted()
            self.save_epochs()

    def cut_to_whole_record(self) -> int:
        """Cut an incomplete record from the end, as a new master must before it begins its epoch (A.10)."""
        if self._indexed_offset < self.log.max_offset:
            self.index.drop_beyond(self._indexed_offset)
            self.log.truncate(self._indexed_offset)
            self._unindexed = b""
            self.confirm_offset = self._confirm_offset
        return self.log.max_offset

    def delete_oldest_files(self, count: int) -> None:
        """Delete the oldest log files and their messages in the queues. Queue offsets continue."""
        files = self.log.files()
        if not 0 < count < len(files):
            return
        begins_at = files[count].start_offset
        # First, to free room: on a full disk the queue offsets may not fit, and they must be written before a log file is deleted.
        self.index.drop_before(begins_at)
        save_queue_offsets(self._paths.queue_offsets, self.queues.next_offsets())
        self.queues.drop_before(begins_at)
        self.log.delete_oldest(count)
        if self.epochs.drop_before_offset(self.log.min_offset):
            self._hide_deleted()
            self.save_epochs()

    def next_to_index(self) -> tuple[int, list[QueuePart], int] | None:
        """Return the arguments of ``index.write`` for a full and durable file without an index; None if there is none."""
        for file in self.log.files():
            if file.end_offset <= min(self.log.flushed_offset, self._indexed_offset) and self.index.missing(
                file.start_offset
            ):
                parts = self.queues.parts(file.start_offset, file.end_offset)
                if parts:
                    return file.start_offset, parts, self.index.generation
        return None

    def read_record(self, offset: int, size_bytes: int, *, stored_as: tuple[str, int, int] | None = None) -> bytes:
        """Read and check one record. Raise MessageRecordError if there is none or it is damaged.

        ``stored_as``: topic, queue id and queue offset at the time of the write, because the CRC only covers the body.
        """
        record = self.log.read(offset, size_bytes)
        entry = inspect_entry(record, 0, len(record), physical_offset=offset)
        if entry.kind is not EntryKind.RECORD or entry.size_bytes != size_bytes:
            raise CorruptRecordError(f"a record of {size_bytes} bytes was expected at offset {offset}")
        if stored_as is not None and stored_as != (entry.topic, entry.queue_id, entry.queue_offset):
            found = f"topic {entry.topic!r}, queue {entry.queue_id}, queue offset {entry.queue_offset}"
            raise CorruptRecordError(f"record at offset {offset}: says {found}, but was stored as {stored_as}")
        return record

    def read_confirmed(self, offset: int | None) -> bytes:
        """Read the record at ``offset``. Raise MessageRecordError if there is none or it is not confirmed."""
        if offset is None or not self.log.min_offset <= offset < self._confirm_offset:
            raise CorruptRecordError(str(offset))
        size = int.from_bytes(self.log.read(offset, BLANK_HEADER_BYTES)[:4], "big")
        return self.read_record(offset, size)

    def is_record_boundary(self, offset: int) -> bool:
        """Whether a record, a blank or the end of the log begins at ``offset``; the record is read and checked."""
        if offset >= self.log.max_offset:
            return offset == self.log.max_offset
        head = self.log.read(offset, BLANK_HEADER_BYTES)
        size = int.from_bytes(head[:4], "big", signed=True)
        data = self._read_all(offset, limit_bytes=max(size, BLANK_HEADER_BYTES))
        try:
            inspect_entry(data, 0, len(data), physical_offset=offset)
        except IncompleteRecordError:
            return offset == self._indexed_offset
        except ValueError:
            return False
        return True

    @property
    def last_epoch_is_empty(self) -> bool:
        """Whether the log has no bytes of its last epoch."""
        last = self.epochs.last
        return last is None or last.start_offset >= self.log.max_offset

    def begin_epoch(self, epoch: int) -> None:
        """Begin a master's epoch at the end of the log, durably. Epochs of the same number or later are removed first."""
        self.log.flush()
        self.epochs.drop_from_epoch(epoch)
        if not self.epochs.append(epoch, self.log.max_offset):
            raise StoreFileError(f"epoch {epoch} cannot begin at {self.log.max_offset} after {self.epochs.last}")
        self._hide_deleted()
        self.save_epochs()

    def note_epoch(self, epoch: int, start_offset: int) -> None:
        """Record the epoch of a frame, as a slave (A.4, step 2)."""
        if self.epochs.append(epoch, start_offset) or self._epochs_unsaved:
            self._hide_deleted()
            self.save_epochs()

    def forget_epochs_after(self, epoch: int) -> None:
        """Remove epochs that the master does not have: without bytes of their own, they would claim the next ones."""
        if self.epochs.drop_from_epoch(epoch + 1):
            self._hide_deleted()
            self.save_epochs()

    def save_epochs(self) -> None:
        """Make the epoch history durable."""
        self._epochs_unsaved = True
        save_epochs(self._paths.epoch_file, self.epochs)
        self._epochs_unsaved = False

    def save_checkpoint(self) -> None:
        """Make the confirm offset durable."""
        self._checkpoint.save(self._checkpoint_now)

    def _checkpoint_now(self) -> Checkpoint:
        """A start requires complete records that are confirmed and durable; an incomplete one it cuts."""
        durable = min(self._confirm_offset, self._indexed_offset, self.log.flushed_offset)
        return Checkpoint(confirm_offset=self._confirm_offset, durable_offset=durable)

    def flush(self) -> None:
        """Make the log durable now."""
        self.log.flush()

    def close(self) -> None:
        """Flush and save everything, and release the store."""
        self.log.flush()
        while (to_index := self.next_to_index()) is not None:
            self.index.write(*to_index)
        self.save_checkpoint()
        self.log.close()
        os.close(self._lock)

    def abandon(self) -> None:
        """Release the store after a failure, without a write: only a new start, which reads the disk, finds what is durable."""
        self.log.abandon()
        os.close(self._lock)

    def _recover(self) -> Recovery:
        saved = self._checkpoint.load()
        recovery = self.log.recover(
            lambda offset, entry: self._index(offset, (entry,)), self._load_index, confirmed_offset=saved.durable_offset
        )
        self._indexed_offset = recovery.end_offset
        self.index.drop_beyond(recovery.end_offset)
        self.queues.begin_at(load_queue_offsets(self._paths.queue_offsets))
        self.epochs = load_epochs(self._paths.epoch_file)
        if self.epochs.drop_beyond_offset(recovery.end_offset):
            self.save_epochs()
        self._hide_deleted()
        self._confirm_offset = min(max(saved.confirm_offset, self.log.min_offset), recovery.end_offset)
        self.never_confirmed = saved == Checkpoint()
        return recovery

    def _load_index(self, start_offset: int) -> bool:
        parts = self.index.load(start_offset)
        return parts is not None and self.queues.extend(parts)

    def _index(self, offset: int, entries: Sequence[LogEntry]) -> int:
        """Add the records among these entries, which begin at ``offset``, to their queues. Return where they end."""
        queue_of = self.queues.queue
        for entry in entries:
            # Consumers do not see prepared and rolled back transactions, which share this bit.
            if entry.kind is _RECORD and not entry.sys_flag & SYS_FLAG_TRANSACTION_PREPARED:
                queue = queue_of(entry.topic, entry.queue_id)
                queue.add(entry.queue_offset, offset, entry.size_bytes, entry.store_timestamp_ms)
            offset += entry.size_bytes
        return offset

    def _read_all(self, offset: int, *, limit_bytes: int | None = None) -> bytes:
        end = self.log.max_offset if limit_bytes is None else min(self.log.max_offset, offset + limit_bytes)
        parts = []
        while offset < end and (part := self.log.read(offset, end - offset)):
            parts.append(part)
            offset += len(part)
        return b"".join(parts)


def _refuse_unfinished(paths: StorePaths) -> None:
    for folder in (paths.root, paths.commit_log, paths.commit_log.parent):
        if (folder / UNFINISHED_RESTORE).exists():
            raise StoreFileError(
                f"{folder / UNFINISHED_RESTORE}: a backup was copied here only in part; expected a whole store, or an empty one"
            )


def _lock_store(path: Path) -> int:
    try:
        return disk.lock_file(path)
    except OSError as error:
        raise StoreFileError(f"{path}: another process uses this store") from error


__all__ = ["MessageStore", "MessageTooLargeError", "NewMessage", "StorePaths", "Stored"]
