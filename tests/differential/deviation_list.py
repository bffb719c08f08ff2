"""The whole list."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.differential.deviations import After, Deviation, Family
from tests.differential.deviations_of_ids import IDS
from tests.differential.deviations_of_input import INPUT
from tests.differential.deviations_of_lives import LIVES
from tests.differential.deviations_of_masters import MASTERS

if TYPE_CHECKING:
    from tests.differential.cases import Case

# Found by the comparison: if a heartbeat makes ours elect, Java's broker sends a request, and both elections must be equal.
UNASKED = Deviation("elected-unasked", "heartbeat", lambda case: False, After.GO_ON)
LAST = Family()


@LAST.entry("a-dead-master-is-deposed", "1002", (0, 0))
def _deposed_already(case: Case) -> bool:
    """Both elected a designated replica in a first election, and it is dead: ours has already noticed."""
    return (
        case.step.designates
        and case.before.epoch == 0
        and case.broker_id not in case.memory.our_alive()
        and case.java.answer == case.ours.answer
        and case.java.state.master == case.broker_id
        and case.ours.state.master is None
        and case.ours.state.epoch == case.java.state.epoch + 1
    )


BY_THE_COMPARISON = (UNASKED,)
DEVIATIONS = (*INPUT.entries, *IDS.entries, *MASTERS.entries, *LIVES.entries, *LAST.entries)
(DEPOSED,) = LAST.entries
