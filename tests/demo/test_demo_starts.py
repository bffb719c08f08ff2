"""A demo's refusals before it starts a process, and the place of its log lines."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
import structlog
from typer.testing import CliRunner

from brokergroup_operator.cli.main import app
from brokergroup_operator.demo.preparation import LOCK_FILE, DemoFolderError, demo_folder, logging_to

if TYPE_CHECKING:
    from pathlib import Path

GROUP = "{apiVersion: brokergroup.dev/v1beta1, kind: BrokerGroup, metadata: {name: a}, spec: {}}"


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years")
    with pytest.raises(DemoFolderError, match="holds other files; expected an empty folder"), demo_folder(tmp_path):
        pytest.fail("it was taken")
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.txt"]


def test_the_folder_of_an_earlier_demo_is_emptied_and_of_one_before_there_was_a_lock(tmp_path: Path) -> None:
    for name in ("sandbox", "logs"):
        (tmp_path / name).mkdir()
    for _ in range(2):
        (tmp_path / "kubeconfig").touch()
        with demo_folder(tmp_path):
            assert [entry.name for entry in tmp_path.iterdir()] == [LOCK_FILE]


def test_a_folder_held_here_is_refused_at_once(tmp_path: Path) -> None:
    with (
        demo_folder(tmp_path),
        pytest.raises(DemoFolderError, match=r"in use by process \d+ \(.*\); end it, or give"),
        demo_folder(tmp_path),
    ):
        pytest.fail("it was taken twice")


@pytest.mark.parametrize(
    ("manifest", "complaint"),
    [
        (None, "expected a file with a BrokerGroup"),
        (b"a: [1", "no YAML"),
        (b"\xff\xfe\xfa", "no YAML"),
        (b"kind: Pod", r"holds ['Pod']; expected exactly one BrokerGroup"),
        (b"3", r"holds ['int']; expected exactly one BrokerGroup"),
        (b"", "holds []; expected exactly one BrokerGroup"),
        (f"{GROUP}\n---\n{GROUP}".encode(), "expected exactly one BrokerGroup"),
        (b"{kind: BrokerGroup, metadata: {name: a}, spec: 5}", "spec is 5; expected a map"),
        (b"{kind: BrokerGroup, metadata: {}, spec: {}}", "metadata.name is None; expected a name"),
    ],
)
def test_a_manifest_that_is_no_broker_group_is_named(tmp_path: Path, manifest: bytes | None, complaint: str) -> None:
    file = tmp_path / "group.yaml"
    if manifest is not None:
        file.write_bytes(manifest)
    result = CliRunner().invoke(app, ["demo", "--manifest", str(file), "--directory", str(tmp_path / "demo")])
    assert result.exit_code == 2, result.output
    assert complaint in result.stderr
    assert str(file) in result.stderr


@pytest.mark.parametrize("directory", ["/proc/no/demo", "FILE"])
def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path, directory: str) -> None:
    (tmp_path / "file").touch()
    target = directory.replace("FILE", str(tmp_path / "file"))
    result = CliRunner().invoke(app, ["demo", "--directory", target])
    assert result.exit_code == 2, result.output
    assert target in result.stderr
    assert "Traceback" not in result.output


def test_log_lines_of_libraries_go_to_the_file_and_not_to_the_screen(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "logs" / "demo.log"
    with logging_to(file):
        logging.getLogger("rocketmq_remoting.connection").warning("frame from %s", "a stranger")
        structlog.get_logger("brokergroup_operator.kube.reflector").warning("watch ended", kind="pods")
    assert capfd.readouterr() == ("", "")
    lines = file.read_text().splitlines()
    assert len(lines) == 2
    assert "WARNING rocketmq_remoting.connection: frame from a stranger" in lines[0]
    assert "watch ended" in lines[1]
    assert "kind=pods" in lines[1]
