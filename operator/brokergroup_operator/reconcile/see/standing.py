"""The state of each member of a group at the moment of a pass, for voluntary steps, status, conditions and Events. Pure.

`MemberView` has what record and heartbeats say; the pod is added here. Both give the member's state and its one sentence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup_status import MemberState
from brokergroup_operator.kube.pods import pod_ips
from brokergroup_operator.observe.member_view import member_view
from brokergroup_operator.reconcile.see import learners, observed
from brokergroup_operator.reconcile.see.going_claims import going_claims
from brokergroup_operator.reconcile.see.members import membership
from brokergroup_operator.reconcile.see.pod_trouble import is_stuck_terminating
from rocketmq_remoting.address import host_of

if TYPE_CHECKING:
    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.observe.member_view import MemberView
    from brokergroup_operator.reconcile.identity import Member
    from brokergroup_operator.reconcile.see.observed import Observed


@dataclass(frozen=True, kw_only=True)
class Standing:
    """One member, now."""

    member: Member
    view: MemberView
    is_claimed: bool  # a broker took the id
    is_registered: bool  # and has said so to a controller, under an address that its pod has
    has_pod: bool
    is_going: bool  # its pod has been asked to stop
    is_stuck: bool  # and does not, because its node is lost
    is_ready: bool
    runs: bool  # its pod is Running, and not asked to stop
    is_fenced: bool
    sleeps: bool  # the group is hibernated
    has_seat: bool  # it has every acknowledged message, by the record
    is_marked: bool  # its claim says that it is leaving
    disk_goes: bool  # with its pod: it has no volume, or one that is being deleted
    is_learner: bool = False  # its process was started as one, or will be
    will_learn: bool = False  # the spec wants it to be one
    claim_goes: bool = False  # its claim is being deleted under its pod

    @property
    def is_master(self) -> bool:
        """By the record."""
        return self.view.is_master

    @property
    def is_live(self) -> bool:
        """Its heartbeats arrive."""
        return self.view.heard

    @property
    def in_set(self) -> bool:
        """In the SyncStateSet, by the record."""
        return self.view.in_set

    @property
    def in_sync(self) -> bool:
        """Whether it has rejoined: a voter is in the set and linked; a learner is linked and outside the set."""
        if self.is_learner and not self.is_master:
            return self.is_ready and self.is_live and self.view.linked is not False and not self.in_set
        return self.is_ready and self.view.counts

    @property
    def is_back(self) -> bool:
        """As `in_sync`, but for the link of a voter: an update that meets a member without one is refused, and says why."""
        return self.in_sync or (not self.is_learner and self.is_ready and self.is_live and self.in_set)

    @property
    def replicates(self) -> bool:
        """Whether it has all from the master over a link that is known to be up, whether or not heartbeats arrive."""
        if self.is_master:
            return self.is_live
        return self.view.linked is True and (self.in_set or self.is_learner)

    @property
    def contributes(self) -> bool:
        """Without it the group would be worse off: it serves, acknowledges, or an election may need it.

        A process that is not heard, and has no link, gives nothing that its disk does not keep, if that stays.
        """
        return (self.is_live or self.disk_goes or self.view.acknowledges) and (self.has_seat or self.is_master)

    @property
    def state(self) -> MemberState:  # noqa: PLR0911 (one return per state)
        """See the comments at MemberState."""
        if self.sleeps and not self.has_pod:
            return MemberState.STOPPED
        if self.is_fenced:
            return MemberState.FENCED
        if not self.is_live and not self.runs:
            return MemberState.LOST if self.is_claimed else MemberState.PENDING
        if not self.is_claimed:
            return MemberState.REGISTERING
        if not self.is_live:
            if self.view.runs_unheard:
                return MemberState.UNHEARD
            return MemberState.OUT_OF_SYNC if self.in_set else MemberState.REGISTERING
        if self.view.linked is False:
            return MemberState.UNLINKED
        if self.in_set or self.is_learner:
            settled = MemberState.IN_SYNC if self.in_set else MemberState.LEARNING
            return settled if self.is_ready else MemberState.NOT_READY
        return MemberState.CATCHING_UP

    @property
    def fact(self) -> str:
        """The member's state in one sentence: the same words in each condition, Event, list and page."""
        return self.view.fact(is_learner=self.is_learner and not self.is_master, pod=self._pod_amiss)

    @property
    def told(self) -> str:
        """The fact, with the broker's name before it."""
        return f"broker {self.member.broker_id}: {self.fact}"

    @property
    def _pod_amiss(self) -> str:
        if not self.has_pod:
            return "no pod"
        if self.is_going:
            return f"pod {self.member.pod} is stopping"
        if not self.runs:
            return f"pod {self.member.pod} is not running"
        return "" if self.is_ready else f"pod {self.member.pod} is not ready"


def standings(seen: Observed) -> dict[int, Standing]:
    """By broker id, in their order; without those whose volume is lost."""
    wanted = learners.wanted_learners(seen)
    return {member.broker_id: standing(seen, member, wanted) for member in membership(seen).members}


def standing(seen: Observed, member: Member, wanted_learners: frozenset[int]) -> Standing:
    record, pod = seen.record, seen.pods.get(member.pod)
    going = pod is not None and observed.being_deleted(pod)
    claim_goes = bool(going_claims(seen, member.pod))
    replica = record.replicas.get(member.broker_id) if record else None
    return Standing(
        member=member,
        view=member_view(record, seen.snapshot, member.broker_id),
        is_claimed=replica is not None and replica.claimed,
        is_registered=replica is not None and replica.registered and _is_at(pod, replica.address),
        has_pod=pod is not None,
        is_going=going,
        is_stuck=pod is not None and going and is_stuck_terminating(pod, now=seen.now),
        is_ready=observed.pod_is_ready(pod),
        runs=pod is not None and not going and observed.pod_phase(pod) == "Running",
        is_fenced=pod is not None and names.FINALIZER_FENCE in observed.finalizers_of(pod),
        sleeps=seen.group.spec.maintenance.hibernated,
        has_seat=record is not None and member.broker_id in record.seats,
        is_marked=observed.annotations_of(seen.claims.get(member.pod) or {}).get(names.ANNOTATION_LEAVING)
        == str(member.broker_id),
        disk_goes=seen.group.spec.storage.ephemeral is not None or claim_goes,
        claim_goes=claim_goes,
        is_learner=learners.is_learner(seen, member, wanted_learners),
        will_learn=member.broker_id in wanted_learners,
    )


def _is_at(pod: JsonObject | None, address: str | None) -> bool:
    """Whether the registered address may be this pod's. A new pod has another one until its own process registers.

    Behind the address of a Service or a node each process of the member answers, the present one too.
    """
    if pod is None or address is None or names.ANNOTATION_ADDRESS in observed.annotations_of(pod):
        return True
    ips = pod_ips(pod)
    return not ips or host_of(address) in ips
