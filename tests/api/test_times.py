"""Values of a spec and what follows from them: times, durability, and the times of a failover."""

from __future__ import annotations

import datetime as dt
import itertools
import os
import subprocess
import sys
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
import pytest

from brokergroup_operator.api.brokergroup import BrokerGroup, BrokerGroupSpec, Implementation
from brokergroup_operator.api.durability import masters_shrink_first, with_durability
from brokergroup_operator.api.failover_fields import DetectionTimes, FailoverSpec, times_of
from brokergroup_operator.api.times import TIME_ZONES, MomentError, is_unknown, moment
from brokergroup_operator.fence.rules import FenceRules
from brokergroup_operator.kube.client import KubernetesApi
from brokergroup_operator.kube.errors import InvalidError
from brokergroup_operator.kube.resources import BROKER_GROUPS
from sla_reports.measures.periods import zone_of
from tests.our_kinds import api_with_our_kinds

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2030-01-02T03:04:05Z", dt.datetime(2030, 1, 2, 3, 4, 5, tzinfo=dt.UTC)),
        ("2030-01-02T03:04:05.25Z", dt.datetime(2030, 1, 2, 3, 4, 5, 250_000, tzinfo=dt.UTC)),
        ("2030-01-02T03:04:05+05:45", dt.datetime(2030, 1, 1, 21, 19, 5, tzinfo=dt.UTC)),
        # Berlin's repeated hour: the offset distinguishes the two.
        ("2026-10-25T02:30:00+02:00", dt.datetime(2026, 10, 25, 0, 30, tzinfo=dt.UTC)),
        ("2026-10-25T02:30:00+01:00", dt.datetime(2026, 10, 25, 1, 30, tzinfo=dt.UTC)),
        ("2028-02-29T00:00:00Z", dt.datetime(2028, 2, 29, tzinfo=dt.UTC)),
        ("9999-12-31T23:59:59Z", dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.UTC)),
    ],
)
def test_a_time_with_an_offset(text: str, expected: dt.datetime) -> None:
    assert moment(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "", "tonight", "2030-01-02", "2030-01-02T03:04:05", "2030-01-02 03:04:05Z", "2030-01-02T03:04Z",
        "2030-01-02t03:04:05z", "2030-01-02T24:00:00Z", "2030-06-30T23:59:60Z", "2030-01-02T03:04:05+99:99",
        "2030-01-02T03:04:05+24:00", "2030-01-02T03:04:05 CET", "2030-01-02T03:04:05[Europe/Berlin]", "2030-02-30T00:00:00Z",
        "2027-02-29T00:00:00Z", "2030-W01-1T00:00:00Z", "0000-01-01T00:00:00Z", "9999-12-31T23:59:59-23:59",
        "0001-01-01T00:00:00+14:00", "12026-01-01T00:00:00Z", "-2026-01-01T00:00:00Z", "2030-01-02T03:04:05x5Z",
        "2030-01-02T03:04:05Z\n", "٢٠٣٠-01-02T03:04:05Z", "1893553445",
    ],
)  # fmt: skip
def test_what_is_no_time_is_named(text: str) -> None:
    with pytest.raises(MomentError, match="expected RFC 3339 with an offset, as 2030-01-02T03:04:05Z") as caught:
        moment(text)
    assert repr(text) in str(caught.value)


# tzdata's own name for the zone of an unconfigured machine.
NONE_TO_CHOOSE = {"Factory"}


def test_the_list_is_the_packages() -> None:
    """A newer tzdata in uv.lock may have more names: add them to `api/times.py`, and generate the kinds."""
    assert set(TIME_ZONES) == set((files("tzdata") / "zones").read_text().split()) - NONE_TO_CHOOSE
    assert len(TIME_ZONES) == len(set(TIME_ZONES))


def test_the_image_has_the_time_zones() -> None:
    """Its root has no /usr/share/zoneinfo, so the operator's own needs must bring the package, however far away."""
    lock = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))["package"]
    needs = {
        one["name"]: {need["name"] for need in one.get("dependencies", ()) if "marker" not in need} for one in lock
    }
    found, left = set[str](), {"brokergroup-operator"}
    while left:
        found |= left
        left = set[str]().union(*(needs[name] for name in left)) - found
    assert "kubernetes" in found
    assert "pandas" not in found, "expected what is installed without extras"
    assert "tzdata" in found


