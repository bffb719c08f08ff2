"""A disk that loses power: the journal of everything a replica did to its folder, and every disk a crash could leave of it.

``Recorder`` stands in for ``rocketmq_replica.log.disk``: it does the real thing in a real folder, except syncing, and writes each
operation down. ``DiskModel`` replays such a journal and knows what is *durable* (synced) and what is *pending*. POSIX lets
pending operations reach the disk in any order, or not at all, and a write in part; ``images`` lists those outcomes:

* every subset of the pending operations while there are few of them, otherwise none, all, every beginning, each one alone and
  each one missing;
* if the last operation was a write, that write torn at every byte (long ones at sixteen places) with all else persisted, and in
  the middle also with nothing else persisted. In `make test` it is torn in the middle and at a sample of the other places.

A process that is killed while the machine goes on loses nothing: then the same model simply goes on with the next process.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rocketmq_replica.log import disk
from tests.support.draws import sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pytest

FOLDER = -1
_SUBSETS_UP_TO = 5
_TEAR_EVERY_BYTE_UP_TO = 400
_SAMPLED_TEARS = 2


@dataclass(frozen=True)
class Data:
    """A change of a file's content: bytes at a position, or a size."""

    file: int
    position: int
    content: bytes | None  # None: the size becomes ``position``

    def apply(self, content: bytearray) -> None:
        if self.content is None:
            del content[self.position :]
            content.extend(bytes(self.position - len(content)))
        else:
            content.extend(bytes(max(self.position - len(content), 0)))
            content[self.position : self.position + len(self.content)] = self.content


@dataclass(frozen=True)
class Name:
    """A change of a name: ``path`` becomes the name of ``file`` (None: of nothing), ``old`` ceases to be one."""

    path: str
    file: int | None
    old: str | None = None

    def apply(self, names: dict[str, int]) -> None:
        if self.old is not None:
            names.pop(self.old, None)
        if self.file is None:
            names.pop(self.path, None)
        else:
            names[self.path] = self.file


@dataclass(frozen=True)
class SyncFile:
    file: int


@dataclass(frozen=True)
class SyncFolder:
    path: str


Operation = Data | Name | SyncFile | SyncFolder
Image = dict[str, bytes | None]
"""A disk after a crash: content by path, None for a folder."""


@dataclass
class DiskModel:
    """What is durable, and what may or may not be."""

    names: dict[str, int] = field(default_factory=dict)
    content: dict[int, bytes] = field(default_factory=dict)
    pending: list[Data | Name] = field(default_factory=list)

    def copy(self) -> DiskModel:
        return DiskModel(dict(self.names), dict(self.content), list(self.pending))

    @staticmethod
    def of(image: Image) -> DiskModel:
        """A disk that was found so: all of it durable."""
        numbers = {
            name: index if content is not None else FOLDER for index, (name, content) in enumerate(image.items())
        }
        return DiskModel(numbers, {numbers[name]: content for name, content in image.items() if content is not None})

    def visible(self) -> dict[str, int]:
        """The names as a running process sees them."""
        names = dict(self.names)
        for operation in self.pending:
            if isinstance(operation, Name):
                operation.apply(names)
        return names

    def files(self) -> set[int]:
        """Every file that ever was, also those that lost their names."""
        written = {each.file for each in self.pending if each.file is not None}
        return {*self.names.values(), *self.content, *written}

    def apply(self, operation: Operation) -> None:
        if isinstance(operation, SyncFile):
            self._persist([each for each in self.pending if isinstance(each, Data) and each.file == operation.file])
        elif isinstance(operation, SyncFolder):
            self._persist(
                [each for each in self.pending if isinstance(each, Name) and _folder(each.path) == operation.path]
            )
        else:
            self.pending.append(operation)

    def images(self, last: Operation | None) -> Iterator[tuple[str, Image]]:
        """Every disk a power cut could leave right now, named; ``last`` is the operation it may have interrupted."""
        for chosen in _choices(len(self.pending)):
            label = "".join("x" if index in chosen else "-" for index in range(len(self.pending)))
            yield f"pending {label or 'nothing'}", self.image([self.pending[index] for index in sorted(chosen)])
        if isinstance(last, Data) and last.content is not None and self.pending and self.pending[-1] is last:
            for cut in _tears(len(last.content)):
                torn = Data(last.file, last.position, last.content[:cut])
                names = [each for each in self.pending if isinstance(each, Name)]
                where = "in the middle" if cut == len(last.content) // 2 else f"at {cut}"
                yield f"torn {where}, all else", self.image([*self.pending[:-1], torn])
                if where == "in the middle":
                    yield f"torn {where}, names only", self.image([*names, torn])

    def image(self, persisted: list[Data | Name]) -> Image:
        names, content = dict(self.names), {file: bytearray(each) for file, each in self.content.items()}
        for operation in persisted:
            if isinstance(operation, Data):
                operation.apply(content.setdefault(operation.file, bytearray()))
            else:
                operation.apply(names)
        found: Image = {}
        for path in sorted(names):  # a name in a folder that is lost is lost with it
            if _folder(path) == "." or found.get(_folder(path), b"") is None:
                found[path] = None if names[path] == FOLDER else bytes(content.get(names[path], b""))
        return found

    def _persist(self, operations: list[Data | Name]) -> None:
        for operation in operations:
            self.pending.remove(operation)
            if isinstance(operation, Data):
                content = bytearray(self.content.get(operation.file, b""))
                operation.apply(content)
                self.content[operation.file] = bytes(content)
            else:
                operation.apply(self.names)


