"""Our controller's intended deviations from Java's: one entry each, as narrow as possible.

docs/reference/deviations.md has a row for each, in words; the predicate of the same name is here. An entry applies to one step:
its request, the state before it, and both controllers' answers and new states. It names the codes and the states of *both*:
an entry that excused any difference of that request would be a defect of the test. The first entry that applies decides how the
sequence goes on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.differential.cases import Case

    Predicate = Callable[[Case], bool]

JAVA: Final = ("java",)
OURS: Final = ("ours",)
BOTH: Final = (*JAVA, *OURS)


class After(Enum):
    """How the sequence continues."""

    GO_ON = "equal"  # so are the states
    SHIFT = "equal but for the epochs"  # by which Java's are shifted from here on
    END = "ends"  # the two groups differ from now on


@dataclass(frozen=True)
class Deviation:
    """One entry of the list. `special`: the sequences need not reach it."""

    name: str
    request: str
    applies: Predicate
    after: After
    special: bool = False


@dataclass(frozen=True)
class Family:
    """Entries of one subject, in the order in which they are tried."""

    entries: list[Deviation] = field(default_factory=list)

    def entry(
        self,
        name: str,
        request: str,
        *codes: tuple[int | None, int | None],
        unchanged: tuple[str, ...] = (),
        after: After = After.END,
        special: bool = False,
    ) -> Callable[[Predicate], Predicate]:
        """Add an entry: one of these verbs, one of these pairs of Java's code and ours, these sides' groups as before.

        The decorated predicate has the rest of its conditions.
        """
        verbs = request.split(", ")

        def add(rest: Predicate) -> Predicate:
            def applies(case: Case) -> bool:
                return (
                    case.step.verb in verbs
                    and (not codes or case.codes in codes)
                    and all(getattr(case, side).state == case.before for side in unchanged)
                    and rest(case)
                )

            self.entries.append(Deviation(name, request, applies, after, special))
            return rest

        return add
