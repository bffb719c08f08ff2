"""What the files of a stopped broker say, and how they are made ready for a controller: by one file of epochs, one of identity.

A store of static roles has no epochs, and a Java 5.5.0 master of such a store has none for what it wrote before
(docs/adr/0026-stores-of-another-deployment-are-taken-over.md). So the log as it is becomes epoch 1, from offset 0.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from brokergroup_operator.backup.log_end import end_in
from rocketmq_replica.log.disk import StoreFileError
from rocketmq_replica.log.epochs import EpochCache, EpochEntry
from rocketmq_replica.log.side_files import decode_epochs, encode_epochs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

COMMIT_LOG: Final = "commitlog"
TOPICS: Final = "config/topics.json"
GROUPS: Final = "config/subscriptionGroup.json"
EPOCHS: Final = "epochFileCheckpoint"
# Java's copy of it, which a broker reads if the file is gone or torn.
COPIED_EPOCHS: Final = f"{EPOCHS}.bak"
# The epochs that a controller without persistent ids gave, beside those that replace them.
REPLACED_EPOCHS: Final = f"{EPOCHS}.before-ids"
IDENTITY: Final = "brokerIdentity"
UNFINISHED_IDENTITY: Final = "brokerIdentity-temp"
# What a store had as a member of a group, once it is released to another deployment.
RELEASED_IDENTITY: Final = f"{IDENTITY}.released"
RELEASED_EPOCHS: Final = f"{EPOCHS}.released"
# For a controller that begins anew: its first epoch is 1, and a broker ignores one that is not above its own.
BELOW_EVERY_EPOCH: Final = (0, 0)
# The one epoch of a log that was written without any.
FIRST_EPOCH: Final = (1, 0)
# So many files of two logs are compared, from their common end on.
COMPARED_FILES: Final = 2
# So many epochs, the last ones, fit into the 4096 bytes that a pod can say when it ends.
KEPT_EPOCHS: Final = 100
# A Java 5.5.0 broker adds to its consume queues what so many files at the log's end have and they lack (commitLogRecoverMaxNum).
DISPATCHED_FILES: Final = 10
# The second is that of a broker that keeps its queues in RocksDB.
CONSUME_QUEUES: Final = ("consumequeue", "consumequeue_r")
LOG_FILE: Final = re.compile(r"[0-9]{20}")


class StoreError(Exception):
    """The store can't be taken over as it is; the message says which file shows it, and what would help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a broker in controller mode has on its disk: by this it registers."""

    cluster_name: str
    broker_name: str
    broker_id: int

    @property
    def group(self) -> tuple[str, str]:
        return self.cluster_name, self.broker_name

    def __str__(self) -> str:
        """Return the content of the file."""
        return f"{self.cluster_name}#{self.broker_name}#{self.broker_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreReport:
    """One store. `begin` and `end` are offsets in bytes of its log, `epochs` the last pairs of epoch and first offset.

    `tails`: SHA-256 of the log in the file with its end, up to the end, then of the file before. `stopped_cleanly`: no file `abort`
    is left. `identity`: None for a store of static roles, or of a broker before 5.1.1. `has_topics`: config/topics.json is there.
    `replaced`: the epochs that `prepare` has renewed, until a broker goes on above them. `names`: SHA-256 of the names of topics
    and subscription groups; empty where they are not in files, as with RocksDB.
    """

    begin: int
    end: int
    file_bytes: int
    tails: tuple[str, ...]
    epochs: tuple[tuple[int, int], ...] = ()
    identity: Identity | None = None
    stopped_cleanly: bool = True
    has_topics: bool = True
    replaced: tuple[tuple[int, int], ...] = ()
    # Whose member the store was until `release`; None for any other.
    released: Identity | None = None
    names: str = ""

    @property
    def epochs_without_ids(self) -> tuple[tuple[int, int], ...]:
        """Return the epochs of a controller of 5.0.0 to 5.1.0, renewed or not; none for another store."""
        return self.replaced or (self.epochs if self.identity is None else ())

    @property
    def last_epoch(self) -> int:
        """Return 0 for a log without epochs."""
        return self.epochs[-1][0] if self.epochs else 0


