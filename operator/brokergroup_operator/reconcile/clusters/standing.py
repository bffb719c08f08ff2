"""How a cluster is: its status from what its parts say of themselves. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup_status import ConditionStatus, ConditionType, Reason
from brokergroup_operator.api.proxy_fields import GRPC_PORT
from brokergroup_operator.api.rocketmq_cluster import ClientAddresses, ClusterStatus, GroupSummary, PartStatus
from brokergroup_operator.reconcile.clusters import parts
from brokergroup_operator.reconcile.clusters.master_looks import Standing
from brokergroup_operator.reconcile.clusters.tls_steps import TlsStep, mode_made_with
from brokergroup_operator.reconcile.clusters.users import UsersStanding
from brokergroup_operator.reconcile.decide.tls_order import made_with, told
from brokergroup_operator.reconcile.plan import no, yes
from brokergroup_operator.reconcile.see import observed
from brokergroup_operator.reconcile.tell.conditions import conditions_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.brokergroup_status import Condition
    from brokergroup_operator.api.rocketmq_cluster import RocketMQCluster
    from brokergroup_operator.reconcile.plan import Verdict


class ClusterCondition(StrEnum):
    READY = "Ready"
    AVAILABLE = "Available"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"


class ClusterReason(StrEnum):
    ALL_READY = "AllReady"
    SERVING = "Serving"
    NAME_SERVERS_PENDING = "NameServersPending"
    PROXIES_PENDING = "ProxiesPending"
    GROUPS_PENDING = "GroupsPending"
    DELETING = "Deleting"
    NOT_OURS = "NotOurs"
    REFUSED = "Refused"
    VERSION_REFUSED = "VersionRefused"
    GROUPS_BEYOND_COUNT = "GroupsBeyondCount"
    TOPICS_PENDING = "TopicsPending"
    TOPIC_DIFFERS = "TopicDiffers"
    CONSUMER_GROUPS_PENDING = "ConsumerGroupsPending"
    USERS_PENDING = "UsersPending"
    USER_DIFFERS = "UserDiffers"
    TLS_PENDING = "TlsPending"
    OPERATOR_WITHOUT_TLS = "OperatorWithoutTls"
    AUTHORITIES_HELD = "AuthoritiesHeld"
    NOTHING_TO_DO = "NothingToDo"


# Why a cluster is not Ready although every part is: a declared topic, consumer group or user is missing. Stalled has a reason of
# the second row where a person must decide about one.
_DECLARED = (ClusterReason.TOPICS_PENDING, ClusterReason.CONSUMER_GROUPS_PENDING, ClusterReason.USERS_PENDING)
_DIFFERS = (ClusterReason.TOPIC_DIFFERS, ClusterReason.USER_DIFFERS)
_HOLDS_TLS = (ClusterReason.OPERATOR_WITHOUT_TLS, ClusterReason.AUTHORITIES_HELD)
# Reasons of a group's UpToDate by which it is outdated because its spec wants it so.
_BY_ITS_SPEC = (Reason.OUTSIDE_WINDOW, Reason.WAITING_FOR_PERSON)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A cluster and what there is of it. Groups by name, those beyond count too."""

    cluster: RocketMQCluster
    cluster_object: JsonObject
    name_servers: JsonObject | None = None
    proxies: JsonObject | None = None
    groups: Mapping[str, JsonObject] = field(default_factory=dict)
    # Objects that have a name of ours and are not the cluster's, each as kind and name.
    strangers: tuple[str, ...] = ()
    # What the API server refused in this pass.
    refusals: tuple[str, ...] = ()
    topics: Standing = field(default_factory=Standing)
    consumer_groups: Standing = field(default_factory=Standing)
    users: UsersStanding = field(default_factory=UsersStanding)
    # Why passwords of declared users, or the brokers' own key, can't be had.
    password_problems: tuple[str, ...] = ()
    # Brokers that served without checks go on so until the passwords can be had.
    acl_held_back: bool = False
    # The groups that are not up to date, while proxies keep their image for them (order.py).
    proxies_wait_for: tuple[str, ...] = ()
    # Why spec.version may not run here.
    version_refused: str = ""
    tls: TlsStep = field(default_factory=TlsStep)


