"""The verbs with changes: created and patched objects, waits, accepted durations, and release."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pytest
import typer

from brokergroup_operator.api import names
from brokergroup_operator.kubectl import command_line, operate
from brokergroup_operator.kubectl.cluster import BrokerGroup, BrokerGroupOperation, Lease, PersistentVolumeClaim, Pod
from brokergroup_operator.kubectl.command_line import UsageError, seconds, whole_seconds
from brokergroup_operator.kubectl.operate import window

if TYPE_CHECKING:
    from tests.kubectl.bench import Bench


UNCLEAN = ("elect", "orders", "--to", "3", "--unclean", "--yes-lose-data")


def only(bench: Bench) -> dict[str, Any]:
    (item,) = bench.items(BrokerGroupOperation)
    return item


@pytest.mark.parametrize(
    ("arguments", "kind", "section"),
    [
        (("switchover", "orders"), "Switchover", {"deadlineSeconds": 60}),
        (
            ("switchover", "orders", "--to", "3", "--at", "2030-01-02T03:04:05+01:00", "--deadline", "9"), "Switchover",
            {"deadlineSeconds": 9, "toBrokerId": 3, "notBefore": "2030-01-02T02:04:05Z"},
        ),
        (("switchover", "orders", "--timeout", "1m30s", "--deadline", "2m"), "Switchover", {"deadlineSeconds": 120}),
        (("restart", "orders", "--timeout", "5"), "Restart", {}),
        (("restart", "orders", "2", "3", "--timeout", "100s"), "Restart", {"brokerIds": [2, 3]}),
        (("rebuild", "orders", "3", "--yes"), "Rebuild", {"brokerId": 3}),
        (("decommission", "orders", "3", "--confirm", "orders"), "Decommission", {"brokerId": 3}),
        ((*UNCLEAN, "--confirm", "orders"), "Elect", {"toBrokerId": 3, "acknowledgeDataLoss": "orders"}),
        (("drill", "orders"), "Drill", {"kind": "Switchover"}),
        (("retire", "orders", "--yes"), "Retire", {}),
        (
            (
                "retire", "orders", "--confirm", "orders",
                "--abandon-topic", "%DLQ%a", "--abandon-topic", "t", "--abandon-consumer-group", "a",
            ),
            "Retire", {"abandonTopics": ["%DLQ%a", "t"], "abandonConsumerGroups": ["a"]},
        ),
        (("drill", "orders", "--kill-master", "-y"), "Drill", {"kind": "KillMaster"}),
        (
            ("backup", "orders", "--claim", "copies"),
            "Backup",
            {"claim": {"name": "copies"}, "stopMaster": False, "deadlineSeconds": 3600},
        ),
        (
            ("backup", "orders", "--claim", "copies", "--broker", "3", "--stop-master", "-y"),
            "Backup",
            {"claim": {"name": "copies"}, "brokerId": 3, "stopMaster": True, "deadlineSeconds": 3600},
        ),
        (
            ("backup", "orders", "--snapshot"),
            "Backup",
            {"snapshot": {}, "stopMaster": False, "deadlineSeconds": 3600},
        ),
        (
            ("backup", "orders", "--snapshot-class", "fast"),
            "Backup",
            {"snapshot": {"className": "fast"}, "stopMaster": False, "deadlineSeconds": 3600},
        ),
    ],
)  # fmt: skip
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
    ("options", "given"),
    [
        ((), "neither --claim nor --snapshot"),
        (("--claim", "copies", "--snapshot"), "--claim copies and a snapshot"),
        (("--claim", "copies", "--snapshot-class", "fast"), "--claim copies and a snapshot"),
    ],
)
def test_a_backup_goes_to_one_place(bench: Bench, options: tuple[str, ...], given: str) -> None:
    bench.create_group()
    said = bench.run("backup", "orders", *options)
    told = f"the backup has {given}, expected one of --claim NAME and --snapshot"
    assert (said.code, told in said.err) == (UsageError.exit_code, True), said.err


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        (7, ("rebuild", "orders", "3")),
        (7, ("rebuild", "orders", "3", "--confirm", "order")),
        (7, ("decommission", "orders", "3")),
        (7, ("hibernate", "orders")),
        (7, ("drill", "orders", "--kill-master")),
        (7, UNCLEAN),
        (2, (*UNCLEAN[:-1], "--confirm", "orders")),
        (2, ("elect", "orders", "--to", "3", "--yes-lose-data", "--confirm", "orders")),
        (2, ("elect", "orders", "--to", "3", "--confirm", "orders")),
    ],
)
def test_what_is_dangerous_is_not_done_unless_the_group_is_named(
    bench: Bench, code: int, arguments: tuple[str, ...]
) -> None:
    bench.create_group()
    said = bench.run(*arguments)
    assert said.code == code
    assert "orders" in said.err or "expected --unclean and --yes-lose-data" in said.err
    assert not bench.items(BrokerGroupOperation)
    assert not (bench.get(BrokerGroup, "orders")["spec"].get("maintenance") or {}).get("hibernated")


def test_an_unclean_election_has_no_yes(bench: Bench) -> None:
    bench.create_group()
    said = bench.run(*UNCLEAN, "--yes")
    assert (said.code, "--yes" in said.err) == (2, True)
    assert not bench.items(BrokerGroupOperation)


def test_retire_says_what_may_be_lost(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_line, "is_terminal", lambda: True)
    bench.create_group()
    said = bench.run("retire", "orders", "--abandon-consumer-group", "night", typed="something\n")
    assert said.code == 7
    assert "night may LOSE messages" in said.err


def test_the_name_may_be_typed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_line, "is_terminal", lambda: True)
    bench.create_group()
    assert bench.run("rebuild", "orders", "3", typed="something\n").code == 7
    assert not bench.items(BrokerGroupOperation)
    said = bench.run("rebuild", "orders", "3", typed="orders\n")
    assert said.code == 0
    assert "deletes the volume of broker 3 with its data" in said.err
    assert len(bench.items(BrokerGroupOperation)) == 1


DONE = {"message": "from broker 2 to 1, epoch 6 in 80 ms", "phases": {"committed": 40}}
PLAN = {"message": "dry run: gives up broker 3", "plan": ["delete pod orders-3", "wait"]}
NOT_SAFE = {"message": "orders is not FailoverSafe"}


@pytest.mark.parametrize(
    ("arguments", "phase", "result", "code", "out", "dry_run"),
    [
        (("switchover", "orders", "--wait"), "Succeeded", DONE, 0, f"Succeeded: {DONE['message']}\n  committed 40 ms\n", "None"),
        (
            ("rebuild", "orders", "3", "--dry-run"), "Succeeded", PLAN, 0,
            f"Succeeded: {PLAN['message']}\n  1. delete pod orders-3\n  2. wait\n", "All",
        ),
        (("restart", "orders", "--wait"), "Failed", NOT_SAFE, 1, "Failed: orders is not FailoverSafe\n", "None"),
        (("restart", "orders", "--wait"), "Rejected", NOT_SAFE, 1, "Rejected: orders is not FailoverSafe\n", "None"),
    ],
)  # fmt: skip
def test_the_end_is_waited_for_and_told(
    bench: Bench, arguments: tuple[str, ...], phase: str, result: dict[str, Any], code: int, out: str, dry_run: str
) -> None:
    bench.create_group()
    with bench.operator(lambda _: {"phase": phase, "result": result}):
        said = bench.run(*arguments)
    assert (said.code, said.out) == (code, out), said
    assert (f"{phase}: {result['message']}" in said.err) == (code == 1)
    assert only(bench)["spec"].get("dryRun", "None") == dry_run


def test_a_wait_has_an_end(bench: Bench) -> None:
    bench.create_group()
    said = bench.run("switchover", "orders", "--wait", "--timeout", "0.1")
    assert said.code == 8
    assert said.err.endswith("it goes on; last: Pending")
    assert len(bench.items(BrokerGroupOperation)) == 1


def operator_pod(bench: Bench, *, ready: bool) -> None:
    """Create a pod for this test only: the API is shared, and the plugin looks for operators' pods in all namespaces."""
    labels = {"brokergroup.dev/component": "operator"}
    bench.create(Pod, "operator-0", metadata={"labels": labels}, spec={"containers": [{"name": "o", "image": "o:1"}]})
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    bench.set_status(Pod, "operator-0", {"conditions": conditions})


