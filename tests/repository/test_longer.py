"""What the shorter runs leave out is named by tests that exist: a family that is renamed is not left out by luck."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.longer import LONGER, NIGHTLY, is_longer, is_nightly

ROOT = Path(__file__).resolve().parents[2]
FAMILIES = [*LONGER.items(), *NIGHTLY.items()]


@pytest.mark.parametrize("name", sorted({one for family, kept in FAMILIES for one in (family, *kept)}))
def test_it_names_tests_that_are_there(name: str) -> None:
    path, _, test = name.partition("::")
    assert (ROOT / path).exists()
    if test:
        assert f"def {test.partition('[')[0]}" in (ROOT / path).read_text(encoding="utf-8")


@pytest.mark.parametrize("family", [one for one, kept in LONGER.items() if kept])
def test_make_test_runs_a_story_of_the_family(family: str) -> None:
    assert is_longer(f"{family}[another]")
    assert not any(is_longer(kept) for kept in LONGER[family])


@pytest.mark.parametrize("family", NIGHTLY)
def test_make_test_all_runs_what_is_kept_of_the_family(family: str) -> None:
    assert is_nightly(f"{family}[another]")
    assert not any(is_nightly(kept) for kept in NIGHTLY[family])


@pytest.mark.parametrize("name", sorted(one for kept in LONGER.values() for one in kept))
def test_what_make_test_runs_is_in_make_test_all(name: str) -> None:
    assert not is_nightly(name)
