"""What `make test` leaves to `make test-all`: of each family of stories, all but those that are named here.

A family's stories start a sandbox, operators and replicas each, or walk through thousands of worlds; what is left of the
family in `make test` shows that it works at all.
"""

from __future__ import annotations

# The family by its folder or file, and the beginnings of the tests of it that `make test` runs.
STORIES_OF = {
    "tests/e2e/": ("tests/e2e/test_group_life.py", "tests/e2e/test_history.py", "tests/e2e/test_two_operators.py"),
    "tests/availability/": ("tests/availability/test_operator_pods.py",),
    "tests/demo/test_demo_ends.py": (),
    "tests/operations/test_whole_system.py": (),
    "tests/fuzz/test_fuzz.py::test_whatever_is_declared_is_reached": (),
    "tests/fuzz/test_fuzz.py::test_every_leaf_of_the_schema_was_drawn": (),
    "tests/core/test_every_way.py::test_every_life_of_a_pair": (
        "tests/core/test_every_way.py::test_every_life_of_a_pair[java]",
    ),
}


def is_longer(name: str) -> bool:
    """Whether `make test` leaves a test of this name to `make test-all`."""
    return any(name.startswith(family) and not name.startswith(kept) for family, kept in STORIES_OF.items())
