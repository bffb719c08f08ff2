"""Every mutant still changes exactly one line: a night's run does not end with a line that was reworded."""

from __future__ import annotations

import os
import py_compile
import subprocess
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.mutants import run
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


def test_the_next_mutant_finds_the_tracked_files_and_what_is_compiled_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout, copy = tmp_path / "tracked", tmp_path / "scratch" / "checkout"
    checkout.mkdir()
    (checkout / "one.py").write_text("ONE = 1\n", encoding="utf-8")
    subprocess.run(["git", "init", "-q"], cwd=checkout, check=True)
    subprocess.run(["git", "add", "one.py"], cwd=checkout, check=True)
    monkeypatch.setattr(run, "ROOT", checkout)
    run.restore(copy)
    assert (compiled := py_compile.compile(str(copy / "one.py"), doraise=True))

    (copy / "one.py").write_text("ONE = 2\n", encoding="utf-8")
    (copy / "build" / "of_a_test").mkdir(parents=True)
    (copy / "build" / "left.txt").touch()
    (copy.parent / run.TEMPORARY / "left.txt").touch()
    run.restore(copy)

    left = {str(path.relative_to(copy.parent)) for path in copy.parent.rglob("*") if path.is_file()}
    assert left == {"checkout/one.py", os.path.relpath(compiled, copy.parent)}
    assert (copy / "one.py").read_text(encoding="utf-8") == "ONE = 1\n"
    # Python compares these two with what the compiled module says of its source.
    assert (copy / "one.py").stat().st_mtime == (checkout / "one.py").stat().st_mtime
    assert not (copy / "build").exists()
