"""Every mutant still changes exactly one line: a night's run does not end with a line that was reworded."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.mutants.run import ROOT, Mutant, mutants

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("mutant", mutants(), ids=lambda mutant: mutant.id)
def test_it_changes_one_line(mutant: Mutant, tmp_path: Path) -> None:
    before = (ROOT / mutant.file).read_text(encoding="utf-8")
    copy = tmp_path / mutant.file
    copy.parent.mkdir(parents=True)
    copy.write_text(before, encoding="utf-8")
    mutant.apply(tmp_path)
    after = copy.read_text(encoding="utf-8")
    changed = Counter(before.splitlines()) - Counter(after.splitlines())
    assert changed.total() == 1
    compile(after, mutant.file, "exec")
    assert mutant.own_tests()


def test_there_are_forty_and_the_hearts_twelve_each_with_its_own_name() -> None:
    assert len({mutant.id for mutant in mutants()}) == len(mutants()) == 52
