"""A change of any field of a BrokerGroup's spec has an effect: apache/rocketmq-operator #216 (image, resources: ignored).

For each field the table has a change, and the place of its effect: an object that the operator applies (and the pods
restart, or the object is patched), or the controller plane's settings. A field that is read only when it is needed
names the test of its effect. A field that is missing in the table fails the test.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api.brokergroup import BrokerGroup
from brokergroup_operator.api.definitions.schema import structural_schema
from brokergroup_operator.controller.directory.group_directory import binding_of
from brokergroup_operator.reconcile.render import broker_config, children, network_policies
from brokergroup_operator.reconcile.render.addressing import build_member_service
from brokergroup_operator.reconcile.render.children import build_disruption_budgets
from brokergroup_operator.reconcile.render.pods import build_pod
from tests.reconcile import builders as b
from tests.reconcile import cases as c

if TYPE_CHECKING:
    from collections.abc import Iterator

Spec = dict[str, Any]
JAVA: Spec = {"implementation": "Java"}
JAVA_LIMITED: Spec = JAVA | {"resources": {"limits": {"memory": "4Gi"}}}
FAST: Spec = {"durability": "Fast"}
COMMIT_LOG: Spec = {"storage": {"commitLog": {"size": "8Gi"}}}
TLS: Spec = {"implementation": "Java", "tls": {"certificateSecretRef": {"name": "certificate"}, "mode": "Permissive"}}
EXPORTED: Spec = {"monitoring": {"exporter": True}, "network": {"policy": {}}} | JAVA
NODE_PORT: Spec = {"network": {"addressing": "NodePort", "firstNodePort": 30000}}
SPREAD = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
# Field, new value, place of the effect, and the group's other fields.
CHANGES: list[tuple[str, Any, str, Spec]] = [
    ("brokerClusterName", "Other", "configuration", {}),  # on the disks: the API refuses a later change
    ("brokerName", "other", "configuration", {}),
    ("replicas", 5, "controller", {}),
    ("implementation", "Java", "pod", {}),
    ("version", "5.3.3", "pod", JAVA),
    ("image", "example.com/rocketmq:mine", "pod", JAVA),
    ("imagePullPolicy", "Always", "pod", {}),
    ("imagePullSecrets", [{"name": "registry"}], "pod", {}),
    ("nameServers", ["nameserver:9876"], "configuration", {}),
    ("durability", "Available", "hot", {}),
    ("replication.minInSyncReplicas", 3, "hot", {}),
    ("replication.slaveNotCatchUpSeconds", 9, "hot", {}),
    ("failover.heartbeatTimeoutMilliseconds", 5000, "controller", {}),
    ("failover.heartbeatTimeoutMilliseconds", 1500, "configuration", {}),
    ("failover.heartbeatTimeoutMilliseconds", 2000, "pod", JAVA),
    ("failover.isolation.enabled", False, "pod", JAVA),
    ("failover.delaySeconds", 60, "controller", {}),
    ("failover.uncleanElection", "Allowed", "controller", FAST),
    ("failover.electionPolicy", "preferred-zone", "controller", {}),
    ("failover.priorities", [{"brokerId": 2, "priority": 0}], "controller", {}),
    ("failover.preferredZones", ["a"], "controller", {}),
    ("security.signature", "Disabled", "controller", {}),
    ("network.policy.clientsFrom", [{"ipBlock": {"cidr": "10.0.0.0/8"}}], "network policy", {"network": {"policy": {}}}),
    ("network.policy.metricsFrom", [{"ipBlock": {"cidr": "10.0.0.0/8"}}], "network policy", EXPORTED),
    ("security.credentialsSecretRef.name", "keys", "pod", {}),
    ("security.certificateSecretRef.name", "certificate", "pod", {}),
    ("tls.mode", "Enforcing", "pod", TLS),
    ("tls.certificateSecretRef.name", "another", "pod", TLS),
    ("storage.size", "9Ti", "claim", {}),
    ("storage.commitLog.size", "9Ti", "log claim", COMMIT_LOG),
    ("storage.commitLog.storageClassName", "fast", "log claim", COMMIT_LOG),  # the API refuses a later change
    ("storage.claimTemplate.metadata.labels", {"team": "orders"}, "claim", {}),
    ("storage.claimTemplate.metadata.annotations", {"example.com/note": "a"}, "log claim", COMMIT_LOG),
    ("storage.ephemeral.sizeLimit", "2Gi", "pod", {"storage": {"ephemeral": {"sizeLimit": "1Gi"}}}),
    ("storage.storageClassName", "fast", "claim", {}),  # the API refuses a later change
    ("config", {"maxMessageSize": "1000"}, "configuration", {}),
    ("localProxy.config", {"maxMessageSize": "1024"}, "configuration", JAVA | {"localProxy": {}}),
    ("resources.requests", {"cpu": "1"}, "pod", {}),
    ("resources.limits", {"memory": "4Gi"}, "pod", {}),
    ("jvm.heapPercent", 40, "pod", JAVA_LIMITED),
    ("jvm.directMemoryPercent", 20, "pod", JAVA_LIMITED),
    ("jvm.extraArguments", ["-Dmine=1"], "pod", JAVA),
    ("network.addressing", "HostNetwork", "pod", {}),  # the API refuses a later change of this and of the ports
    ("network.firstNodePort", 31000, "member service", NODE_PORT),
    ("network.ipFamilies", ["IPv6"], "pod", {}),  # the API refuses a later change of the first one
    ("network.ipFamilyPolicy", "PreferDualStack", "member service", NODE_PORT),
    ("network.listenPort", 20911, "pod", {}),
    ("network.haPort", 20912, "pod", {}),
    ("monitoring.exporter", True, "pod", JAVA),
    ("monitoring.port", 5000, "pod", JAVA | {"monitoring": {"exporter": True}}),
    ("antiAffinity.type", "Required", "pod", {}),
    ("antiAffinity.topologyKey", "topology.kubernetes.io/zone", "pod", {}),
    ("podTemplate.spec.nodeSelector", {"disk": "fast"}, "pod", {}),
    ("podTemplate.spec.tolerations", [{"key": "rocketmq", "operator": "Exists"}], "pod", {}),
    ("podTemplate.spec.affinity", {"podAffinity": {}}, "pod", {}),
    ("podTemplate.spec.topologySpreadConstraints", [SPREAD], "pod", {}),
    ("podTemplate.spec.priorityClassName", "high", "pod", {}),
    ("podTemplate.metadata.labels", {"team": "shop"}, "pod", {}),
    ("podTemplate.metadata.annotations", {"team": "shop"}, "pod", {}),
    ("podTemplate.spec.containers", [{"name": "shipper", "image": "s:1"}], "pod", {}),
    ("podTemplate.spec.broker.env", [{"name": "A", "value": "b"}], "pod", {}),
    ("podTemplate.spec.broker.volumeMounts", [{"name": "spool", "mountPath": "/spool"}], "pod", {}),
    ("podTemplate.spec.broker.readinessProbe.periodSeconds", 2, "pod", {}),
    ("podTemplate.spec.broker.readinessProbe.timeoutSeconds", 2, "pod", {}),
    ("podTemplate.spec.broker.readinessProbe.failureThreshold", 5, "pod", {}),
    ("podTemplate.spec.broker.livenessProbe.periodSeconds", 30, "pod", {}),
    ("podTemplate.spec.broker.livenessProbe.timeoutSeconds", 30, "pod", {}),
    ("podTemplate.spec.broker.livenessProbe.failureThreshold", 5, "pod", {}),
    ("podTemplate.spec.initContainers", [{"name": "prepare", "image": "p:1"}], "pod", {}),
    ("podTemplate.spec.volumes", [{"name": "spool", "emptyDir": {}}], "pod", {}),
    ("podTemplate.spec.hostAliases", [{"ip": "10.0.0.1", "hostnames": ["a"]}], "pod", {}),
    ("podTemplate.spec.dnsConfig", {"searches": ["a"]}, "pod", {}),
    ("podTemplate.spec.runtimeClassName", "gvisor", "pod", {}),
    ("podTemplate.spec.schedulerName", "mine", "pod", {}),
    ("podTemplate.spec.serviceAccountName", "mine", "pod", {}),
    ("maintenance.hibernated", True, "controller", {}),
    ("terminationGracePeriodSeconds", 77, "pod", {}),
]  # fmt: skip
# Read only when needed, with a separate test: path of the file, name of the test.
AT_THEIR_MOMENT = {
    "configFrom": ("tests/reconcile/test_configuration.py", "test_a_change_of_a_cold_key_is_another_configuration"),
    "disruptionBudget.enabled": ("tests/reconcile/test_failover_safe.py", "test_budgets_can_be_switched_off"),
    "replication.learners": ("tests/reconcile/test_membership.py", "test_next_step_with_learners"),
    "failover.preferredMaster": ("tests/reconcile/test_failover_safe.py", "test_next_step"),
    "storage.retention.whenDeleted": ("tests/reconcile/test_membership.py", "test_deleted_claims_take_the_record_with_them_last"),
    "storage.retention.whenScaled": ("tests/reconcile/test_membership.py", "test_next_step"),
    "bootstrap.fromBackup.claim.name": ("tests/reconcile/test_backups.py", "test_a_new_group_begins_with_its_backup_step_by_step"),
    "bootstrap.fromBackup.claim.folder": ("tests/reconcile/test_backups.py", "test_why_it_cannot_begin"),
    "bootstrap.fromBackup.snapshot.name": (
        "tests/reconcile/test_from_snapshots.py", "test_each_claim_is_made_from_its_snapshot_and_then_adopted",
    ),
    "updateStrategy.type": ("tests/reconcile/test_rollout.py", "test_next_step"),
    "updateStrategy.masterUpdate": ("tests/reconcile/test_rollout.py", "test_next_step"),
    "updateStrategy.windows": ("tests/reconcile/test_windows.py", "test_what_waits_for_the_window"),
    "slo.availabilityPercent": ("tests/sla/test_objectives.py", "test_open_slo_documents_and_broker_groups_are_read"),
    "slo.window": ("tests/sla/test_objectives.py", "test_open_slo_documents_and_broker_groups_are_read"),
    "slo.timeZone": ("tests/sla/test_objectives.py", "test_open_slo_documents_and_broker_groups_are_read"),
    "monitoring.canary.enabled": ("tests/e2e/test_canary.py", "test_an_incident_has_the_first_write_that_a_client_saw"),
    "maintenance.paused": ("tests/reconcile/test_rollout.py", "test_what_waits_for_a_person_is_said"),
    **dict.fromkeys(
        ("tls.trustBundleRef.name", "tls.trustBundleRef.key"),
        ("tests/reconcile/test_rotation.py", "test_a_group_takes_the_new_authority_beside_the_old_one_and_then_alone"),
    ),
    "maintenance.stoppedBrokers": ("tests/reconcile/test_stopping.py", "test_the_order_is_given_to_the_pod_that_was_seen"),
}  # fmt: skip


def leaves(schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """Return every field with a value: `failover.isolation.enabled`."""
    properties = schema.get("properties")
    if not properties:
        yield path
        return
    for name, child in properties.items():
        yield from leaves(child, f"{path}.{name}" if path else name)


def seen_in(spec: Spec) -> dict[str, str]:
    """Return everything that derives from a spec, by its place."""
    of, member = b.group(**spec), b.member(1)
    pod = build_pod(of, member, b.SETTINGS)
    values = {
        "pod": pod["spec"] | {"metadata": {**pod["metadata"], "annotations": None, "template": _own(pod)}},
        "configuration": pod["metadata"]["annotations"]["brokergroup.dev/config-hash"],
        "hot": broker_config.hot_values(of, b.SETTINGS),
        "claim": children.build_claim(of, member),
        "log claim": children.build_commit_log_claim(of, member) if of.spec.storage.commit_log else None,
        "budgets": build_disruption_budgets(of, open_for_one=True),
        "network policy": network_policies.of_group(of, b.SETTINGS),
        "controller": str(binding_of(b.group_object(**spec))),
        "member service": build_member_service(of, member, slot=0) if of.spec.network.first_node_port else None,
    }
    return {place: json.dumps(value, sort_keys=True) for place, value in values.items()}


def _own(pod: dict[str, Any]) -> dict[str, str]:
    return {key: text for key, text in pod["metadata"]["annotations"].items() if "brokergroup.dev" not in key}


def with_value(base: Spec, field: str, value: Any) -> Spec:
    """Return the spec with one field changed, at any depth."""
    name, _, rest = field.partition(".")
    return base | {name: with_value(base.get(name, {}), rest, value) if rest else value}


@pytest.mark.parametrize(("field", "value", "place", "base"), CHANGES, ids=[case[0] for case in CHANGES])
def test_issue_216_a_change_of_a_field_shows(field: str, value: Any, place: str, base: Spec) -> None:
    """apache/rocketmq-operator #216: changes of image, resources and more were ignored once the StatefulSet existed."""
    changed = with_value(base, field, value)
    assert seen_in(base)[place] != seen_in(changed)[place]
    if place in {"pod", "configuration"}:
        outdated = c.course(c.wishing(c.settled(**base), **changed)).outdated
        assert [item.member.pod for item in outdated] == ["orders-1", "orders-2", "orders-3"]


def test_issue_216_no_field_is_left_out() -> None:
    """apache/rocketmq-operator #216: a new field must be in one of the two tables."""
    fields = set(leaves(structural_schema(BrokerGroup)["properties"]["spec"]))
    assert {case[0] for case in CHANGES} | AT_THEIR_MOMENT.keys() == fields
    assert not {case[0] for case in CHANGES} & AT_THEIR_MOMENT.keys()
