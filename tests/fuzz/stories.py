"""Draws stories with hypothesis: each has a few leaves of the schema as its subject, so that a round of stories has all of them."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.fuzz import schema, story
from tests.fuzz.admission import complaints
from tests.fuzz.changes import changes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fuzz.admission import Spec
    from tests.fuzz.changes import Change
    from tests.fuzz.story import Tally

LEAVES_OF_A_STORY = 3
BASES: tuple[Spec, ...] = (
    {"implementation": "Python"},
    {"implementation": "Java", "nameServers": ["ns:9876"], "resources": {"limits": {"memory": "2Gi"}}},
    {"implementation": "Python", "replicas": 2},
    {"implementation": "Java", "nameServers": ["ns:9876"], "durability": "Fast", "monitoring": {"exporter": True}},
)


def round_of_subjects(number: int) -> Iterator[tuple[str, ...]]:
    """Every leaf once, in an order of this number."""
    shuffled = list(schema.all_leaves())
    random.Random(number).shuffle(shuffled)
    for start in range(0, len(shuffled), LEAVES_OF_A_STORY):
        some = shuffled[start : start + LEAVES_OF_A_STORY]
        yield tuple(leaf for leaf in some if leaf in schema.leaves())


@st.composite
def _base(draw: Any, subjects: tuple[str, ...]) -> Spec:
    """Draw the group's first spec; some fields can be set only then."""
    spec: Spec = draw(st.sampled_from(BASES))
    for leaf in subjects:
        if draw(st.sampled_from((True, False, False))):
            wish = draw(changes(spec, leaf, old=None, refused_too=False))
            spec = spec if complaints(wish.spec) else wish.spec
    return spec


def tell(subjects: tuple[str, ...], tally: Tally, *, examples: int, seed_number: int, shrinks: bool = True) -> None:
    """Run this many stories about these leaves. Raises a violation with the smallest story that hypothesis finds."""

    @seed(seed_number)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink] if shrinks else [Phase.generate],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
        report_multiple_bugs=False,
    )
    @given(st.data())
    def one(data: st.DataObject) -> None:
        base: Spec = data.draw(_base(subjects), label="base")
        todo = iter(subjects)

        def next_change(spec: Spec) -> Change | None:
            leaf = next(todo, None)
            if leaf is None:
                return None
            wish: Change = data.draw(changes(spec, leaf, old=spec), label=f"change of {leaf}")
            return wish

        story.told(base, next_change, tally)

    one()