@dataclass(frozen=True, slots=True)
class Place:
    """A volume, and the folder of the store in it; empty: the volume is the store.

    A BrokerGroup's volume is the store itself. So `lift` moves the folder's content up, and until it has ended each file may lie at
    either place. `log`: the commit log's own folder (storePathCommitLog), if that is on another disk.
    """

    volume: Path
    folder: str = ""
    log: Path | None = None

    def check(self) -> None:
        """Raise StoreError unless the folder is a path below the volume, on which no link leads elsewhere."""
        if not self.folder:
            return
        parts = self.folder.rstrip("/").split("/")
        if not set(parts).isdisjoint({"", ".", ".."}):
            raise StoreError(f"folder is {self.folder!r}, expected a path below the volume, such as data/store")
        if (self.volume / self.folder).resolve() != self.volume.resolve().joinpath(*parts):
            raise StoreError(f"folder is {self.folder!r}, expected one without a symbolic link on its path")
        source = self.volume / self.folder
        # A relative link leads elsewhere from the volume's top, and another disk's file does not come along.
        for path in sorted(source.iterdir()) if source.is_dir() else ():
            if path.is_symlink():
                raise StoreError(f"{self.folder}/{path.name} is a symbolic link: put in its place what it leads to")

    def path(self, name: str) -> Path:
        """Return where a file or folder of the store lies; the volume for one that is nowhere. StoreError if it lies at both."""
        inside, above = self.volume / self.folder / name, self.volume / name
        if self.folder and inside.exists() and above.exists():
            raise StoreError(f"{self.folder}/{name} and {name} are both there: which one is the store's? Move one away")
        return inside if self.folder and inside.exists() else above

    def log_folder(self) -> Path:
        """Return where the commit log lies. StoreError if the store has one beside the one that is named."""
        inside = self.path(COMMIT_LOG)
        if self.log is not None and inside.exists():
            raise StoreError(
                f"{COMMIT_LOG} is in the store, and --commit-log names another: which one is its log? Move one away"
            )
        return self.log if self.log is not None else inside

    def lifted(self) -> Place:
        """Return the place after `lift`."""
        return Place(self.volume, log=self.log)

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
    place.check()
    ledgers = sorted(path.name for path in (*place.volume.glob("dledger-*"), *top.glob("dledger-*")))
    if ledgers:
        raise StoreError(
            f"{ledgers[0]} is a DLedger commit log: its format is another one, and RocketMQ reads it in DLedger mode only."
            " `brokergroup adopt dledger` copies its messages to a log of the format that is taken over"
        )
    log = place.log_folder()
    files = sorted(path for path in log.iterdir() if LOG_FILE.fullmatch(path.name)) if log.is_dir() else []
    if not files:
        shown = str(place.log or (f"{place.folder}/{COMMIT_LOG}" if place.folder else COMMIT_LOG))
        raise StoreError(
            f"there is no commit log in {shown}: expected files such as {0:020d}; is it on another disk, name that folder with"
            " --commit-log, outside Kubernetes: claims and claims-back take stores that have everything on one volume"
        )
    _check_files(files)
    epochs, identity = (
        tuple((one.epoch, one.start_offset) for one in _epochs_of(place).entries),
        _identity_of(place, IDENTITY),
    )
    with no_broker(place.path("lock")):
        end = _end_of(files)
        _check_queues(place, sum(int(path.name) < end for path in files))
        if identity is not None and not epochs and end > int(files[0].name):
            raise StoreError(
                f"{IDENTITY} is there, and no {EPOCHS}: a controller gave this log epochs, which are lost. Leave this store out"
            )
        return StoreReport(
            begin=int(files[0].name),
            end=end,
            file_bytes=files[0].stat().st_size,
            tails=tuple(_fingerprints(files, end)),
            epochs=epochs[-KEPT_EPOCHS:],
            identity=identity,
            stopped_cleanly=not place.path("abort").exists(),
            has_topics=place.path(TOPICS).is_file(),
            replaced=_replaced_of(place, epochs)[-KEPT_EPOCHS:],
            released=_identity_of(place, RELEASED_IDENTITY) if identity is None else None,
            names=_names_of(place),
        )


def _names_of(place: Place) -> str:
    """Return a fingerprint of the names; of a damaged file the fingerprint of its bytes, which is no other store's."""
    found = hashlib.sha256()
    for file, table in ((TOPICS, "topicConfigTable"), (GROUPS, "subscriptionGroupTable")):
        path = place.path(file)
        if not path.is_file():
            return ""
        data = path.read_bytes()
        try:
            names = sorted(json.loads(data)[table])
        except (ValueError, KeyError, TypeError):
            found.update(data)
        else:
            found.update("\n".join([file, *names]).encode())
    return found.hexdigest()


@dataclass(frozen=True, slots=True)
class Change:
    """One step on a store. `what`: for a person; empty if it leaves the store as it is, unless an earlier run was cut off."""

    what: str
    make: Callable[[], None]


def prepare(place: Place, holder: Identity, *, renewed_epoch: int = 0) -> StoreReport:
    """Make the changes of `preparation`; done again, it changes nothing more."""
    for change in preparation(place, holder, renewed_epoch=renewed_epoch):
        change.make()
    return inspect(place.lifted())


