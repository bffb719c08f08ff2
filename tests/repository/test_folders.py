"""The table of folders counts what it says."""

from __future__ import annotations

from tests.repository.folders import WHOLE, Folder, measure, rows

ONE = "def _once():\n    pass\n\n\ndef _twice():\n    pass\n\n\n_once()\n_twice()\n"
OTHER = "from one.a import _twice\n"


def test_a_folder_has_its_files_lines_and_functions_with_one_caller() -> None:
    table = measure({"one/a.py": ONE, "one/deep/b.py": "\n", "operator/pkg/api/c.py": OTHER, "operator/pkg/d.py": ""})
    assert table == {
        "one": Folder(files=2, lines=11, with_one_caller=1),
        "pkg": Folder(files=1, lines=0, with_one_caller=0),
        "pkg/api": Folder(files=1, lines=1, with_one_caller=0),
        WHOLE: Folder(files=4, lines=12, with_one_caller=1),
    }


def test_two_commits_stand_beside_each_other_and_a_new_folder_began_with_nothing() -> None:
    before, after = measure({"one/a.py": ONE}), measure({"one/a.py": ONE, "two/b.py": "\n"})
    assert list(rows([before, after]))[2:] == [
        "| `one` | 1 → 1 | 10 → 10 | 10 → 10 | 2 → 2 |",
        "| `two` | 0 → 1 | 0 → 1 | 0 → 1 | 0 → 0 |",
        "| `all` | 1 → 2 | 10 → 11 | 10 → 6 | 2 → 2 |",
    ]
