"""Every way through a start ends registered, and heard by every controller that can be reached (issue 30, a)."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from rocketmq_remoting.codes import RequestCode
from tests.replica.start_world import Disk, Event, Fault, Leads, Moment, Planes, Walk, play
from tests.support.draws import sample

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FIND = RequestCode.CONTROLLER_GET_METADATA_INFO
NEXT_ID = RequestCode.CONTROLLER_GET_NEXT_BROKER_ID
APPLY = RequestCode.CONTROLLER_APPLY_BROKER_ID
REGISTER = RequestCode.CONTROLLER_REGISTER_BROKER
ELECT = RequestCode.CONTROLLER_ELECT_MASTER
POLL = RequestCode.CONTROLLER_GET_REPLICA_INFO
OF_THE_DISK = {
    Disk.NEW: (FIND, NEXT_ID, APPLY, REGISTER),
    Disk.APPLIED: (FIND, APPLY, REGISTER),
    Disk.KNOWN: (FIND, REGISTER),
    Disk.WAS_MASTER: (FIND, REGISTER),
}
FAULTS_OF_ONE = {NEXT_ID: (), APPLY: (Fault.ID_REFUSED,), ELECT: (Fault.NOBODY_ELECTED, Fault.NOT_REGISTERED)}
FAULTS = [fault for fault in Fault if fault not in (Fault.NONE, Fault.ID_REFUSED, Fault.NOBODY_ELECTED)]


def questions(disk: Disk, leads: Leads) -> tuple[RequestCode, ...]:
    """What this start asks, in order."""
    return (*OF_THE_DISK[disk], *([ELECT] if leads is Leads.NOBODY else []), POLL)


def starts() -> Iterator[tuple[Disk, Leads]]:
    return itertools.product(Disk, Leads)


def faulty_answers() -> Iterator[Walk]:
    """Each answer lost, late, refused or unknown, while one thing happens."""
    for (disk, leads), lasts, event in itertools.product(starts(), (False, True), Event):
        for question in questions(disk, leads):
            for fault in (*FAULTS, *FAULTS_OF_ONE.get(question, ())):
                yield Walk(disk, leads, Planes.ONE, question, fault, lasts, event, Moment(question))


def moments() -> Iterator[Walk]:
    """One thing at each moment, while the registration is answered, not answered, or refused."""
    for (disk, leads), event, planes in itertools.product(starts(), Event, (Planes.ONE, Planes.THREE)):
        asked = questions(disk, leads)
        for moment in (Moment(), *(Moment(code, done=done) for code in asked for done in (False, True))):
            for fault in (Fault.NONE, Fault.ANSWER_LOST, Fault.CODE_1):
                yield Walk(disk, leads, planes, REGISTER, fault, event=event, moment=moment)


def unreachable() -> Iterator[Walk]:
    """Several controllers, of which some cannot be reached, answer nothing, or refuse everything."""
    for (disk, leads), planes, event in itertools.product(starts(), Planes, Event):
        for question, fault in itertools.product(questions(disk, leads), (Fault.NONE, Fault.ANSWER_LOST, Fault.RESET)):
            yield Walk(disk, leads, planes, question, fault, event=event, moment=Moment(REGISTER))


WALKS = list(dict.fromkeys((*faulty_answers(), *moments(), *unreachable())))


@pytest.mark.sampled
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("disk", "leads"), [(disk.name, leads.name) for disk, leads in starts()])
def test_each_ends_registered_and_heard_by_every_controller(disk: str, leads: str, tmp_path: Path) -> None:
    of_this_start = [walk for walk in WALKS if (walk.disk.name, walk.leads.name) == (disk, leads)]
    wrong = {}
    for number, walk in enumerate(sample(of_this_start, 15)):
        complaints = play(walk, tmp_path / str(number)).complaints
        if complaints:
            wrong[str(walk)] = complaints
    assert not wrong


# The fault that two real clusters met, and its siblings; each was red before the two facts were told apart.
NAMED = {
    "a 1008 while 1003 is not answered": Walk(fault=Fault.ANSWER_LOST, event=Event.TOLD_OTHER, moment=Moment(REGISTER)),
    "a 1008 while 1003 is lost": Walk(fault=Fault.REQUEST_LOST, event=Event.TOLD_OTHER, moment=Moment(REGISTER)),
    "a 1008 before 1003 is refused": Walk(fault=Fault.CODE_1, event=Event.TOLD_OTHER, moment=Moment(FIND, done=True)),
    "a 1008 before anything, 1003 too late": Walk(fault=Fault.TOO_LATE, event=Event.TOLD_OTHER),
    "the first master by a 1008": Walk(
        Disk.NEW, Leads.NOBODY, fault=Fault.ANSWER_LOST, event=Event.TOLD_SELF, moment=Moment(REGISTER)
    ),
    "the grant of an earlier process": Walk(
        Disk.WAS_MASTER, Leads.NOBODY, fault=Fault.REQUEST_LOST, event=Event.TOLD_SELF, moment=Moment(REGISTER)
    ),
    "1003 is refused as unknown for long": Walk(
        fault=Fault.NOT_REGISTERED, lasts=True, event=Event.TOLD_OTHER, moment=Moment(REGISTER)
    ),
    "the controller that was asked dies": Walk(
        planes=Planes.THREE, fault=Fault.ANSWER_LOST, event=Event.CONTROLLER_DIES, moment=Moment(REGISTER)
    ),
    "one plane refuses everything": Walk(Disk.NEW, planes=Planes.ONE_IS_SICK),
    "two are frozen": Walk(
        planes=Planes.TWO_ARE_FROZEN, fault=Fault.RESET, event=Event.TOLD_OTHER, moment=Moment(REGISTER)
    ),
}


@pytest.mark.parametrize("name", NAMED)
def test_the_one_that_was_seen_and_its_siblings(name: str, tmp_path: Path) -> None:
    assert play(NAMED[name], tmp_path / "store").complaints == []


def test_a_walk_meets_what_it_names(tmp_path: Path) -> None:
    """Else the walks above could pass because nothing ever happens in them."""
    met = [play(walk, tmp_path / str(number)) for number, walk in enumerate(sample(WALKS, 40))]
    assert sum(world.happened for world in met) > 20
    assert sum(bool(world.fault_hits) for world in met) > 15


def test_an_application_whose_answer_is_lost_burns_no_id(tmp_path: Path) -> None:
    walk = Walk(
        Disk.NEW, question=APPLY, fault=Fault.ANSWER_LOST, event=Event.CONTROLLERS_DIE, moment=Moment(APPLY, done=True)
    )
    world = play(walk, tmp_path / "store")
    assert (world.complaints, world.record.next_id) == ([], 2)
