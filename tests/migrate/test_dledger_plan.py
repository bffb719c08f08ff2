"""Which member's log is copied, and when none is: the chosen one has every entry that any of them has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokergroup_operator.migrate.adopt import Finding
from brokergroup_operator.migrate.dledger_plan import NamedMember, judge
from brokergroup_operator.migrate.dledger_store import FileDigest, MemberReport, Settings

LOG = MemberReport(
    member="n0",
    file_bytes=1000,
    begin=0,
    end=3000,
    terms=((1, 0), (2, 10), (4, 20)),
    last_index=29,
    messages=30,
    files=(FileDigest(offset=0, first=0, last=14, sha256="a"), FileDigest(offset=1000, first=15, last=29, sha256="b")),
    settings=Settings(topics=3, delayed=5, consumed=100),
)

EMPTY = replace(LOG, terms=(), last_index=-1, files=(), messages=0, end=0, settings=Settings())


def member(name: str, like: MemberReport = LOG, **changed: Any) -> NamedMember:
    return NamedMember(name=f"{name}.json", said=replace(like, member=name, **changed))


def cut(last: int, **changed: Any) -> MemberReport:
    """Return the log of a member that ends after this entry."""
    terms = tuple(one for one in LOG.terms if one[1] <= last)
    files = tuple(
        one if one.last <= last else replace(one, last=last, sha256=f"up to {last}")
        for one in LOG.files
        if one.first <= last
    )
    return replace(LOG, terms=terms, last_index=last, files=files, **changed)


def findings(*stores: NamedMember, members: int = 3, blocks: bool = True) -> list[Finding]:
    return [one.finding for one in judge(stores, members=members).doubts if one.blocks == blocks]


def chosen(*stores: NamedMember, members: int = 3) -> str:
    found = judge(stores, members=members).chosen
    assert found is not None
    return found.name


def test_three_logs_that_end_alike() -> None:
    plan = judge([member("n0"), member("n1"), member("n2")], members=3)
    assert (plan.blocked, plan.doubts) == (False, ())
    text = "\n".join(plan.lines())
    assert "30 entries, 30 messages, index 0..29, offset 0..3000, terms 1, 2, 4" in text
    assert "mappedFileSizeCommitLog=1000" in text


def test_the_longest_log_of_the_last_term_is_copied() -> None:
    assert chosen(member("n0", cut(25)), member("n1"), member("n2", cut(12))) == "n1.json"
    longer = replace(cut(19), last_index=40, files=())
    assert findings(member("n0", longer), member("n1")) == [Finding.MEMBERS_DISAGREE]


def test_of_logs_that_end_alike_that_with_the_newest_settings_is_copied() -> None:
    """A follower has consumers' offsets late: Java 5.5.0 copies them with every 500th commit."""
    older = Settings(topics=3, delayed=5, consumed=40)
    assert chosen(member("n0", settings=older), member("n1"), member("n2", settings=Settings())) == "n1.json"
    assert findings(member("n0", settings=older), member("n1")) == []


@pytest.mark.parametrize(
    "newer", [Settings(topics=4), Settings(topics=3, delayed=6), Settings(topics=3, consumed=101)], ids=str
)
def test_settings_that_are_newer_where_the_log_is_shorter_block_unless_accepted(newer: Settings) -> None:
    stores = [member("n0"), member("n1", cut(25, settings=newer))]
    assert findings(*stores) == [Finding.OLDER_OFFSETS]
    accepted = judge(stores, members=3, older_offsets=True)
    assert not accepted.blocked
    assert Finding.OLDER_OFFSETS in [one.finding for one in accepted.doubts]


def test_a_majority_must_be_readable() -> None:
    unreadable = NamedMember(name="n2.json", said="its files are cut")
    assert findings(member("n0"), members=3) == [Finding.NO_MAJORITY]
    assert findings(member("n0"), unreadable, members=3) == [Finding.UNREADABLE, Finding.NO_MAJORITY]
    assert findings(member("n0"), member("n1"), members=4) == [Finding.NO_MAJORITY]
    assert findings(member("n0"), member("n1"), members=3) == []
    assert findings(member("n0"), member("n1"), members=3, blocks=False) == [Finding.OLDER_OFFSETS]
    assert findings(member("n0"), member("n1"), member("n2"), members=2) == [Finding.NO_MAJORITY]
    assert judge([], members=3).blocked
    assert findings(member("n0"), member("n0"), members=3) == [Finding.NAMED_TWICE]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (replace(cut(29), terms=((1, 0), (2, 10), (3, 20)), files=LOG.files), "they part at entry 20"),
        (replace(cut(19), terms=((1, 0), (2, 8)), files=()), "they part at entry 8"),
        (replace(cut(19), terms=((1, 0), (2, 10), (3, 18)), files=()), "they part at entry 18"),
        (replace(cut(19), last_index=33, files=()), "entries 30..33 of term 2 are only on n1"),
        (replace(LOG, files=(replace(LOG.files[0], sha256="c"), LOG.files[1])), "entries 0..14 are of the same terms"),
        # Members of one group cut their logs into the same files: these are of two groups.
        (
            replace(LOG, files=(replace(LOG.files[0], last=13), replace(LOG.files[1], first=14))),
            "the file at 0 has entries 0..13, and 0..14",
        ),
        (
            replace(cut(29), files=(*LOG.files, replace(LOG.files[1], offset=2000))),
            "n0 has no file with entries at 2000",
        ),
    ],
)
def test_members_that_disagree(other: MemberReport, said: str) -> None:
    plan = judge([member("n0"), member("n1", other)], members=3)
    [doubt] = [one for one in plan.doubts if one.blocks]
    assert (doubt.finding, said in doubt.what) == (Finding.MEMBERS_DISAGREE, True)


