"""Our controller's intended deviations from Java's: one entry each, as narrow as possible.

An entry applies to one step: its request, the state before it, and both controllers' answers and new states. It names the codes
and the states of *both*: an entry that excused any difference of that request would be a defect of the test. What
follows: `GO_ON` (the states must be equal), `SHIFT` (equal except for epochs, by which Java's are shifted from then
on), `END` (the two groups differ from now on: the sequence ends here).

docs/reference/deviations.md is written from this list (`python -m tests.differential.documents`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.differential.cases import Case


class After(Enum):
    """How the sequence continues."""

    GO_ON = "the states stay equal"
    SHIFT = "only the epochs differ, and are compared on a shifted scale from here on"
    END = "the sequence ends here"


@dataclass(frozen=True)
class Deviation:
    """One entry of the list."""

    name: str
    request: str
    java: str
    ours: str
    why: str
    test: str
    applies: Callable[[Case], bool]
    after: After = After.GO_ON
    special: bool = False


def listed(*families: tuple[Deviation, ...]) -> tuple[Deviation, ...]:
    """Return all entries in one list; names are unique."""
    entries = tuple(entry for family in families for entry in family)
    names = [entry.name for entry in entries]
    assert len(names) == len(set(names)), names
    return entries
