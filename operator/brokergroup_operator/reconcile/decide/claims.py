"""The claims of a group's members: made, grown, marked when their member leaves, discarded where the spec asks for it. Pure."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from brokergroup_operator.api import names
from brokergroup_operator.api.storage_fields import RetentionPolicy
from brokergroup_operator.kube.resources import PERSISTENT_VOLUME_CLAIMS
from brokergroup_operator.reconcile import identity
from brokergroup_operator.reconcile.plan import Action, ApplyObject, DeleteObject, Note
from brokergroup_operator.reconcile.render import children
from brokergroup_operator.reconcile.see import foreign, observed
from brokergroup_operator.reconcile.see.members import is_broken

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from fractions import Fraction

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.reconcile.identity import Member
    from brokergroup_operator.reconcile.see.observed import Observed


def claim_actions(
    seen: Observed, member: Member, *, sources: Mapping[str, JsonObject] = MappingProxyType({})
) -> Iterator[Action]:
    """Make or grow the member's claims; none for one that lost a part of its disk, and whose id ends with its pod.

    `sources`: what a claim of that name is made from, if it is not there yet.
    """
    storage = seen.group.spec.storage
    if storage.ephemeral is not None or is_broken(seen, member):
        return
    size, source = _size_kept(seen, member.pod, storage.size), _source_kept(seen, member.pod, sources)
    wanted = [children.build_claim(seen.group, member, size=size, source=source)]
    if storage.commit_log is not None:
        name = names.commit_log_claim_name(member.pod)
        size, source = _size_kept(seen, name, storage.commit_log.size), _source_kept(seen, name, sources)
        wanted.append(children.build_commit_log_claim(seen.group, member, size=size, source=source))
    for claim in wanted:
        for action in foreign.apply_if_drifted(PERSISTENT_VOLUME_CLAIMS, seen.claims, _with_operation(seen, claim)):
            yield _as_large_as_it_is(seen, action)


def _as_large_as_it_is(seen: Observed, action: Action) -> Action:
    """With what is applied to a claim that may not grow: its labels and marks are no matter of its size.

    A member that stays after all would keep the mark of one that leaves, and its claim counts for nothing after a lost record.
    """
    if not isinstance(action, ApplyObject) or (claim := seen.claims.get(action.object["metadata"]["name"])) is None:
        return action
    size, spec = observed.claim_size(claim), action.object["spec"]
    if foreign.parse_quantity(spec["resources"]["requests"]["storage"]) <= foreign.parse_quantity(size):
        return action
    kept = foreign.with_revision(action.object | {"spec": spec | {"resources": {"requests": {"storage": size}}}})
    return replace(action, meanwhile=kept) if foreign.drifted(claim, kept) else action


def _size_kept(seen: Observed, name: str, wanted: str) -> str | None:
    """The size that the claim keeps: one that is not bound can't grow, and one that an autoscaler enlarged can't shrink."""
    claim = seen.claims.get(name)
    if claim is None:
        return None
    size = observed.claim_size(claim)
    larger = foreign.parse_quantity(size) > foreign.parse_quantity(wanted)
    return size if larger or not observed.claim_is_bound(claim) else None


def _source_kept(seen: Observed, name: str, sources: Mapping[str, JsonObject]) -> JsonObject | None:
    claim = seen.claims.get(name)
    return sources.get(name) if claim is None else observed.claim_source(claim)


def _with_operation(seen: Observed, wanted: JsonObject) -> JsonObject:
    """With the mark of the operation in whose course it is made, for good: a Rebuild knows its new member by it.

    The claim's time and that of the operation's start are of two clocks.
    """
    claim, made = seen.claims.get(wanted["metadata"]["name"]), seen.operation
    if claim is not None:
        mark = observed.annotations_of(claim).get(names.ANNOTATION_OPERATION, "")
    else:
        mark = "" if made is None else str(made.metadata.get("uid", ""))
    if mark:
        wanted["metadata"].setdefault("annotations", {})[names.ANNOTATION_OPERATION] = mark
    return wanted


def marked_as_leaving(seen: Observed, member: Member) -> Iterator[Action]:
    """Only a marked claim is ever discarded: after a lost record, an unknown claim may hold the only copy of the data."""
    claim = seen.claims.get(member.pod)
    if claim is None or observed.being_deleted(claim) or names.ANNOTATION_LEAVING in observed.annotations_of(claim):
        return
    replicas = seen.record.replicas.values() if seen.record else ()
    if any(one.reserved_for == member.pod and one.broker_id != member.broker_id for one in replicas):
        return  # a pod that came back without its disk keeps its name under a higher id: the claim is the new one's
    size, source = observed.claim_size(claim), observed.claim_source(claim)
    wanted = _with_operation(seen, children.build_claim(seen.group, member, size=size, source=source))
    wanted["metadata"].setdefault("annotations", {})[names.ANNOTATION_LEAVING] = str(member.broker_id)
    marked = foreign.with_revision(wanted)
    yield ApplyObject(reason="its member leaves the group", resource=PERSISTENT_VOLUME_CLAIMS, object=marked)


def discarded_claims(seen: Observed) -> Iterator[Action]:
    """The claims of those that have left, where `storage.retention.whenScaled` is Delete."""
    if seen.group.spec.storage.retention.when_scaled is RetentionPolicy.RETAIN or seen.record is None:
        return
    known = {replica.reserved_for for replica in seen.record.replicas.values()}
    for name, claim in sorted(own_claims(seen).items()):
        marked = names.ANNOTATION_LEAVING in observed.annotations_of(claim)
        if marked and name not in known and name not in seen.pods and not observed.being_deleted(claim):
            yield from deleted_claims(seen, name, "its member has left the group")


def deleted_claims(seen: Observed, name: str, why: str, note: Note | None = None) -> Iterator[Action]:
    """Delete a member's claims, the store's last, and with the note: while it is there, the next pass comes here again."""
    for one in (names.commit_log_claim_name(name), name):
        if one in seen.claims and not observed.being_deleted(seen.claims[one]):
            yield DeleteObject.of(PERSISTENT_VOLUME_CLAIMS, seen.claims[one], why, note if one == name else None)


def own_claims(seen: Observed) -> dict[str, JsonObject]:
    """The claims of members, by name. A copy that a user made of one carries our labels and marks, and is a backup."""
    group = identity.name_of(seen.group)
    own = {name: claim for name, claim in seen.claims.items() if names.broker_id_of_pod_name(group, name) is not None}
    logs = {log: seen.claims[log] for name in own if (log := names.commit_log_claim_name(name)) in seen.claims}
    return own | logs


def why_held_by_adopt(seen: Observed) -> str:
    """Why no broker may start on the group's claims: `brokergroup adopt` has one. Empty if it may.

    A hibernated group starts none, and is what `adopt claims-back` is begun again on.
    """
    why = "" if seen.group.spec.maintenance.hibernated else held_by_adopt(seen)
    return f"{why}. Until then no broker of this group starts" if why else ""


def held_by_adopt(seen: Observed) -> str:
    """Return which claim `brokergroup adopt` has, and what to do; empty if it has none."""
    held = (_held_by_adopt(name, observed.annotations_of(claim)) for name, claim in sorted(own_claims(seen).items()))
    return next(filter(None, held), "")


def _held_by_adopt(claim: str, annotations: Mapping[str, str]) -> str:
    if target := annotations.get(names.ANNOTATION_RELEASED_TO):
        return (
            f"claim {claim} was released to {target} by brokergroup adopt claims-back, and brokers may run on it there. To take it"
            " over again, use brokergroup adopt claims with another group name; to go on as before, while no store is released,"
            f" remove annotation {names.ANNOTATION_RELEASED_TO} from the group's claims"
        )
    if names.ANNOTATION_ADOPT_UNFINISHED in annotations:
        return (
            f"claim {claim} is being taken over, and the record is not written yet: run brokergroup adopt claims again"
        )
    return ""


def growing_claims(seen: Observed) -> list[str]:
    """Claims whose volume is not yet as large as they ask for; the storage class does it in its time."""
    return [
        name
        for name, claim in sorted(seen.claims.items())
        if observed.claim_is_bound(claim) and _capacity(claim) < foreign.parse_quantity(observed.claim_size(claim))
    ]


def _capacity(claim: JsonObject) -> Fraction:
    """A provisioner that reports none has nothing to grow."""
    shown = ((claim.get("status") or {}).get("capacity") or {}).get("storage")
    return foreign.parse_quantity(str(shown) if shown else observed.claim_size(claim))
