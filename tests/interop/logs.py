"""Compare two replicas: their commit logs byte by byte, their epoch files except Java's known omissions. Pure
but for reading files.

Java's epoch files may lack an entry for two reasons, and only these are accepted:

* ``next-label``: a Java master sends the rest of epoch N under the label of N+1, so a slave that got
  all of epoch N in that one piece never heard of N. Such a slave, Java's or ours, goes from an older epoch to N+1.
* ``empty-epoch`` (A.5, upstream #9942): a Java master does not note an epoch that begins where the last one began, nothing having
  been written in between; ours puts the newer one in its place, so of two epochs that begin at one offset each file has one.

An entry that two files share by number must begin at the same offset, without exception.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

CHUNK_BYTES = 1 << 20
Epochs = dict[int, int]


@dataclass
class Comparison:
    """The differences of two replicas: `mismatches` in words, and the count of each Java trap."""

    mismatches: list[str] = field(default_factory=list)
    traps: Counter[str] = field(default_factory=Counter)

    def add(self, other: Comparison) -> None:
        self.mismatches += other.mismatches
        self.traps += other.traps


def first_difference(left: Path, right: Path, end: int) -> int | None:
    """The first offset below `end` at which two folders of commit log files differ; a missing byte is a difference."""
    offset = 0
    while offset < end:
        size = min(CHUNK_BYTES, end - offset)
        ours, theirs = _read(left, offset, size), _read(right, offset, size)
        if ours != theirs or len(ours) < size:
            same = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
            return offset + (same if same is not None else min(len(ours), len(theirs)))
        offset += size
    return None


def _read(folder: Path, offset: int, size: int) -> bytes:
    """Bytes of the log that begin at an offset, over the ends of files; fewer where there are no more."""
    parts = []
    for file in sorted(folder.iterdir()):
        start = int(file.name)
        if start + file.stat().st_size <= offset or start >= offset + size:
            continue
        with file.open("rb") as log:
            log.seek(max(0, offset - start))
            parts.append(log.read(min(size, offset + size - start)))
    return b"".join(parts)[:size]


def read_epochs(path: Path) -> Epochs:
    """The entries of an epoch file: epoch and where it begins."""
    lines = path.read_text(encoding="utf-8").split()
    pairs = [line.split("-") for line in lines[2:]]
    if len(pairs) != int(lines[0]):
        raise ValueError(f"{path}: {lines[0]} entries announced, {len(pairs)} there")
    return {int(epoch): int(start) for epoch, start in pairs}


def compare_epochs(files: Mapping[str, Epochs], *, java: Sequence[str], end: int) -> Comparison:
    """Every two members' files; `java` names the Java members, `end` is where the log ends."""
    result = Comparison()
    names = sorted(files)
    for index, left in enumerate(names):
        for right in names[index + 1 :]:
            result.add(_compare_two(left, files[left], right, files[right], java=java, end=end))
    return result


def _compare_two(left: str, ours: Epochs, right: str, theirs: Epochs, *, java: Sequence[str], end: int) -> Comparison:
    result = Comparison()
    for epoch in sorted(ours.keys() & theirs.keys()):
        if ours[epoch] != theirs[epoch]:
            result.mismatches.append(f"epoch {epoch} begins at {ours[epoch]} at {left}, at {theirs[epoch]} at {right}")
    for one, entries, other, others in ((left, ours, right, theirs), (right, theirs, left, ours)):
        for epoch in sorted(entries.keys() - others.keys()):
            trap = _trap(epoch, entries, others, mislabelled=bool(set(java) - {other}), end=end)
            if trap is None:
                told = f"epoch {epoch} from {entries[epoch]} is at {one} and not at {other}: {entries}, {others}"
                result.mismatches.append(told)
            else:
                result.traps[trap] += 1
    return result


def _trap(epoch: int, entries: Epochs, others: Epochs, *, mislabelled: bool, end: int) -> str | None:
    """Why an entry that another member has may be missing where a Java broker is in the group."""
    start = entries[epoch]
    if start in others.values() or start == end:
        return "empty-epoch"
    later = min((one for one in entries if one > epoch), default=None)
    if mislabelled and later is not None and others.get(later) == entries[later]:
        return "next-label"
    return None
