"""Which members a group has, and the state of each at the moment of a pass, for steps, status, conditions and Events. Pure.

The record is the truth, pods and claims follow it. An id is reserved for the pod's name, `<group>-<brokerId>`, before the pod is
made, so a restart in between hands out no second id. A pod whose disk was wiped keeps its name and gets a new id (rule 4): it
carries the highest id that was registered for it. Replicas that others registered under our brokerName are not ours.
A learner is started as one; until its master has dropped it from the SyncStateSet it counts as a member of the set.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from brokergroup_operator.api import names, pod_fence
from brokergroup_operator.api.brokergroup_status import MemberState
from brokergroup_operator.api.durability import beyond_voters, runs_as_learner, voting_replicas
from brokergroup_operator.kube.pods import pod_ips
from brokergroup_operator.observe.member_view import member_view
from brokergroup_operator.reconcile import identity
from brokergroup_operator.reconcile.identity import Member
from brokergroup_operator.reconcile.see import observed
from rocketmq_remoting.address import host_of

if TYPE_CHECKING:
    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.observe.member_view import MemberView
    from brokergroup_operator.reconcile.see.observed import Observed
    from controller_core.model import Replica


@dataclass(frozen=True, kw_only=True)
class Membership:
    """The members there are, those whose volume is gone, and the ids to reserve for new ones.

    After the record was lost: `returning` are made on the claims there are, and bring their ids. More claims than members are
    `surplus`, beside the number that is missing: then none is made, and a person must say which count.
    """

    members: tuple[Member, ...] = ()
    volume_lost: tuple[Member, ...] = ()
    to_reserve: tuple[Member, ...] = ()
    returning: tuple[Member, ...] = ()
    surplus: tuple[Member, ...] = ()
    missing: int = 0

    @property
    def with_pods(self) -> tuple[Member, ...]:
        """Those that have a pod, or are to have one now."""
        return (*self.members, *self.returning)

    def pod_of(self, broker_id: int | None) -> str:
        """Return the name of this member's pod; the empty text where there is no such member."""
        return next((item.pod for item in self.members if item.broker_id == broker_id), "")


@observed.derived
def membership(seen: Observed) -> Membership:
    group = identity.name_of(seen.group)
    ours: list[Member] = []
    lost: list[Member] = []
    for pod, replica in carried(seen).items():
        member = Member(broker_id=replica.broker_id, pod=pod)
        # A registered id without a volume and without a pod: its log is gone. A new volume gets a new id (rule 4).
        gone = replica.registered and not _is_whole(seen, pod) and pod not in seen.pods
        (lost if gone else ours).append(member)
    ours.sort(key=lambda member: member.broker_id)
    adopted = _to_be_adopted(seen, group)
    found = Membership(members=tuple(ours), volume_lost=tuple(lost))
    return _made_up(seen, found, missing=seen.group.spec.replicas - len(ours) - len(adopted), adopting=bool(adopted))


def _made_up(seen: Observed, found: Membership, *, missing: int, adopting: bool) -> Membership:
    """Return the members with those that are missing: on disks that the record has lost, or else on new ones.

    A first election hears as many members as the spec has: were one of them new, it would do without one of those disks, perhaps
    the one with the last messages.
    """
    left = left_disks(seen) if missing > 0 else ()
    reserved = _ids_to_reserve(seen, identity.name_of(seen.group), missing)
    if (
        {one.pod for one in left} <= {one.pod for one in reserved}
        and seen.group.spec.bootstrap is None
        and not adopting
    ):
        return replace(found, to_reserve=reserved)
    if len(left) > missing:
        return replace(found, surplus=left, missing=missing)
    if left or (adopting and lacks_its_record(seen)):
        return replace(found, returning=left)  # new ids come when these are known: above theirs
    return replace(found, to_reserve=reserved)


def lacks_its_record(seen: Observed) -> bool:
    """Whether no record says whose disk has every acknowledged message: it is new, was lost, or is being made from brokers."""
    return seen.record is None or seen.record.is_first_election


@observed.derived
def left_disks(seen: Observed) -> tuple[Member, ...]:
    """Members of claims that a lost record does not know, and on which no pod runs.

    Not those that have left. Of a group that began with a backup those alone on which its own brokers have run: any other claim of
    its name is of an earlier group, and a backup is not restored beside that.
    """
    if not lacks_its_record(seen):
        return ()
    group, known, own_uid = identity.name_of(seen.group), carried(seen), observed.uid(seen.group_object)
    found = []
    for name, claim in seen.claims.items():
        broker_id, marks = names.broker_id_of_pod_name(group, name), observed.annotations_of(claim)
        runs = name in seen.pods and not observed.being_deleted(seen.pods[name])
        if broker_id is None or name in known or runs or observed.being_deleted(claim):
            continue
        is_own = seen.group.spec.bootstrap is None or marks.get(names.ANNOTATION_GROUP_UID) == own_uid
        is_own = is_own and names.ANNOTATION_LEAVING not in marks
        if is_own and _is_whole(seen, name) and _may_be_adopted(seen, broker_id):
            found.append(Member(broker_id=broker_id, pod=name))
    return tuple(sorted(found, key=lambda one: one.broker_id))


