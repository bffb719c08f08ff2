"""A small differential test, part of the fast and the real tests; `make test-differential` (run.py) runs the full one.

Real: a short run against each Java version, the golden vectors (tests/core/traces), the recorded life of a real group.
It also tests itself: it must find our controller with one changed check, and shrink the sequence to a few steps.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from controller_core import election, membership, sync_state
from controller_core.decision import ControllerCode, Decision
from tests.differential.campaign import Campaign
from tests.differential.canonical import Answer, GroupState, Standing
from tests.differential.cases import Case, Seen
from tests.differential.comparison import Comparison
from tests.differential.deviation_list import BY_THE_COMPARISON, DEVIATIONS
from tests.differential.language import Step
from tests.differential.memory import Memory, Report
from tests.differential.recorded import recorded_steps
from tests.differential.shapes import SHAPES
from tests.differential.sides import java_side, our_side
from tests.differential.traces_of_sequences import draw
from tests.real.parts import install

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

REPOSITORY = Path(__file__).resolve().parents[2]
REFERENCE = REPOSITORY / "docs" / "reference"
VERSIONS = [
    pytest.param(install.ROCKETMQ_VERSION, marks=pytest.mark.real("java", "rocketmq")),
    pytest.param(install.NEWEST_ROCKETMQ_VERSION, marks=pytest.mark.real("java", "newest-rocketmq")),
    pytest.param(install.OLDER_CONTROLLER_VERSION, marks=pytest.mark.real("java", "older-java-controller")),
]
GOLDEN = """
1012
1013 id=2 check=10.0.0.1:10911;100
1004
1003 id=1 address=10.0.0.1:10911
1002 id=1 designate=false
1001 master=1 epoch=1 set=1 setEpoch=1
1006 names=bn
1006 body=none
1011
1013 id=1 check=10.0.0.1:10911;100
1013 id=1 check=10.0.0.1:10911;100
1013 id=1 check=10.0.0.2:10911;200
1012
1004
1003 id=1 address=10.0.0.1:10911
1003 id=7 address=10.0.0.1:10911
heartbeat
heartbeat id=1 epoch=0 maxOffset=10
1002 id=1 designate=false
1002 id=1 designate=false
1013 id=2 check=10.0.0.2:10911;200
1003 id=2 address=10.0.0.2:10911
heartbeat id=2 epoch=1 maxOffset=9
1001 master=1 epoch=@ set=1 setEpoch=@
1001 master=2 epoch=@ set=1,2 setEpoch=@
1001 master=1 epoch=@-1 set=1,2 setEpoch=@
1001 master=1 epoch=@ set=1,2 setEpoch=@-1
1001 master=1 epoch=@ set=1,5 setEpoch=@
1001 master=1 epoch=@ set=2 setEpoch=@
1013 id=3 check=10.0.0.3:10911;300
1001 master=1 epoch=@ set=1,3 setEpoch=@
1001 master=1 epoch=@ set=1,2 setEpoch=@ as=rocketmq
1001 master=1 epoch=@ set=1,2 setEpoch=@
1002 id=3 designate=true
1002 id=5 designate=true
1002 id=2 designate=false
1002 id=2 designate=true
1002 id=1 designate=true
1011 ids=2
1011
1011 ids=a;b
1011 ids=3
1012
1001 master=2 epoch=@ set=1,2 setEpoch=@
close id=2
1004
heartbeat id=2 epoch=2 maxOffset=9 oneway=true
1001 master=1 epoch=@ set=1,2 setEpoch=@
close id=1
close id=2
heartbeat id=2 epoch=@-1 maxOffset=9 oneway=true
1004
1012
"""


def golden_steps() -> list[Step]:
    return [Step.parse(line) for line in GOLDEN.split("\n") if line]


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_golden_vectors_and_the_recorded_life(version: str, tmp_path: Path) -> None:
    async with java_side(tmp_path, version) as java, our_side() as ours:
        for title, steps in (("golden vectors", golden_steps()), ("recorded life", recorded_steps())):
            comparison = Comparison(java, ours)
            await comparison.play_all(steps)
            outcome = comparison.outcome
            assert outcome.difference is None, draw(outcome, title=title)
            assert outcome.failure is None, draw(outcome, title=title)
            assert outcome.steps == len(steps) or outcome.ended_by is not None
            if title == "golden vectors":
                assert outcome.steps == len(steps), f"ended by {outcome.ended_by} after {outcome.steps} steps"


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_short_run_finds_nothing_unlisted(version: str, tmp_path: Path) -> None:
    tally = await Campaign(version, seed=20, sequences=40).run(tmp_path)
    assert not tally.failures, "\n".join(tally.failures)
    assert tally.sequences >= 40
    assert tally.steps > 400


def _recode(before: str, after: str) -> Callable[[Decision], Decision]:
    """Answer one code where another one is due."""

    def change(decision: Decision) -> Decision:
        return replace(decision, code=ControllerCode[after]) if decision.code == ControllerCode[before] else decision

    return change


def _forget_events(decision: Decision) -> Decision:
    """Answers success without an effect."""
    return decision if not decision.events else replace(decision, events=(), record=None)


FENCED_SET, FENCED_MASTER = "CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH", "CONTROLLER_FENCED_MASTER_EPOCH"
NOT_ALIVE, INVALID = "CONTROLLER_BROKER_NOT_ALIVE", "CONTROLLER_INVALID_REPLICAS"
STILL_THERE, ELECTION_FAILED = "CONTROLLER_MASTER_STILL_EXIST", "CONTROLLER_ELECT_MASTER_FAILED"
INVALID_ID, UNREGISTERED = "CONTROLLER_BROKER_ID_INVALID", "CONTROLLER_BROKER_NEED_TO_BE_REGISTERED"
MUTANTS: dict[str, tuple[ModuleType, str, Callable[[Decision], Decision]]] = {
    "2000 for 2001": (sync_state, "alter_sync_state_set", _recode(FENCED_SET, FENCED_MASTER)),
    "2003 for 2006": (sync_state, "alter_sync_state_set", _recode(NOT_ALIVE, INVALID)),
    "0 for 2011": (election, "elect_master", _recode(STILL_THERE, "SUCCESS")),
    "2012 for 2011": (election, "elect_master", _recode(STILL_THERE, ELECTION_FAILED)),
    "2010 for 2014": (membership, "apply_broker_id", _recode(INVALID_ID, UNREGISTERED)),
    "0 for 2009": (
        membership,
        "clean_broker_data",
        _recode("CONTROLLER_INVALID_CLEAN_BROKER_METADATA", "SUCCESS"),
    ),
    "an alteration forgotten": (sync_state, "alter_sync_state_set", _forget_events),
    "a cleaning forgotten": (membership, "clean_broker_data", _forget_events),
}


@pytest.mark.real("java", "rocketmq")
async def test_a_changed_controller_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with java_side(tmp_path, install.ROCKETMQ_VERSION) as java:
        for name, (module, function, change) in MUTANTS.items():
            original = getattr(module, function)
            with monkeypatch.context() as patch:
                patch.setattr(
                    module, function, lambda *given, original=original, change=change: change(original(*given))
                )
                campaign = Campaign(install.ROCKETMQ_VERSION, seed=3, sequences=200, most_failures=1)
                tally = await campaign.run_at(java)
            assert tally.failures, f"{name}: not caught in {tally.sequences} sequences, {tally.steps} steps"
            commands = [line for line in tally.failures[0].splitlines() if line == "----"]
            assert len(commands) < 20, f"{name}: not shrunk:\n{tally.failures[0]}"


def listed(step: str, before: GroupState, java: Seen, ours: Seen, memory: Memory | None = None) -> list[str]:
    """Return the entries that apply to one step."""
    case = Case(Step.parse(step), before, {"bn": memory or Memory()}, java, ours, install.ROCKETMQ_VERSION)
    return [one.name for one in DEVIATIONS if one.applies(case)]


def elected(before: GroupState, master: int, *, epoch: int | None = None) -> GroupState:
    """Return the group after this election, under the next epoch unless another one is given."""
    members = {one: replace(it, in_sync=one == master) for one, it in before.members.items()}
    return GroupState(master, members[master].address, epoch or before.epoch + 1, before.set_epoch + 1, members)


MEMBERS = {one: Standing(f"10.0.1.{one}:10911", alive=True, in_sync=one != 2) for one in (1, 2, 3)}
BEFORE = GroupState(1, "10.0.1.1:10911", 1, 3, MEMBERS)
AS_IT_WAS = replace(BEFORE, members={**BEFORE.members, 1: replace(BEFORE.members[1], alive=False)})
EARLY_ELECTIONS = {
    "elected": (AS_IT_WAS, elected(AS_IT_WAS, 3), True),
    "no-successor": (AS_IT_WAS, replace(AS_IT_WAS, master=None, master_address=None, epoch=2), True),
    "not-in-the-set": (AS_IT_WAS, elected(AS_IT_WAS, 2), False),
    "two-epochs": (AS_IT_WAS, elected(AS_IT_WAS, 3, epoch=3), False),
    "not-noticed": (AS_IT_WAS, BEFORE, False),
    "java-not-noticed": (BEFORE, elected(AS_IT_WAS, 3), False),
    "other-way-round": (elected(AS_IT_WAS, 3), AS_IT_WAS, False),
}


@pytest.mark.parametrize(("java", "ours", "is_listed"), EARLY_ELECTIONS.values(), ids=EARLY_ELECTIONS)
def test_java_s_early_election_excuses_nothing_else(java: GroupState, ours: GroupState, is_listed: bool) -> None:
    found = listed("close id=1", BEFORE, Seen(None, java), Seen(None, ours))
    assert ("a-lost-master-is-always-replaced" in found) is is_listed


MASTERLESS = replace(
    BEFORE,
    master=None,
    master_address=None,
    epoch=2,
    members={one: replace(it, alive=one != 1, in_sync=one != 3) for one, it in MEMBERS.items()},
)
MOST_DATA = {
    "the-most": (200, elected(MASTERLESS, 3), None, True),
    "two-epochs": (200, elected(MASTERLESS, 3, epoch=4), None, False),
    "a-dead-one": (200, elected(MASTERLESS, 1), None, False),
    "all-were-heard": (200, MASTERLESS, 2012, False),
    "not-more": (100, elected(MASTERLESS, 3), None, False),
    "less": (90, elected(MASTERLESS, 3), None, False),
    "unheard": (None, MASTERLESS, 2012, True),
    "unheard-by-controller": (None, MASTERLESS, 2004, True),
    "another-code": (None, MASTERLESS, 2011, False),
    "an-epoch-used-up": (None, replace(MASTERLESS, epoch=3), 2012, False),
    "elected-unheard": (None, elected(MASTERLESS, 3), None, False),
}


@pytest.mark.parametrize(("third", "ours", "code", "is_listed"), MOST_DATA.values(), ids=MOST_DATA)
def test_the_most_data_of_all_excuses_nothing_else(
    third: int | None, ours: GroupState, code: int | None, is_listed: bool
) -> None:
    logs = {1: Report(1, 500), 2: Report(1, 100)} | ({} if third is None else {3: Report(1, third)})
    seen = Seen(Answer(0), elected(MASTERLESS, 2)), Seen(None if code is None else Answer(code), ours)
    found = listed("1002 id=2 designate=false", MASTERLESS, *seen, Memory(logs=logs))
    assert ("after-silence-the-most-data-wins" in found) is is_listed


@pytest.mark.parametrize(
    ("asked", "end", "master", "code", "name"),
    [
        ({2}, 200, 3, 0, "after-silence-the-most-data-wins"),
        ({2}, 200, 3, 2011, "after-silence-the-most-data-wins"),
        ({2}, 100, 2, 0, "a-member-that-asks-can-lead"),
        ({2}, 100, 2, 2011, "a-member-that-asks-can-lead"),
        ({2}, 100, 3, 0, None),
        (set(), 200, 3, 0, None),
        ({2}, 200, 3, 2004, None),
    ],
)
def test_a_member_that_asks_counts_where_the_most_data_wins(
    asked: set[int], end: int, master: int, code: int, name: str | None
) -> None:
    """Java finds no living member of the set; for ours 2 lives if it asked."""
    before = replace(MASTERLESS, members=MASTERLESS.members | {2: replace(MASTERLESS.members[2], alive=False)})
    memory = Memory(logs={2: Report(1, 100), 3: Report(1, end)}, alive_by_request=asked)
    answer = Answer(code, fields={"masterBrokerId": str(master)})
    seen = Seen(Answer(2012), before), Seen(answer, elected(before, master))
    assert listed("1002 id=3 designate=false", before, *seen, memory) == ([] if name is None else [name])


@pytest.mark.parametrize(
    ("polled", "caller", "is_listed"),
    [(True, 1, True), (False, 1, False), (True, 3, False)],
    ids=["a-poll", "none", "a-slave"],
)
def test_only_the_master_is_refused_after_an_old_poll(polled: bool, caller: int, is_listed: bool) -> None:
    step = f"1003 id={caller} address=10.0.1.{caller}:10911"
    names = listed(step, BEFORE, Seen(Answer(0), BEFORE), Seen(Answer(2010), BEFORE), Memory(polled_unknown=polled))
    assert names == (["a-registration-after-an-old-poll-waits"] if is_listed else [])


@pytest.mark.parametrize(
    ("address", "alive", "is_listed"), [("x", True, True), ("10.0.1.1:10911", True, False), ("x", False, False)]
)
def test_only_a_master_that_cannot_be_dialled_keeps_its_office(address: str, alive: bool, is_listed: bool) -> None:
    members = {**BEFORE.members, 1: Standing(address, alive=alive, in_sync=True)}
    before = replace(BEFORE, master_address=address, members=members)
    names = listed("1002 id=3 designate=true", before, Seen(Answer(0), elected(before, 3)), Seen(Answer(1), before))
    assert names == (["a-master-that-cannot-be-dialled-stays"] if is_listed else [])


# ---- The pages


def rows_of(section: str) -> dict[str, list[str]]:
    """Return the other cells of each row of docs/reference/deviations.md, by name."""
    text = (
        (REFERENCE / "deviations.md")
        .read_text(encoding="utf-8")
        .partition(f"\n## {section}\n")[2]
        .partition("\n## ")[0]
    )
    rows = re.findall(r"^\| `(.+?)` \| (.+) \|$", text, re.MULTILINE)
    names = [name for name, _ in rows]
    assert len(names) == len(set(names)), names
    return {name: cells.split(" | ") for name, cells in rows}


def test_the_page_and_the_predicates_have_the_same_entries() -> None:
    compared, spellings = rows_of("Decisions"), rows_of("Spellings")
    special = rows_of("By the clock, or by more than one request")
    entries = [one for one in (*DEVIATIONS, *BY_THE_COMPARISON) if not one.special]
    assert [(name, cells[0], cells[-1]) for name, cells in compared.items()] == [
        (one.name, one.request, one.after.value) for one in entries
    ]
    assert list(spellings) == [shape.name for shape in SHAPES]
    assert {(one.name, one.request) for one in DEVIATIONS if one.special} <= {
        (name, cells[0]) for name, cells in special.items()
    }
    tests = [cells[4].strip("`") for cells in (*compared.values(), *special.values())]
    assert [test for test in tests if not (REPOSITORY / test).exists()] == []
    for rows, columns in ((compared, 6), (spellings, 4), (special, 5)):
        assert [name for name, cells in rows.items() if len(cells) != columns or not all(cells)] == []


def test_every_entry_is_in_the_table_of_its_request() -> None:
    table = (REFERENCE / "controller.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z]+(?:-[a-z']+)+)`", table))
    sections = ("Decisions", "Spellings", "By the clock, or by more than one request")
    known = {name for section in sections for name in rows_of(section)}
    assert named <= known, f"docs/reference/controller.md names {sorted(named - known)}"
    assert known - named <= NOT_ABOUT_ONE_REQUEST


NOT_ABOUT_ONE_REQUEST = {"a-master-that-asks-is-alive", "an-election-waits-for-the-caller's-heartbeat"}
