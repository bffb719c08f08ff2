"""The alerts, each on series that should raise it and on series that should not: judged by promtool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.real.parts import helm, prometheus

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.real("prometheus")

RULES = helm.CHART / "files" / "alerts.yaml"
GROUP = 'namespace="shop",cluster="c",broker_group="orders"'
PODS = ("operator-0", "operator-1")
MINUTES = 70
# Alert -> a series (without its labels beyond the group's), its values while all is well, and those that raise it, as promtool
# writes them: start+step x times.
CASES: dict[str, tuple[str, str, str]] = {
    "BrokerGroupNoMaster": ("brokergroup_group_writable", "1+0x70", "0+0x70"),
    "BrokerGroupSyncStateSetShrunk": ("brokergroup_sync_state_set_size", "3+0x70", "1+0x70"),
    "BrokerGroupSeatsLost": ("brokergroup_lost_seats", "0+0x70", "2+0x70"),
    "BrokerGroupEpochJump": ("brokergroup_epoch_jump_waiting", "0+0x70", "1+0x70"),
    "BrokerGroupNotFailoverSafe": ('brokergroup_condition{condition="FailoverSafe"}', "1+0x70", "0+0x70"),
    "BrokerGroupStalled": ('brokergroup_condition{condition="Stalled"}', "0+0x70", "1+0x70"),
    "BrokerGroupMembersUnlinked": ("brokergroup_unlinked_members", "0+0x70", "1+0x70"),
    "BrokerGroupMembersUnheard": ("brokergroup_unheard_members", "0+0x70", "1+0x70"),
    "BrokerGroupMetadataDiverged": ("brokergroup_metadata_differences", "0+0x70", "3+0x70"),
    "BrokerGroupUnfenced": ("brokergroup_unfenced", "0+0x70", "1+0x70"),
    "BrokerGroupBudgetBurn": ("brokergroup_group_writable", "1+0x70", "1+0x60 0+0x9"),
    "BrokerGroupUncleanElection": ("brokergroup_unclean_elections_total", "5+0x70", "5+0x30 6+0x39"),
    "BrokerGroupSeatLost": ("brokergroup_seats_lost_total", "2+0x70", "0+0x30 1+0x39"),
    "BrokerGroupRecordBehind": ("brokergroup_epoch_floor_raised_total", "1+0x70", "0+0x30 1+0x39"),
}


def series(name: str, values: str) -> list[dict[str, str]]:
    """As each operator pod reports it."""
    name, _, own = name.rstrip("}").partition("{")
    labels = ",".join(filter(None, (GROUP, own)))
    return [{"series": f'{name}{{{labels},pod="{pod}"}}', "values": values} for pod in PODS]


def judge(
    folder: Path, inputs: list[dict[str, str]], alert: str, labels: list[dict[str, str]], *, value: str = ""
) -> None:
    document: dict[str, Any] = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
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
    text = text.replace("{{ $value | humanizeDuration }}", value)
    for name, label in labels.items():
        text = text.replace(f"{{{{ $labels.{name} }}}}", label)
    return text


@pytest.mark.parametrize("alert", CASES)
def test_an_alert_is_raised_once_for_the_group_and_not_without_reason(tmp_path: Path, alert: str) -> None:
    name, well, ill = CASES[alert]
    judge(tmp_path, series(name, well), alert, [])
    judge(tmp_path, series(name, ill), alert, [{"namespace": "shop", "cluster": "c", "broker_group": "orders"}])


def test_a_member_that_was_unheard_for_a_moment_is_not_told_of(tmp_path: Path) -> None:
    """All operator pods are started anew, one after the other: none hears a member before it has dialled that pod."""
    labels = [{"namespace": "shop", "cluster": "c", "broker_group": "orders"}]
    for values, raised in (("0+0x67 1 1", []), ("0+0x66 1+0x3", labels)):
        name = f'brokergroup_unheard_members{{{GROUP},pod="operator-%d"}}'
        inputs = [{"series": name % number, "values": values} for number in range(2)]
        judge(tmp_path, inputs, "BrokerGroupMembersUnheard", raised)


def test_refusals_that_go_on_are_told_by_request(tmp_path: Path) -> None:
    name = 'brokergroup_requests_total{request="BROKER_HEARTBEAT",code="%s",pod="operator-0"}'
    refused = {"series": name % "NO_PERMISSION", "values": "0+60x70"}
    served = {"series": name % "SUCCESS", "values": "0+600x70"}
    judge(tmp_path, [served], "BrokerGroupRequestsRefused", [])
    judge(tmp_path, [served, refused], "BrokerGroupRequestsRefused", [{"request": "BROKER_HEARTBEAT"}])


def test_the_operator_is_missed_only_while_no_pod_answers(tmp_path: Path) -> None:
    judge(
        tmp_path,
        [{"series": 'brokergroup_build_info{version="0.1.0"}', "values": "1+0x70"}],
        "BrokerGroupOperatorDown",
        [],
    )
    judge(tmp_path, [], "BrokerGroupOperatorDown", [{}])


def test_a_single_operator_pod_is_told_of_and_three_are_not(tmp_path: Path) -> None:
    pods = [
        {"series": f'brokergroup_build_info{{version="0.1.0",pod="operator-{n}"}}', "values": "1+0x70"}
        for n in range(3)
    ]
    judge(tmp_path, pods, "BrokerGroupOperatorPodAlone", [])
    judge(tmp_path, pods[:1], "BrokerGroupOperatorPodAlone", [{}])


@pytest.mark.parametrize(("seconds", "slow"), [(3, False), (25, True)])
def test_slow_failovers_are_told_of(tmp_path: Path, seconds: int, slow: bool) -> None:
    name = "brokergroup_failover_phase_seconds"
    labels = f'{GROUP},phase="total",pod="operator-0"'
    inputs = [
        {"series": f"{name}_sum{{{labels}}}", "values": f"0+0x50 {seconds}+0x19"},
        {"series": f"{name}_count{{{labels}}}", "values": "0+0x50 1+0x19"},
    ]
    raised = [{"namespace": "shop", "cluster": "c", "broker_group": "orders"}] if slow else []
    judge(tmp_path, inputs, "BrokerGroupFailoverSlow", raised, value="25s")


@pytest.mark.parametrize(("available", "full"), [(50, False), (10, True)])
def test_a_claim_that_is_soon_full_is_told_of_where_there_are_groups(
    tmp_path: Path, available: int, full: bool
) -> None:
    claims = [
        {
            "series": f'kubelet_volume_stats_{name}_bytes{{namespace="{where}",persistentvolumeclaim="orders-1"}}',
            "values": f"{value}+0x70",
        }
        for where in ("shop", "elsewhere")
        for name, value in (("available", available), ("capacity", 100))
    ]
    inputs = [*series("brokergroup_master_epoch", "7+0x70"), *claims]
    raised = [{"namespace": "shop", "persistentvolumeclaim": "orders-1"}] if full else []
    judge(tmp_path, inputs, "BrokerGroupDiskSoonFull", raised)


def test_one_short_outage_burns_no_budget(tmp_path: Path) -> None:
    judge(tmp_path, series("brokergroup_group_writable", "1+0x30 0 1+0x39"), "BrokerGroupBudgetBurn", [])
