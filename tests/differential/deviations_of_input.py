"""Deviations about malformed input, and about requests that a broker should not send."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.differential.deviations import BOTH, After, Family

if TYPE_CHECKING:
    from tests.differential.cases import Case

NEEDS_AN_ID = frozenset({"1003", "1013"})
NEEDS_A_NAME = frozenset({"1001", "1003", "1011", "1012", "1013"})
INPUT = Family()


@INPUT.entry("configuration-is-no-request", "1009, 1010", (0, 16), (16, 16), unchanged=BOTH, after=After.GO_ON)
def _configuration(case: Case) -> bool:
    return True


@INPUT.entry("a-missing-field-is-refused", "1001, 1003, 1011, 1013, heartbeat", unchanged=BOTH, after=After.GO_ON)
def _missing(case: Case) -> bool:
    """Java fails on the null; ours names the refusal."""
    verb = case.step.verb
    nameless = verb in NEEDS_A_NAME and (case.step.name is None or case.step.get("fields") == "none")
    idless = verb in NEEDS_AN_ID and case.broker_id is None
    epoch = case.step.number("epoch")
    epochless = verb == "1001" and (epoch is None or not -(2**31) <= epoch < 2**31)  # not an int: Java drops the field
    refusals = {"1001": (2000,) if epochless and case.before.known and not nameless else (2013,)}
    refusals |= {"1003": (2010,), "1011": (2009,), "1013": (2014,)}
    if verb == "heartbeat" and case.codes == (1, 0):  # 5.3.3 compares the null with an earlier heartbeat
        return case.step.cluster is None
    return case.codes[0] == 1 and case.codes[1] in refusals.get(verb, ()) and (nameless or idless or epochless)


@INPUT.entry("a-registration-without-an-id-is-told-why", "1003", (2010, 2010), unchanged=BOTH, after=After.GO_ON)
def _too_old(case: Case) -> bool:
    """Without an id that is a number: Java first looks for the group, ours first for the id."""
    return case.broker_id is None and not case.before.known


@INPUT.entry("a-body-is-read-first", "1001", (2013, 1), unchanged=BOTH, after=After.GO_ON)
def _null_body(case: Case) -> bool:
    """The JSON null is a missing body; Java notices only when it needs the body."""
    return case.step.get("body") in ("null", "none", "empty") and not case.before.known
