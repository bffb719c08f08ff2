"""Spellings: answers equal in content but not in form. Each rule rewrites both to one form, and checks that they are equal.

One rule is more than a spelling: liveness. Ours counts a replica's own request as a sign of life, Java only its
heartbeats. Its effect on 1006 is rewritten here; its effect on a decision is a deviation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tests.differential.canonical import Answer, GroupState

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.differential.cases import Case
    from tests.differential.language import Step

Rewritten = tuple[Answer, Answer] | None


@dataclass(frozen=True)
class Shape:
    """One rule, a row of docs/reference/deviations.md. `rewrite` returns both answers without the peculiarity, or None."""

    name: str
    rewrite: Callable[[Case], Case | None]


def _of_answers(rewrite: Callable[[Step, Answer, Answer], Rewritten]) -> Callable[[Case], Case | None]:
    def rewritten(case: Case) -> Case | None:
        if case.java.answer is None or case.ours.answer is None:
            return None
        found = rewrite(case.step, case.java.answer, case.ours.answer)
        return None if found is None else case.with_answers(*found)

    return rewritten


def _encoding(step: Step, java: Answer, ours: Answer) -> Rewritten:
    if "binary header" not in ours.notes or not step.binary or "binary header" in java.notes:
        return None
    # The binary form has no empty map and no empty text: both are null there.
    fields = [{key: value for key, value in (one.fields or {}).items() if value != ""} or None for one in (java, ours)]
    return (
        replace(java, fields=fields[0], remark=java.remark or None),
        replace(ours, fields=fields[1], remark=ours.remark or None, notes=ours.notes - {"binary header"}),
    )


def _quoted_keys(step: Step, java: Answer, ours: Answer) -> Rewritten:
    if "unquoted keys" not in java.notes or "unquoted keys" in ours.notes:
        return None
    return replace(java, notes=java.notes - {"unquoted keys"}), ours


def _both_shapes(step: Step, java: Answer, ours: Answer) -> Rewritten:
    if step.verb != "1002" or ours.code != 0 or not isinstance(ours.body, dict):
        return None
    members = ours.body.get("brokerMemberGroup")
    flat = {key: value for key, value in ours.body.items() if key not in ("brokerMemberGroup", "syncStateSet")}
    if not flat or flat != members:
        return None
    body = {key: value for key, value in ours.body.items() if key in ("brokerMemberGroup", "syncStateSet")}
    return java, replace(ours, body=body)


def _no_cluster(step: Step, java: Answer, ours: Answer) -> Rewritten:
    """A group whose first request had no cluster: Java omits the null from the body."""
    if step.verb != "1002" or not isinstance(java.body, dict) or not isinstance(ours.body, dict):
        return None
    members = dict(ours.body.get("brokerMemberGroup") or {})
    if "cluster" in (java.body.get("brokerMemberGroup") or {}) or members.pop("cluster", None) != "":
        return None
    return java, replace(ours, body={**ours.body, "brokerMemberGroup": members})


def _sign_of_life(case: Case) -> Case | None:
    """Only ours shows a replica alive, which has sent a request since its last heartbeat."""
    state = _same_alive(case.ours.state, case.java.state, case.before, case.alive_by_request(case.step.name or ""))
    rewritten = case.with_our_state(state)
    if case.step.verb == "1006" and case.java.answer is not None and case.ours.answer is not None:
        body = _table_with_same_alive(case, case.ours.answer.body, case.java.answer.body)
        rewritten = rewritten.with_answers(case.java.answer, replace(case.ours.answer, body=body))
    return None if rewritten == case else rewritten


def _same_alive(ours: GroupState, java: GroupState, before: GroupState, by_request: frozenset[int]) -> GroupState:
    """Return our state with replicas dead that are alive only by request. Replicas that Java dropped stay as they were."""

    def dead(broker_id: int) -> bool:
        told = java.members.get(broker_id) or before.members.get(broker_id)
        return broker_id in by_request and told is not None and not told.alive

    members = {one: replace(it, alive=False) if dead(one) else it for one, it in ours.members.items()}
    return replace(ours, members=members)


def _table_with_same_alive(case: Case, ours: Any, java: Any) -> Any:
    if not isinstance(ours, dict) or not isinstance(java, dict):
        return ours
    table = {}
    for name, entry in ours.get("replicasInfoTable", {}).items():
        told = java.get("replicasInfoTable", {}).get(name, {})
        dead = {
            one["brokerId"]
            for key in ("inSyncReplicas", "notInSyncReplicas")
            for one in told.get(key, ())
            if not one["alive"] and one["brokerId"] in case.alive_by_request(name)
        }
        table[name] = entry | {
            key: [one | {"alive": one["alive"] and one["brokerId"] not in dead} for one in entry[key]]
            for key in ("inSyncReplicas", "notInSyncReplicas")
        }
    return ours | {"replicasInfoTable": table}


def _error_text(step: Step, java: Answer, ours: Answer) -> Rewritten:
    if java.code != ours.code or java.remark == ours.remark or not java.remark or not ours.remark:
        return None
    if java.code == 1:
        return replace(java, remark="an error"), replace(ours, remark="an error")
    if java.code == 2012 and ours.remark.startswith(f"{java.remark}: "):
        return java, replace(ours, remark=java.remark)
    before, exception, _ = java.remark.partition(", exception: ")
    if java.code == 2009 and exception and ours.remark.startswith(before + exception):
        return replace(java, remark=before), replace(ours, remark=before)
    return None


SHAPES: tuple[Shape, ...] = (
    Shape("answered-in-the-request's-encoding", _of_answers(_encoding)),
    Shape("quoted-keys", _of_answers(_quoted_keys)),
    Shape("elect-body-in-both-shapes", _of_answers(_both_shapes)),
    Shape("a-group-without-a-cluster", _of_answers(_no_cluster)),
    Shape("error-text", _of_answers(_error_text)),
    Shape("a-request-is-a-sign-of-life", _sign_of_life),
)
