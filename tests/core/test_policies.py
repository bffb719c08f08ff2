"""Each election policy alone, and the policies' names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller_core.model import BrokerGroupRecord, LiveReplica
from controller_core.settings import POLICIES, ControllerSettings, most_data, preferred_zone

RECORD = BrokerGroupRecord("cl", "bn", next_broker_id=9, master_broker_id=1)
JAVA_INT = 2**31

CANDIDATES = st.lists(
    st.builds(
        LiveReplica,
        broker_id=st.integers(1, 5),
        epoch=st.integers(-1, 3),
        max_offset=st.integers(0, 4 * JAVA_INT),
        election_priority=st.integers(0, 2),
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda one: one.broker_id,
)
SETTINGS = st.builds(
    ControllerSettings,
    zones=st.dictionaries(st.integers(1, 5), st.sampled_from("abc")),
    preferred_zones=st.lists(st.sampled_from("abc"), unique=True).map(tuple),
    election_priorities=st.dictionaries(st.integers(1, 5), st.integers(1, 3)),
    zone_lag_bytes=st.integers(0, JAVA_INT),
)


def test_every_name_that_settings_allow_has_its_policy() -> None:
    assert tuple(POLICIES) == ("most-data", "preferred-zone")
    with pytest.raises(ValueError, match="'longest', expected one of most-data, preferred-zone"):
        ControllerSettings(election_policy="longest")


@given(CANDIDATES, SETTINGS, st.sampled_from(sorted(POLICIES)), st.randoms())
def test_a_policy_chooses_a_candidate_whatever_the_order(
    candidates: list[LiveReplica], settings: ControllerSettings, name: str, chance: object
) -> None:
    chosen = POLICIES[name](candidates, RECORD, settings)
    assert chosen in candidates
    shuffled = list(candidates)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    assert POLICIES[name](shuffled, RECORD, settings) == chosen
    assert chosen.epoch == max(one.epoch for one in candidates), "an epoch is never traded"


@given(CANDIDATES, SETTINGS)
def test_most_data_is_exact(candidates: list[LiveReplica], settings: ControllerSettings) -> None:
    """Issue 10578: Java's comparator casts the difference to int."""
    chosen = most_data(candidates, RECORD, settings)
    assert (chosen.epoch, chosen.max_offset) == max((one.epoch, one.max_offset) for one in candidates)


@given(CANDIDATES, SETTINGS)
def test_preferred_zone_gives_away_no_more_than_it_may(
    candidates: list[LiveReplica], settings: ControllerSettings
) -> None:
    chosen = preferred_zone(candidates, RECORD, settings)
    longest = max(one.max_offset for one in candidates if one.epoch == chosen.epoch)
    assert longest - chosen.max_offset <= settings.zone_lag_bytes


def _equal(*broker_ids: int, priority: int = 1) -> list[LiveReplica]:
    return [LiveReplica(one, epoch=2, max_offset=10, election_priority=priority) for one in broker_ids]


def test_the_order_of_taste() -> None:
    zones = {1: "a", 2: "a", 3: "b", 4: "c"}
    settings = ControllerSettings(zones=zones)
    assert most_data(_equal(4, 3, 2, 1), RECORD, settings).broker_id == 1, "the old master"
    preferring = ControllerSettings(zones=zones, election_priorities={4: 0, 3: 5, 2: 5})
    assert most_data(_equal(4, 3, 2), RECORD, preferring).broker_id == 4, "then the priority"
    assert most_data(_equal(4, 3, 2), RECORD, settings).broker_id == 3, "then another zone than the lost one's"
    wanted = ControllerSettings(zones=zones, preferred_zones=("c", "a"))
    assert most_data(_equal(2, 3), RECORD, wanted).broker_id == 2, "or the wanted zones"
    assert most_data(_equal(2, 3, 4), RECORD, wanted).broker_id == 4, "in their order"
    unknown = ControllerSettings(zones={1: "a", 3: "b"})
    assert most_data(_equal(2, 3), RECORD, unknown).broker_id == 3, "an unknown zone may be the lost one"
    assert most_data(_equal(4, 3), RECORD, ControllerSettings()).broker_id == 3, "then the lowest id"


def test_preferred_zone_trades_a_little_data_for_the_zone() -> None:
    settings = ControllerSettings(zones={2: "a", 3: "b"}, preferred_zones=("b",), zone_lag_bytes=5)
    near = [LiveReplica(2, epoch=2, max_offset=15), LiveReplica(3, epoch=2, max_offset=10)]
    far = [LiveReplica(2, epoch=2, max_offset=16), LiveReplica(3, epoch=2, max_offset=10)]
    older = [LiveReplica(2, epoch=3, max_offset=10), LiveReplica(3, epoch=2, max_offset=10)]
    assert preferred_zone(near, RECORD, settings).broker_id == 3
    assert preferred_zone(far, RECORD, settings).broker_id == 2
    assert preferred_zone(older, RECORD, settings).broker_id == 2
