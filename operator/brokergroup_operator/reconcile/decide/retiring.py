"""What a Retire makes of a group's desired configuration while it runs. Pure.

Every broker gets `brokerPermission=4`, also one that starts, so that a new master takes no sends either. Brokers
then register their topics without the write permission, and producers leave; a Java broker itself goes on taking sends to topics
without an order (5.5.0, AbstractSendMessageProcessor.msgCheck). So once everything is read, no broker acknowledges any more
(`minInSyncReplicas=99`) while the master is asked again: nothing acknowledged can come in behind the last look. Without a running
Retire the brokers get their permission back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from brokergroup_operator.api import names
from brokergroup_operator.api.broker_keys import ACCEPTS_SENDS_FROM, PERMISSION
from brokergroup_operator.api.brokergroup import Implementation
from brokergroup_operator.api.brokergroup_operation import OperationType, RetirementStep
from brokergroup_operator.kube.resources import BROKER_GROUPS
from brokergroup_operator.reconcile import identity
from brokergroup_operator.reconcile.decide.deletion import QUIET
from brokergroup_operator.reconcile.plan import SetFinalizers
from brokergroup_operator.reconcile.render import broker_config
from brokergroup_operator.reconcile.see import observed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.brokergroup import BrokerGroup
    from brokergroup_operator.api.brokergroup_operation import Retirement
    from brokergroup_operator.reconcile.see.observed import Observed

READ_ONLY: Final = "4"
# A closed Java broker is given a time until which it refuses all sends: of those with WAIT=false it asks no minInSyncReplicas
# (5.5.0, CommitLog.needHandleHA). So far ahead that it holds however long the operator is away right after the deletion, and
# whatever the broker's clock says. It is moved on once a day.
PROLONGED_SECONDS: Final = 86_400
AHEAD_SECONDS: Final = 30 * 86_400
# Less left than this, and the broker does not count as closed.
LEAST_AHEAD_SECONDS: Final = 28 * 86_400
READ_AND_WRITE: Final = "6"
# What another writer changes of these is put back while a Retire runs.
HELD_KEYS: Final = frozenset({PERMISSION})
CLOSED_STEPS: Final = frozenset({RetirementStep.CLOSING, RetirementStep.DELETING})


def retirement(seen: Observed) -> Retirement | None:
    """How far the running Retire of this very group is; None: none runs."""
    operation = seen.operation
    if operation is None or operation.spec.type is not OperationType.RETIRE or operation.status is None:
        return None
    found = operation.status.retirement
    # A Retire of an earlier group of this name does not apply to this one.
    return found if found is not None and found.group_uid == observed.uid(seen.group_object) else None


def is_closed(seen: Observed) -> bool:
    """Whether no broker of the group may acknowledge anything."""
    found = retirement(seen)
    return found is not None and found.step in CLOSED_STEPS


def closing_values(seen: Observed) -> dict[str, str]:
    """What a broker that may acknowledge nothing is given, beside its permission."""
    values = dict(QUIET)
    if seen.group.spec.implementation is Implementation.JAVA:
        now = int(observed.seconds_of(seen.now))
        until_seconds = now - now % PROLONGED_SECONDS + PROLONGED_SECONDS + AHEAD_SECONDS
        values[ACCEPTS_SENDS_FROM] = str(until_seconds * 1000)
    return values


def opening_values(pod: JsonObject) -> dict[str, str]:
    """What the broker of a pod is given once it may acknowledge again, beside the group's configuration."""
    return {ACCEPTS_SENDS_FROM: "0"} if broker_config.given_to(pod).get(ACCEPTS_SENDS_FROM, "0") != "0" else {}


def is_read_only_in_file(seen: Observed) -> bool:
    """Whether the ConfigMap has the permission that a Retire wants: what a later pass gives back is known by it."""
    return _permission_in_file(seen) == READ_ONLY


def _permission_in_file(seen: Observed) -> str | None:
    return None if seen.config_map is None else broker_config.written_in(seen.config_map).get(PERMISSION)


def with_permission(seen: Observed) -> BrokerGroup:
    """Return the group with the `brokerPermission` that its brokers should have now."""
    spec = seen.group.spec
    if retirement(seen) is not None:
        permission = READ_ONLY
    elif PERMISSION not in spec.config and (
        _permission_in_file(seen) is not None
        or any(PERMISSION in broker_config.noted(pod) for pod in seen.pods.values())
    ):
        # Rendered, not left out: a key that is left out takes a restart. The ConfigMap counts too: the note on a pod lacks the key
        # while a request is under way, or if that fails.
        permission = READ_AND_WRITE
    else:
        return seen.group
    config = {**spec.config, PERMISSION: permission}
    return msgspec.structs.replace(seen.group, spec=msgspec.structs.replace(spec, config=config))


def marked(seen: Observed) -> Iterator[SetFinalizers]:
    """Mark the group before its brokers are configured to acknowledge nothing, and unmark it afterwards: controller planes restore
    a broker that stays so, as a leftover of a switchover, unless its group is marked.
    """
    held = observed.finalizers_of(seen.group_object)
    operation = seen.operation
    wanted = str(operation.metadata.get("uid")) if operation is not None and is_closed(seen) else None
    if observed.annotations_of(seen.group_object).get(names.ANNOTATION_CLOSED_BY) == wanted:
        return
    if names.FINALIZER_BROKER_GROUP not in held:
        return
    yield SetFinalizers(
        reason="nothing is acknowledged while its last messages are looked for"
        if wanted
        else "it is not being retired",
        resource=BROKER_GROUPS,
        name=identity.name_of(seen.group),
        resource_version=observed.resource_version(seen.group_object),
        finalizers=tuple(held),
        annotations={names.ANNOTATION_CLOSED_BY: wanted},
    )


def pods_not_configured(seen: Observed) -> list[str]:
    """The pods whose broker was not given what the Retire wants of it: of members that run, and once nothing may be acknowledged
    also of those that hold a seat. One of these that is away may come back as master, with an older configuration.
    """
    record, closed = seen.record, is_closed(seen)
    seats = {*record.seats, record.master_broker_id} if record is not None and closed else set()
    wanted = {PERMISSION: READ_ONLY} | (QUIET if closed else {})
    missing = []
    for broker_id, replica in seen.replicas.items():
        pod_name = replica.reserved_for or names.pod_name(seen.key.name, broker_id)
        pod = seen.pods.get(pod_name)
        if (pod is None or not observed.pod_is_ready(pod)) and broker_id not in seats:
            continue
        given = broker_config.given_to(pod) if pod is not None and observed.pod_is_ready(pod) else {}
        if any(given.get(key) != value for key, value in wanted.items()) or (closed and not _refuses_long(seen, given)):
            missing.append(pod_name)
    return sorted(missing)


def _refuses_long(seen: Observed, given: Mapping[str, str]) -> bool:
    if seen.group.spec.implementation is not Implementation.JAVA:
        return True
    until_ms = given.get(ACCEPTS_SENDS_FROM, "0")
    left_seconds = int(until_ms) / 1000 - observed.seconds_of(seen.now) if until_ms.isdecimal() else 0.0
    return left_seconds >= LEAST_AHEAD_SECONDS
