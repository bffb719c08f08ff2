"""Brokers' client certificates: which one each process shows to controllers, and which one its next process would show. Pure.

A JVM reads its client certificate at its start, and serves a renewed one at its own port at once (docs/adr/0030). So what it shows
is known from its connection to this plane, and what its next process would show from a handshake with its port. Both count only if
they are verified by the authorities by which the controllers verify clients.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup import Implementation
from brokergroup_operator.kube.pods import is_over
from brokergroup_operator.reconcile.see import observed
from brokergroup_operator.reconcile.see.members import membership
from rocketmq_remoting.address import Address

if TYPE_CHECKING:
    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.reconcile.identity import Member
    from brokergroup_operator.reconcile.see.observed import Observed
    from rocketmq_remoting.tls import Validity

# cert-manager renews when so much of a certificate's life is left, if its user says nothing else.
LEFT_AT_RENEWAL: Final = 1 / 3
# At least so long between two restarts of a process for its certificate: a Secret that changes each minute restarts no group.
LEAST_SECONDS: Final = 3600.0
_PRESENTED: Final = re.compile(r"-Dtls\.client\.certPath=(\S+)")
_SERVED: Final = re.compile(r"-Dtls\.server\.certPath=(\S+)")


def presented(seen: Observed, member: Member) -> Validity | None:
    """What the member's process shows to this plane's controller; None: nothing, or it is not heard here, or it is no Java broker.

    A Python replica reads its files again for each connection.
    """
    if seen.snapshot is None or seen.group.spec.implementation is not Implementation.JAVA:
        return None
    return seen.snapshot.certificates.get(member.broker_id)


def to_ask(seen: Observed, *, now_seconds: float) -> dict[str, str]:
    """The address of each pod whose process shows a certificate in the last third of its life, and serves the same files."""
    if seen.snapshot is None or not seen.snapshot.certificates:
        return {}
    found = {}
    for member in membership(seen).members:
        shown, pod = presented(seen, member), seen.pods.get(member.pod)
        if shown is None or pod is None or is_over(pod) or last_turn(shown, now_seconds) is None:
            continue
        if serves_what_it_presents(pod) and (address := _address_of(pod)):
            found[member.pod] = address
    return found


def serves_what_it_presents(pod: JsonObject) -> bool:
    """Whether its JVM has one certificate for both: then a renewed one is seen at its port.

    Of several such arguments the last one counts.
    """
    command = "\n".join(
        str(word)
        for container in pod["spec"].get("containers") or []
        if container.get("name") == names.CONTAINER_BROKER
        for word in container.get("command") or []
    )
    as_client, as_server = _PRESENTED.findall(command), _SERVED.findall(command)
    return bool(as_client and as_server) and as_client[-1] == as_server[-1]


def last_turn(life: Validity, now_seconds: float) -> float | None:
    """The last of the moments from which a process that shows this is to be another one; None: the first is still to come.

    The first is when a third of the life is left, each further one when half of the rest is, and the last is the end. A process
    that was started after one of them waits for the next: so a restart that changes nothing is tried a few times, ever later.
    """
    left = (life.not_after - life.not_before) * LEFT_AT_RENEWAL
    if now_seconds < life.not_after - left:
        return None
    if now_seconds >= life.not_after:
        return life.not_after
    while left / 2 >= LEAST_SECONDS and now_seconds >= life.not_after - left / 2:
        left /= 2
    return life.not_after - left


def lasts_longer(served: Validity | None, shown: Validity, now_seconds: float) -> bool:
    """Whether a process with the served certificate would have its first turn in an hour or later."""
    if served is None or served.not_after <= shown.not_after:
        return False
    turn = served.not_after - (served.not_after - served.not_before) * LEFT_AT_RENEWAL
    return turn - now_seconds >= LEAST_SECONDS


def started_seconds(pod: JsonObject, now_seconds: float) -> float | None:
    """When its broker's present process was started, as the kubelet says, but not before the pod was made; None: unknown.

    A node's clock may be wrong: by one far behind, each process that a restart made would seem due for the next restart. A time
    to come does not count. The time at which the pod was made is the API server's.
    """
    created = observed.metadata(pod).get("creationTimestamp")
    times = [observed.seconds_of(str(created))] if created else []
    for status in observed.pod_status(pod).get("containerStatuses") or []:
        running = (status.get("state") or {}).get("running") or {}
        if status.get("name") == names.CONTAINER_BROKER and running.get("startedAt"):
            at = observed.seconds_of(str(running["startedAt"]))
            times += [at] if at <= now_seconds else []
    return max(times, default=None)


def _address_of(pod: JsonObject) -> str:
    ip = observed.pod_ip(pod)
    for container in pod["spec"].get("containers") or []:
        for port in container.get("ports") or []:
            if ip and port.get("name") == names.PORT_BROKER:
                return str(Address(ip, int(port["containerPort"])))
    return ""
