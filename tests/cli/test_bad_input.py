"""What is wrong on a command line, or in a file that it names, is told in words that name it: never a traceback, never 0."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from brokergroup_operator.cli.main import app
from brokergroup_operator.folder_lock import FolderLock

if TYPE_CHECKING:
    from pathlib import Path

KUBECONFIGS = {
    "no UTF-8": b"\xff\xfe\x00",
    "no YAML": b"clusters: [",
    "clusters is 5, expected a list": b"clusters: 5\ncontexts: [{name: a, context: {cluster: b}}]\ncurrent-context: a\n",
}


def refused(*arguments: str, code: int, says: str) -> None:
    """The command ends with the code, and its standard error says so in whatever lines it wraps it into."""
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "1000", "TERMINAL_WIDTH": "1000"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code, result.output
    assert says in " ".join(result.stderr.replace("│", " ").split())


@pytest.mark.parametrize("says", KUBECONFIGS)
def test_a_kubeconfig_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str) -> None:
    file = tmp_path / "kubeconfig"
    file.write_bytes(KUBECONFIGS[says])
    refused(
        *("operator", "--kubeconfig", str(file), "--controller-address", "127.0.0.1:1", "--listen", "127.0.0.1:0"),
        code=2, says=says,
    )  # fmt: skip
    monkeypatch.setenv("KUBECONFIG", str(file))
    refused("controller", "--store", "kubernetes:default", "--listen", "127.0.0.1:0", code=2, says=says)


def test_a_store_that_another_process_uses(tmp_path: Path) -> None:
    lock = FolderLock.take(tmp_path / ".lock")
    says = f"another process uses this store: folder {tmp_path} is in use by process {os.getpid()} "
    refused("controller", "--store", f"file:{tmp_path}", "--listen", "127.0.0.1:0", code=1, says=says)
    lock.release()


@pytest.mark.parametrize(
    ("place", "says"),
    [("FILE", "File exists; expected a folder"), ("FILE/below", "Not a directory; expected"), ("/proc", "expected a")],
)
def test_a_store_that_is_no_folder_to_write_in(tmp_path: Path, place: str, says: str) -> None:
    (tmp_path / "file").touch()
    place = place.replace("FILE", str(tmp_path / "file"))
    refused("controller", "--store", f"file:{place}", "--listen", "127.0.0.1:0", code=1, says=says)
    refused("controller", "--store", f"file:{place}", "--listen", "127.0.0.1:0", code=1, says=place)


@pytest.mark.parametrize("option", ["--data-dir", "--kubeconfig"])
@pytest.mark.parametrize("place", ["FILE", "/proc/no"])
def test_a_folder_of_the_sandbox_that_cannot_be_written(tmp_path: Path, option: str, place: str) -> None:
    (tmp_path / "file").touch()
    place = place.replace("FILE", str(tmp_path / "file"))
    arguments = {"--data-dir": str(tmp_path / "data"), option: place if option == "--data-dir" else f"{place}/config"}
    flat = [word for pair in arguments.items() for word in pair]
    refused("sandbox", *flat, code=2, says=f"Invalid value for {option}: '{place}'")


@pytest.mark.parametrize("address", [";;;", "", "a", "a:0x1", "a:²"])
def test_an_operator_address_that_is_none(address: str) -> None:
    says = f"Invalid value for --controller-address: {address!r}: expected host:port"
    refused("operator", "--controller-address", address, code=2, says=says)


@pytest.mark.parametrize("store", ["nonsense", "file:", "memory:x", "kubernetes", ""])
def test_a_store_that_is_none(store: str) -> None:
    says = f"Invalid value for --store: store is {store!r}, expected memory or file:<folder>"
    refused("controller", "--store", store, code=2, says=says)
    java = ("--controller", "127.0.0.1:1", "--store", store)
    refused("migrate", "apply", *java, code=2, says=says)
    for verb in ("cut-over", "back"):
        refused("migrate", verb, *java, "--listen", "127.0.0.1:2", code=2, says=says)
