"""`kubectl brokergroup explain`: why a group is stalled or not FailoverSafe, member by member, and what would help.

Whether the operator is alive comes first: the status of a dead one is out of date. So "is FailoverSafe" and exit code 0 need a
current Lease.
"""

from collections.abc import Iterator

import typer

from brokergroup_operator.json_object import JsonObject
from brokergroup_operator.kubectl.command_line import GroupName, NotProvedError, Place
from brokergroup_operator.kubectl.its_operator import heartbeat
from brokergroup_operator.kubectl.printing import aged
from brokergroup_operator.kubectl.status import ABNORMAL, condition
from brokergroup_operator.option_groups import with_option_groups

MEMBER_ADVICE = {
    "Pending": "its pod does not run: kubectl describe pod {pod}",
    "Registering": "its pod runs, but the controller has not heard its broker yet: kubectl logs {pod}",
    "CatchingUp": "it copies what it lacks: kubectl brokergroup lag {group} -w",
    "OutOfSync": "nothing shows that its process runs: kubectl describe pod {pod}; kubectl logs {pod}",
    "Unheard": "the operator has it register again, then replaces its process by itself: kubectl logs {pod}",
    "Unlinked": "the operator sends it its master's address again: kubectl brokergroup lag {group} -w; kubectl logs {pod}",
    "NotReady": "its pod is not ready: kubectl describe pod {pod}",
    "Lost": "neither a running pod nor a heartbeat: kubectl describe pod {pod};"
    " if its volume is lost for good, kubectl brokergroup rebuild {group} {id}",
    "Fenced": "its pod is being killed, so that another may be master: it comes back by itself",
    "Stopped": "held by spec.maintenance: kubectl brokergroup wake {group}, or start-broker {group} {id}",
}
# What ends a stall; a stall does not pass by itself.
STALLED_ADVICE = {
    "InvalidSpec": "correct the spec: kubectl edit brokergroup {group}",
    "NameTaken": "rename or remove that object, or give the group another name; nothing of it was touched",
    "BrokerNameTaken": "make it again with another spec.brokerName, or change spec.nameServers; it starts by itself once the"
    " other group is gone",
    "NodePortTaken": "delete or change that Service, or create the group again with another firstNodePort",
    "VersionRefused": "the condition says what is expected; look first: kubectl brokergroup upgrade {group} --to VERSION --dry-run",
    "ImageUnavailable": "name an image that can be pulled (spec.version, spec.image, spec.imagePullSecrets)",
    "ReferenceMissing": "create what is missing, or take the reference out of the spec; the pod starts by itself then",
    "ContainerNotCreated": "the message is the kubelet's; if it is about what the spec asks for, correct the spec",
    "MemberCrashes": "the log before the crash: kubectl logs --previous POD",
    "MemberNotScheduled": "room, taints, zones and claims: kubectl describe pod POD",
    "StopRefused": "that broker runs on; the condition says what is in the way: kubectl brokergroup start-broker takes it back",
    "ScaleInRefused": "what spec.replicas asks for is not done; the condition says until when",
    "NoEligibleReplica": "bring one of those brokers back; else kubectl brokergroup elect, which may lose messages",
    "NobodyMayFollow": "one edit is enough, and may be taken back after the update: kubectl edit brokergroup {group}",
    "AuthoritiesHeld": "put the certificates of that file back into the bundle that spec.tls.trustBundleRef names",
    "MembersNotHeard": "the condition says what the operator would do, and what keeps it from that",
    "RolloutStuck": "look at the pod it waits for; or take the change of the spec back",
}
CONDITION_ADVICE = {
    "Paused": "kubectl brokergroup resume {group}",
    "Hibernated": "kubectl brokergroup wake {group}",
    "BrokersStopped": "kubectl brokergroup start-broker {group} BROKER-ID, when the work is done",
    "TlsChanging": "it goes on by itself; AuthoritiesHeld: put into the bundle what the message's servers are signed by, or give"
    " those another certificate first",
    "ClientCertificateEnding": "renew the Secret of the certificate; CertificateNotSeen: then kubectl brokergroup restart {group}",
    "ObjectiveInvalid": "correct spec.slo: kubectl edit brokergroup {group}",
    "CredentialsMissing": "mend the Secret that spec.security.credentialsSecretRef names",
    "EpochJump": "look at the brokers; accept the epoch with the annotation brokergroup.dev/accept-epoch",
    "SeatLost": "bring back the disks; else kubectl brokergroup elect --unclean --yes-lose-data, which loses messages",
    "Unfenced": "look at the old master's node: what it still acknowledged may be lost",
    "MetadataDiverged": "wait: slaves copy it, or are made to; if it stays, make one more topic, or group, at the master",
}


