"""The alerts, each on series that should raise it and on series that should not: judged by promtool."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.real.parts import helm, prometheus

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.real("prometheus")

RULES = helm.CHART / "files" / "alerts.yaml"
ORDERS = {"namespace": "shop", "cluster": "c", "broker_group": "orders"}
GROUP = 'namespace="shop",cluster="c",broker_group="orders"'
PODS = ("operator-0", "operator-1")
MINUTES = 70
Series = list[dict[str, str]]


@dataclass(frozen=True)
class Case:
    """The series of an alert while all is well, and those that raise it, as promtool writes values: start+step x times."""

    well: Series
    ill: Series
    # The labels of the alert that is raised, without the rule's own, and what its text has as the value.
    raised: dict[str, str]
    value: str = ""


def series(name: str, values: str) -> Series:
    """As each operator pod reports it; `name` may have labels beyond the group's."""
    name, _, own = name.rstrip("}").partition("{")
    labels = ",".join(filter(None, (GROUP, own)))
    return [{"series": f'{name}{{{labels},pod="{pod}"}}', "values": values} for pod in PODS]


def of_group(name: str, well: str, ill: str, *, value: str = "", **raised: str) -> Case:
    return Case(series(name, well), series(name, ill), ORDERS | raised, value)


def failovers_of(seconds: int) -> Series:
    """One failover of that length, twenty minutes before the end."""
    total = 'brokergroup_failover_phase_seconds_%s{phase="total"}'
    return [*series(total % "sum", f"0+0x50 {seconds}+0x19"), *series(total % "count", "0+0x50 1+0x19")]


def requests_of(code: str, values: str) -> Series:
    name = f'brokergroup_requests_total{{request="BROKER_HEARTBEAT",code="{code}",pod="operator-0"}}'
    return [{"series": name, "values": values}]


def operator_pods(number: int) -> Series:
    name = 'brokergroup_build_info{version="0.1.0",pod="operator-%d"}'
    return [{"series": name % pod, "values": "1+0x70"} for pod in range(number)]


def claims(available: int) -> Series:
    """A group's claim, and one of a namespace without groups."""
    own = [
        {
            "series": f'kubelet_volume_stats_{name}_bytes{{namespace="{where}",persistentvolumeclaim="orders-1"}}',
            "values": f"{value}+0x70",
        }
        for where in ("shop", "elsewhere")
        for name, value in (("available", available), ("capacity", 100))
    ]
    return [*series("brokergroup_master_epoch", "7+0x70"), *own]


def renamed(namespace: str, values: str) -> Series:
    """A group's gauge as a job without `honor_labels` stores it: the target's namespace, and the group's own beside it."""
    labels = f'namespace="brokergroup-system",exported_namespace="{namespace}",cluster="c",broker_group="orders"'
    return [
        {"series": f'brokergroup_group_writable{{{labels},job="pods",pod="{pod}"}}', "values": values} for pod in PODS
    ]


# tests/repository/test_runbooks.py: every alert of the chart has a case.
CASES: dict[str, Case] = {
    "BrokerGroupNoMaster": of_group("brokergroup_group_writable", "1+0x70", "0+0x70"),
    "BrokerGroupSyncStateSetShrunk": of_group("brokergroup_sync_state_set_size", "3+0x70", "1+0x70"),
    "BrokerGroupSeatsLost": of_group("brokergroup_lost_seats", "0+0x70", "2+0x70"),
    "BrokerGroupEpochJump": of_group("brokergroup_epoch_jump_waiting", "0+0x70", "1+0x70"),
    "BrokerGroupNotFailoverSafe": of_group('brokergroup_condition{condition="FailoverSafe"}', "1+0x70", "0+0x70"),
    "BrokerGroupBrokersStopped": of_group('brokergroup_condition{condition="BrokersStopped"}', "0+0x70", "1+0x70"),
    "BrokerGroupClientCertificateEnding": of_group(
        'brokergroup_condition{condition="ClientCertificateEnding"}', "0+0x70", "1+0x70"
    ),
    "BrokerGroupStalled": of_group('brokergroup_condition{condition="Stalled"}', "0+0x70", "1+0x70"),
    "BrokerGroupMembersUnlinked": of_group("brokergroup_unlinked_members", "0+0x70", "1+0x70"),
    "BrokerGroupMembersUnheard": of_group("brokergroup_unheard_members", "0+0x70", "1+0x70"),
    "BrokerGroupMetadataDiverged": of_group("brokergroup_metadata_differences", "0+0x70", "3+0x70"),
    "BrokerGroupUnfenced": of_group("brokergroup_unfenced", "0+0x70", "1+0x70"),
    "BrokerGroupBudgetBurn": of_group("brokergroup_group_writable", "1+0x70", "1+0x60 0+0x9"),
    "BrokerGroupUncleanElection": of_group("brokergroup_unclean_elections_total", "5+0x70", "5+0x30 6+0x39"),
    "BrokerGroupSeatLost": of_group("brokergroup_seats_lost_total", "2+0x70", "0+0x30 1+0x39"),
    "BrokerGroupRecordBehind": of_group("brokergroup_epoch_floor_raised_total", "1+0x70", "0+0x30 1+0x39"),
    "BrokerGroupReplicaLagHigh": of_group(
        'brokergroup_replica_lag_bytes{broker_id="2"}', "1048576+0x70", "536870912+0x70", value="512Mi", broker_id="2"
    ),
    # Each pod counts the failovers that it carried out.
    "BrokerGroupFlapping": of_group(
        'brokergroup_failovers_total{cause="crash",outcome="completed"}', "0+0x60 1+0x9", "0+0x60 2+0x9", value="4"
    ),
    "BrokerGroupRequestsRefused": Case(
        requests_of("SUCCESS", "0+600x70"),
        [*requests_of("SUCCESS", "0+600x70"), *requests_of("NO_PERMISSION", "0+60x70")],
        {"request": "BROKER_HEARTBEAT"},
    ),
    "BrokerGroupOperatorDown": Case(operator_pods(1), [], {}),
    "BrokerGroupOperatorPodAlone": Case(operator_pods(3), operator_pods(1), {}),
    "BrokerGroupLabelsRenamed": Case(
        series("brokergroup_group_writable", "1+0x70"), renamed("shop", "1+0x70"), {"job": "pods"}
    ),
    "BrokerGroupFailoverSlow": Case(failovers_of(3), failovers_of(25), ORDERS, "25s"),
    "BrokerGroupDiskSoonFull": Case(claims(50), claims(10), {"namespace": "shop", "persistentvolumeclaim": "orders-1"}),
}


