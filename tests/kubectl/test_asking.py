"""What the verbs that change something create and patch, and what they wait for."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.kubectl import operate
from brokergroup_operator.kubectl.cluster import BrokerGroup, BrokerGroupOperation, Pod
from brokergroup_operator.kubectl.command_line import UsageError
from brokergroup_operator.kubectl.operate import window

if TYPE_CHECKING:
    from tests.kubectl.bench import Bench


def only(bench: Bench) -> dict[str, Any]:
    (item,) = bench.items(BrokerGroupOperation)
    return item


@pytest.mark.parametrize(
    ("arguments", "kind", "section"),
    [
        (("switchover", "orders"), "Switchover", {"deadlineSeconds": 60}),
        (
            ("switchover", "orders", "--to", "3", "--at", "2030-01-02T03:04:05+01:00", "--deadline", "9"),
            "Switchover",
            {"deadlineSeconds": 9, "toBrokerId": 3, "notBefore": "2030-01-02T02:04:05Z"},
        ),
        (("restart", "orders"), "Restart", {}),
        (("restart", "orders", "2", "3"), "Restart", {"brokerIds": [2, 3]}),
        (("rebuild", "orders", "3", "--yes"), "Rebuild", {"brokerId": 3}),
        (("decommission", "orders", "3", "--confirm", "orders"), "Decommission", {"brokerId": 3}),
        (
            ("elect", "orders", "--to", "3", "--unclean", "--yes-lose-data", "--confirm", "orders"),
            "Elect",
            {"toBrokerId": 3, "acknowledgeDataLoss": "orders"},
        ),
        (("drill", "orders"), "Drill", {"kind": "Switchover"}),
        (("drill", "orders", "--kill-master", "-y"), "Drill", {"kind": "KillMaster"}),
    ],
)
def test_a_verb_creates_its_operation(
    bench: Bench, arguments: tuple[str, ...], kind: str, section: dict[str, Any]
) -> None:
    bench.create_group()
    out = bench.must(*arguments)
    item = only(bench)
    spec = item["spec"]
    assert spec["type"] == kind
    assert spec["brokerGroupRef"] == {"name": "orders"}
    assert {name: value for name, value in spec[kind.lower()].items() if value != []} == section
    assert spec.get("dryRun", "None") == "None"
    assert item["metadata"]["labels"] == {"brokergroup.dev/broker-group": "orders"}
    assert out == f"brokergroupoperation.brokergroup.dev/{item['metadata']['name']} created\n"
    assert item["metadata"]["name"].startswith(f"orders-{kind.lower()}-")


@pytest.mark.parametrize(
    "arguments",
    [
        ("rebuild", "orders", "3"),
        ("rebuild", "orders", "3", "--confirm", "order"),
        ("decommission", "orders", "3"),
        ("hibernate", "orders"),
        ("drill", "orders", "--kill-master"),
        ("elect", "orders", "--to", "3", "--unclean", "--yes-lose-data"),
    ],
)
def test_what_is_dangerous_is_not_done_unless_the_group_is_named(bench: Bench, arguments: tuple[str, ...]) -> None:
    bench.create_group()
    said = bench.run(*arguments)
    assert said.code == 7
    assert "orders" in said.err
    assert not bench.items(BrokerGroupOperation)
    assert not (bench.get(BrokerGroup, "orders")["spec"].get("maintenance") or {}).get("hibernated")


def test_the_name_may_be_typed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    from brokergroup_operator.kubectl import command_line

    monkeypatch.setattr(command_line, "is_terminal", lambda: True)
    bench.create_group()
    assert bench.run("rebuild", "orders", "3", typed="something\n").code == 7
    assert not bench.items(BrokerGroupOperation)
    said = bench.run("rebuild", "orders", "3", typed="orders\n")
    assert said.code == 0
    assert "deletes the volume of broker 3 with its data" in said.err
    assert len(bench.items(BrokerGroupOperation)) == 1


def test_an_unclean_election_wants_both_words(bench: Bench) -> None:
    bench.create_group()
    for flags in (("--unclean",), ("--yes-lose-data",), ()):
        assert bench.run("elect", "orders", "--to", "3", "--confirm", "orders", *flags).code == 2
    assert not bench.items(BrokerGroupOperation)


def test_an_unclean_election_has_no_yes(bench: Bench) -> None:
    bench.create_group()
    said = bench.run("elect", "orders", "--to", "3", "--unclean", "--yes-lose-data", "--yes")
    assert (said.code, "--yes" in said.err) == (2, True)
    assert not bench.items(BrokerGroupOperation)


def test_waiting_for_the_end(bench: Bench) -> None:
    bench.create_group()
    result = {"message": "from broker 2 to 1, epoch 6 in 80 ms", "phases": {"committed": 40}}
    with bench.operator(lambda _: {"phase": "Succeeded", "result": result}):
        said = bench.run("switchover", "orders", "--wait")
    assert said.code == 0, said
    assert said.out == "Succeeded: from broker 2 to 1, epoch 6 in 80 ms\n  committed 40 ms\n"


@pytest.mark.parametrize("phase", ["Failed", "Rejected"])
def test_an_end_that_is_no_success_is_exit_code_1(bench: Bench, phase: str) -> None:
    bench.create_group()
    with bench.operator(lambda _: {"phase": phase, "result": {"message": "orders is not FailoverSafe"}}):
        said = bench.run("restart", "orders", "--wait")
    assert said.code == 1
    assert f"{phase}: orders is not FailoverSafe" in said.err


def test_a_dry_run_shows_the_plan_and_asks_nobody(bench: Bench) -> None:
    bench.create_group()
    result = {"message": "dry run: gives up broker 3", "plan": ["delete pod orders-3", "wait"]}
    with bench.operator(lambda _: {"phase": "Succeeded", "result": result}):
        said = bench.run("rebuild", "orders", "3", "--dry-run")
    assert said.code == 0, said
    assert said.out == "Succeeded: dry run: gives up broker 3\n  1. delete pod orders-3\n  2. wait\n"
    assert only(bench)["spec"]["dryRun"] == "All"


def test_a_wait_has_an_end(bench: Bench) -> None:
    bench.create_group()
    said = bench.run("switchover", "orders", "--wait", "--timeout", "0.1")
    assert said.code == 8
    assert said.err.endswith("it goes on; last: Pending")
    assert len(bench.items(BrokerGroupOperation)) == 1


def operator_pod(bench: Bench, *, ready: bool) -> None:
    """Of this test alone: the API is shared, and pods of operators are looked for everywhere."""
    labels = {"brokergroup.dev/component": "operator"}
    bench.create(Pod, "operator-0", metadata={"labels": labels}, spec={"containers": [{"name": "o", "image": "o:1"}]})
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    bench.set_status(Pod, "operator-0", {"conditions": conditions})


@pytest.mark.parametrize(
    ("pod_is_ready", "said_of_it"),
    [
        (
            None,
            "no operator seems to act: no pod of it is in the cluster (kubectl get pods -A -l brokergroup.dev/component",
        ),
        (False, "no operator seems to act: none of its pods is ready: {namespace}/operator-0"),
        (True, "no operator seems to act on namespace {namespace}: {namespace}/operator-0 ready; does it serve"),
    ],
)
def test_who_waits_for_an_operator_that_does_not_act_is_told(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, pod_is_ready: bool | None, said_of_it: str
) -> None:
    monkeypatch.setattr(operate, "SILENCE_SECONDS", 0.0)
    bench.create_group()
    if pod_is_ready is not None:
        operator_pod(bench, ready=pod_is_ready)
    try:
        said = bench.run("switchover", "orders", "--wait", "--timeout", "0.1")
    finally:
        if pod_is_ready is not None:
            bench.api("DELETE", bench.path(Pod, "operator-0"))
    assert said.code == 8
    assert said.err.count("no operator seems to act") == 2  # while it waits, and at the end
    assert said_of_it.format(namespace=bench.namespace) in said.err


def test_an_operator_that_has_taken_it_up_is_not_doubted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operate, "SILENCE_SECONDS", 0.0)
    bench.create_group()
    pending = {"phase": "Pending", "result": {"message": "waits for an earlier one"}}
    with bench.operator(lambda _: pending):
        said = bench.run("switchover", "orders", "--wait", "--timeout", "2")
    assert said.code == 8
    assert said.err.endswith("last: Pending: waits for an earlier one")


@pytest.mark.parametrize(
    ("verb", "switch", "value"),
    [
        ("pause", "paused", True),
        ("resume", "paused", False),
        ("hibernate", "hibernated", True),
        ("wake", "hibernated", False),
    ],
)
def test_maintenance_is_one_switch_of_the_spec(bench: Bench, verb: str, switch: str, value: bool) -> None:
    bench.create_group(
        maintenance={"paused": True, "hibernated": not value} if switch == "hibernated" else {"paused": not value}
    )
    before = bench.get(BrokerGroup, "orders")["spec"]
    bench.must(verb, "orders", *(["--yes"] if verb == "hibernate" else []))
    after = bench.get(BrokerGroup, "orders")["spec"]
    assert after["maintenance"] == {**before["maintenance"], switch: value}
    assert {**after, "maintenance": {}} == {**before, "maintenance": {}}


EVE = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("at", "until", "expected"),
    [
        (None, None, {}),
        ("+30s", None, {"notBefore": "2030-01-01T00:00:30Z"}),
        ("+2h", "+3h", {"notBefore": "2030-01-01T02:00:00Z", "notAfter": "2030-01-01T03:00:00Z"}),
        (None, "2030-01-02T00:00:00+01:00", {"notAfter": "2030-01-01T23:00:00Z"}),
        ("+0s", None, {"notBefore": "2030-01-01T00:00:00Z"}),
        ("9999-12-31T23:59:59Z", None, {"notBefore": "9999-12-31T23:59:59Z"}),
    ],
)
def test_the_window_of_a_switchover(at: str | None, until: str | None, expected: dict[str, str]) -> None:
    assert window(at, until, now=EVE) == expected


@pytest.mark.parametrize(
    "text", ["tomorrow", "2030-01-02T03:04:05", "+5", "10:00", "", "-5m", "+1d", "2030-01-02T24:00:00Z", "@1893456000"]
)
def test_times_that_could_mean_anything(text: str) -> None:
    for option, times in (("--at", (text, None)), ("--until", (None, text))):
        with pytest.raises(UsageError, match="expected RFC 3339 with an offset") as caught:
            window(*times, now=EVE)
        assert str(caught.value).startswith(f"{option} {text!r}: ")


@pytest.mark.parametrize(
    ("at", "until", "words"),
    [
        (
            "2029-12-31T23:59:59Z",
            None,
            "--at '2029-12-31T23:59:59Z' is in the past: it is 2030-01-01T00:00:00Z; expected a",
        ),
        ("2030-01-01T00:30:00+01:00", None, "--at '2030-01-01T00:30:00+01:00' is in the past"),
        (None, "2025-11-27T23:00:00Z", "--until '2025-11-27T23:00:00Z' is in the past"),
        ("+2h", "+2h", "--until '+2h' is 2030-01-01T02:00:00Z: expected a time after --at, 2030-01-01T02:00:00Z"),
        ("+2h", "+1h", "--until '+1h' is 2030-01-01T01:00:00Z: expected a time after --at"),
        ("+99999999999h", None, "--at '+99999999999h': expected a time before the year 10000"),
        ("+" + "9" * 5000 + "s", None, "expected a time before the year 10000"),
        ("9999-12-31T23:59:59-23:59", None, "--at '9999-12-31T23:59:59-23:59': "),
    ],
)
def test_a_window_that_can_not_be_meant_is_refused_with_words(at: str | None, until: str | None, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        window(at, until, now=EVE)
    assert words in str(caught.value)


def test_a_switchover_a_year_ago_asks_for_nothing(bench: Bench) -> None:
    bench.create_group()
    said = bench.run("switchover", "orders", "--at", "2025-11-27T23:00:00Z", "--wait")
    assert said.code == UsageError.exit_code
    assert "--at '2025-11-27T23:00:00Z' is in the past: it is 20" in said.err
    assert not bench.items(BrokerGroupOperation)
