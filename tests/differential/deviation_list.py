"""The whole list."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.differential.deviations import After, Deviation, listed
from tests.differential.deviations_of_ids import IDS
from tests.differential.deviations_of_input import INPUT
from tests.differential.deviations_of_masters import MASTERS

if TYPE_CHECKING:
    from tests.differential.cases import Case

# Found by the comparison: if a heartbeat makes ours elect, Java's broker sends a request, and both elections must be equal.
UNASKED = Deviation(
    "elected-unasked",
    "heartbeat",
    "a group without a master waits for a broker's ElectMaster, which Java brokers send with their next 1004 poll",
    "elects as soon as a member of the SyncStateSet sends a heartbeat; the same master, under the same epoch",
    "up to 5 s less without a master (a set with master null is not retried)",
    "tests/controller/test_failover.py",
    lambda case: False,
    After.GO_ON,
)


def _deposed_already(case: Case) -> bool:
    """Both elected a designated replica in a first election, and it is dead: ours has already noticed."""
    before, broker_id = case.before, case.step.number("id")
    return (
        case.step.designates
        and case.codes == (0, 0)
        and before.epoch == 0
        and broker_id not in case.memory.our_alive()
        and case.java.answer == case.ours.answer
        and case.java.state.master == broker_id
        and case.ours.state.master is None
        and case.ours.state.epoch == case.java.state.epoch + 1
    )


DEPOSED = Deviation(
    "a-dead-master-is-deposed",
    "1002",
    "names a dead replica as master that was designated in a first election, until its next scan (5 s)",
    "elects it as well, and finds it dead at once",
    "only a scan repairs what no event announces",
    "tests/controller/test_failover.py",
    _deposed_already,
    After.END,
)

# Invisible in answers: effects of the clock, or at the brokers.
SPECIAL: tuple[Deviation, ...] = tuple(
    Deviation(name, request, java, ours, why, test, lambda case: False, special=True)
    for name, request, java, ours, why, test in (
        (
            "a-closed-connection-is-corroborated",
            "close",
            "elects at once, whether or not the broker lives",
            "at once if its port refuses, else after 400 ms, or the heartbeat timeout while a process listens there",
            "a connection breaks without its broker (an RPC slower than 3 s makes the broker close the socket)",
            "tests/differential/test_special.py",
        ),
        (
            "a-master-that-counts-otherwise-is-told-again",
            "1001",
            "always answers 2013, or 2006 while a member of the set is dead",
            (
                "the same; if repeated for 2.5 s, 0: the present set under the next epoch, or a larger one with its dead "
                "members"
            ),
            (
                "a Java master whose link to a slave broke counts without it, though the shrink was refused or lost: no "
                "member could join"
            ),
            "tests/controller/test_record_watch.py",
        ),
        (
            "one-connection-carries-several",
            "close",
            "counts one broker of a closed connection as dead, the others after the timeout",
            "all of them at once",
            "a bug of Java's (broker container)",
            "tests/differential/test_special.py",
        ),
        (
            "everybody-is-told-until-it-holds",
            "1008",
            "notifies every living member once, one-way, without a check that it arrived",
            "notifies in an order in which no broker stalls, and again until the master's 907 shows all members linked",
            "measured: a lost notification is never repeated",
            "tests/differential/test_special.py",
        ),
        (
            "a-designated-master-drains-first",
            "1002",
            "replaces a living master at once; messages that only it has are lost",
            "stops it from acknowledging, waits for the slaves, then elects (code 1 if that fails)",
            "in Java nothing makes the old master wait for its slaves",
            "tests/controller/test_switchover.py",
        ),
        (
            "a-master-that-is-alive-is-not-replaced-by-silence",
            "heartbeat",
            "a master whose heartbeats do not arrive is replaced after the timeout and a scan (10 s + 5 s)",
            "asked (907) shortly before: one that answers as master is left alone; a silent one is fenced, then replaced",
            "rule 7",
            "tests/controller/test_failover.py",
        ),
        (
            "an-election-waits-for-the-caller's-heartbeat",
            "1002",
            "2012 if the caller's first heartbeat has not arrived yet, and the broker waits 5 s",
            "waits up to 1 s for it (not at all in the comparison: there it is 2012 as well)",
            "the heartbeat of a starting broker is asynchronous",
            "tests/controller/test_change_of_master.py",
        ),
        (
            "a-stranger-is-refused",
            "1001, 1002, 1003, 1011, 904",
            "answers every caller",
            (
                "code 16 to callers that are neither the pod, nor signed, nor administrators, by the group's settings"
                " (all open in the comparison)"
            ),
            "docs/concepts/security.md",
            "tests/security",
        ),
        (
            "an-unknown-id-may-be-adopted",
            "1003, 904",
            "2010 for ever to a broker whose record was lost",
            "adopted if a pod of the group has it and it is plausible; in the comparison no pod is known, so 2010",
            "a bug of Java's (lost controller data)",
            "tests/core/traces/adoption.txt",
        ),
    )
)

BY_THE_COMPARISON = (UNASKED,)
DEVIATIONS = listed(INPUT, IDS, MASTERS, SPECIAL, (DEPOSED,))
