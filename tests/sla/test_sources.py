"""Where samples come from, as tasks are told: by names that mean the same everywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from sla_reports.sources import Form, origin_of


@pytest.mark.parametrize("form", [Form.OPENMETRICS, Form.LAKE])
def test_a_task_elsewhere_is_told_whole_paths(form: Form, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An executor has a working folder of its own."""
    monkeypatch.chdir(tmp_path)
    assert origin_of(form, [Path("day")], None).paths == (tmp_path / "day",)
