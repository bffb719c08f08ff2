"""What a process and all below it have used, from /proc: a JVM and Spark's Python workers are children of the one who is asked."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def tree_cpu_seconds(root: int | None = None) -> float:
    """Processor time, user and system, also of children that have ended and were waited for."""
    return sum(ticks for _, ticks in _tree(root)) / _TICKS


def tree_usage(root: int) -> tuple[float, int]:
    """Processor time as above, and memory held now. A page that two processes share counts twice."""
    total, tree = 0, _tree(root)
    for pid, _ in tree:
        try:
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
        except (OSError, IndexError):
            continue
    return sum(ticks for _, ticks in tree) / _TICKS, total


def available_memory_bytes() -> int:
    """What the machine could still hand out, as Linux sees it."""
    told = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(told["MemAvailable"].split()[0]) * 1024


def _tree(root: int | None) -> list[tuple[int, int]]:
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - a listing, several times a second
        if not name.isdigit():
            continue
        try:
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(name))
        ticks[int(name)] = sum(map(int, fields[11:15]))
    found, todo = [], [root or os.getpid()]
    while todo:
        pid = todo.pop()
        found += [(pid, ticks[pid])] if pid in ticks else []
        todo += children.get(pid, [])
    return found
