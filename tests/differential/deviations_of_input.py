"""Deviations about malformed input, and about requests that a broker should not send."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.differential.deviations import Deviation

if TYPE_CHECKING:
    from tests.differential.cases import Case

NEEDS_AN_ID = frozenset({"1003", "1013"})
NEEDS_A_NAME = frozenset({"1001", "1003", "1011", "1012", "1013"})


def _configuration(case: Case) -> bool:
    return case.step.verb in ("1009", "1010") and case.codes in ((0, 16), (16, 16)) and case.unchanged


def _no_fields(case: Case) -> bool:
    return case.step.get("fields") == "none"


def _missing(case: Case) -> bool:
    """Java fails on the null; ours names the refusal."""
    verb = case.step.verb
    nameless = verb in NEEDS_A_NAME and (case.step.name is None or _no_fields(case))
    idless = verb in NEEDS_AN_ID and case.step.number("id") is None
    epoch = case.step.number("epoch")
    epochless = verb == "1001" and (epoch is None or not -(2**31) <= epoch < 2**31)  # not an int: Java drops the field
    refusals = {"1001": (2000,) if epochless and case.before.known and not nameless else (2013,)}
    refusals |= {"1003": (2010,), "1011": (2009,), "1013": (2014,)}
    if verb == "heartbeat" and case.codes == (1, 0):  # 5.3.3 compares the null with an earlier heartbeat
        return case.step.cluster is None and case.unchanged
    return (
        case.codes[0] == 1
        and case.codes[1] in refusals.get(verb, ())
        and (nameless or idless or epochless)
        and case.unchanged
    )


def _too_old(case: Case) -> bool:
    """Without an id that is a number: Java first looks for the group, ours first for the id."""
    return (
        case.step.verb == "1003"
        and case.step.number("id") is None
        and case.codes == (2010, 2010)
        and not case.before.known
        and case.unchanged
    )


def _null_body(case: Case) -> bool:
    """The JSON null is a missing body; Java notices only when it needs the body."""
    return (
        case.step.verb == "1001"
        and case.step.get("body") in ("null", "none", "empty")
        and case.codes == (2013, 1)
        and not case.before.known
        and case.unchanged
    )


INPUT: tuple[Deviation, ...] = (
    Deviation(
        "configuration-is-no-request",
        "1009, 1010",
        "shows its configuration to every caller, and changes it",
        "NO_PERMISSION (16)",
        "the two worst RocketMQ vulnerabilities came through remote configuration; only the operator configures ours",
        "tests/controller/test_requests.py",
        _configuration,
    ),
    Deviation(
        "a-missing-field-is-refused",
        "1001, 1003, 1011, 1013, heartbeat",
        "code 1, by a null pointer exception; a masterEpoch that is no int is missing too",
        "the code of the refusal for that field: no such group, no such id, another epoch",
        "no client from 5.1.1 on sends this; earlier brokers send 1003 without an id, and log what they are answered",
        "tests/differential/test_special.py",
        _missing,
    ),
    Deviation(
        "a-registration-without-an-id-is-told-why",
        "1003",
        "2010, the remark says that it does not know the broker group",
        "2010, the remark says that brokers before 5.1.1 have no persistent ids",
        "such a broker logs the remark and asks for ever; its administrator has to learn that the release is too old",
        "tests/controller/test_requests.py",
        _too_old,
    ),
    Deviation(
        "a-body-is-read-first",
        "1001",
        "an absent body of a request for an unknown group is not noticed: 2013",
        "code 1: the body is missing",
        "no known client sends this",
        "tests/differential/test_special.py",
        _null_body,
    ),
)
