"""One member's state, derived once from the record and the controller plane's snapshot: heard, linked, in the SyncStateSet.

Conditions, the member list, FailoverSafe, metrics, the page and operations all read this view, so they agree about a member.
`reconcile/see/members.py` adds the member's pod.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from brokergroup_operator.api.times import rfc3339

if TYPE_CHECKING:
    from collections.abc import Iterable

    from brokergroup_operator.observe.group_view import GroupSnapshot, LostLink, Silence
    from controller_core.model import BrokerGroupRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView:
    """One member by record and snapshot."""

    broker_id: int
    is_master: bool
    # Whether this controller plane receives its heartbeats.
    heard: bool
    # By the master's last 907 answer; None: unknown. The master itself counts as linked; one that does not stay linked does not.
    linked: bool | None
    in_set: bool
    silence: Silence | None = None
    lost_link: LostLink | None = None

    @property
    def counts(self) -> bool:
        """Whether it is in the SyncStateSet, and heartbeats and link confirm it."""
        return self.in_set and self.heard and self.linked is not False

    def has_rejoined(self, *, is_learner: bool) -> bool:
        """Whether it is in sync again: a voter is in the set and linked; a learner is linked and outside the set."""
        if is_learner and not self.is_master:
            return self.heard and self.linked is not False and not self.in_set
        return self.counts

    @property
    def acknowledges(self) -> bool:
        """Whether it acknowledges writes: also without heartbeats, if the link is up."""
        return self.may_acknowledge and not (self.heard and self.linked is False)

    @property
    def may_acknowledge(self) -> bool:
        """Whether ``GroupSnapshot.writable`` counts it: in the set, and heard, or linked and answering."""
        return self.in_set and (self.heard or (self.silence is not None and self.silence.acknowledges))

    @property
    def runs_unheard(self) -> bool:
        """Whether its process runs, and this plane receives no heartbeat of it."""
        return not self.heard and self.silence is not None and self.silence.runs

    @property
    def heard_elsewhere(self) -> bool:
        """Whether another controller plane receives its heartbeats, and this one none."""
        return self.silence is not None and bool(self.silence.heard_by)

    def fact(self, *, is_learner: bool = False, pod: str = "") -> str:
        """Return the sentence about it that every view shows. `pod`: what Kubernetes reports as wrong with its pod."""
        parts = [*self._link_and_heartbeats()]
        if self.in_set is is_learner:
            parts.append("still in the SyncStateSet as a learner" if self.in_set else "not in the SyncStateSet")
        if pod:
            parts.append(pod)
        if not parts or parts == ["linked"]:
            parts.append("learning" if is_learner else "in sync")
        return ", ".join(parts)

    def _link_and_heartbeats(self) -> Iterable[str]:
        if self.heard and self.linked is False:
            yield "heard"
        if not self.is_master and self.linked is not None:
            yield "linked" if self.linked else "not linked to the master"
        if not self.heard:
            since = f" since {rfc3339(self.silence.since_unix_seconds)}" if self.silence is not None else ""
            if self.silence is not None and self.silence.heard_by:
                yield f"not heard by this operator pod{since}, but by {', '.join(self.silence.heard_by)}"
            else:
                yield f"not heard by any controller{since}"


def member_view(record: BrokerGroupRecord | None, snapshot: GroupSnapshot | None, broker_id: int) -> MemberView:
    """Return the view; without a snapshot the member is not heard and its link unknown."""
    heard = snapshot is not None and broker_id in snapshot.live
    is_master = record is not None and record.granted_master_id == broker_id
    silence = None
    if snapshot is not None and not heard:
        silence = snapshot.masters_silence if is_master else snapshot.silences.get(broker_id)
    lost_link = snapshot.lost_links.get(broker_id) if snapshot is not None and heard and not is_master else None
    if is_master:
        linked: bool | None = True
    elif heard:
        linked = snapshot is None or (broker_id not in snapshot.unlinked and lost_link is None)
    else:
        linked = silence.linked if silence is not None else None
    return MemberView(
        broker_id=broker_id,
        is_master=is_master,
        heard=heard,
        linked=linked,
        in_set=record is not None and broker_id in record.sync_state_set,
        silence=silence,
        lost_link=lost_link,
    )
