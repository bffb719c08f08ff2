"""Deviations of 1011, 1012 and 1013: which broker has which id, and which entries are dropped (safety rules 4 and 8)."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.differential.deviations import OURS, After, Family

if TYPE_CHECKING:
    from tests.differential.canonical import Answer
    from tests.differential.cases import Case

MASTER_FIELDS = frozenset({"masterBrokerId", "masterAddress", "masterEpoch", "syncStateSetEpoch"})
SIGNED = re.compile(r"[+-]\d+(;[+-]?\d+)*;*|\d+(;\d+)*;[+-].*", re.ASCII)
REFUSED_CLEANS = ((0, 2009), (2009, 2009))
IDS = Family()


@IDS.entry("only-the-next-id", "1013", (0, 2014), unchanged=OURS)
def _takes_another_id(case: Case) -> bool:
    return (
        case.broker_id is not None
        and case.broker_id not in case.before.members
        and case.broker_id != case.memory.highest_id + 1
        and case.broker_id in case.java.state.members
    )


@IDS.entry("the-next-id-outlives-cleaning", "1013", (2014, 0))
def _goes_on_counting(case: Case) -> bool:
    return (
        not case.before.known
        and not case.java.state.known
        and case.broker_id == case.memory.highest_id + 1 > 1
        and set(case.ours.state.members) == {case.memory.highest_id + 1}
    )


@IDS.entry("the-next-id-named-after-cleaning", "1012", (0, 0), after=After.GO_ON)
def _names_the_next(case: Case) -> bool:
    java, ours = case.java.answer, case.ours.answer
    if java is None or ours is None or case.before.known:
        return False
    expected = {**(java.fields or {}), "nextBrokerId": str(case.memory.highest_id + 1)}
    return (
        case.memory.highest_id >= 1
        and (java.fields or {}).get("nextBrokerId") == "1"
        and ours.fields == expected
        and (java.remark, java.body) == (ours.remark, ours.body)
    )


@IDS.entry("a-check-code-names-an-address", "1013", (0, 1), (2014, 1), unchanged=OURS)
def _no_check_code(case: Case) -> bool:
    check = case.step.get("check")
    return check is not None and check.partition(";")[0] in ("", "null")


@IDS.entry("a-registration-names-an-address", "1003", (0, 1), unchanged=OURS)
def _no_address(case: Case) -> bool:
    return (
        not can_be_dialled(case.step.get("address"))
        and case.broker_id is not None
        and case.broker_id in case.before.members
        and case.java.state.members[case.broker_id].address == case.step.get("address")
    )


def can_be_dialled(address: str | None) -> bool:
    return re.fullmatch(r"[^\s;,=]+:\d{1,5}", address or "") is not None


@IDS.entry("a-registration-after-an-old-poll-waits", "1003", (0, 2010), unchanged=OURS, after=After.GO_ON)
def _follows_an_old_poll(case: Case) -> bool:
    """A poll was answered 2008 before the group was there, and the master registers: its process runs on."""
    return case.memory.polled_unknown and case.before.master is not None and case.broker_id == case.before.master


@IDS.entry("an-address-belongs-to-one", "1003, 1013", (0, 0))
def _address_taken(case: Case) -> bool:
    """Whether ours alone dropped the address of the replica that had it, and nothing else differs."""
    address = case.step.get("address") or (case.step.get("check") or "").partition(";")[0]
    robbed = {
        one for one, standing in case.before.members.items() if standing.address == address and one != case.broker_id
    }
    expected = {
        one: replace(standing, address="") if one in robbed else standing
        for one, standing in case.java.state.members.items()
    }
    java, ours = case.java.answer, case.ours.answer
    if java is not None and ours is not None and case.java.state.master in robbed:
        java = replace(java, fields=besides_master(java))
    if java != ours:
        return False
    master_address = case.java.state.master_address
    state = replace(case.java.state, members=expected)
    if case.java.state.master in robbed:
        state, master_address = replace(state, master=None, master_address=None), None
    return bool(robbed) and case.ours.state == replace(state, master_address=master_address)


def besides_master(answer: Answer) -> dict[str, str]:
    """Return an answer's fields without those that name a master."""
    return {key: value for key, value in (answer.fields or {}).items() if key not in MASTER_FIELDS}


