"""`kubectl brokergroup upgrade`: the plan that is shown, the steps that are refused, and what is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.kubectl.cluster import BrokerGroup
from tests.kubectl.bench import STATUS, Bench

if TYPE_CHECKING:
    from collections.abc import Mapping

RUNS = STATUS | {"version": "5.5.0"}
TIMERS = {"timerRocksDBEnable": "true"}


def version_of(bench: Bench) -> str | None:
    found: str | None = bench.get(BrokerGroup, "orders")["spec"].get("version")
    return found


def test_the_plan_comes_first_and_a_dry_run_changes_nothing(bench: Bench) -> None:
    bench.create_group(status=RUNS | {"version": "5.3.3"}, version="5.3.3")
    said = bench.must("upgrade", "orders", "--to", "5.5.0", "--dry-run")
    assert said.splitlines() == [
        "orders runs 5.3.3; spec.version 5.5.0: an upgrade",
        "  1. wait until the group is FailoverSafe, and its turn among other groups has come",
        "  2. restart orders-1 and wait until it is in sync",
        "  3. restart orders-3 and wait until it is in sync",
        "  4. switchover away from orders-2, the master, then restart it, and wait until it is in sync",
        "Nothing was changed.",
    ]
    assert version_of(bench) == "5.3.3"
    assert bench.must("upgrade", "orders", "--to", "5.5.0").splitlines()[-1].endswith("orders version 5.5.0")
    assert version_of(bench) == "5.5.0"


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"updateStrategy": {"masterUpdate": "Supervised"}}, "kubectl brokergroup switchover orders"),
        ({"updateStrategy": {"masterUpdate": "Restart"}}, "restart orders-2, the master, as it is"),
        ({"updateStrategy": {"type": "OnDelete"}}, "each pod changes once you delete it"),
        ({"maintenance": {"paused": True}}, "kubectl brokergroup resume orders"),
    ],
)
def test_the_plan_says_what_waits_for_a_person(bench: Bench, spec: dict[str, Any], expected: str) -> None:
    bench.create_group(status=RUNS, **spec)
    assert expected in bench.must("upgrade", "orders", "--to", "5.5.1", "--dry-run")


def test_the_plan_notes_a_version_beyond_the_tests_and_a_step_back(bench: Bench) -> None:
    bench.create_group(status=RUNS)
    assert "note: 5.9.0 is newer than" in bench.must("upgrade", "orders", "--to", "5.9.0", "--dry-run")
    back = bench.must("upgrade", "orders", "--to", "5.3.3", "--dry-run")
    assert "a step back" in back
    assert "note: masters of 5.5.0 drop a slave before they ask" in back


def test_of_the_newest_that_runs_the_plan_promises_no_pod_that_has_another(bench: Bench) -> None:
    """In the middle of an update the status has the newer version, and most pods have the older one."""
    bench.create_group(status=RUNS, version="5.3.3")
    said = bench.must("upgrade", "orders", "--to", "5.5.0", "--dry-run")
    assert "spec.version 5.5.0: no pod that runs it is restarted" in said
    bench.api("PATCH", bench.path(BrokerGroup, "orders"), {"spec": {"version": "5.4.0"}})
    bench.set_status(BrokerGroup, "orders", RUNS | {"version": "5.4.0"})
    assert "note: masters of 5.4.0 drop a slave" in bench.must("upgrade", "orders", "--to", "5.3.3", "--dry-run")


def test_the_plan_of_a_hibernated_group_begins_with_its_waking(bench: Bench) -> None:
    bench.create_group(status=RUNS, maintenance={"hibernated": True})
    said = bench.must("upgrade", "orders", "--to", "5.5.1", "--dry-run")
    assert "1. wait for you: the group is hibernated, and its pods run 5.5.1 once it wakes" in said
    assert "restart" not in said


@pytest.mark.parametrize(
    ("to", "spec", "expected"),
    [
        (
            "5.3.3",
            {"config": TIMERS},
            ("expected no such step back from 5.5.0", "brokergroup.dev/accept-version=5.3.3"),
        ),
        ("5.0.0", {}, ("expected 5.1.1 or later, and not 5.1.2", "no persistent broker ids")),
        ("5.1.2", {}, ("does not start in controller mode",)),
        ("latest", {}, ("--to is 'latest', expected a version like 5.5.0",)),
        ("5.5.1", {"version": None, "image": "a/b:1"}, ("expected no spec.image beside it", "'a/b:1'")),
        ("5.5.1", {"version": None, "implementation": "Python"}, ("runs the Python replica",)),
    ],
)
def test_a_step_that_can_not_be_is_refused_with_field_value_and_reason(
    bench: Bench, to: str, spec: Mapping[str, Any], expected: tuple[str, ...]
) -> None:
    wanted = {"version": "5.5.0", "nameServers": ["ns:9876"], **spec}
    bench.create(BrokerGroup, "orders", spec={field: value for field, value in wanted.items() if value is not None})
    bench.set_status(BrokerGroup, "orders", RUNS)
    before = version_of(bench)
    said = bench.run("upgrade", "orders", "--to", to)
    assert said.code == 2, said
    assert all(text in said.err for text in expected), said.err
    assert version_of(bench) == before


def test_an_accepted_step_back_is_done(bench: Bench) -> None:
    bench.create_group(status=RUNS, config=TIMERS)
    accepted = {"metadata": {"annotations": {names.ANNOTATION_ACCEPT_VERSION: "5.3.3"}}}
    bench.api("PATCH", bench.path(BrokerGroup, "orders"), accepted)
    bench.must("upgrade", "orders", "--to", "5.3.3")
    assert version_of(bench) == "5.3.3"


def test_a_group_of_a_cluster_is_upgraded_there(bench: Bench) -> None:
    bench.create_group(status=RUNS)
    labelled = {"metadata": {"labels": {names.LABEL_ROCKETMQ_CLUSTER: "shop"}}}
    bench.api("PATCH", bench.path(BrokerGroup, "orders"), labelled)
    said = bench.run("upgrade", "orders", "--to", "5.5.1")
    assert said.code == 2
    assert "RocketMQCluster shop" in said.err