def _is_whole(seen: Observed, pod: str) -> bool:
    needed = identity.claim_names(seen.group, pod)
    return bool(needed) and seen.claims.keys() >= set(needed)


def is_broken(seen: Observed, member: Member) -> bool:
    """Whether one of two volumes is gone, and the other is not to be joined to a new one.

    The id lies on the store's volume: an empty commit log would come back under an id that by the record has every message.
    """
    replica = seen.replicas.get(member.broker_id)
    has_two = seen.group.spec.storage.commit_log is not None
    return replica is not None and replica.registered and has_two and not _is_whole(seen, member.pod)


@observed.derived
def carried(seen: Observed) -> dict[str, Replica]:
    """The id that each pod of the group carries: the highest with which its broker registered, else that was reserved for it."""
    latest: dict[str, Replica] = {}
    for _, replica in sorted(seen.replicas.items()):
        pod = replica.reserved_for
        if names.broker_id_of_pod_name(identity.name_of(seen.group), pod) is None:
            continue
        if replica.registered or pod not in latest or not latest[pod].registered:
            latest[pod] = replica
    return latest


def taken_in_vain(seen: Observed) -> dict[int, Member]:
    """Ids that something in a pod took (1013) above the one with which the pod's broker registered, each with that pod's member."""
    return {
        broker_id: Member(broker_id=holder.broker_id, pod=replica.reserved_for)
        for broker_id, replica in seen.replicas.items()
        if (holder := carried(seen).get(replica.reserved_for)) is not None and broker_id > holder.broker_id
    }


def _to_be_adopted(seen: Observed, group: str) -> list[str]:
    """Pods that run under ids which the record does not know: it was lost, and their brokers bring the ids back."""
    known = carried(seen)
    return [
        name
        for name, pod in seen.pods.items()
        if name not in known
        and "deletionTimestamp" not in pod["metadata"]
        and (broker_id := names.broker_id_of_pod_name(group, name)) is not None
        and _may_be_adopted(seen, broker_id)
    ]


def _may_be_adopted(seen: Observed, broker_id: int) -> bool:
    """An id below the next one was cleaned on purpose, unless the record was made again from its brokers, in any order."""
    record = seen.record
    if record is None or broker_id >= record.next_broker_id:
        return True
    replicas = record.replicas.values()
    return any(one.broker_id > broker_id and one.was_adopted for one in replicas)


def _ids_to_reserve(seen: Observed, group: str, count: int) -> tuple[Member, ...]:
    """The next ids. Should another broker be faster, the reservation is refused and the next pass asks for higher ones."""
    first = seen.record.next_broker_id if seen.record else 1
    ids = range(first, first + count)
    return tuple(Member(broker_id=broker_id, pod=names.pod_name(group, broker_id)) for broker_id in ids)


@observed.derived
def wanted_learners(seen: Observed) -> frozenset[int]:
    spec = seen.group.spec
    if not spec.replication.learners:
        return frozenset()
    ids = (member.broker_id for member in membership(seen).with_pods)
    return beyond_voters(ids, replicas=spec.replicas, learners=spec.replication.learners)


def is_learner(seen: Observed, member: Member) -> bool:
    """What its pod was started as, or will be if it has none."""
    pod = seen.pods.get(member.pod)
    return runs_as_learner(pod) if pod is not None else member.broker_id in wanted_learners(seen)


@observed.derived
def never_masters(seen: Observed) -> frozenset[int]:
    """Return the ids that can't take over: learners, and members that are to become one or to stop being one."""
    running = {one.broker_id for one in membership(seen).members if runs_as_learner(seen.pods.get(one.pod))}
    return wanted_learners(seen) | running


@observed.derived
def learning(seen: Observed) -> frozenset[int]:
    """Return the learners that have left the SyncStateSet: nothing rests on these."""
    learners = {one.broker_id for one in membership(seen).members if is_learner(seen, one)}
    return frozenset(learners - (seen.record.sync_state_set if seen.record else set()))


@observed.derived
def held(seen: Observed) -> frozenset[int]:
    """Return the ids whose broker is held stopped: by the order on its pod, or on its claim while it has no pod."""
    return frozenset(one.broker_id for one in membership(seen).members if _is_held(seen, one))


def _is_held(seen: Observed, member: Member) -> bool:
    pod = seen.pods.get(member.pod)
    return pod_fence.is_stop_ordered(pod) if pod is not None else comes_back_held(seen, member)


def comes_back_held(seen: Observed, member: Member) -> bool:
    """Whether its next pod has the order from its start: it was stopped by this order before its pod was lost.

    Not one that a failover made master since: the group is without writes until it starts, or another is elected.
    """
    wanted = member.broker_id in seen.group.spec.maintenance.stopped_brokers and member.broker_id != seen.master
    return wanted and pod_fence.is_stop_ordered(seen.claims.get(member.pod) or {})