@IDS.entry("a-named-clean-forgets-the-named", "1011", (0, 0))
def _drops_everybody(case: Case) -> bool:
    """Java drops an empty sync state table, and with it the group."""
    ids = named_ids(case)
    return (
        case.step.get("living") != "true"
        and bool(case.step.get("ids"))
        and not case.java.state.known
        and case.before.sync_state_set <= ids
        and case.before.master not in ids
        and set(case.ours.state.members) == set(case.before.members) - ids
        and bool(case.ours.state.members)
    )


def named_ids(case: Case) -> frozenset[int]:
    """Return the ids in a 1011, parsed as Java does; empty if there are none or they are malformed."""
    parts = [part for part in (case.step.get("ids") or "").rstrip(";").split(";") if part]
    if not all(re.fullmatch(r"[+-]?\d{1,18}", part, re.ASCII) for part in parts):
        return frozenset()
    return frozenset(int(part) for part in parts)


@IDS.entry("a-list-of-living-ids-is-a-list", "1011", (0, 0))
def _ignores_the_list(case: Case) -> bool:
    return (
        case.step.get("living") == "true"
        and bool(named_ids(case))
        and not case.java.state.known
        and set(case.ours.state.members) == set(case.before.members) - named_ids(case)
        and bool(case.ours.state.members)
    )


@IDS.entry("a-cleaned-master-is-no-master", "1011", (0, 0), special=True)
def _master_cleaned(case: Case) -> bool:
    """Java still names a master that it has removed; ours has none, under a new epoch."""
    ids = named_ids(case)
    kept = set(case.before.members) - ids
    return (
        case.before.master in ids
        and set(case.ours.state.members) == kept
        and case.ours.state.master is None
        and (case.ours.state.epoch == case.before.epoch + 1 or not kept)
        and (
            (case.java.state.master == case.before.master and set(case.java.state.members) == kept)
            or (not case.java.state.known and case.before.sync_state_set <= ids)
        )
    )


@IDS.entry("a-set-that-shrinks-has-a-new-epoch", "1011", (0, 0), after=After.SHIFT)
def _member_cleaned(case: Case) -> bool:
    ids, before = named_ids(case), case.before
    after = replace(before, members={one: standing for one, standing in before.members.items() if one not in ids})
    return (
        case.step.get("living") != "true"
        and before.master not in ids
        and bool(before.sync_state_set & ids)
        and bool(before.sync_state_set - ids)
        and case.java.state == after
        and case.ours.state == replace(after, set_epoch=before.set_epoch + 1)
    )


@IDS.entry("ids-have-no-sign", "1011", *REFUSED_CLEANS, unchanged=OURS)
def _signed_ids(case: Case) -> bool:
    return SIGNED.fullmatch(case.step.get("ids") or "") is not None and _we_say(case, "according to the format")


def _we_say(case: Case, words: str) -> bool:
    return case.ours.answer is not None and words in (case.ours.answer.remark or "")


@IDS.entry("separators-are-no-ids", "1011", *REFUSED_CLEANS, unchanged=OURS)
def _only_separators(case: Case) -> bool:
    ids = case.step.get("ids") or ""
    return bool(ids) and ids.replace(";", "") == ""


@IDS.entry("a-clean-finds-the-living-by-group", "1011", *REFUSED_CLEANS, unchanged=OURS)
def _clean_in_another_cluster(case: Case) -> bool:
    """Java looks up heartbeats under the request's cluster: under another one no broker is alive."""
    beaten, alive = case.memory.beat_cluster, case.memory.our_alive()
    heard_elsewhere = {one for one in named_ids(case) & alive if one in beaten and beaten[one] != case.step.cluster}
    return _we_say(case, "is still alive") and bool(heard_elsewhere)


@IDS.entry("a-sign-of-life-keeps-from-cleaning", "1011", *REFUSED_CLEANS, unchanged=OURS)
def _clean_a_sign_of_life(case: Case) -> bool:
    ids = named_ids(case)
    return (
        _we_say(case, "is still alive")
        and bool(ids & case.alive_by_request(case.step.name or ""))
        and not ids & case.before.alive
    )
