"""Where our controller answers differently from Java's, on purpose: one entry for each, as narrow as it can be told.

An entry applies to one step: its request, the state before it, and what each controller answered and became. It names the codes
and the state it expects of *both*: an entry that would excuse just any difference of that request is a defect of the test. What
happens afterwards: `GO_ON` (the states must be equal), `SHIFT` (equal but for the epochs, by which Java's are shifted from then
on), `END` (the two groups are different groups now: the sequence ends here).

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
    """What becomes of the sequence."""

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
    """All entries in one list; a name is used once."""
    entries = tuple(entry for family in families for entry in family)
    names = [entry.name for entry in entries]
    assert len(names) == len(set(names)), names
    return entries