def status_of(seen: Seen, *, now: str) -> ClusterStatus:
    """The whole status. Equal to the present one, but for no times, where nothing has changed."""
    cluster = seen.cluster
    name, namespace = str(cluster.metadata["name"]), str(cluster.metadata["namespace"])
    servers = _pods(seen.name_servers, cluster.spec.name_server.replicas)
    proxies = None if cluster.spec.proxy is None else _pods(seen.proxies, cluster.spec.proxy.replicas)
    groups = [_summary(found) for _, found in sorted(seen.groups.items(), key=_by_index)]
    wanted = [one for one in groups if one.name not in beyond_count(seen)]
    ready = sum(one.ready == ConditionStatus.TRUE for one in wanted)
    return ClusterStatus(
        observed_generation=int(cluster.metadata.get("generation", 0)),
        name_servers=servers,
        broker_groups=_part(cluster.spec.broker_groups.count, ready),
        proxies=proxies,
        topics=_part(seen.topics.desired, seen.topics.ready) if cluster.spec.topics else None,
        consumer_groups=(
            _part(seen.consumer_groups.desired, seen.consumer_groups.ready) if cluster.spec.consumer_groups else None
        ),
        users=_part(seen.users.users, seen.users.ready_users) if cluster.spec.acl is not None else None,
        policies=_part(seen.users.policies, seen.users.ready_policies) if cluster.spec.acl is not None else None,
        clients=ClientAddresses(
            name_server=f"{parts.name_server_name(name)}.{namespace}.svc:{parts.NAME_SERVER_PORT}",
            proxy=_proxy_address(cluster),
        ),
        groups=groups,
        conditions=_conditions(seen, servers, proxies, wanted, now=now),
    )


def _proxy_address(cluster: RocketMQCluster) -> str | None:
    """The proxies' own Service; without them the first group's masters, whose Proxy sends clients on to the other groups'."""
    name, namespace = str(cluster.metadata["name"]), str(cluster.metadata["namespace"])
    if cluster.spec.proxy is not None:
        service = parts.proxy_name(name)
    elif cluster.spec.broker_groups.template.local_proxy is not None:
        service = names.master_service_name(names.group_of_cluster(name, 0))
    else:
        return None
    return f"{service}.{namespace}.svc:{GRPC_PORT}"


def beyond_count(seen: Seen) -> list[str]:
    cluster = seen.cluster
    wanted = parts.group_names(str(cluster.metadata["name"]), cluster.spec.broker_groups.count)
    return sorted(name for name in seen.groups if name not in wanted)


def is_settled(seen: Seen, status: ClusterStatus) -> bool:
    """Whether nothing is waited for but, where every part is ready, a person."""
    found = {one.type: one for one in status.conditions or ()}
    ready, stalled = found[ClusterCondition.READY], found[ClusterCondition.STALLED]
    if ready.status == ConditionStatus.TRUE or ready.reason == stalled.reason:
        return True
    if ready.reason == ClusterReason.TLS_PENDING and stalled.reason in _HOLDS_TLS:
        return True
    pending = (*seen.topics.pending, *seen.consumer_groups.pending, *seen.users.pending)
    return ready.reason in _DECLARED and stalled.reason in _DIFFERS and not pending


def _conditions(
    seen: Seen, servers: PartStatus, proxies: PartStatus | None, groups: list[GroupSummary], *, now: str
) -> list[Condition]:
    stalled = _stalled(seen)
    parts = _ready(seen, servers, proxies, groups)
    under_way = not parts.holds and not stalled.holds
    # Of two that are True kstatus takes one, and `kubectl wait` the other.
    ready = no(stalled.reason, stalled.message) if stalled.holds and parts.holds else parts
    judged = {
        ClusterCondition.READY: ready,
        ClusterCondition.AVAILABLE: _available(seen, servers, proxies, groups),
        ClusterCondition.RECONCILING: (yes if under_way else no)(parts.reason, parts.message),
        ClusterCondition.STALLED: stalled,
    }
    return conditions_of(seen.cluster_object, judged.items(), now=now)


def _ready(seen: Seen, servers: PartStatus, proxies: PartStatus | None, groups: list[GroupSummary]) -> Verdict:
    if "deletionTimestamp" in seen.cluster.metadata:
        return no(ClusterReason.DELETING, "The cluster is being deleted")
    if servers.ready < servers.desired:
        return no(ClusterReason.NAME_SERVERS_PENDING, f"{servers.summary} NameServers are ready")
    pending = [one.name for one in groups if one.ready != ConditionStatus.TRUE]
    count = seen.cluster.spec.broker_groups.count
    if pending or len(groups) < count:
        named = f": {', '.join(pending)}" if pending else ""
        return no(ClusterReason.GROUPS_PENDING, f"{len(groups) - len(pending)}/{count} groups are ready{named}")
    if proxies is not None and proxies.ready < proxies.desired:
        return no(ClusterReason.PROXIES_PENDING, f"{proxies.summary} proxies are ready")
    return _changing(seen) or _declared(seen) or _whole(seen, servers, proxies)


