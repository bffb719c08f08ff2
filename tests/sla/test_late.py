"""What came late is noted for good: each change counts once, and a note that can't be read is told."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import pytest

from sla_reports.readers.contract import ExportFormatError
from sla_reports.reduction.late import Late, late_days

if TYPE_CHECKING:
    from pathlib import Path

LOST, FOUND = Late("2026-10-31", 0, 30, 70), Late("2026-10-31", 30, 0, 100)
NEXT_DAY = Late("2026-11-01", 5, 0, 105)


def _noted(store: Path, *notes: Late) -> Path:
    (store / "late.jsonl").write_text("".join(json.dumps(asdict(one)) + "\n" for one in notes))
    return store


def test_a_backfill_that_died_and_was_repeated_counts_once_and_a_loss_that_comes_again_twice(tmp_path: Path) -> None:
    # The first backfill died after its note of both days; later the same samples are lost once more.
    noted = _noted(tmp_path, LOST, NEXT_DAY, LOST, NEXT_DAY, FOUND, LOST)
    assert late_days(noted) == [LOST, NEXT_DAY, FOUND, LOST]


def test_only_days_of_the_window_are_told(tmp_path: Path) -> None:
    assert late_days(tmp_path) == []
    noted = _noted(tmp_path, LOST, NEXT_DAY)
    assert late_days(noted, first=dt.date(2026, 11, 1)) == [NEXT_DAY]
    assert late_days(noted, last=dt.date(2026, 10, 31)) == [LOST]


@pytest.mark.parametrize("line", ['{"day": "2026-10-31", "more": 1', '{"day": "2026-10-31"}', "3"])
def test_a_line_that_is_no_note_is_told(tmp_path: Path, line: str) -> None:
    (tmp_path / "late.jsonl").write_text(json.dumps(asdict(LOST)) + "\n" + line)
    with pytest.raises(ExportFormatError, match=r"late\.jsonl line 2: .*expected an object with day, more"):
        late_days(tmp_path)
