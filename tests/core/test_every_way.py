"""Every walk within small bounds: a breadth-first exploration that checks the invariants at each step.

Hypothesis samples, this test visits everything: two replicas, two addresses, three kinds of heartbeat, elections, alterations,
restarts, deaths in any order, until the epochs reach the bound (`make test` continues from a sample of the newly reached
worlds). Invariants of a whole history (no epoch granted twice, no id used twice) follow from those of each step: an
epoch is only ever granted by raising it.
"""

import pytest

from controller_core.model import BrokerGroupRecord
from controller_core.requests import CleanBrokerData
from controller_core.settings import ControllerSettings
from tests.core.small_world import Beat, Command, Scope, World, commands, take_step, warm_world
from tests.support.draws import NIGHTLY, sample

# `make test` continues from this many of the newly reached worlds.
GOES_ON_FROM = 10

TWO = Scope(addresses=("a:1", "b:1"), told=((-1, -1), (0, 0), (1, 5)), identity_requests=False)
BIRTH = Scope(largest_id=2, addresses=("a:1",), codes=("a:1;1", "b:1;2"), told=((0, 0),), identity_requests=True)


def _pair() -> World:
    """Return the warm world without its third replica."""
    settings, world = ControllerSettings(), warm_world()
    clean = CleanBrokerData(broker_name="bn", broker_controller_ids_to_clean="3", is_clean_living_broker=True)
    return take_step(world, clean, settings)[1].after_beat(Beat(3, None))


def _within(record: BrokerGroupRecord | None, *, epochs: int, set_epochs: int) -> bool:
    return record is None or (record.master_epoch <= epochs and record.sync_state_set_epoch <= set_epochs)


def _after(world: World, command: Command, settings: ControllerSettings) -> World:
    return world.after_beat(command) if isinstance(command, Beat) else take_step(world, command, settings)[1]


def _explore(
    start: World, scope: Scope, settings: ControllerSettings, *, epochs: int, set_epochs: int, at_most: int
) -> set[World]:
    """Visit every world within the bounds, and check every step from each."""
    seen, frontier = {start}, [start]
    while frontier:
        following = []
        for world in sample(frontier, GOES_ON_FROM):
            for command in commands(world, scope):
                after = _after(world, command, settings)
                if after not in seen and _within(after.record, epochs=epochs, set_epochs=set_epochs):
                    seen.add(after)
                    following.append(after)
        frontier = following
        assert len(seen) <= at_most, "the bounds no longer bound: the world has grown"
    return seen


@pytest.mark.sampled
@pytest.mark.parametrize(
    "settings",
    [
        ControllerSettings(),
        ControllerSettings(shrink_floor=True, min_in_sync_replicas=2),
        ControllerSettings(unclean_election_allowed=True, never_elect=frozenset({2})),
    ],
    ids=["java", "strict", "unclean-with-learner"],
)
def test_every_life_of_a_pair(settings: ControllerSettings) -> None:
    start = _pair()
    assert start.record is not None
    # By night one set further: that costs as much time as all the rest.
    epochs = start.record.master_epoch + 1
    set_epochs = start.record.sync_state_set_epoch + (2 if NIGHTLY else 1)
    seen = _explore(start, TWO, settings, epochs=epochs, set_epochs=set_epochs, at_most=40_000)
    masters = {world.record.granted_master_id for world in seen if world.record is not None}
    assert {None, 1} <= masters
    assert (2 in masters) == (2 not in settings.never_elect)


@pytest.mark.sampled
def test_every_birth() -> None:
    """Reserve, ask, apply, register, elect, clean: in every order, until two ids are used."""
    seen = _explore(World(), BIRTH, ControllerSettings(), epochs=1, set_epochs=1, at_most=40_000)
    assert any(world.record is not None and world.record.next_broker_id == 3 for world in seen)
