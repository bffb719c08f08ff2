"""Where samples come from, as tasks are told: by names that mean the same everywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from sla_reports.sources import Form, Origin, origin_of


@pytest.mark.parametrize("form", [Form.OPENMETRICS, Form.LAKE])
def test_a_task_elsewhere_is_told_whole_paths(form: Form, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An executor has a working folder of its own."""
    monkeypatch.chdir(tmp_path)
    assert origin_of(form, [Path("day")], None).paths == (tmp_path / "day",)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://user:secret@[fd00::9]:9090/select", "http://[fd00::9]:9090/select"),
        ("https://[::1]/", "https://[::1]"),
        ("http://user:secret@prometheus:9090", "http://prometheus:9090"),
        ("http://prometheus", "http://prometheus"),
    ],
)
def test_a_server_is_shown_with_the_brackets_of_its_address_and_without_a_password(url: str, shown: str) -> None:
    assert Origin(Form.HTTP, url=url).shown_url == shown
