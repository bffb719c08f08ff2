"""`brokergroup migrate` as a command line: what it prints, and how it refuses."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import TYPE_CHECKING, Self

import pytest
from typer.testing import CliRunner

from brokergroup_operator.cli.main import app

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from typer.testing import Result

from tests.migrate import conftest
from tests.support.fake_broker import NAME
from tests.support.places import free_port


class Running:
    """The house in a thread of its own: a command has its own event loop."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.ready = threading.Event()
        self.thread = threading.Thread(target=self._run)
        self.stop = asyncio.Event()
        self.house: conftest.House | None = None

    def _run(self) -> None:
        self.loop.run_until_complete(self._serve())
        self.loop.close()

    async def _serve(self) -> None:
        async with conftest.a_house() as house:
            self.house = house
            self.ready.set()
            await self.stop.wait()

    @property
    def asked(self) -> tuple[str, ...]:
        """The options that name its Java controller and its NameServer."""
        assert self.house is not None
        return ("--controller", self.house.java.address, "--name-server", self.house.name_server.address)

    def __enter__(self) -> Self:
        self.thread.start()
        assert self.ready.wait(20.0)
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self.stop.set)
        self.thread.join(20.0)


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with Running() as started:
        yield started


def migrate(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["migrate", *arguments])


def test_plan_as_json_and_as_a_table(running: Running) -> None:
    result = migrate("plan", *running.asked, "-o", "json")
    assert result.exit_code == 0, result.output
    [group] = json.loads(result.output)["groups"]
    assert (group["brokerName"], group["masterBrokerId"], group["masterEpoch"]) == (NAME, 1, conftest.EPOCH)
    assert not group["blocked"]
    table = migrate("plan", *running.asked)
    assert table.exit_code == 0
    assert f"{NAME} next=4 master=1 epoch={conftest.EPOCH}" in table.output
    assert "note UnknownCheckCode" in table.output


def test_a_blocking_doubt_is_exit_code_2(running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert running.house is not None
    monkeypatch.setattr(running.house.tables, "master", None)
    result = migrate("plan", *running.asked)
    assert result.exit_code == 2
    assert "BLOCKS NoMaster" in result.output
    applied = migrate("apply", *running.asked, "--store", f"file:{tmp_path / 'records'}")
    assert applied.exit_code == 2
    assert "the group has no master" in applied.output
    assert not (tmp_path / "records").exists()


def test_a_name_the_controller_does_not_know(running: Running) -> None:
    controller_alone = running.asked[:2]
    result = migrate("plan", *controller_alone, "--broker-name", "other")
    assert result.exit_code == 2
    assert "other: not known to this controller" in result.output


def test_cut_over_without_yes_only_says_what_it_would_do(running: Running, tmp_path: Path) -> None:
    home = ("--store", f"file:{tmp_path / 'records'}", "--listen", "127.0.0.1:1")
    result = migrate("cut-over", *running.asked, *home)
    assert result.exit_code == 0
    assert "controllerAddr=127.0.0.1:1" in result.output
    assert "say --yes" in result.output
    assert not (tmp_path / "records").exists()


@pytest.mark.parametrize("verb", [["plan"], ["apply", "--store", "memory"]])
def test_nobody_there_is_exit_code_2_for_nothing_began(verb: list[str]) -> None:
    result = migrate(*verb, "--controller", "127.0.0.1:1", "--broker-name", NAME)
    assert result.exit_code == 2
    assert "127.0.0.1:1" in result.stderr


@pytest.mark.parametrize("verb", ["cut-over", "back"])
def test_a_move_that_was_refused_before_its_first_step_is_exit_code_2(verb: str, tmp_path: Path) -> None:
    home = ("--store", f"file:{tmp_path / 'records'}", "--listen", f"127.0.0.1:{free_port()}", "--yes")
    result = migrate(verb, "--controller", "127.0.0.1:1", "--broker-name", NAME, *home)
    assert result.exit_code == 2, result.output


def test_a_move_that_ended_after_its_first_step_is_exit_code_3(running: Running, tmp_path: Path) -> None:
    home = ("--store", f"file:{tmp_path / 'records'}", "--listen", f"127.0.0.1:{free_port()}", "--yes")
    result = migrate("cut-over", *running.asked, *home, "--stop-deadline-seconds", "0.2")
    assert result.exit_code == 3, result.output
    assert '"step": "follow"' in result.output
    assert "were not stopped in time" in result.output


@pytest.mark.parametrize("text", [";;;", "nonsense", "127.0.0.1:99999", ""])
def test_an_address_that_is_none_is_named_with_its_option(text: str) -> None:
    for option, arguments in (
        ("--controller", ["--controller", text]),
        ("--name-server", ["--controller", "127.0.0.1:1", "--name-server", text]),
    ):
        result = migrate("plan", *arguments)
        assert result.exit_code == 2
        assert option in result.stderr
        assert "expected" in result.stderr


@pytest.mark.parametrize("output", ["yaml", ""])
def test_an_unknown_output_is_named(output: str) -> None:
    result = migrate("plan", "--controller", "127.0.0.1:1", "-o", output)
    assert result.exit_code == 2
    assert "expected table or json" in " ".join(result.output.split())


@pytest.mark.parametrize("content", ["", "[]", '{"accessKey": "a"}', '{"accessKey": "a", "secretKey": ""}'])
def test_a_bad_credentials_file_is_named(tmp_path: Path, content: str) -> None:
    file = tmp_path / "credentials.json"
    file.write_text(content)
    result = migrate("plan", "--controller", "127.0.0.1:1", "--credentials-file", str(file))
    assert result.exit_code == 2
    assert "Invalid value for --credentials-file" in result.output
