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
from controller_core.decision import ControllerCode
from tests.differential.campaign import Campaign
from tests.differential.canonical import Answer, GroupState, Standing
from tests.differential.cases import Case, Seen
from tests.differential.comparison import Comparison
from tests.differential.deviation_list import BY_THE_COMPARISON, DEVIATIONS
from tests.differential.documents import TARGET, render
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


def _changed(module: ModuleType, name: str, change: Callable[..., object]) -> Callable[[pytest.MonkeyPatch], None]:
    original = getattr(module, name)

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, name, lambda *arguments: change(original(*arguments)))

    return patch


def _recode(before: ControllerCode, after: ControllerCode) -> Callable[..., object]:
    def change(decision):  # type: ignore[no-untyped-def]
        from dataclasses import replace

        return replace(decision, code=after) if decision.code == before else decision

    return change


def _forget_events(decision):  # type: ignore[no-untyped-def]
    """Answers success without an effect."""
    from dataclasses import replace

    return decision if not decision.events else replace(decision, events=(), record=None)


MUTANTS = {
    "2000 for 2001": _changed(
        sync_state,
        "alter_sync_state_set",
        _recode(ControllerCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH, ControllerCode.CONTROLLER_FENCED_MASTER_EPOCH),
    ),
    "2003 for 2006": _changed(
        sync_state,
        "alter_sync_state_set",
        _recode(ControllerCode.CONTROLLER_BROKER_NOT_ALIVE, ControllerCode.CONTROLLER_INVALID_REPLICAS),
    ),
    "0 for 2011": _changed(
        election, "elect_master", _recode(ControllerCode.CONTROLLER_MASTER_STILL_EXIST, ControllerCode.SUCCESS)
    ),
    "2012 for 2011": _changed(
        election,
        "elect_master",
        _recode(ControllerCode.CONTROLLER_MASTER_STILL_EXIST, ControllerCode.CONTROLLER_ELECT_MASTER_FAILED),
    ),
    "2010 for 2014": _changed(
        membership,
        "apply_broker_id",
        _recode(ControllerCode.CONTROLLER_BROKER_ID_INVALID, ControllerCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED),
    ),
    "0 for 2009": _changed(
        membership,
        "clean_broker_data",
        _recode(ControllerCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA, ControllerCode.SUCCESS),
    ),
    "an alteration forgotten": _changed(sync_state, "alter_sync_state_set", _forget_events),
    "a cleaning forgotten": _changed(membership, "clean_broker_data", _forget_events),
}


@pytest.mark.real("java", "rocketmq")
async def test_a_changed_controller_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with java_side(tmp_path, install.ROCKETMQ_VERSION) as java:
        for name, mutate in MUTANTS.items():
            with monkeypatch.context() as patch:
                mutate(patch)
                campaign = Campaign(install.ROCKETMQ_VERSION, seed=3, sequences=200, most_failures=1)
                tally = await campaign.run_at(java)
            assert tally.failures, f"{name}: not caught in {tally.sequences} sequences, {tally.steps} steps"
            commands = [line for line in tally.failures[0].splitlines() if line == "----"]
            assert len(commands) < 20, f"{name}: not shrunk:\n{tally.failures[0]}"


MEMBERS = {one: Standing(f"10.0.1.{one}:10911", alive=True, in_sync=one != 2) for one in (1, 2, 3)}
BEFORE = GroupState(1, "10.0.1.1:10911", 1, 3, MEMBERS)
AS_IT_WAS = replace(BEFORE, members={**BEFORE.members, 1: replace(BEFORE.members[1], alive=False)})


def elected(master: int, *, epoch: int = 2) -> GroupState:
    members = {one: replace(it, in_sync=one == master) for one, it in AS_IT_WAS.members.items()}
    return GroupState(master, BEFORE.members[master].address, epoch, 4, members)


@pytest.mark.parametrize(
    ("java", "ours", "listed"),
    [
        (AS_IT_WAS, elected(3), True),
        (AS_IT_WAS, replace(AS_IT_WAS, master=None, master_address=None, epoch=2), True),
        (AS_IT_WAS, elected(2), False),
        (AS_IT_WAS, elected(3, epoch=3), False),
        (AS_IT_WAS, BEFORE, False),
        (BEFORE, elected(3), False),
        (elected(3), AS_IT_WAS, False),
    ],
    ids=[
        "elected",
        "no-successor",
        "not-in-the-set",
        "two-epochs",
        "not-noticed",
        "java-not-noticed",
        "other-way-round",
    ],
)
def test_java_s_early_election_excuses_nothing_else(java: GroupState, ours: GroupState, listed: bool) -> None:
    (entry,) = (one for one in DEVIATIONS if one.name == "a-lost-master-is-always-replaced")
    case = Case(Step.parse("close id=1"), BEFORE, {}, Seen(None, java), Seen(None, ours), install.ROCKETMQ_VERSION)
    assert entry.applies(case) is listed


MASTERLESS = GroupState(
    None,
    None,
    2,
    3,
    {
        1: Standing("10.0.1.1:10911", alive=False, in_sync=True),
        2: Standing("10.0.1.2:10911", alive=True, in_sync=True),
        3: Standing("10.0.1.3:10911", alive=True, in_sync=False),
    },
)


def elected_of_masterless(master: int, *, epoch: int = 3) -> GroupState:
    members = {one: replace(it, in_sync=one == master) for one, it in MASTERLESS.members.items()}
    return GroupState(master, members[master].address, epoch, 4, members)