@dataclass(frozen=True, kw_only=True)
class Standing:
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
    is_held: bool  # its broker is held stopped, or about to be, by spec.maintenance.stoppedBrokers
    has_seat: bool  # it has every acknowledged message, by the record
    is_marked: bool  # its claim says that it is leaving
    disk_goes: bool  # with its pod: it has no volume and its broker has run, or the volume is being deleted
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
        """Whether it has rejoined, and its pod is ready."""
        return self.is_ready and self.view.has_rejoined(is_learner=self.is_learner)

    @property
    def is_in_sync_elsewhere(self) -> bool:
        """Whether it is in sync by what the master and another controller plane say: it may not know this plane yet."""
        return self.is_ready and self.view.heard_elsewhere and self.replicates

    @property
    def is_back(self) -> bool:
        """As `in_sync`, but for the link of a voter: an update that meets a member without one is refused, and says why."""
        return self.in_sync or (not self.is_learner and self.is_ready and self.is_live and self.in_set)

    @property
    def lacks_readiness(self) -> bool:
        """Whether nothing but its pod's readiness keeps it from being back: another container fails, and the broker serves."""
        rejoined = self.view.has_rejoined(is_learner=self.is_learner)
        return (
            not (self.is_ready or self.is_going)
            and self.is_live
            and (rejoined or (not self.is_learner and self.in_set))
        )

    @property
    def replicates(self) -> bool:
        """Whether it has all from the master over a link that is known to be up, whether or not heartbeats arrive."""
        if self.is_master:
            return self.is_live or self.view.acknowledges
        return self.view.linked is True and (self.in_set or self.is_learner)

    @property
    def contributes(self) -> bool:
        """Whether the group is worse off without its process: it serves, acknowledges, or has a seat on a disk that goes too."""
        return (self.is_live or self.disk_goes or self.view.acknowledges) and (self.has_seat or self.is_master)

    @property
    def state(self) -> MemberState:  # noqa: PLR0911 (one return per state)
        """See the comments at MemberState."""
        if self.sleeps and not self.has_pod:
            return MemberState.STOPPED
        if self.is_fenced:
            return MemberState.FENCED
        if self.is_held and not self.is_live:
            return MemberState.STOPPED
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
        if self.is_held:
            return "stopped by spec.maintenance.stoppedBrokers"
        if not self.has_pod:
            return "no pod"
        if self.is_going:
            return f"pod {self.member.pod} is stopping"
        if not self.runs:
            return f"pod {self.member.pod} is not running"
        return "" if self.is_ready else f"pod {self.member.pod} is not ready"


@observed.derived
def standings(seen: Observed) -> dict[int, Standing]:
    """By broker id, in their order; without those whose volume is lost."""
    return {member.broker_id: _standing(seen, member) for member in membership(seen).members}


def voters_wanted(seen: Observed) -> int:
    """Return how many members the spec wants in the SyncStateSet; 0 while it hibernates, unless a pause keeps its pods running."""
    maintenance = seen.group.spec.maintenance
    if maintenance.hibernated and not (maintenance.paused and seen.pods):
        return 0
    return voting_replicas(seen.group.spec)


def lacking_members(seen: Observed) -> int:
    """Return how many voting members are not in sync, or still to be made, but for those whose broker is held stopped."""
    if not voters_wanted(seen):
        return 0
    voters = [one for one in standings(seen).values() if not (one.is_learner or one.will_learn)]
    away = [one for one in voters if not (one.in_sync or one.is_in_sync_elsewhere or one.is_held)]
    return len(away) + max(0, voting_replicas(seen.group.spec) - len(voters))


def _standing(seen: Observed, member: Member) -> Standing:
    record, pod = seen.record, seen.pods.get(member.pod, {})
    going = observed.being_deleted(pod)
    claim_goes = bool(observed.going_claims(seen, member.pod))
    replica = seen.replicas.get(member.broker_id)
    return Standing(
        member=member,
        view=member_view(record, seen.snapshot, member.broker_id),
        is_claimed=replica is not None and replica.claimed,
        is_registered=replica is not None and replica.registered and _is_at(pod, replica.address),
        has_pod=bool(pod),
        is_going=going,
        is_stuck=going and observed.is_stuck_terminating(pod, now=seen.now),
        is_ready=observed.pod_is_ready(pod),
        runs=not going and observed.pod_phase(pod) == "Running",
        is_fenced=names.FINALIZER_FENCE in observed.finalizers_of(pod),
        sleeps=seen.group.spec.maintenance.hibernated,
        is_held=member.broker_id in held(seen),
        has_seat=record is not None and member.broker_id in record.seats,
        is_marked=observed.annotations_of(seen.claims.get(member.pod) or {}).get(names.ANNOTATION_LEAVING)
        == str(member.broker_id),
        disk_goes=(seen.group.spec.storage.ephemeral is not None and not observed.broker_never_ran(pod)) or claim_goes,
        claim_goes=claim_goes,
        is_learner=is_learner(seen, member),
        will_learn=member.broker_id in wanted_learners(seen),
    )


def _is_at(pod: JsonObject, address: str) -> bool:
    """Whether the registered address may be this pod's: a new pod has another. Behind a Service or a node each process answers."""
    ips = pod_ips(pod)
    return not ips or names.ANNOTATION_ADDRESS in observed.annotations_of(pod) or host_of(address) in ips