REPLACED = (
    "create_file", "lock_file", "empty_file", "write_at", "set_size", "sync_file", "sync_data", "rename", "unlink",
    "make_folder", "sync_folder",
)  # fmt: skip
"""The functions of ``log/disk.py`` that change the disk; a ``Recorder`` stands in for them."""


class Recorder:
    """Does what ``rocketmq_replica.log.disk`` does below ``root``, writes it down, and syncs nothing."""

    def __init__(self, root: Path, before: DiskModel, *, skips: Callable[[str], bool] = lambda _sync: False) -> None:
        """``before`` is the model of the disk that ``root`` shows, with everything pending applied.

        ``skips`` makes a replica that forgets to sync: it is asked with ``file <path>``, ``data <path>`` and ``names <folder>``.
        """
        self.root = root
        self._skips = skips
        self._paths: dict[int, str] = {}
        self.journal: list[Operation] = []
        self._files: dict[int, int] = {}  # inode -> file, of files below root
        self._next = itertools.count(max(before.files(), default=0) + 1)
        for name, file in before.visible().items():
            if file != FOLDER:
                self._files[(root / name).stat().st_ino] = file
                self._paths[file] = name

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in REPLACED:
            monkeypatch.setattr(disk, name, getattr(self, name))

    def create_file(self, path: Path) -> int:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        if path.is_relative_to(self.root):
            self._files[os.fstat(descriptor).st_ino] = file = next(self._next)
            self._paths[file] = self._name(path)
            self.journal.append(Name(self._name(path), file))
        return descriptor

    def lock_file(self, path: Path) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)  # has no content and no meaning after a crash

    def empty_file(self, path: Path) -> int:
        if not path.exists():
            return self.create_file(path)
        descriptor = os.open(path, os.O_RDWR | os.O_TRUNC)
        self._note_data(descriptor, 0, None)
        return descriptor

    def write_at(self, descriptor: int, data: bytes | memoryview, position: int) -> None:
        assert os.pwrite(descriptor, data, position) == len(data)
        self._note_data(descriptor, position, bytes(data))

    def set_size(self, descriptor: int, size_bytes: int) -> None:
        os.ftruncate(descriptor, size_bytes)
        self._note_data(descriptor, size_bytes, None)

    def sync_file(self, descriptor: int) -> None:
        self._sync("file", descriptor)

    def sync_data(self, descriptor: int) -> None:
        self._sync("data", descriptor)

    def _sync(self, kind: str, descriptor: int) -> None:
        file = self._files.get(os.fstat(descriptor).st_ino)
        if file is not None and not self._skips(f"{kind} {self._paths[file]}"):
            self.journal.append(SyncFile(file))

    def rename(self, old: Path, new: Path) -> None:
        file = self._files.get(old.stat().st_ino)
        self._forget(new)
        old.replace(new)
        if file is not None:
            self.journal.append(Name(self._name(new), file, self._name(old)))

    def unlink(self, path: Path) -> None:
        self._forget(path)
        path.unlink()
        if path.is_relative_to(self.root):
            self.journal.append(Name(self._name(path), None))

    def make_folder(self, path: Path) -> None:
        path.mkdir()
        if path.is_relative_to(self.root):
            self.journal.append(Name(self._name(path), FOLDER))

    def sync_folder(self, folder: Path) -> None:
        if folder.is_relative_to(self.root) and not self._skips(f"names {self._name(folder)}"):
            self.journal.append(SyncFolder(self._name(folder)))

    def _note_data(self, descriptor: int, position: int, content: bytes | None) -> None:
        file = self._files.get(os.fstat(descriptor).st_ino)
        if file is not None:
            self.journal.append(Data(file, position, content))

    def _forget(self, path: Path) -> None:
        """Its inode may be given to another file."""
        if path.exists():
            self._files.pop(path.stat().st_ino, None)

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self.root))


@contextlib.contextmanager
def recording(
    folder: Path, monkeypatch: pytest.MonkeyPatch, skips: Callable[[str], bool] = lambda _sync: False
) -> Iterator[Recorder]:
    """Record what is done to a new disk in this folder."""
    folder.mkdir()
    recorder = Recorder(folder, DiskModel(), skips=skips)
    with monkeypatch.context() as patched:
        recorder.install(patched)
        yield recorder


def crashes(journal: list[Operation], *, start: int = 1) -> Iterator[tuple[int, str, Image]]:
    """Every disk that a power cut can leave after an operation, from the ``start``-th on: its number, what is lost, the disk."""
    model = DiskModel()
    for point, operation in enumerate(journal, start=1):
        model.apply(operation)
        if point >= start:
            yield from ((point, what, image) for what, image in model.images(operation))


def materialize(image: Image, root: Path) -> None:
    """Put the image into ``root``, and nothing else."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    for name, content in image.items():
        if content is None:
            (root / name).mkdir()
        else:
            (root / name).write_bytes(content)


def _folder(path: str) -> str:
    return os.path.dirname(path) or "."  # noqa: PTH120 - these are names in a model, not paths of this machine


def _choices(count: int) -> Iterator[frozenset[int]]:
    everything = range(count)
    if count <= _SUBSETS_UP_TO:
        for size in range(count + 1):
            yield from (frozenset(each) for each in itertools.combinations(everything, size))
        return
    yield from (frozenset(range(end)) for end in range(count + 1))
    yield from (frozenset({index}) for index in range(1, count))
    yield from (frozenset(everything) - {index} for index in range(count - 1))


def _tears(length: int) -> list[int]:
    step = 1 if length <= _TEAR_EVERY_BYTE_UP_TO else length // 16
    every = range(step, length, step)
    middle = {length // 2} if length > 1 else set()
    return sorted(middle | {*sample(every, _SAMPLED_TEARS)})
