"""One fixed round of stories over the whole schema; `run.py` runs more of them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from hypothesis import Phase, given, seed, settings

from brokergroup_operator.kube.resources import PODS
from tests.fuzz import schema, stories
from tests.fuzz.admission import blamed, complaints, with_defaults
from tests.fuzz.changes import Change, Kind, changes, drawn_leaves
from tests.fuzz.hints import HINTS
from tests.fuzz.story import BY_A_PERSON, Story, Tally, in_virtual_time, told
from tests.fuzz.world import FuzzWorld
from tests.sieve.run import quiet
from tests.sieve.world import NAMESPACE
from tests.support.draws import WHOLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.virtual_loop import VirtualLoop

# Alone each takes a second or two; a machine with much else to do takes its time.
pytestmark = pytest.mark.timeout(900)
ROUND = 1
EXAMPLES = 3
ATTEMPTS = 5
SUBJECTS = list(stories.round_of_subjects(ROUND))
_whole_round = Tally()
# One worker runs the round and checks all of it: another one would have to run it again.
_one_worker = pytest.mark.xdist_group("fuzz round")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    before = structlog.get_config()
    quiet()
    yield
    structlog.configure(**before)
    logging.disable(logging.NOTSET)


@pytest.mark.longer
@_one_worker
@pytest.mark.parametrize("number", range(len(SUBJECTS)), ids=["+".join(one) for one in SUBJECTS])
def test_whatever_is_declared_is_reached_or_explained_or_refused_and_can_be_taken_back(number: int) -> None:
    stories.tell(SUBJECTS[number], _whole_round, examples=EXAMPLES, seed_number=number)


@pytest.mark.longer
@_one_worker
def test_every_leaf_of_the_schema_was_drawn() -> None:
    """Needs the round above; alone, it runs the stories of all leaves first."""
    leaves = list(schema.leaves())
    for attempt in range(ATTEMPTS):
        # A draw of a field that goes only with others may be refused each time: then by other seeds.
        for number, leaf in enumerate(leaves):
            if leaf not in _whole_round.drawn:
                stories.tell((leaf,), _whole_round, examples=3 * EXAMPLES, seed_number=number + attempt * len(leaves))

    assert schema.leaves().keys() - _whole_round.drawn == set()
    assert _whole_round.reached > _whole_round.explained > 0
    assert _whole_round.refused > 0


# Interdependent fields: most draws of such a field could be refused, and the tests would never see its effect.
DEPENDENT = [leaf for leaf in schema.leaves() if leaf.startswith("spec.replication.")]
DRAWS, TAKEN_AT_LEAST = 60 if WHOLE else 20, 1 / 3


@pytest.mark.sampled
@pytest.mark.parametrize("leaf", DEPENDENT)
@pytest.mark.parametrize("base", stories.BASES, ids=range(len(stories.BASES)))
def test_fields_that_go_only_with_others_are_drawn_so_that_they_are_taken(base: dict[str, Any], leaf: str) -> None:
    taken: list[bool] = []

    @seed(ROUND)
    @settings(max_examples=DRAWS, deadline=None, database=None, phases=[Phase.generate])
    @given(changes(base, leaf, old=base, refused_too=False))
    def draw(wish: Change) -> None:
        taken.append(leaf in drawn_leaves(base, wish.spec) and not complaints(wish.spec, base))

    draw()
    assert sum(taken) >= TAKEN_AT_LEAST * len(taken) > 0


def test_a_new_field_of_the_schema_is_a_leaf_and_has_values() -> None:
    grown = {"type": "object", "properties": {"inner": {"type": "array", "items": {"type": "integer", "minimum": 3}}}}
    made = schema.node("spec.made", grown)

    assert [one.path for one in made.below() if one.is_leaf] == ["spec.made.inner[]"]
    assert schema.value(made) is not None


@pytest.mark.parametrize(
    ("spec", "missing"),
    [
        ({"tls": {"mode": "Enforcing"}}, {"spec.tls.certificateSecretRef.name"}),
        ({"configFrom": [{}]}, {"spec.configFrom[].configMapRef.name"}),
    ],
)
def test_a_field_that_is_required_beside_another_is_drawn_with_it(spec: dict[str, Any], missing: set[str]) -> None:
    """Without it no draw of spec.tls.mode was accepted, and no story had one."""
    wrong = complaints(stories.BASES[1] | spec)
    assert missing <= {path for error in wrong for path in blamed(error)}


def test_a_rule_that_calls_methods_names_the_fields_they_are_called_on() -> None:
    """Without them a mount was never mended by its volume: the fuzz drew none that the rules take."""
    spec = schema.spec_node().properties["podTemplate"].properties["spec"]
    (rule,) = [one["rule"] for one in spec.rules if "must name volumes" in one["message"]]

    assert {path.removeprefix(spec.path) for path in schema.fields_of_rule(spec, rule)} == {
        ".broker.volumeMounts[]",
        ".broker.volumeMounts[].mountPath",
        ".broker.volumeMounts[].name",
        ".volumes[]",
        ".volumes[].name",
    }


def test_hints_are_about_places_that_there_are() -> None:
    places = {one.path for one in schema.spec_node().below()}

    assert {path.removesuffix("{key}") for path in HINTS} <= places


@pytest.mark.parametrize("base", stories.BASES)
def test_the_first_specs_are_taken(base: dict[str, Any]) -> None:
    assert complaints(base) == []
    assert with_defaults(base)["replicas"] >= 2


def test_leaves_are_compared_by_what_is_said_at_them() -> None:
    before = {"failover": {"priorities": [{"brokerId": 1, "priority": 2}]}, "config": {"a": "1"}}
    after = {"failover": {"priorities": [{"brokerId": 1, "priority": 3}]}, "config": {"a": "1", "b": "2"}}

    assert drawn_leaves(before, after) == {
        "spec.failover.priorities[].brokerId",
        "spec.failover.priorities[].priority",
        "spec.config{}",
    }


def test_too_many_stopped_at_once_are_seen() -> None:
    """The law itself must be able to fail."""

    async def two_of_three(loop: VirtualLoop) -> None:
        world = FuzzWorld(loop)
        story = Story(world, Tally())
        assert await story.begin({"implementation": "Python"})
        for name in ("bn-2", "bn-3"):
            await world.api.delete(PODS, name, namespace=NAMESPACE)
        assert "is stopped, 2 of" in world.laws_broken[0]

    in_virtual_time(two_of_three)


# What the fuzz has found, each as its story.
FOUND: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "an update of a preferred master never ended": ({"failover": {"preferredMaster": 3}}, {"image": "example.com/x:2"}),
    "a pod that the API refuses cost a slave": (
        {},
        {"podTemplate": {"spec": {"containers": [{"name": "without-image"}]}}},
    ),
    "an update of a group with a member of priority 0 never began": (
        {"implementation": "Python", "failover": {"priorities": [{"brokerId": 1, "priority": 0}]}},
        {"resources": {"requests": {"cpu": "1"}}, "failover": {}},
    ),
    "a master stayed one that may not be": (
        {"failover": {"priorities": [{"brokerId": 2, "priority": 0}]}},
        {"failover": {"priorities": [{"brokerId": 1, "priority": 0}]}},
    ),
    "a person deleted a second pod while the API refused the first": (
        {"durability": "Strict", "updateStrategy": {"type": "OnDelete"}},
        {"podTemplate": {"spec": {"volumes": [{"name": "x", "imaginary": {}}]}}},
    ),
    "slaves were sent to another port than the log's": ({"network": {"haPort": 20_000}}, {"image": "example.com/x:2"}),
}
# A pod whose fence got shorter times keeps them.
OF_TIMES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a pod keeps shorter times, its broker their heartbeats": (
        {"failover": {"heartbeatTimeoutMilliseconds": 2000}},
        {"failover": {"heartbeatTimeoutMilliseconds": 6000}},
    ),
    "a pod keeps the shorter times of a change that was taken back": (
        {"failover": {"heartbeatTimeoutMilliseconds": 6000}},
        {"failover": {"heartbeatTimeoutMilliseconds": 2000}},
    ),
    "a Python broker keeps no times": (
        {"implementation": "Python", "failover": {"heartbeatTimeoutMilliseconds": 2000}},
        {"failover": {"heartbeatTimeoutMilliseconds": 6000}},
    ),
}
ONE_MAY_LEAD: dict[str, Any] = {
    "implementation": "Python",
    "replicas": 2,
    "failover": {"priorities": [{"brokerId": 1, "priority": 0}]},
}
ANOTHER_POD: dict[str, Any] = {"resources": {"requests": {"cpu": "1"}}}
# By the change that leaves the master without a successor: whether the reversal needs a person.
NOBODY_MAY_FOLLOW: dict[str, tuple[dict[str, Any], bool]] = {
    "an update does the slave, says why not the master, and is taken back": (ANOTHER_POD, False),
    "an update does all when the other one may lead; then that one is master, and must hand over": (
        ANOTHER_POD | {"failover": {}},
        False,
    ),
    "an update does all, and the master is again the only one who will be; the way back would stop it": (
        ANOTHER_POD | {"failover": {"preferredMaster": 2}},
        True,
    ),
    "a third member may follow; it can't leave again": ({"replicas": 3}, True),
}
# A story of the whole system takes seconds: of those that go the same way through it, `make test` tells one.
ALIKE = (
    "a pod keeps the shorter times of a change that was taken back",
    "a Python broker keeps no times",
    "an update does all when the other one may lead; then that one is master, and must hand over",
    "a third member may follow; it can't leave again",
)


def by_day_and_later(stories_by_name: dict[str, tuple[Any, Any]]) -> list[Any]:
    """A parameter for each story."""
    return [
        pytest.param(*story, id=name.partition(";")[0], marks=[pytest.mark.longer] if name in ALIKE else [])
        for name, story in stories_by_name.items()
    ]


@pytest.mark.parametrize(("base", "change"), by_day_and_later(FOUND | OF_TIMES))
def test_what_was_found(base: dict[str, Any], change: dict[str, Any]) -> None:
    spec = {"implementation": "Java", "nameServers": ["ns:9876"], **base}
    wishes = iter([Change({**spec, **change}, Kind.SET, "spec.image")])
    tally = Tally()
    told(spec, lambda _: next(wishes, None), tally)

    assert (tally.transitions, tally.rolled_back) == (1, 1)


@pytest.mark.parametrize(("change", "needs_person"), by_day_and_later(NOBODY_MAY_FOLLOW))
def test_where_nobody_may_follow_going_back_needs_a_person_only_for_the_master(
    change: dict[str, Any], *, needs_person: bool
) -> None:
    wishes = iter([Change({**ONE_MAY_LEAD, **change}, Kind.SET, "spec.replicas")])
    tally = Tally()
    told(ONE_MAY_LEAD, lambda _: next(wishes, None), tally)

    assert (tally.transitions, tally.rolled_back) == (1, 1)
    assert (BY_A_PERSON in tally.reasons) == needs_person