def preparation(place: Place, holder: Identity, *, renewed_epoch: int = 0) -> list[Change]:
    """Return what makes the store ready for a broker of this identity in controller mode, in order. Raises StoreError.

    Messages, topics, groups and offsets stay as they are. Epochs that the log has are kept, except those of a controller without
    persistent ids: one epoch from offset 0, `renewed_epoch`, replaces them.
    """
    before = inspect(place)
    if before.identity is not None and before.identity.group != holder.group:
        raise StoreError(f"{IDENTITY} is {before.identity}, expected one of {'#'.join(holder.group)}")
    _check_renewal(before, renewed_epoch)
    then, is_below = place.lifted(), bool(place.folder) and (place.volume / place.folder).is_dir()
    was = f", was {before.identity}" if before.identity is not None else ""
    if renewed_epoch:
        is_renewed = bool(before.replaced) and before.epochs == ((renewed_epoch, 0),)
        told = f"{EPOCHS}: epoch {renewed_epoch} from offset 0; the old one stays as {REPLACED_EPOCHS}"
        epochs = Change("" if is_renewed else told, partial(_renew_epochs, then, before, renewed_epoch))
    else:
        told = f"{EPOCHS}: {f'as in {COPIED_EPOCHS}' if before.epochs else f'epoch {FIRST_EPOCH[0]} from offset 0'}"
        epochs = Change("" if _has_epochs(place) else told, partial(_keep_epochs, then))
    return [
        Change(f"what is in {place.folder} moves to the top of {place.volume}" if is_below else "", place.lift),
        epochs,
        Change("" if before.identity == holder else f"{IDENTITY}: {holder}{was}", partial(_identify, then, holder)),
    ]


def release(place: Place, *, to_controller: bool) -> StoreReport:
    """Make the changes of `releasing`; done again, it changes nothing more."""
    for change in releasing(place, to_controller=to_controller):
        change.make()
    return inspect(place)


def releasing(place: Place, *, to_controller: bool) -> list[Change]:
    """Return what makes a member's store ready for another deployment, in order. Raises StoreError.

    The identity goes: a Java controller knows no id that it has not given, and a broker with one does not ask for another. The log
    becomes one epoch, below every one that a new controller gives, or has none under static roles. Both files stay beside it.
    """
    before = inspect(place)
    if before.identity is None and before.released is None:
        raise StoreError(f"there is no {IDENTITY}: the store is no member's of a group")
    told = f"{IDENTITY} ({before.identity}) becomes {RELEASED_IDENTITY}; {EPOCHS} is kept as {RELEASED_EPOCHS}"
    changes = [Change(told, partial(_put_aside, place))] if before.identity is not None else []
    if to_controller:
        epoch, begins = BELOW_EVERY_EPOCH
        if before.epochs != (BELOW_EVERY_EPOCH,):
            changes.append(Change(f"{EPOCHS}: epoch {epoch} from offset {begins}", partial(_write_lowest_epoch, place)))
    else:
        told = f"{EPOCHS} is removed" if before.epochs else ""
        changes.append(Change(told, partial(_remove, place, EPOCHS)))
    return [*changes, Change("", partial(_remove, place, COPIED_EPOCHS, UNFINISHED_IDENTITY))]


def _identify(place: Place, holder: Identity) -> None:
    """The broker reads its id from here, and asks for none. A request that was cut off would come first."""
    (place.volume / UNFINISHED_IDENTITY).unlink(missing_ok=True)
    if _identity_of(place, IDENTITY) != holder:
        _write(place.volume / IDENTITY, str(holder).encode())
    for name in (RELEASED_IDENTITY, RELEASED_EPOCHS):
        (place.volume / name).unlink(missing_ok=True)


def _put_aside(place: Place) -> None:
    _write(place.path(RELEASED_EPOCHS), encode_epochs(_epochs_of(place)))
    place.path(IDENTITY).replace(place.path(RELEASED_IDENTITY))
    _sync(place.volume)


def _write_lowest_epoch(place: Place) -> None:
    _write(place.path(EPOCHS), encode_epochs(EpochCache([EpochEntry(*BELOW_EVERY_EPOCH)])))


def _remove(place: Place, *names: str) -> None:
    for name in names:
        place.path(name).unlink(missing_ok=True)
    _sync(place.volume)