NOTHING_ACTS = "no operator seems to act"


@pytest.mark.parametrize(
    ("pod_is_ready", "said_of_it"),
    [
        (None, f"{NOTHING_ACTS}: no pod of it is in the cluster (kubectl get pods -A -l brokergroup.dev/component"),
        (False, f"{NOTHING_ACTS}: none of its pods is ready: {{namespace}}/operator-0"),
        (True, f"{NOTHING_ACTS} on namespace {{namespace}}: {{namespace}}/operator-0 ready; does it serve"),
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
    assert said.err.count(NOTHING_ACTS) == 2  # while it waits, and at the end
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


def test_a_broker_is_held_stopped_and_started_again(bench: Bench) -> None:
    bench.create_group()
    assert "broker 3 is to be stopped" in bench.must("stop-broker", "orders", "3")
    bench.must("stop-broker", "orders", "2")
    bench.must("stop-broker", "orders", "2")

    def held() -> list[int]:
        return list((bench.get(BrokerGroup, "orders")["spec"].get("maintenance") or {}).get("stoppedBrokers") or [])

    assert held() == [2, 3]
    assert bench.must("start-broker", "orders", "3") == "brokergroup.brokergroup.dev/orders broker 3 starts again\n"
    assert held() == [2]
    said = bench.run("stop-broker", "orders", "9")
    assert (said.code, "BROKER-ID is 9, which is no member of orders: expected one of 1, 2, 3" in said.err) == (2, True)
    said = bench.run("start-broker", "orders", "3")
    assert (said.code, "BROKER-ID is 3, which is not held stopped in orders: expected one of 2" in said.err) == (
        2,
        True,
    )
    assert held() == [2]


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
        ("2029-12-31T23:59:59Z", None, "'2029-12-31T23:59:59Z' is in the past: it is 2030-01-01T00:00:00Z; expected a"),
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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("100s", 100), ("1m30s", 90), ("1.5h", 5400), ("500ms", 0.5), ("100", 100), ("0.1", 0.1), ("0", 0), ("0s", 0),
        (600.0, 600), (".5m", 30), ("1h0m5s", 3605), ("7us", 7e-6), ("7µs", 7e-6),
    ],
)  # fmt: skip
def test_go_durations_and_plain_seconds(text: str | float, expected: float) -> None:
    assert seconds(text) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["", "soon", "-5s", "5 s", "1d", "5S", "s", "1m30", "1e3", "nan", "inf", "٣s"])
