"""`brokergroup replica`: one file, or a container of several; anything between is refused before a process begins."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from brokergroup_operator.cli.main import app
from rocketmq_replica import broker_container, process


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["a.conf"],
        ["--config", "a.conf", "b.conf"],
        ["--config", "a.conf", "--container-config", "c.conf"],
        ["--container", "--config", "a.conf"],
        ["--container", "--async-learner", "a.conf"],
    ],
)
def test_what_is_neither_one_replica_nor_a_container_is_refused(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, ["replica", *arguments])
    assert result.exit_code == 2
    assert "--config" in result.output


def test_each_form_runs_what_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []

    def one(path: Path, *, async_learner: bool) -> int:
        started.append((path, "learner") if async_learner else path)
        return 0

    def several(paths: list[Path], container_file: Path | None) -> int:
        started.append((paths, container_file))
        return 1

    monkeypatch.setattr(process, "main", one)
    monkeypatch.setattr(broker_container, "main", several)
    assert CliRunner().invoke(app, ["replica", "--config", "a.conf"]).exit_code == 0
    assert CliRunner().invoke(app, ["replica", "--config", "a.conf", "--async-learner"]).exit_code == 0
    assert CliRunner().invoke(app, ["replica", "--container", "a.conf", "b.conf"]).exit_code == 1
    assert CliRunner().invoke(app, ["replica", "--container", "--container-config", "c.conf"]).exit_code == 1
    both = [Path("a.conf"), Path("b.conf")]
    assert started == [Path("a.conf"), (Path("a.conf"), "learner"), (both, None), ([], Path("c.conf"))]


def test_a_container_whose_files_cannot_be_read_ends_with_1(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert broker_container.main([tmp_path / "nowhere.conf"]) == 1
    assert "nowhere.conf: cannot be read" in caplog.text
