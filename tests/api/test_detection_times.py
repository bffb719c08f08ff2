"""All times of a failover derive from the heartbeat timeout, and are consistent for any value."""

from __future__ import annotations

import itertools

import pytest

from brokergroup_operator.api.failover_fields import DetectionTimes, FailoverSpec, times_of
from brokergroup_operator.fence.decide import FenceRules

SHORTEST, LONGEST = 500, 60_000
ALL = range(SHORTEST, LONGEST + 1, 100)
# The fence in a pod looks every 50 ms.
TWO_LOOKS = 100


def rules_of(times: DetectionTimes) -> FenceRules:
    return FenceRules(
        isolation_seconds=times.isolation_milliseconds / 1000,
        fence_timeout_seconds=times.fence_milliseconds / 1000,
        heartbeat_timeout_seconds=times.heartbeat_timeout_milliseconds / 1000,
        heartbeat_interval_seconds=times.heartbeat_interval_milliseconds / 1000,
    )


@pytest.mark.parametrize(
    ("timeout", "interval", "fence", "isolation"),
    [
        (500, 100, 3000, 2500),
        (600, 100, 3000, 2500),
        (1500, 250, 3000, 2500),
        (3000, 500, 3000, 2500),
        (3001, 500, 3001, 2500),
        (6000, 500, 6000, 5000),
        (60_000, 500, 60_000, 50_000),
    ],
)
def test_the_times_of_a_timeout(timeout: int, interval: int, fence: int, isolation: int) -> None:
    assert FailoverSpec(heartbeat_timeout_milliseconds=timeout).times == DetectionTimes(
        heartbeat_timeout_milliseconds=timeout,
        heartbeat_interval_milliseconds=interval,
        fence_milliseconds=fence,
        isolation_milliseconds=isolation,
    )


def test_by_default_they_are_what_was_measured() -> None:
    assert FailoverSpec().times == times_of(3000)


def test_one_lost_heartbeat_is_no_lost_broker_and_heartbeats_are_no_flood() -> None:
    for times in map(times_of, ALL):
        assert times.heartbeat_timeout_milliseconds >= 2 * times.heartbeat_interval_milliseconds
        assert 100 <= times.heartbeat_interval_milliseconds <= 500


def test_an_isolated_master_is_dead_two_looks_before_another_can_be_elected() -> None:
    """Counted from the last heartbeat, at most one interval before the cut; the same holds with a starved fence."""
    for times in map(times_of, ALL):
        elected = (
            times.heartbeat_timeout_milliseconds + times.fence_milliseconds - times.heartbeat_interval_milliseconds
        )
        assert times.isolation_milliseconds + TWO_LOOKS <= elected, times
        assert rules_of(times).bound_seconds * 1000 + TWO_LOOKS <= elected, times
        assert times.fence_milliseconds / 3 > TWO_LOOKS


def test_an_outage_of_all_operators_leaves_time_to_learn_that_the_others_hear_none_either() -> None:
    """The peers' answers are up to one question interval old, and their last contact up to one interval later than ours."""
    for times in map(times_of, ALL):
        rules = rules_of(times)
        assert rules.left_after_excuse_seconds > 2 * rules.question_period_seconds, times
        assert (
            rules.isolation_seconds - rules.blind_seconds(rules.isolation_seconds) > 2 * rules.question_period_seconds
        )


def test_a_longer_timeout_makes_no_time_shorter_and_no_election_earlier() -> None:
    """So a pod with shorter times still kills its master in time, also with the later heartbeats of a restarted broker."""
    for shorter, longer in itertools.pairwise(ALL):
        one, other = times_of(shorter), times_of(longer)
        assert one.fence_milliseconds <= other.fence_milliseconds
        assert one.isolation_milliseconds <= other.isolation_milliseconds
        assert one.heartbeat_interval_milliseconds <= other.heartbeat_interval_milliseconds
        assert shorter - one.heartbeat_interval_milliseconds <= longer - other.heartbeat_interval_milliseconds