def test_what_is_no_duration_is_named(text: str) -> None:
    with pytest.raises(typer.BadParameter, match=r"expected a duration like 100s, 1m30s or 1\.5h, or seconds like 100"):
        seconds(text)


@pytest.mark.parametrize("text", ["0", "1.5s", "2h", "500ms"])
def test_a_deadline_is_whole_seconds(text: str) -> None:
    assert whole_seconds("2m") == 120
    with pytest.raises(typer.BadParameter, match="expected whole seconds, 1s to 1h"):
        whole_seconds(text)


def test_a_verb_names_the_option_and_the_value(bench: Bench) -> None:
    said = bench.run("restart", "orders", "--wait", "--timeout", "soon")
    assert said.code == 2
    assert "--timeout" in said.err
    assert "'soon': expected a duration like 100s" in said.err


LONG_AGO = "2026-01-01T00:00:00.000000Z"
ALWAYS = "2999-01-01T00:00:00.000000Z"
OF_ORDERS = {"labels": {names.LABEL_BROKER_GROUP: "orders"}}


def deleted_group(bench: Bench, *, renewed: str | None, policy: str = "Background") -> None:
    """With pods, one of them held by the fence, a claim, and the Lease of its operator."""
    bench.create_group()
    metadata: dict[str, Any] = {"finalizers": [names.FINALIZER_BROKER_GROUP]}
    if renewed is not None:
        metadata["annotations"] = {names.ANNOTATION_OPERATOR: f"{bench.namespace}/its-lease"}
        spec = {"holderIdentity": "operator-0_1", "leaseDurationSeconds": 3, "renewTime": renewed}
        bench.create(Lease, "its-lease", spec=spec)
    path = bench.path(BrokerGroup, "orders")
    bench.api("PATCH", path, {"metadata": metadata})
    containers = [{"name": "broker", "image": "broker"}]
    uid = bench.get(BrokerGroup, "orders")["metadata"]["uid"]
    owner = {"apiVersion": names.API_VERSION, "kind": names.BROKER_GROUP_KIND, "name": "orders", "uid": uid}
    owned = OF_ORDERS | {"ownerReferences": [owner]}
    bench.create(Pod, "orders-1", metadata=owned, spec={"containers": containers})
    held = owned | {"finalizers": [names.FINALIZER_FENCE, "example.com/other", names.FINALIZER_BACKUP]}
    bench.create(Pod, "orders-2", metadata=held, spec={"containers": containers})
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    bench.create(PersistentVolumeClaim, "orders-1", metadata=OF_ORDERS, spec=claim)
    bench.api("DELETE", path, {"propagationPolicy": policy})


