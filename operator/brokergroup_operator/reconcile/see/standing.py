"""How each member of a group stands at the moment of a pass: what the voluntary steps ask of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from brokergroup_operator.api import names
from brokergroup_operator.reconcile.see import learners, observed
from brokergroup_operator.reconcile.see.going_claims import going_claims
from brokergroup_operator.reconcile.see.members import membership
from brokergroup_operator.reconcile.see.pod_trouble import is_stuck_terminating

if TYPE_CHECKING:
    from brokergroup_operator.reconcile.identity import Member
    from brokergroup_operator.reconcile.see.observed import Observed


@dataclass(frozen=True, kw_only=True)
class Standing:
    """One member, now."""

    member: Member
    is_master: bool
    has_pod: bool
    is_going: bool  # its pod has been asked to stop
    is_stuck: bool  # and does not, because its node is lost
    is_ready: bool
    is_live: bool  # its heartbeats arrive
    has_seat: bool  # it has every acknowledged message, by the record
    in_set: bool
    is_marked: bool  # its claim says that it is leaving
    disk_goes: bool  # with its pod: it has no volume, or one that is being deleted
    is_learner: bool = False  # its process was started as one, or will be
    will_learn: bool = False  # the spec wants it to be one
    claim_goes: bool = False  # its claim is being deleted under its pod
    is_linked: bool = True  # as far as the master was asked

    @property
    def in_sync(self) -> bool:
        """It works, and counts as what it is: a learner is linked to the master and has left the set."""
        if self.is_learner and not self.is_master:
            return self.is_ready and self.is_live and self.is_linked and not self.in_set
        return self.is_ready and self.is_live and self.in_set

    @property
    def contributes(self) -> bool:
        """Without it the group would be worse off: it serves, or an election may need it.

        A process that is not heard gives nothing that its disk does not keep, if that stays.
        """
        return (self.is_live or self.disk_goes) and (self.has_seat or self.is_master)


def standings(seen: Observed) -> dict[int, Standing]:
    """By broker id, in their order; without those whose volume is lost."""
    wanted = learners.wanted_learners(seen)
    return {member.broker_id: standing(seen, member, wanted) for member in membership(seen).members}


def standing(seen: Observed, member: Member, wanted_learners: frozenset[int]) -> Standing:
    record, pod = seen.record, seen.pods.get(member.pod)
    going = pod is not None and observed.being_deleted(pod)
    claim_goes = bool(going_claims(seen, member.pod))
    return Standing(
        member=member,
        is_master=record is not None and record.granted_master_id == member.broker_id,
        has_pod=pod is not None,
        is_going=going,
        is_stuck=pod is not None and going and is_stuck_terminating(pod, now=seen.now),
        is_ready=observed.pod_is_ready(pod),
        is_live=seen.snapshot is not None and member.broker_id in seen.snapshot.live,
        has_seat=record is not None and member.broker_id in record.seats,
        in_set=record is not None and member.broker_id in record.sync_state_set,
        is_marked=observed.annotations_of(seen.claims.get(member.pod) or {}).get(names.ANNOTATION_LEAVING)
        == str(member.broker_id),
        disk_goes=seen.group.spec.storage.ephemeral is not None or claim_goes,
        claim_goes=claim_goes,
        is_learner=learners.is_learner(seen, member, wanted_learners),
        will_learn=member.broker_id in wanted_learners,
        is_linked=seen.snapshot is None or member.broker_id not in seen.snapshot.unlinked,
    )
