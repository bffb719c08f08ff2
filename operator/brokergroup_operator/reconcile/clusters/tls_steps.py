"""Which mode of spec.tls all parts of a cluster are made with now, on the way to the wanted one.

A NameServer that enforces TLS would shut out a broker that connects without; a broker that verifies would leave one without a
certificate. So the mode of all parts moves by one step, and only while every pod is at most one step from it (api/tls_fields.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from brokergroup_operator.api import names
from brokergroup_operator.api.pod_fields import LocalReference
from brokergroup_operator.api.tls_fields import STEPS, TlsMode, TlsSpec, mode_of, next_mode, secret_of
from brokergroup_operator.kube.pods import is_over, label_of
from brokergroup_operator.kube.resources import PODS
from brokergroup_operator.reconcile.clusters import parts

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.rocketmq_cluster import RocketMQCluster
    from brokergroup_operator.kube.client import KubernetesApi
    from brokergroup_operator.reconcile.settings import ReconcileSettings
    from brokergroup_operator.records.store import GroupKey


@dataclass(frozen=True)
class TlsStep:
    """`now` is what pods are made with; `waits_for` names the pods that hold the next step up."""

    now: TlsSpec | None = None
    waits_for: tuple[str, ...] = ()
    # The operator serves no TLS, so that brokers with TLS would not be heard.
    is_refused: bool = False


@dataclass(frozen=True)
class TlsSteps:
    """Decides it for each pass. It lists pods only while a part is made with another mode than the wanted one."""

    api: KubernetesApi
    settings: ReconcileSettings

    async def step(self, key: GroupKey, cluster: RocketMQCluster, made: Sequence[JsonObject]) -> TlsStep:
        """`made`: the StatefulSet, the Deployment and the BrokerGroups that are there."""
        wanted = cluster.spec.tls
        rendered = [mode_made_with(one) for one in made]
        is_refused = wanted is not None and not self.settings.controller_tls
        if wanted is not None and is_refused:
            # What runs keeps its mode.
            mode = max(rendered, key=STEPS.index, default=None)
            return TlsStep(replace(wanted, mode=mode) if mode is not None else None, is_refused=True)
        if all(mode == (wanted.mode if wanted is not None else None) for mode in rendered):
            return TlsStep(wanted)
        pods = await self._pods(key, [str(one["metadata"]["name"]) for one in made])
        return next_step(wanted, rendered, pods, _secret_made_with(made))

    async def _pods(self, key: GroupKey, made: Iterable[str]) -> list[JsonObject]:
        """Those of NameServers, proxies and members that may still run."""
        found: list[JsonObject] = []
        groups = {name for name in made if parts.is_group(key.name, name)}
        for label, values in ((names.LABEL_ROCKETMQ_CLUSTER, {key.name}), (names.LABEL_BROKER_GROUP, groups)):
            listed = await self.api.list(
                PODS, namespace=key.namespace, label_selector=label, timeout_seconds=self.settings.api_timeout_seconds
            )
            found += [pod for pod in listed.items if label_of(pod, label) in values and not is_over(pod)]
        return found


def next_step(
    wanted: TlsSpec | None,
    rendered: Iterable[TlsMode | None],
    pods: Sequence[JsonObject],
    secret: str,
) -> TlsStep:
    """Pure. `rendered`: the modes with which pods may still be made by what is there; `secret`: what they mount."""
    present = {*rendered, *map(mode_of, pods)}
    aim = wanted.mode if wanted is not None else None
    mode = next_mode(aim, present)
    waits = [] if mode == aim else sorted(str(pod["metadata"]["name"]) for pod in pods if mode_of(pod) != mode)
    if mode is None:
        return TlsStep(None, tuple(waits))
    name = wanted.certificate_secret_ref.name if wanted is not None else secret
    return TlsStep(TlsSpec(certificate_secret_ref=LocalReference(name=name), mode=mode), tuple(waits))


def with_step(cluster: RocketMQCluster, step: TlsStep) -> RocketMQCluster:
    """The cluster as its parts are made now."""
    return cluster if step.now == cluster.spec.tls else replace(cluster, spec=replace(cluster.spec, tls=step.now))


def mode_made_with(part: JsonObject) -> TlsMode | None:
    """Return the mode that this StatefulSet, Deployment or BrokerGroup gives its pods."""
    spec = part.get("spec") or {}
    if "template" in spec:
        return mode_of({"metadata": (spec["template"].get("metadata") or {})})
    text = (spec.get("tls") or {}).get("mode", TlsMode.PERMISSIVE.value if spec.get("tls") else None)
    return TlsMode(text) if text else None


def _secret_made_with(made: Iterable[JsonObject]) -> str:
    for part in made:
        spec = part.get("spec") or {}
        given = ((spec.get("tls") or {}).get("certificateSecretRef") or {}).get("name")
        if name := given or secret_of(spec.get("template") or {}):
            return str(name)
    return ""