def groups(bench: Bench) -> list[str]:
    return [item["metadata"]["name"] for item in bench.items(BrokerGroup)]


def test_a_group_goes_once_its_operator_is_gone(bench: Bench) -> None:
    """On a real cluster `kubectl delete bg` hung for ever after `helm uninstall`."""
    deleted_group(bench, renewed=LONG_AGO)
    assert groups(bench) == ["orders"]
    said = bench.must("release", "orders", "--confirm", "orders").splitlines()
    assert said[0] == (
        "goes with the group, by the cluster's garbage collector: pods (orders-1, orders-2), Services, ConfigMap,"
        " PodDisruptionBudgets and NetworkPolicy"
    )
    assert said[1].startswith("stays, with the data: claims (orders-1) and the record brokergroupstate/orders;")
    label = f"-l {names.LABEL_BROKER_GROUP}=orders"
    assert said[2] == (
        f"  to delete them for good: kubectl delete -n {bench.namespace} persistentvolumeclaims {label} &&"
        f" kubectl delete -n {bench.namespace} brokergroupstates orders"
    )
    assert said[3] == f"brokergroup.{names.GROUP}/orders released"
    assert groups(bench) == []
    assert bench.get(Pod, "orders-2")["metadata"]["finalizers"] == ["example.com/other"]
    assert bench.get(PersistentVolumeClaim, "orders-1")


def test_of_an_orphaned_group_it_says_that_everything_stays(bench: Bench) -> None:
    """The garbage collector has finished by then: the group no longer shows how it was deleted."""
    deleted_group(bench, renewed=LONG_AGO, policy="Orphan")
    assert bench.get(BrokerGroup, "orders")["metadata"]["finalizers"] == [names.FINALIZER_BROKER_GROUP]
    said = bench.must("release", "orders", "--confirm", "orders").splitlines()
    assert said[0].startswith("stays, by --cascade=orphan: pods (orders-1, orders-2), Services")
    assert groups(bench) == []
    assert "deletionTimestamp" not in bench.get(Pod, "orders-1")["metadata"]


def test_nothing_is_released_while_an_operator_is_alive(bench: Bench) -> None:
    deleted_group(bench, renewed=ALWAYS)
    for more in ((), ("--operator-is-gone",)):
        said = bench.run("release", "orders", "--confirm", "orders", *more)
        assert said.code == 1
        assert "renewed its Lease 0s ago (operator-0); the operator itself stops the brokers" in said.err
    assert groups(bench) == ["orders"]
    assert names.FINALIZER_FENCE in bench.get(Pod, "orders-2")["metadata"]["finalizers"]


def test_where_no_lease_proves_it_a_person_has_to_say_so(bench: Bench) -> None:
    deleted_group(bench, renewed=None)
    said = bench.run("release", "orders", "--confirm", "orders")
    assert said.code == 9
    assert "sure that none runs? Say --operator-is-gone" in said.err
    assert groups(bench) == ["orders"]
    bench.must("release", "orders", "--confirm", "orders", "--operator-is-gone")
    assert groups(bench) == []


@pytest.mark.parametrize("arguments", [(), ("--confirm", "other")])
def test_it_wants_the_name(bench: Bench, arguments: tuple[str, ...]) -> None:
    deleted_group(bench, renewed=LONG_AGO)
    assert bench.run("release", "orders", *arguments).code == 7
    assert "stays, with the data" in bench.must("release", "orders", "--dry-run")
    assert groups(bench) == ["orders"]
    assert names.FINALIZER_FENCE in bench.get(Pod, "orders-2")["metadata"]["finalizers"]


def test_only_what_is_being_deleted_and_held_by_us(bench: Bench) -> None:
    bench.create_group()
    said = bench.run("release", "orders", "--yes")
    assert said.code == 1
    assert (
        f"is not being deleted, nothing was done; first: kubectl delete brokergroup -n {bench.namespace} orders"
        in said.err
    )
    path = bench.path(BrokerGroup, "orders")
    bench.api("PATCH", path, {"metadata": {"finalizers": ["example.com/other"]}})
    bench.api("DELETE", path)
    said = bench.run("release", "orders", "--yes")
    assert (said.code, said.err) == (
        1,
        f"{bench.namespace}/orders: the operator's finalizer does not hold it; its finalizers: example.com/other",
    )