def judge(
    folder: Path, inputs: Series, alert: str, labels: list[dict[str, str]], *, value: str = "", scraped: str = "1m"
) -> None:
    document: dict[str, Any] = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": scraped,
                "input_series": inputs,
                "promql_expr_test": [],
                "alert_rule_test": [
                    {
                        "eval_time": f"{MINUTES - 1}m",
                        "alertname": alert,
                        "exp_alerts": [{"exp_labels": one} for one in labels],
                    }
                ],
            }
        ],
    }
    path = folder / "alert.yaml"
    path.write_text(yaml.safe_dump(without_annotations(document, value)), encoding="utf-8")
    done = prometheus.promtool("test", "rules", str(path))
    assert done.returncode == 0, done.stdout + done.stderr


def without_annotations(document: dict[str, Any], value: str) -> dict[str, Any]:
    """promtool compares annotations too: they are taken from the rules themselves, with the labels filled in."""
    rules = {rule["alert"]: rule for rule in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"][0]["rules"]}
    for test in document["tests"][0]["alert_rule_test"]:
        for expected in test["exp_alerts"]:
            rule, labels = rules[test["alertname"]], expected["exp_labels"]
            filled = {name: fill(text, labels, value) for name, text in rule["annotations"].items()}
            expected["exp_annotations"] = filled
            expected["exp_labels"] = labels | rule["labels"]
    return document


def fill(text: str, labels: dict[str, str], value: str) -> str:
    text = re.sub(r"\{\{ \$value [^}]*\}\}", value, text)
    for name, label in labels.items():
        text = text.replace(f"{{{{ $labels.{name} }}}}", label)
    return text


@pytest.mark.parametrize("alert", CASES)
def test_an_alert_is_raised_once_and_not_without_reason(tmp_path: Path, alert: str) -> None:
    case = CASES[alert]
    judge(tmp_path, case.well, alert, [])
    judge(tmp_path, case.ill, alert, [case.raised], value=case.value)


@pytest.mark.parametrize("label", ["exported_cluster", "exported_broker_group"])
def test_any_label_of_the_group_that_was_renamed_is_told(tmp_path: Path, label: str) -> None:
    stored = [{"series": f'brokergroup_group_writable{{{GROUP},{label}="own",job="pods"}}', "values": "1+0x70"}]
    judge(tmp_path, stored, "BrokerGroupLabelsRenamed", [{"job": "pods"}])


def test_renamed_labels_that_hide_a_group_without_a_master_are_told(tmp_path: Path) -> None:
    """Two groups of one name in two namespaces are one to the rules then, and the one that serves hides the other."""
    stored = [*renamed("shop", "0+0x70"), *renamed("elsewhere", "1+0x70")]
    judge(tmp_path, stored, "BrokerGroupNoMaster", [])
    judge(tmp_path, stored, "BrokerGroupLabelsRenamed", [{"job": "pods"}])


def test_a_member_that_was_unheard_for_a_moment_is_not_told_of(tmp_path: Path) -> None:
    """All operator pods are started anew, one after the other: none hears a member before it has dialled that pod."""
    for values, raised in (("0+0x67 1 1", []), ("0+0x66 1+0x3", [ORDERS])):
        judge(tmp_path, series("brokergroup_unheard_members", values), "BrokerGroupMembersUnheard", raised)


@pytest.mark.parametrize("alert", ["BrokerGroupSyncStateSetShrunk", "BrokerGroupNotFailoverSafe"])
def test_a_group_with_one_voting_replica_is_as_its_spec_wants_it(tmp_path: Path, alert: str) -> None:
    """It has no member to fail over to, and both alerts fired for as long as it lived. `voters` None: no pod reconciles."""
    for voters, raised in ((1, []), (2, [ORDERS]), (None, [ORDERS])):
        wanted = series("brokergroup_voting_replicas", f"{voters}+0x70")[:1] if voters is not None else []
        judge(tmp_path, [*CASES[alert].ill, *wanted], alert, raised)


@pytest.mark.parametrize(
    "alert",
    ["BrokerGroupNoMaster", "BrokerGroupBudgetBurn", "BrokerGroupSyncStateSetShrunk", "BrokerGroupNotFailoverSafe"],
)
def test_a_hibernated_group_is_as_its_spec_wants_it(tmp_path: Path, alert: str) -> None:
    """From the moment in which the spec says so, also while its pods still end, and until it was woken and has started."""
    for voters, raised in (("0+0x70", []), ("0+0x68 3", []), ("0+0x10 3+0x60", [ORDERS]), ("3+0x70", [ORDERS])):
        wanted = series("brokergroup_voting_replicas", voters)[:1]
        judge(tmp_path, [*CASES[alert].ill, *wanted], alert, raised)


@pytest.mark.parametrize("alert", ["BrokerGroupSyncStateSetShrunk", "BrokerGroupNotFailoverSafe"])
def test_a_group_whose_broker_is_held_stopped_has_an_alert_of_its_own(tmp_path: Path, alert: str) -> None:
    """A lost member is not reported while the spec is the reason; the alert that says so is. `lacking` None: an older operator."""
    for values, lacking, raised in (("1+0x70", 0, []), ("1+0x70", None, []), ("1+0x60 0+0x9", 0, [ORDERS])):
        stopped = series('brokergroup_condition{condition="BrokersStopped"}', values)
        others = series("brokergroup_lacking_members", f"{lacking}+0x70")[:1] if lacking is not None else []
        judge(tmp_path, [*CASES[alert].ill, *stopped, *others], alert, raised)
        judge(tmp_path, [*CASES[alert].ill, *stopped, *others], "BrokerGroupBrokersStopped", [] if raised else [ORDERS])


@pytest.mark.parametrize("alert", ["BrokerGroupSyncStateSetShrunk", "BrokerGroupNotFailoverSafe"])
def test_another_loss_beside_a_broker_that_is_held_stopped_is_reported(tmp_path: Path, alert: str) -> None:
    stopped = series('brokergroup_condition{condition="BrokersStopped"}', "1+0x70")
    for values, raised in (("1+0x70", [ORDERS]), ("0+0x60 1+0x9", [ORDERS]), ("1+0x60 0+0x9", [])):
        lacking = series("brokergroup_lacking_members", values)[:1]
        judge(tmp_path, [*CASES[alert].ill, *stopped, *lacking], alert, raised)


def test_a_budget_that_burned_in_hibernation_alone_is_told_by_nothing(tmp_path: Path) -> None:
    """The alert looks back for an hour: for 40 minutes after a group was woken it does not count what was before."""
    for minutes, raised in ((20, []), (45, [ORDERS])):
        woken = series("brokergroup_voting_replicas", f"0+0x{70 - minutes} 3+0x{minutes}")[:1]
        judge(tmp_path, [*CASES["BrokerGroupBudgetBurn"].ill, *woken], "BrokerGroupBudgetBurn", raised)


@pytest.mark.parametrize(("failovers", "is_flapping"), [(3, False), (4, True)])
def test_more_than_three_failovers_in_a_quarter_of_an_hour_are_flapping(
    tmp_path: Path, failovers: int, is_flapping: bool
) -> None:
    """Beyond its first and last scrape an increase is extrapolated: with scrapes 50 s apart three are 3.18."""
    name = f'brokergroup_failovers_total{{{GROUP},pod="operator-0"}}'
    told = {"series": name, "values": f"9+0x72 {9 + failovers}+0x20"}
    judge(tmp_path, [told], "BrokerGroupFlapping", [ORDERS] if is_flapping else [], value="4", scraped="50s")


def test_one_short_outage_burns_no_budget(tmp_path: Path) -> None:
    judge(tmp_path, series("brokergroup_group_writable", "1+0x30 0 1+0x39"), "BrokerGroupBudgetBurn", [])