def _check_renewal(report: StoreReport, renewed_epoch: int) -> None:
    """Raise StoreError unless the epochs are renewed exactly where RocketMQ's upgrade to persistent ids deletes them."""
    old = report.epochs_without_ids
    if not renewed_epoch and old not in {(), (FIRST_EPOCH,)}:
        raise StoreError(
            f"{EPOCHS} is there, and no {IDENTITY}: of a broker before 5.1.1. Expected --renew-epoch, the epoch of the plan"
        )
    if renewed_epoch and not old:
        raise StoreError(
            f"--renew-epoch is {renewed_epoch}, expected none: no controller without persistent ids wrote {EPOCHS}"
        )
    if renewed_epoch and renewed_epoch <= old[-1][0]:
        raise StoreError(f"--renew-epoch is {renewed_epoch}, expected one above {old[-1][0]}, the log's last epoch")


def _renew_epochs(place: Place, before: StoreReport, epoch: int) -> None:
    """Replace the epochs of a controller without persistent ids by one, and keep them beside it.

    Java's copy goes too: a broker would read it after a torn write.
    """
    if not before.replaced:
        _write(place.path(REPLACED_EPOCHS), encode_epochs(_epochs_of(place)))
    if before.epochs != ((epoch, 0),) or not before.replaced:
        _write(place.path(EPOCHS), encode_epochs(EpochCache([EpochEntry(epoch, 0)])))
    place.path(COPIED_EPOCHS).unlink(missing_ok=True)
    _sync(place.volume)


def _keep_epochs(place: Place) -> None:
    """Write the first epoch of a log that has none, or those that only Java's copy has."""
    if _has_epochs(place):
        return
    epochs = _epochs_of(place)
    if not epochs.entries:
        epochs = EpochCache([EpochEntry(*FIRST_EPOCH)])
    _write(place.path(EPOCHS), encode_epochs(epochs))


def _has_epochs(place: Place) -> bool:
    """Whether the file itself is whole, and has any."""
    path = place.path(EPOCHS)
    try:
        return path.exists() and bool(decode_epochs(path.read_bytes(), EPOCHS).entries)
    except StoreFileError:
        return False


def _check_files(files: list[Path]) -> None:
    """Raise StoreError for a gap between two files, or a file that was cut: Java does not load such a log."""
    begin, size = int(files[0].name), files[0].stat().st_size
    for number, path in enumerate(files):
        if int(path.name) != begin + number * size:
            raise StoreError(f"{COMMIT_LOG}: no file begins at {begin + number * size}, the next one is {path.name}")
        has = path.stat().st_size
        # Java deletes an empty last file.
        if has != size and not (has == 0 and path is files[-1]):
            raise StoreError(f"{COMMIT_LOG}/{path.name} has {has} bytes, expected {size} as {files[0].name}")


def _check_queues(place: Place, written: int) -> None:
    """Raise StoreError for a log without consume queues that is too long for a broker to make them anew."""
    tops = [place.path(name) for name in CONSUME_QUEUES]
    if written > DISPATCHED_FILES and not any(top.is_dir() and any(top.iterdir()) for top in tops):
        raise StoreError(
            f"{CONSUME_QUEUES[0]} is missing, and the log has {written} files with messages: a broker makes queues anew from"
            f" the last {DISPATCHED_FILES} only, so no consumer would get the others. Copy that folder too"
        )


@contextmanager
def no_broker(lock: Path) -> Iterator[None]:
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
        if end := end_in(path):
            return int(path.name) + end
    return int(files[0].name)


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


def _epochs_of(place: Place) -> EpochCache:
    """Return the log's epochs; from Java's copy of the file if that is gone or torn."""
    fault: StoreFileError | None = None
    for name in (EPOCHS, COPIED_EPOCHS):
        path = place.path(name)
        try:
            epochs = decode_epochs(path.read_bytes(), name) if path.exists() else None
        except StoreFileError as error:
            fault = fault or error
            continue
        if epochs is not None:
            offsets = [one.start_offset for one in epochs.entries]
            if offsets != sorted(offsets):
                raise StoreError(f"{name} is damaged: a later epoch begins at a lower offset")
            return epochs
    if fault is not None:
        raise StoreError(f"{EPOCHS} is damaged: {fault}") from fault
    return EpochCache()


def _replaced_of(place: Place, epochs: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """Return the epochs that `prepare` has replaced by this one; none once a broker has added others to it."""
    path = place.path(REPLACED_EPOCHS)
    if len(epochs) != 1 or not path.exists():
        return ()
    try:
        before = decode_epochs(path.read_bytes(), REPLACED_EPOCHS).entries
    except StoreFileError as error:
        raise StoreError(f"{REPLACED_EPOCHS} is damaged: {error}") from error
    [(epoch, start)] = epochs
    is_renewed = start == 0 and bool(before) and before[-1].epoch < epoch
    return tuple((one.epoch, one.start_offset) for one in before) if is_renewed else ()


def _identity_of(place: Place, file: str) -> Identity | None:
    path = place.path(file)
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