@with_option_groups
def explain(group: GroupName, place: Place) -> None:
    """Say what a group is stalled on, why it is not FailoverSafe, and what to do.

    Exit code 0 if it is FailoverSafe now, 1 if not, 9 if it was when last judged, but nothing proves that its operator is alive.
    """
    cluster = place.cluster()
    found = cluster.group(group)
    heard = heartbeat(cluster, found)
    for line in explanation(found, doubt="" if heard.proves else heard.message):
        typer.echo(line)
    if not is_safe(found):
        raise typer.Exit(1)
    if not heard.proves:
        raise typer.Exit(NotProvedError.exit_code)


def is_safe(group: JsonObject) -> bool:
    return condition(group, "FailoverSafe").get("status") == "True"


def explanation(group: JsonObject, *, doubt: str = "") -> Iterator[str]:
    """Yield the lines. `doubt`: why nothing proves that the operator is alive; it comes before all that the status says."""
    name, safety = group["metadata"]["name"], condition(group, "FailoverSafe")
    if doubt:
        yield f"{name}: {doubt}"
    stalled = condition(group, "Stalled")
    if stalled.get("status") == "True":
        # What a person has to do, before what follows from it.
        yield f"{name} is stalled: {stalled['reason']}: {aged(stalled['message'])}"
        if stalled["reason"] in STALLED_ADVICE:
            yield f"  -> {STALLED_ADVICE[stalled['reason']].format(group=name)}"
    if is_safe(group):
        yield f"{name} {'WAS' if doubt else 'is'} FailoverSafe: {safety.get('message', '')}"
    elif safety:
        yield f"{name} is NOT FailoverSafe: {safety['reason']}: {aged(safety['message'])}"
    else:
        yield f"{name} is not known to be FailoverSafe: the operator has not judged it yet; does it run?"
    generation, seen = group["metadata"].get("generation"), (group.get("status") or {}).get("observedGeneration")
    if generation is not None and seen is not None and seen != generation:
        yield f"  the status is about generation {seen} of the spec, which is at {generation}: the operator is behind"
    yield from _members(group)
    yield from _conditions(group)


def _members(group: JsonObject) -> Iterator[str]:
    status, name = group.get("status") or {}, group["metadata"]["name"]
    if not status.get("master"):
        yield "  there is no master: a failover is under way, or no member may be elected (kubectl brokergroup status)"
    members = sorted(status.get("members") or [], key=lambda item: int(item["brokerId"]))
    for member in members:
        advice = MEMBER_ADVICE.get(member["state"], "").format(pod=member["pod"], group=name, id=member["brokerId"])
        if said := "; ".join(filter(None, (aged(member.get("message") or ""), advice))):
            yield f"  broker {member['brokerId']} is {member['state']}: {said}"
    missing = int(group["spec"].get("replicas") or 0) - len(members)
    if missing > 0:
        yield f"  {missing} of {group['spec']['replicas']} members do not exist yet"


def _conditions(group: JsonObject) -> Iterator[str]:
    for item in (group.get("status") or {}).get("conditions") or []:
        kind = item["type"]
        bad = item["status"] == ("True" if kind in ABNORMAL else "False")
        if not bad or kind in ("FailoverSafe", "Stalled"):
            continue
        yield f"  {kind}={item['status']}, {item['reason']}: {aged(item['message'])}"
        if kind in CONDITION_ADVICE:
            yield f"    -> {CONDITION_ADVICE[kind].format(group=group['metadata']['name'])}"