def _changing(seen: Seen) -> Verdict | None:
    """Which part waits for others with its change; None: none does."""
    if seen.tls.is_under_way:
        return no(ClusterReason.TLS_PENDING, _tls_pending(seen))
    if any(not _why_it_may_wait(seen, name) for name in seen.proxies_wait_for):
        told = f"Proxies keep their image until every group is UpToDate: {', '.join(seen.proxies_wait_for)}"
        return no(ClusterReason.PROXIES_PENDING, told)
    return None


def _why_it_may_wait(seen: Seen, name: str) -> str:
    """Return why the group's own spec lets it be outdated, perhaps for days: it waits for a window or a person; else empty."""
    group = seen.groups.get(name, {})
    is_current = (group.get("status") or {}).get("observedGeneration") == observed.generation(group) if group else False
    reason = str(observed.condition_in(group, ConditionType.UP_TO_DATE).get("reason", ""))
    return reason if is_current and reason in _BY_ITS_SPEC else ""


def _whole(seen: Seen, servers: PartStatus, proxies: PartStatus | None) -> Verdict:
    """Every part is there, ready and as declared, but for images that wait for groups which wait by their own spec."""
    count = seen.cluster.spec.broker_groups.count
    told = f"{servers.desired} NameServers, {count} groups, {proxies.desired if proxies else 0} proxies are ready"
    if waited_for := [f"{name} is UpToDate ({_why_it_may_wait(seen, name)})" for name in seen.proxies_wait_for]:
        told += f"; proxies keep their image until {', '.join(waited_for)}"
    return yes(ClusterReason.ALL_READY, told)


def _tls_pending(seen: Seen) -> str:
    aim, now = seen.tls.aim, made_with(seen.tls.now)
    left = (name for name in beyond_count(seen) if mode_made_with(seen.groups[name]) != now)
    holding_up = [*seen.tls.waits_for, *(f"{name} (a group beyond count)" for name in left)]
    waits = f", and waits for {', '.join(holding_up)}" if holding_up else ""
    held = f". The authorities stay as they are: {seen.tls.held}" if seen.tls.held else ""
    return f"spec.tls is on its way to {told(aim)}: all parts are made with {told(now, aim.secret)}{waits}{held}"


def _declared(seen: Seen) -> Verdict | None:
    """What of the declared topics, consumer groups and users is not there yet; None: nothing."""
    groups = seen.consumer_groups
    if groups.ready < groups.desired:
        told = f"{groups.ready}/{groups.desired} consumer groups are in every group: {'; '.join(groups.pending)}"
        return no(ClusterReason.CONSUMER_GROUPS_PENDING, told)
    if seen.topics.ready < seen.topics.desired:
        why = "; ".join((*seen.topics.pending, *seen.topics.differing))
        told = f"{seen.topics.ready}/{seen.topics.desired} topics are in every group: {why}"
        return no(ClusterReason.TOPICS_PENDING, told)
    if seen.users.ready_users < seen.users.users or seen.users.pending:
        why = "; ".join((*seen.users.pending, *seen.users.differing, *seen.password_problems))
        told = f"{seen.users.ready_users}/{seen.users.users} users are at every broker: {why}"
        return no(ClusterReason.USERS_PENDING, told)
    return None


def _available(seen: Seen, servers: PartStatus, proxies: PartStatus | None, groups: list[GroupSummary]) -> Verdict:
    """Clients find every group and can write to it."""
    if not servers.ready:
        return no(ClusterReason.NAME_SERVERS_PENDING, "No NameServer is ready: clients find no broker")
    away = [one.name for one in groups if one.available != ConditionStatus.TRUE]
    if away or len(groups) < seen.cluster.spec.broker_groups.count:
        return no(ClusterReason.GROUPS_PENDING, f"Groups that take no writes: {', '.join(away) or 'not made yet'}")
    if proxies is not None and proxies.desired and not proxies.ready:
        return no(ClusterReason.PROXIES_PENDING, "No Proxy is ready: clients of the gRPC protocol cannot connect")
    return yes(ClusterReason.SERVING, "Every group takes writes")


