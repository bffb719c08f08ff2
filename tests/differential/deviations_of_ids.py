"""Deviations of 1011, 1012 and 1013: which broker has which id, and which entries are dropped (safety rules 4 and 8)."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.differential.deviations import After, Deviation

if TYPE_CHECKING:
    from tests.differential.canonical import GroupState
    from tests.differential.cases import Case

MASTER_FIELDS = frozenset({"masterBrokerId", "masterAddress", "masterEpoch", "syncStateSetEpoch"})
SIGNED = re.compile(r"[+-]\d+(;[+-]?\d+)*;*|\d+(;\d+)*;[+-].*", re.ASCII)


def named_ids(case: Case) -> frozenset[int]:
    """Return the ids in a 1011, parsed as Java does; empty if there are none or they are malformed."""
    parts = [part for part in (case.step.get("ids") or "").rstrip(";").split(";") if part]
    if not all(re.fullmatch(r"[+-]?\d{1,18}", part, re.ASCII) for part in parts):
        return frozenset()
    return frozenset(int(part) for part in parts)


def without(state: GroupState, ids: frozenset[int]) -> GroupState:
    return replace(state, members={one: standing for one, standing in state.members.items() if one not in ids})


def _takes_another_id(case: Case) -> bool:
    broker_id = case.step.number("id")
    return (
        case.step.verb == "1013"
        and case.codes == (0, 2014)
        and broker_id is not None
        and broker_id not in case.before.members
        and broker_id != case.memory.highest_id + 1
        and broker_id in case.java.state.members
        and case.ours.state == case.before
    )


def _goes_on_counting(case: Case) -> bool:
    return (
        case.step.verb == "1013"
        and case.codes == (2014, 0)
        and not case.before.known
        and not case.java.state.known
        and case.step.number("id") == case.memory.highest_id + 1 > 1
        and set(case.ours.state.members) == {case.memory.highest_id + 1}
    )


def _names_the_next(case: Case) -> bool:
    java, ours = case.java.answer, case.ours.answer
    if case.step.verb != "1012" or case.codes != (0, 0) or java is None or ours is None or case.before.known:
        return False
    expected = {**(java.fields or {}), "nextBrokerId": str(case.memory.highest_id + 1)}
    return (
        case.memory.highest_id >= 1
        and (java.fields or {}).get("nextBrokerId") == "1"
        and ours.fields == expected
        and (java.remark, java.body) == (ours.remark, ours.body)
    )


def _no_check_code(case: Case) -> bool:
    check = case.step.get("check")
    return (
        case.step.verb == "1013"
        and case.codes in ((0, 1), (2014, 1))
        and check is not None
        and check.partition(";")[0] in ("", "null")
        and case.ours.state == case.before
    )


def can_be_dialled(address: str | None) -> bool:
    return re.fullmatch(r"[^\s;,=]+:\d{1,5}", address or "") is not None


def _follows_an_old_poll(case: Case) -> bool:
    """A poll was answered 2008 before the group was there, and the master registers: its process runs on."""
    return (
        case.step.verb == "1003"
        and case.codes == (0, 2010)
        and case.memory.polled_unknown
        and case.before.master is not None
        and case.step.number("id") == case.before.master
        and case.ours.state == case.before
    )


def _no_address(case: Case) -> bool:
    broker_id = case.step.number("id")
    return (
        case.step.verb == "1003"
        and case.codes == (0, 1)
        and not can_be_dialled(case.step.get("address"))
        and broker_id is not None
        and broker_id in case.before.members
        and case.java.state.members[broker_id].address == case.step.get("address")
        and case.ours.state == case.before
    )


def _address_taken(case: Case) -> bool:
    """Whether ours alone dropped the address of the replica that had it, and nothing else differs."""
    if case.step.verb not in ("1003", "1013") or case.codes != (0, 0):
        return False
    address = case.step.get("address") or (case.step.get("check") or "").partition(";")[0]
    robbed = {
        one
        for one, standing in case.before.members.items()
        if standing.address == address and one != case.step.number("id")
    }
    expected = {
        one: replace(standing, address="") if one in robbed else standing
        for one, standing in case.java.state.members.items()
    }
    java, ours = case.java.answer, case.ours.answer
    if java is not None and ours is not None and case.java.state.master in robbed:
        java = replace(java, fields={key: one for key, one in (java.fields or {}).items() if key not in MASTER_FIELDS})
    if java != ours:
        return False
    master_address = case.java.state.master_address
    state = replace(case.java.state, members=expected)
    if case.java.state.master in robbed:
        state, master_address = replace(state, master=None, master_address=None), None
    return bool(robbed) and case.ours.state == replace(state, master_address=master_address)


def _drops_everybody(case: Case) -> bool:
    """Java drops an empty sync state table, and with it the group."""
    ids = named_ids(case)
    return (
        case.step.verb == "1011"
        and case.codes == (0, 0)
        and case.step.get("living") != "true"
        and bool(case.step.get("ids"))
        and not case.java.state.known
        and case.before.sync_state_set <= ids
        and case.before.master not in ids
        and set(case.ours.state.members) == set(case.before.members) - ids
        and bool(case.ours.state.members)
    )


def _ignores_the_list(case: Case) -> bool:
    return (
        case.step.verb == "1011"
        and case.codes == (0, 0)
        and case.step.get("living") == "true"
        and bool(named_ids(case))
        and not case.java.state.known
        and set(case.ours.state.members) == set(case.before.members) - named_ids(case)
        and bool(case.ours.state.members)
    )


def _master_cleaned(case: Case) -> bool:
    """Java still names a master that it has removed; ours has none, under a new epoch."""
    ids = named_ids(case)
    kept = set(case.before.members) - ids
    return (
        case.step.verb == "1011"
        and case.codes == (0, 0)
        and case.before.master in ids
        and set(case.ours.state.members) == kept
        and case.ours.state.master is None
        and (case.ours.state.epoch == case.before.epoch + 1 or not kept)
        and (
            (case.java.state.master == case.before.master and set(case.java.state.members) == kept)
            or (not case.java.state.known and case.before.sync_state_set <= ids)
        )
    )


def _member_cleaned(case: Case) -> bool:
    ids = named_ids(case)
    after = without(case.before, ids)
    return (
        case.step.verb == "1011"
        and case.codes == (0, 0)
        and case.step.get("living") != "true"
        and case.before.master not in ids
        and bool(case.before.sync_state_set & ids)
        and bool(case.before.sync_state_set - ids)
        and case.java.state == after
        and case.ours.state == replace(after, set_epoch=case.before.set_epoch + 1)
    )


def _signed_ids(case: Case) -> bool:
    return (
        case.step.verb == "1011"
        and case.codes in ((0, 2009), (2009, 2009))
        and SIGNED.fullmatch(case.step.get("ids") or "") is not None
        and case.ours.state == case.before
        and case.ours.answer is not None
        and "according to the format" in (case.ours.answer.remark or "")
    )


def _only_separators(case: Case) -> bool:
    ids = case.step.get("ids") or ""
    return (
        case.step.verb == "1011"
        and case.codes in ((0, 2009), (2009, 2009))
        and bool(ids)
        and ids.replace(";", "") == ""
        and case.ours.state == case.before
    )


def _empty_between(case: Case) -> bool:
    """`1;;2`: Java's parser fails on the empty part too, but answers with the text of an exception."""
    return (
        case.step.verb == "1011"
        and case.codes == (2009, 2009)
        and ";;" in (case.step.get("ids") or "")
        and case.unchanged
    )