def test_a_zone_is_read_without_the_machines_database() -> None:
    program = "from brokergroup_operator.api.times import zone_of; print(zone_of('Europe/Berlin'), zone_of('Europe'))"
    environment = {"PYTHONTZPATH": "", "PATH": os.environ["PATH"]}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["Europe/Berlin", "None"]


def test_a_report_knows_each_of_them() -> None:
    assert [str(zone_of(name)) for name in TIME_ZONES] == list(TIME_ZONES)


def test_a_zone_that_only_this_machine_knows_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's database may be newer than the list."""
    assert is_unknown("Mars/Olympus")
    monkeypatch.setattr("brokergroup_operator.api.times.ZoneInfo", str)
    assert not is_unknown("Mars/Olympus")


@pytest.mark.parametrize(
    ("spec", "running", "expected"),
    [
        pytest.param(BrokerGroupSpec(version="5.5.0"), "5.3.3", True, id="known to"),
        pytest.param(BrokerGroupSpec(version="5.3.3"), "5.3.3", False, id="known not to"),
        pytest.param(BrokerGroupSpec(version="5.3.3"), "5.5.0", True, id="on the way back"),
        pytest.param(BrokerGroupSpec(version="5.3.3"), None, True, id="what runs is not known"),
        pytest.param(BrokerGroupSpec(version="5.1.1-patched"), "5.1.1-patched", False, id="older, with a suffix"),
        pytest.param(BrokerGroupSpec(version="5.10.0"), "5.3.3", True, id="compared as numbers"),
        pytest.param(BrokerGroupSpec(), "5.3.3", True, id="the operator's own version"),
        pytest.param(BrokerGroupSpec(image="example.com/rocketmq:1"), None, True, id="an image says nothing"),
        pytest.param(
            BrokerGroupSpec(implementation=Implementation.PYTHON, version="5.5.0"), None, False, id="replicas ask"
        ),
    ],
)
def test_masters_shrink_first(spec: BrokerGroupSpec, running: str | None, expected: bool) -> None:
    assert masters_shrink_first(spec, running=running) is expected


def in_force(spec: dict[str, Any], promised: str | None) -> str:
    status = {"durability": promised} if promised else None
    group = with_durability(msgspec.convert({"spec": spec, "status": status}, BrokerGroup))
    assert group.spec.durability is not None
    return group.spec.durability.value


@pytest.mark.parametrize(
    ("spec", "promised", "expected"),
    [
        pytest.param({"replicas": 1}, None, "Available", id="a new one of one"),
        pytest.param({"replicas": 2}, None, "Available", id="a new one of two"),
        pytest.param({}, None, "Strict", id="a new one of three"),
        pytest.param({"replication": {"learners": 1}}, None, "Available", id="learners do not vote"),
        pytest.param({}, "Available", "Available", id="grown since"),
        pytest.param({"replicas": 2}, "Strict", "Strict", id="shrunk since"),
        pytest.param({"replicas": 1}, "Strict", "Available", id="one disk can't be Strict"),
        pytest.param({"durability": "Fast"}, "Strict", "Fast", id="the spec wins"),
    ],
)
def test_the_durability_in_force(spec: dict[str, Any], promised: str | None, expected: str) -> None:
    assert in_force(spec, promised) == expected


async def test_what_is_in_force_is_taken_wherever_a_spec_without_it_was() -> None:
    """Otherwise the operator could not write it to the spec."""
    taken = 0
    async with api_with_our_kinds(KubernetesApi) as api:

        async def is_taken(spec: dict[str, Any]) -> bool:
            group = {"metadata": {"name": "a", "namespace": "default"}, "spec": {"implementation": "Python"} | spec}
            try:
                await api.apply(BROKER_GROUPS, group, field_manager="test", dry_run=True)
            except InvalidError:
                return False
            return True

        for replicas, learners, unclean, minimum, policy in itertools.product(
            (1, 2, 3), (0, 1), ("Never", "Allowed"), (None, 1, 2), ("most-data", "preferred-zone")
        ):
            spec = {
                "replicas": replicas,
                "replication": {"learners": learners} | ({"minInSyncReplicas": minimum} if minimum else {}),
                "failover": {"uncleanElection": unclean, "electionPolicy": policy},
            }
            if not await is_taken(spec):
                continue
            for promised in (None, "Strict", "Available", "Fast"):
                assert await is_taken(spec | {"durability": in_force(spec, promised)}), (spec, promised)
                taken += 1
    assert taken > 100


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
