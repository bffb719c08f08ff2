"""The fences' key: one Secret a group, made before the pods that mount it, and in no container but the fence's."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.api.pod_fence import FenceKeys
from brokergroup_operator.reconcile.evaluate import evaluate
from brokergroup_operator.reconcile.plan import ApplyObject, MakeSecret
from brokergroup_operator.reconcile.render.pods import build_pod
from tests.reconcile import builders as b

if TYPE_CHECKING:
    from brokergroup_operator.reconcile.plan import Action
    from brokergroup_operator.reconcile.settings import ReconcileSettings

KEYS = FenceKeys(b"r" * 32)
SIGNED = replace(b.SETTINGS, fence_keys=KEYS)
IMPLEMENTATIONS = ("Java", "Python")


def actions(settings: ReconcileSettings, **spec: Any) -> tuple[Action, ...]:
    """Of a pass in which two pods are missing."""
    seen = b.settled(**spec)
    return evaluate(b.changed(seen, pods=b.without(seen.pods, "orders-2", "orders-3")), settings, now=b.NOW).actions


def containers(of: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {item["name"]: item for item in of["spec"]["containers"]}


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_only_the_fences_container_mounts_the_key_and_hears_orders(implementation: str) -> None:
    both = containers(build_pod(b.group(implementation=implementation), b.member(2), SIGNED))
    fence, broker = both[names.CONTAINER_FENCE], both[names.CONTAINER_BROKER]
    mounted = [one["name"] for one in fence["volumeMounts"]]
    told = {entry["name"]: entry.get("value") for entry in fence["env"]}
    assert names.VOLUME_FENCE_KEY in mounted
    assert names.VOLUME_FENCE_KEY not in [one["name"] for one in broker["volumeMounts"]]
    assert told["FENCE_KEY_FILE"] == "/etc/brokergroup/fence/key"
    assert told["FENCE_LOCAL_ADDRESS"] == "$(POD_IP):10911"
    assert fence["ports"] == [{"name": names.PORT_FENCE, "containerPort": 10913, "protocol": "UDP"}]
    # What a variable refers to stands before it.
    assert list(told).index("POD_IP") < list(told).index("FENCE_LOCAL_ADDRESS")


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_the_key_that_is_mounted_is_the_one_that_the_operator_uses(implementation: str) -> None:
    group = b.group(implementation=implementation)
    pod = build_pod(group, b.member(2), SIGNED)
    [made] = [one for one in actions(SIGNED, implementation=implementation) if isinstance(one, MakeSecret)]
    secret = made.object
    [mounted] = [one["secret"] for one in pod["spec"]["volumes"] if one["name"] == names.VOLUME_FENCE_KEY]
    assert mounted["secretName"] == secret["metadata"]["name"]
    assert KEYS.key_in(pod) == bytes.fromhex(base64.b64decode(secret["data"]["key"]).decode())
    assert secret["metadata"]["ownerReferences"][0]["uid"] == "group-uid"
    assert FenceKeys(b"q" * 32).key_in(pod) is None, "a fence with another root's key is not asked"
    assert secret["data"]["key"] not in repr(made)


def test_the_secret_is_made_before_a_pod_and_only_where_one_is_missing() -> None:
    kinds = [one.resource.kind if isinstance(one, ApplyObject) else type(one).__name__ for one in actions(SIGNED)]
    assert kinds.index("MakeSecret") < kinds.index("Pod")
    assert kinds.count("MakeSecret") == 1
    settled = evaluate(b.settled(), SIGNED, now=b.NOW).actions
    assert not any(isinstance(one, MakeSecret) for one in settled)


@pytest.mark.parametrize(
    ("settings", "spec"),
    [(b.SETTINGS, {}), (SIGNED, {"failover": {"isolation": {"enabled": False}}})],
    ids=["no key", "no fence"],
)
def test_without_a_key_or_a_fence_there_is_no_secret(settings: Any, spec: dict[str, Any]) -> None:
    group = b.group(**spec)
    assert not any(isinstance(one, MakeSecret) for one in actions(settings, **spec))
    pod = build_pod(group, b.member(2), settings)
    assert names.VOLUME_FENCE_KEY not in [one["name"] for one in pod["spec"]["volumes"]]
