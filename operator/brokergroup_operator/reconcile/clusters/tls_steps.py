"""With which TLS all parts of a cluster are made now, on the way to the wanted one.

A NameServer that enforces TLS would shut out a broker that connects without; a broker that verifies would leave one without a
certificate. So all parts move by one step, and only while every pod understands it (api/tls_steps.py). The authorities that
parts trust are copied into a ConfigMap of the cluster: a change of the one that the spec names reaches no part before its turn.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec.structs import replace

from brokergroup_operator.api import names
from brokergroup_operator.api.tls_fields import TlsMode, TlsSpec
from brokergroup_operator.api.tls_steps import STEPS, Made, Trust, made_of, next_tls
from brokergroup_operator.kube.pods import is_over, label_of
from brokergroup_operator.kube.resources import CONFIG_MAPS, PODS
from brokergroup_operator.reconcile.clusters import parts
from brokergroup_operator.reconcile.decide.tls_order import aim_of, lost_file, made_with, told
from brokergroup_operator.reconcile.render.tls import trust_files
from brokergroup_operator.reconcile.see import bundles, lost_bundles
from brokergroup_operator.records.kubernetes import GroupObjects
from brokergroup_operator.records.store import GroupKey

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.rocketmq_cluster import RocketMQCluster
    from brokergroup_operator.kube.client import KubernetesApi
    from brokergroup_operator.reconcile.see.bundles import Servers
    from brokergroup_operator.reconcile.settings import ReconcileSettings


@dataclass(frozen=True)
class TlsStep:
    """`now` is what pods are made with; `waits_for` names the pods that hold the next step up, and with what each was made."""

    now: TlsSpec | None = None
    waits_for: tuple[str, ...] = ()
    # The operator serves no TLS, so that brokers with TLS would not be heard.
    is_refused: bool = False
    # What is wanted in the end.
    aim: Made = Made()  # noqa: RUF009 (frozen)
    # Why the bundle that the spec names is given to no part yet; empty: it may be.
    held: str = ""
    # What the cluster's ConfigMap of bundles holds, by file.
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_under_way(self) -> bool:
        return made_with(self.now) != self.aim or bool(self.held or self.waits_for)

    @property
    def lost(self) -> str:
        """The file of authorities that pods made now would read, and whose text the operator has no more; empty: there is none."""
        return lost_file(self.now)


@dataclass(frozen=True)
class TlsSteps:
    """Decides it for each pass. It lists pods while a part is made with something else than the wanted one, or for a bundle."""

    api: KubernetesApi
    settings: ReconcileSettings
    servers: Servers

    async def step(
        self, key: GroupKey, cluster: RocketMQCluster, made: Sequence[JsonObject], stored: JsonObject | None
    ) -> TlsStep:
        """`made`: the StatefulSet, the Deployment and the BrokerGroups that are there; `stored`: the ConfigMap of bundles."""
        wanted = cluster.spec.tls
        found = await self._found(key, wanted)
        bundle, problem = await bundles.read(wanted, found)
        rendered = [mode_made_with(one) for one in made]
        if wanted is not None and not self.settings.controller_tls:
            found_again = await lost_bundles.with_lost(self.api, key.namespace, stored, rendered, "")
            return _as_it_is(wanted, rendered, _files(found_again))
        aim = aim_of(wanted, bundle)
        if all(one == aim for one in rendered) and not _has_bundle(wanted) and not _files(stored):
            return TlsStep(wanted, aim=aim)
        pods = await self._pods(key, [str(one["metadata"]["name"]) for one in made])
        present = [*rendered, *map(made_of, pods)]
        kept = stored
        if _has_bundle(wanted):
            kept = await lost_bundles.with_lost(self.api, key.namespace, stored, present, bundle)
        trust = await bundles.trust_of(
            wanted,
            bundle,
            problem=problem,
            made=present,
            pods=pods,
            kept=kept,
            servers=self.servers,
            addresses=(),
            controllers=self.settings.controller_addresses,
        )
        return next_step(wanted, rendered, pods, trust)

    async def _found(self, key: GroupKey, wanted: TlsSpec | None) -> dict[str, JsonObject]:
        """The ConfigMap that the spec names, by its name."""
        if wanted is None or wanted.trust_bundle_ref is None:
            return {}
        name = wanted.trust_bundle_ref.name
        objects = GroupObjects(self.api, timeout_seconds=self.settings.api_timeout_seconds)
        found = await objects.find(CONFIG_MAPS, GroupKey(key.namespace, name))
        return {} if found is None else {name: found}

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
    wanted: TlsSpec | None, rendered: Sequence[Made], pods: Sequence[JsonObject], trust: Trust | None = None
) -> TlsStep:
    """Pure. `rendered`: with what pods may still be made by what is there."""
    trust = trust or Trust()
    present = [*rendered, *map(made_of, pods)]
    now, aim = next_tls(wanted, present, trust), aim_of(wanted, trust.wanted)
    made = made_with(now)
    waits = [f"{pod['metadata']['name']} ({told(made_of(pod), aim.secret)})" for pod in pods if made_of(pod) != made]
    read = {one.trusts for one in present}
    files = {name: text for name, text in trust.kept.items() if name in read} | trust_files(now)
    # With a bundle each pod counts: only when the last one trusts it may the user go on.
    # A server that is silent by the change itself does not hold it.
    held = "" if trust.is_silence and made == aim else trust.why_held
    is_behind = made != aim or bool(held) or _has_bundle(wanted)
    return TlsStep(now, tuple(sorted(waits)) if is_behind else (), aim=aim, held=held, files=files)


def _files(stored: JsonObject | None) -> dict[str, str]:
    return {name: str(text) for name, text in ((stored or {}).get("data") or {}).items()}


def _has_bundle(wanted: TlsSpec | None) -> bool:
    return wanted is not None and wanted.trust_bundle_ref is not None


def _as_it_is(wanted: TlsSpec, rendered: Sequence[Made], kept: Mapping[str, str]) -> TlsStep:
    """While the operator serves no TLS: what runs keeps what it has."""
    there = max(rendered, key=lambda one: STEPS.index(one.mode), default=Made())
    is_lost = bool(there.trusts) and there.trusts not in kept
    trust = Trust(wanted=kept.get(there.trusts, ""), why_held="its text is lost" if is_lost else "", kept=kept)
    now = next_tls(replace(wanted, mode=there.mode), [there], trust) if there.mode is not None else None
    return TlsStep(now, is_refused=True, aim=aim_of(wanted, trust.wanted), files=kept)


def with_step(cluster: RocketMQCluster, step: TlsStep) -> RocketMQCluster:
    """The cluster as its parts are made now."""
    return cluster if step.now == cluster.spec.tls else replace(cluster, spec=replace(cluster.spec, tls=step.now))


def mode_made_with(part: JsonObject) -> Made:
    """With what this StatefulSet, Deployment or BrokerGroup makes its pods."""
    spec = part.get("spec") or {}
    if "template" in spec:
        return made_of(spec["template"])
    tls = spec.get("tls")
    if not tls:
        return Made()
    secret = str((tls.get("certificateSecretRef") or {}).get("name") or "")
    trusts = str((tls.get("trustBundleRef") or {}).get("key") or "")
    return Made(TlsMode(tls.get("mode", TlsMode.PERMISSIVE.value)), secret, trusts)
