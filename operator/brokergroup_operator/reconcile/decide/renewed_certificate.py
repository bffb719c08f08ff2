"""Whether a broker is restarted because its client certificate was renewed, and what is told of one that nears its end. Pure.

A Java broker shows controllers the certificate of its start. Once its time is over they refuse its next connection, so a process
that shows one in the last third of its life is replaced when its port serves one that lasts longer (`see/certificates.py`). It is a
rolling update as any other. What cannot be seen is left to a person, and told before the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from brokergroup_operator.api import times
from brokergroup_operator.api.brokergroup_status import Reason
from brokergroup_operator.reconcile import identity
from brokergroup_operator.reconcile.plan import Step, Verdict, yes
from brokergroup_operator.reconcile.see import certificates, observed
from brokergroup_operator.reconcile.see.members import membership

if TYPE_CHECKING:
    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.reconcile.identity import Member
    from brokergroup_operator.reconcile.see.observed import Observed
    from rocketmq_remoting.tls import Validity

# A renewed one should be there by then: half of the time after which most issuers renew.
LEFT_WHEN_TOLD: Final = certificates.LEFT_AT_RENEWAL / 2
_DO: Final = {
    Reason.CERTIFICATE_NOT_SEEN: "The operator cannot see at its port whether the Secret of that certificate was renewed: renew it,"
    " then restart the broker: {command}",
    Reason.CERTIFICATE_NOT_RENEWED: "Its port serves none that lasts longer and that the controllers accept, or a restart did not"
    " help: renew the Secret, certificate and key; the broker is restarted then. By hand: {command}",
}


def is_renewed(seen: Observed, member: Member, pod: JsonObject) -> bool:
    """Whether the next process of this pod would show controllers a certificate that lasts longer, and it is time for it."""
    shown = certificates.presented(seen, member)
    if shown is None or not seen.now or not certificates.serves_what_it_presents(pod):
        return False
    now_seconds = observed.seconds_of(seen.now)
    started_seconds = certificates.started_seconds(pod, now_seconds)
    turn = certificates.last_turn(shown, now_seconds)
    # A process that is younger than its turn was given this certificate by a restart, perhaps for its sake.
    is_due = turn is not None and started_seconds is not None and started_seconds < turn
    return is_due and certificates.lasts_longer(seen.served.get(member.pod), shown, now_seconds)


@dataclass(frozen=True)
class _Ending:
    member: Member
    shown: Validity
    why: Reason


def ending(seen: Observed, waiting: Step | None = None) -> Verdict | None:
    """Which brokers' certificates near their end, where no update is about to replace their processes.

    `waiting`: what the update waits for that may come only after the end: a window, or a person.
    """
    found = list(filter(None, (_ending_of(seen, member, waiting) for member in membership(seen).members)))
    if not found:
        return None
    why = min((one.why for one in found), key=[*_DO, *Reason].index)
    named = ", ".join(f"broker {one.member.broker_id} until {times.rfc3339(one.shown.not_after)}" for one in found)
    group, namespace = identity.name_of(seen.group), identity.namespace_of(seen.group)
    ids = " ".join(str(one.member.broker_id) for one in found)
    command = f"kubectl brokergroup restart {group} {ids} -n {namespace}"
    what = f"The client certificates that brokers show to controllers end, and then their next connection is refused: {named}."
    if waiting is not None and why not in _DO:
        return yes(why, f"{what} They were renewed, and the restart waits: {waiting.why}. By hand: {command}")
    return yes(why, f"{what} {_DO[why].format(command=command)}")


def _ending_of(seen: Observed, member: Member, waiting: Step | None) -> _Ending | None:
    shown, pod = certificates.presented(seen, member), seen.pods.get(member.pod)
    if shown is None or pod is None:
        return None
    is_due = is_renewed(seen, member, pod)
    if is_due and waiting is None:
        return None
    left_seconds = (shown.not_after - shown.not_before) * LEFT_WHEN_TOLD
    if observed.seconds_of(seen.now) < shown.not_after - left_seconds:
        return None
    if is_due and waiting is not None:
        return _Ending(member, shown, Reason(waiting.reason))
    is_seen = certificates.serves_what_it_presents(pod)
    return _Ending(member, shown, Reason.CERTIFICATE_NOT_RENEWED if is_seen else Reason.CERTIFICATE_NOT_SEEN)