def _stalled(seen: Seen) -> Verdict:  # noqa: PLR0911 (one return per reason)
    if seen.strangers:
        told = (
            f"There already, and not this cluster's: {', '.join(seen.strangers)}. Delete or rename them, or the cluster"
        )
        return yes(ClusterReason.NOT_OURS, told)
    if seen.refusals:
        return yes(ClusterReason.REFUSED, f"The API server refused: {'; '.join(seen.refusals)}")
    if seen.version_refused:
        return yes(ClusterReason.VERSION_REFUSED, seen.version_refused)
    if seen.tls.is_refused:
        told = (
            "spec.tls is given, and this operator's controllers speak no TLS (--tls-certificate; chart: security.tls): brokers with"
            " TLS would not be heard, so no part is changed to it"
        )
        return yes(ClusterReason.OPERATOR_WITHOUT_TLS, told)
    if seen.tls.lost:
        return yes(ClusterReason.AUTHORITIES_HELD, _why_none_is_made(seen))
    if (differing := _differing(seen)) is not None:
        return differing
    if beyond := beyond_count(seen):
        told = (
            f"Groups beyond spec.brokerGroups.count are kept, for they may hold messages: {', '.join(beyond)}."
            " kubectl brokergroup retire NAME stops sends to one, and deletes it once everything is read"
        )
        return yes(ClusterReason.GROUPS_BEYOND_COUNT, told)
    return no(ClusterReason.NOTHING_TO_DO, "Nothing needs a person")


def _why_none_is_made(seen: Seen) -> str:
    """As a group says it of its own pods (`tls_order.why_none_is_made`)."""
    config_map = parts.trust_name(str(seen.cluster.metadata["name"]))
    return (
        f"{seen.tls.lost}, which NameServers and proxies trust, was deleted from ConfigMap {config_map}, and no other copy is"
        " in the namespace: neither is changed, nor made where it is missing, before the bundle of spec.tls.trustBundleRef has"
        " those certificates again, or verifies every server"
    )


def _differing(seen: Seen) -> Verdict | None:
    """What of the declared topics and users a person must decide about; None: nothing."""
    if seen.topics.differing:
        told = (
            f"Topics that are there and are not as declared: {'; '.join(seen.topics.differing)}. Delete the topic once its"
            " messages are consumed, or declare it as it is"
        )
        return yes(ClusterReason.TOPIC_DIFFERS, told)
    if wrong := (*seen.users.differing, *seen.password_problems):
        told = (
            f"Users that are not as declared: {'; '.join(wrong)}. Delete a user that is there (mqadmin deleteUser), or declare"
            " another name; correct a Secret"
        )
        if seen.acl_held_back:
            told += ". Until every Secret can be used, acl is not put into the brokers' configuration, and they check nothing"
        return yes(ClusterReason.USER_DIFFERS, told)
    return None


def _pods(found: JsonObject | None, wanted: int | None) -> PartStatus:
    """Of a StatefulSet or Deployment. What its controller has not yet looked at counts as not ready."""
    spec, status = (found or {}).get("spec") or {}, (found or {}).get("status") or {}
    desired = wanted if wanted is not None else int(spec.get("replicas", 1))
    is_current = found is not None and status.get("observedGeneration") == found["metadata"].get("generation")
    updated = int(status.get("updatedReplicas", 0)) if is_current else 0
    return _part(desired, min(int(status.get("readyReplicas", 0)), updated, desired))


def _part(desired: int, ready: int) -> PartStatus:
    return PartStatus(desired=desired, ready=ready, summary=f"{ready}/{desired}")


def _summary(group: JsonObject) -> GroupSummary:
    status = group.get("status") or {}
    held = {one["type"]: str(one["status"]) for one in status.get("conditions") or ()}
    is_current = status.get("observedGeneration") == group["metadata"].get("generation")
    ready = held.get("Ready", ConditionStatus.UNKNOWN.value)
    return GroupSummary(
        name=str(group["metadata"]["name"]),
        master=(status.get("master") or {}).get("pod"),
        ready=ready if is_current or ready != ConditionStatus.TRUE else ConditionStatus.UNKNOWN.value,
        available=held.get("Available", ConditionStatus.UNKNOWN.value),
        failover_safe=held.get("FailoverSafe", ConditionStatus.UNKNOWN.value),
    )


def _by_index(item: tuple[str, JsonObject]) -> tuple[int, str]:
    ordinal = item[0].rpartition("-")[2]
    return (int(ordinal) if ordinal.isdecimal() else 0, item[0])
