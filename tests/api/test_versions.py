"""The table of RocketMQ's versions: the CEL rules of the CRD say the same, and which step back is refused, and why."""

from __future__ import annotations

import re

import pytest

from brokergroup_operator.api import versions
from brokergroup_operator.api.rules import HAS_ACL, RUNS_WITH_A_CONTROLLER

RELEASES = (
    "4.9.7", "5.0.0", "5.1.0", "5.1.1", "5.1.2", "5.1.2-ours", "5.1.3", "5.1.4", "5.2.0", "5.3.0", "5.3.3", "5.4.0",
    "5.5.0", "5.5.1", "6.0.0", "5.10.0", "05.01.02", "5.1.0-rc1",
)  # fmt: skip


def allows(rule: str, version: str) -> bool:
    """Whether a CEL rule that is made of `!self.matches(...)` allows the version."""
    return not any(re.search(pattern, version) for pattern in re.findall(r"!self\.matches\('([^']*)'\)", rule))


@pytest.mark.parametrize("version", RELEASES)
def test_the_rules_of_the_crd_say_what_the_table_says(version: str) -> None:
    assert allows(RUNS_WITH_A_CONTROLLER, version) is not bool(versions.why_it_never_runs(version))
    assert allows(HAS_ACL, version) is (versions.numbers(version) >= versions.FIRST_WITH_ACL)


@pytest.mark.parametrize(
    ("before", "after", "config", "expected"),
    [
        ("5.5.0", "5.3.3", {}, ""),
        ("5.5.0", "5.1.4", {}, ""),
        ("5.1.4", "5.5.0", {"authenticationEnabled": "true"}, ""),
        ("5.5.0", "5.3.0", {"authenticationEnabled": "true"}, ""),
        ("5.5.0", "5.2.0", {"authenticationEnabled": "TRUE "}, "5.2.0 does not know authenticationEnabled"),
        ("5.5.0", "5.2.0", {"authenticationEnabled": "false"}, ""),
        ("5.5.0", "5.3.3", {"timerRocksDBEnable": "true"}, "5.3.3 does not know timerRocksDBEnable"),
        ("5.2.0", "5.1.4", {"timerRocksDBEnable": "true"}, ""),
        ("5.4.0", "5.3.3", {"useSingleRocksDBForAllConfigs": "true"}, "it finds no topics, groups and offsets"),
    ],
)
def test_a_step_back_is_refused_where_state_would_not_be_read(
    before: str, after: str, config: dict[str, str], expected: str
) -> None:
    why = versions.why_no_downgrade(before, after, config)
    assert expected in why
    assert bool(why) is bool(expected)


def test_versions_are_compared_as_numbers() -> None:
    assert versions.numbers("5.10.0") > versions.numbers("5.9.1")
    assert versions.numbers("5.3.3-custom.7") == (5, 3, 3)
    assert versions.is_untested("5.6.0")
    assert not versions.is_untested("5.5.1")


def test_a_limit_names_what_may_run() -> None:
    assert versions.why_not_listed("5.3.3", ()) == ""
    assert versions.why_not_listed("5.5.0", ("5.5.0", "5.10.0")) == ""
    assert "limited to 5.5.0, 5.10.0 (chart: brokers.onlyListedVersions)" in versions.why_not_listed(
        "5.3.3", ("5.10.0", "5.5.0")
    )