@pytest.mark.parametrize(
    ("third", "ours", "code", "listed"),
    [
        (200, elected_of_masterless(3), None, True),
        (200, elected_of_masterless(3, epoch=4), None, False),
        (200, elected_of_masterless(1), None, False),
        (200, MASTERLESS, 2012, False),
        (100, elected_of_masterless(3), None, False),
        (90, elected_of_masterless(3), None, False),
        (None, MASTERLESS, 2012, True),
        (None, MASTERLESS, 2004, True),
        (None, MASTERLESS, 2011, False),
        (None, replace(MASTERLESS, epoch=3), 2012, False),
        (None, elected_of_masterless(3), None, False),
    ],
    ids=[
        "the-most",
        "two-epochs",
        "a-dead-one",
        "all-were-heard",
        "not-more",
        "less",
        "unheard",
        "unheard-by-controller",
        "another-code",
        "an-epoch-used-up",
        "elected-unheard",
    ],
)
def test_the_most_data_of_all_excuses_nothing_else(
    third: int | None, ours: GroupState, code: int | None, listed: bool
) -> None:
    (entry,) = (one for one in DEVIATIONS if one.name == "after-silence-the-most-data-wins")
    logs = {1: Report(1, 500), 2: Report(1, 100)} | ({} if third is None else {3: Report(1, third)})
    answers = Answer(0), None if code is None else Answer(code)
    seen = Seen(answers[0], elected_of_masterless(2)), Seen(answers[1], ours)
    step = Step.parse("1002 id=2 designate=false")
    case = Case(step, MASTERLESS, {"bn": Memory(logs=logs)}, *seen, install.ROCKETMQ_VERSION)
    assert entry.applies(case) is listed


ALL_OF_THE_SET_DEAD = replace(
    MASTERLESS, members={**MASTERLESS.members, 2: replace(MASTERLESS.members[2], alive=False)}
)


@pytest.mark.parametrize(
    ("asked", "end", "elected", "code", "listed"),
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
    asked: set[int], end: int, elected: int, code: int, listed: str | None
) -> None:
    """Java finds no living member of the set; for ours 2 lives if it asked."""
    after = replace(
        ALL_OF_THE_SET_DEAD,
        master=elected,
        master_address=f"10.0.1.{elected}:10911",
        epoch=3,
        set_epoch=4,
        members={one: replace(it, in_sync=one == elected) for one, it in ALL_OF_THE_SET_DEAD.members.items()},
    )
    memory = Memory(logs={2: Report(1, 100), 3: Report(1, end)}, alive_by_request=asked)
    answer = Answer(code, fields={"masterBrokerId": str(elected)})
    case = Case(
        Step.parse("1002 id=3 designate=false"),
        ALL_OF_THE_SET_DEAD,
        {"bn": memory},
        Seen(Answer(2012), ALL_OF_THE_SET_DEAD),
        Seen(answer, after),
        install.ROCKETMQ_VERSION,
    )
    assert [one.name for one in DEVIATIONS if one.applies(case)] == ([] if listed is None else [listed])


@pytest.mark.parametrize(
    ("polled", "caller", "listed"),
    [(True, 1, True), (False, 1, False), (True, 3, False)],
    ids=["a-poll", "none", "a-slave"],
)
def test_only_the_master_is_refused_after_an_old_poll(polled: bool, caller: int, listed: bool) -> None:
    step = Step.parse(f"1003 id={caller} address=10.0.1.{caller}:10911")
    seen = Seen(Answer(0), BEFORE), Seen(Answer(2010), BEFORE)
    case = Case(step, BEFORE, {"bn": Memory(polled_unknown=polled)}, *seen, install.ROCKETMQ_VERSION)
    names = [one.name for one in DEVIATIONS if one.applies(case)]
    assert names == (["a-registration-after-an-old-poll-waits"] if listed else [])


@pytest.mark.parametrize(
    ("address", "alive", "listed"), [("x", True, True), ("10.0.1.1:10911", True, False), ("x", False, False)]
)
def test_only_a_master_that_cannot_be_dialled_keeps_its_office(address: str, alive: bool, listed: bool) -> None:
    members = {**BEFORE.members, 1: Standing(address, alive=alive, in_sync=True)}
    before = replace(BEFORE, master_address=address, members=members)
    after = {one: replace(it, in_sync=one == 3) for one, it in members.items()}
    java = replace(before, master=3, master_address="10.0.1.3:10911", epoch=2, set_epoch=4, members=after)
    seen = Seen(Answer(0), java), Seen(Answer(1), before)
    case = Case(Step.parse("1002 id=3 designate=true"), before, {}, *seen, install.ROCKETMQ_VERSION)
    names = [one.name for one in DEVIATIONS if one.applies(case)]
    assert names == (["a-master-that-cannot-be-dialled-stays"] if listed else [])


def test_the_page_says_what_the_list_says() -> None:
    assert TARGET.read_text(encoding="utf-8") == render(), "run: python -m tests.differential.documents"


def test_every_entry_is_in_the_table_of_its_request_and_every_test_it_names_is_there() -> None:
    table = (REPOSITORY / "docs" / "reference" / "controller.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z]+(?:-[a-z']+)+)`", table))
    entries = (*DEVIATIONS, *BY_THE_COMPARISON)
    known = {entry.name for entry in entries} | {shape.name for shape in SHAPES}
    assert named <= known, f"docs/reference/controller.md names {sorted(named - known)}"
    assert known - named <= NOT_ABOUT_ONE_REQUEST
    for entry in entries:
        assert (REPOSITORY / entry.test).exists(), f"{entry.name}: {entry.test} does not exist"


NOT_ABOUT_ONE_REQUEST = {"a-master-that-asks-is-alive", "an-election-waits-for-the-caller's-heartbeat"}