def _clean_in_another_cluster(case: Case) -> bool:
    """Java looks up heartbeats under the request's cluster: under another one no broker is alive."""
    beaten, alive = case.memory.beat_cluster, case.memory.our_alive()
    heard_elsewhere = {one for one in named_ids(case) & alive if one in beaten and beaten[one] != case.step.cluster}
    return (
        case.step.verb == "1011"
        and case.codes in ((0, 2009), (2009, 2009))
        and case.ours.answer is not None
        and "is still alive" in (case.ours.answer.remark or "")
        and bool(heard_elsewhere)
        and case.ours.state == case.before
    )


def _clean_a_sign_of_life(case: Case) -> bool:
    ids = named_ids(case)
    return (
        case.step.verb == "1011"
        and case.codes in ((0, 2009), (2009, 2009))
        and case.ours.answer is not None
        and "is still alive" in (case.ours.answer.remark or "")
        and bool(ids & case.alive_by_request(case.step.name or ""))
        and not ids & case.before.alive
        and case.ours.state == case.before
    )


IDS: tuple[Deviation, ...] = (
    Deviation(
        "only-the-next-id",
        "1013",
        "assigns any id that is free: one far beyond the next (which collides later), a cleaned one, a negative one",
        "assigns the next id, a reserved one, or the caller's own again; else 2014",
        "rule 4: an id is the name of a disk",
        "tests/core/traces/identity.txt",
        _takes_another_id,
        After.END,
    ),
    Deviation(
        "the-next-id-outlives-cleaning",
        "1013",
        "begins again with 1 after the group was cleaned, and refuses any other id",
        "continues with the next id",
        "rule 4: two disks would have one id",
        "tests/core/traces/cleaning.txt",
        _goes_on_counting,
        After.END,
    ),
    Deviation(
        "the-next-id-named-after-cleaning",
        "1012",
        "names 1 after the group was cleaned",
        "names the id after the highest ever assigned",
        "rule 4",
        "tests/core/traces/cleaning.txt",
        _names_the_next,
    ),
    Deviation(
        "a-check-code-names-an-address",
        "1013",
        "takes an empty registerCheckCode, or one without an address, and records the empty address",
        "code 1: expected `<address>;<milliseconds>`",
        "no caller could prove that such an id is its own, and no request could reach it (rule 8)",
        "tests/core/traces/golden_failover.txt",
        _no_check_code,
        After.END,
    ),
    Deviation(
        "a-registration-names-an-address",
        "1003",
        "accepts any text as a brokerAddress, and publishes it",
        "code 1: expected `<host>:<port>`",
        "a replica that cannot be dialled gets no role change (rule 8)",
        "tests/core/traces/golden_failover.txt",
        _no_address,
        After.END,
    ),
    Deviation(
        "a-registration-after-an-old-poll-waits",
        "1003",
        "does not know why the master registers",
        "2010 once, if a poll (1004) on this connection was answered 2008 before the group was there; the next poll is answered",
        "a running broker registers on a 2008: it is no new process, and stays master (rule 6)",
        "tests/differential/traces/old_poll.txt",
        _follows_an_old_poll,
    ),
    Deviation(
        "an-address-belongs-to-one",
        "1003, 1013",
        "lets two replicas have one address",
        "the new replica has it; the other one has no known address until it registers; a master without an address "
        "is not named",
        "rule 8: a pod's IP is evidence with an age, not an identity",
        "tests/core/traces/addresses.txt",
        _address_taken,
        After.END,
    ),
    Deviation(
        "a-named-clean-forgets-the-named",
        "1011",
        "drops the whole group when no member of the SyncStateSet is left, also before the first election, when there"
        " is none: then cleaning any id, even an unknown one, drops the group",
        "cleans only the named ids",
        "rule 4; a bug of Java's (partial clean can reset nextBrokerId)",
        "tests/core/traces/cleaning.txt",
        _drops_everybody,
        After.END,
    ),
    Deviation(
        "a-list-of-living-ids-is-a-list",
        "1011",
        "with isCleanLivingBroker ignores the list and drops the whole group",
        "cleans only the named ids",
        "a bug of Java's (clean -l ignores the id list)",
        "tests/core/traces/cleaning.txt",
        _ignores_the_list,
        After.END,
    ),
    Deviation(
        "a-cleaned-master-is-no-master",
        "1011",
        "still names the cleaned id as master, without an address",
        "has no master, under a new epoch",
        "rule 4",
        "tests/core/traces/cleaning.txt",
        _master_cleaned,
        After.END,
        special=True,
    ),
    Deviation(
        "a-set-that-shrinks-has-a-new-epoch",
        "1011",
        "removes a cleaned member from the SyncStateSet under the same syncStateSetEpoch: the master ignores the "
        "change",
        "under the next syncStateSetEpoch",
        "a broker ignores a set whose epoch is not greater than its own",
        "tests/core/traces/cleaning.txt",
        _member_cleaned,
        After.SHIFT,
    ),
    Deviation(
        "ids-have-no-sign",
        "1011",
        "reads +1 and -1 as ids",
        "2009: according to the format",
        "no id has a sign; only plainly named ids are cleaned",
        "tests/core/traces/cleaning.txt",
        _signed_ids,
        After.END,
    ),
    Deviation(
        "separators-are-no-ids",
        "1011",
        "reads a list of separators as an empty list, and drops the group",
        "2009: according to the format",
        "no id was named, so none is cleaned",
        "tests/core/traces/cleaning.txt",
        _only_separators,
        After.END,
    ),
    Deviation(
        "a-clean-finds-the-living-by-group",
        "1011",
        "looks for heartbeats under the clusterName of the request: under another or none, living brokers are cleaned",
        "knows the group by its name: 2009, they are alive",
        "the list of ids is for the dead; state is keyed by brokerName alone",
        "tests/differential/test_special.py",
        _clean_in_another_cluster,
        After.END,
    ),
    Deviation(
        "a-sign-of-life-keeps-from-cleaning",
        "1011",
        "cleans a replica that registered but has not sent a heartbeat yet",
        "2009: it is alive",
        "a replica that has just registered is starting, not dead",
        "tests/differential/test_special.py",
        _clean_a_sign_of_life,
        After.END,
    ),
)