def test_retention_may_have_deleted_different_files() -> None:
    later = replace(LOG, terms=((2, 15), (4, 20)), files=LOG.files[1:], begin=1000)
    assert findings(member("n0"), member("n1", later)) == []
    shorter = replace(cut(25), files=())
    assert findings(member("n0", later), member("n1", shorter)) == []
    assert Finding.BEGINS_LATER in findings(member("n0", later), member("n1", shorter), blocks=False)
    assert findings(member("n0", later), member("n1", cut(9))) == [Finding.MEMBERS_DISAGREE]


def test_an_empty_log_beside_others_is_behind() -> None:
    assert chosen(member("n0", EMPTY), member("n1")) == "n1.json"
    assert findings(member("n0", EMPTY), member("n1"), member("n2")) == []
    assert findings(member("n0", EMPTY), member("n1", EMPTY)) == [Finding.EMPTY_LOG]


def test_an_empty_log_beside_others_is_no_part_of_a_majority() -> None:
    """Its disk may be a new one: what this member had acknowledged before, with the one that is left out, is on neither."""
    plan = judge([member("n0", cut(12)), member("n1", EMPTY)], members=3)
    [doubt] = [one for one in plan.doubts if one.blocks]
    assert doubt.finding is Finding.NO_MAJORITY
    assert "1 of 3 members can be read, without the 1 whose log is empty" in doubt.what


def test_entries_on_a_minority_are_copied_and_named() -> None:
    plan = judge([member("n0"), member("n1", cut(25)), member("n2", cut(12))], members=3)
    assert not plan.blocked
    [doubt] = [one for one in plan.doubts if one.finding is Finding.ON_A_MINORITY]
    assert doubt.what == "the last 4 entries are on less than a majority of 3"


@pytest.mark.parametrize(
    ("changed", "finding"),
    [
        ({"timers": 2}, Finding.WAITING_TIMERS),
        ({"compacted": ("t",)}, Finding.COMPACTED_TOPICS),
        ({"left_out": ("mine",)}, Finding.LEFT_OUT),
        ({"undispatched_files": 11}, Finding.QUEUES_BEHIND),
    ],
)
def test_what_cannot_be_copied(changed: dict[str, Any], finding: Finding) -> None:
    assert findings(member("n0", **changed), member("n1", cut(25)), members=2) == [finding]
    # Of a member that is not copied it is of no matter.
    assert findings(member("n0"), member("n1", cut(25), **changed), members=2) == []


@pytest.mark.parametrize(
    ("changed", "finding"),
    [
        ({"stopped_cleanly": False}, Finding.NOT_STOPPED),
        ({"stale": True}, Finding.CUT_OFF),
        ({"hidden": 1}, Finding.HIDDEN),
        ({"deleted": 1}, Finding.DELETED_TOPICS),
        ({"no_index": "its broker was killed"}, Finding.NO_INDEX),
    ],
)
def test_what_is_worth_knowing(changed: dict[str, Any], finding: Finding) -> None:
    assert findings(member("n0", **changed), member("n1", **changed), members=2, blocks=False) == [finding]
    assert findings(member("n0", undispatched_files=10), member("n1"), members=2) == []


def test_files_of_another_size() -> None:
    assert Finding.OTHER_FILE_SIZE in findings(member("n0"), member("n1", cut(25), file_bytes=2000))


@given(
    lasts=st.lists(st.integers(0, 29), min_size=2, max_size=3),
    leader=st.integers(0, 29),
)
def test_with_parts_of_one_log_the_chosen_one_has_what_any_has(lasts: list[int], leader: int) -> None:
    """So it has every entry that a majority has: each acknowledged one."""
    stores = [member(f"n{number}", cut(last)) for number, last in enumerate([leader, *lasts])]
    plan = judge(stores, members=len(stores))
    assert not plan.blocked
    assert plan.report.last_index == max(leader, *lasts)
