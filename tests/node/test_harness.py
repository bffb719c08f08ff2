"""The harness's own verdicts: contradictions, changed settings, and that it ends only its own processes."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tests.node import images, machine, processes
from tests.node.bench import told_wrong
from tests.node.checks import CHECKS
from tests.node.faults import BROKER
from tests.node.mutants import MUTANTS
from tests.node.places import REPOSITORY

if TYPE_CHECKING:
    from pathlib import Path


def incident(**changed: Any) -> dict[str, Any]:
    return {"kind": "failover", "outcome": "completed", "epoch": 2, "writtenBy": "operator-0", **changed}


STATUS = {"master": {"epoch": 2}, "failovers": [{"epoch": 2}, {"epoch": 1}]}


@pytest.mark.parametrize(
    ("status", "new", "counted", "told"),
    [
        (STATUS, [incident()], {"completed": 1}, ""),
        (STATUS, [], {}, "one failover, 0 incidents"),
        (STATUS, [incident(), incident(outcome="cancelled")], {"completed": 1}, "one failover, 2 incidents"),
        (STATUS, [incident(outcome="incomplete")], {"incomplete": 1}, "expected one that is completed"),
        (STATUS, [incident()], {"completed": 1, "cancelled": 2}, "failovers_total rose by"),
        (STATUS, [incident(kind="switchover")], {"completed": 1}, "expected a failover"),
        ({**STATUS, "master": {"epoch": 3}}, [incident()], {"completed": 1}, "no incident of epoch 3"),
        ({**STATUS, "failovers": [{"epoch": 1}]}, [incident()], {"completed": 1}, "failovers[0].epoch is 1"),
        ({"master": {"epoch": 2}}, [incident()], {"completed": 1}, "failovers[0].epoch is None"),
    ],
)
def test_one_failover_is_told_as_one(
    status: dict[str, Any], new: list[dict[str, Any]], counted: dict[str, int], told: str
) -> None:
    wrong = "; ".join(told_wrong(status, new, Counter(counted), "failover"))
    assert (told in wrong) if told else not wrong


def test_every_change_of_the_machine_is_named() -> None:
    before = {"link": {"eth0": "UP"}, "kernel parameter": {"kernel/panic": "0", "vm/swappiness": "60"}}
    after = {"link": {"eth0": "UP", "bgnode": "UP"}, "kernel parameter": {"kernel/panic": "10", "net/new": "1"}}
    assert machine.differences(before, before) == []
    assert machine.differences(before, after) == [
        "link bgnode is new",
        "kernel parameter vm/swappiness is gone",
        "kernel parameter kernel/panic: '0', now '10'",
    ]


def test_an_image_has_the_name_that_containerd_gives_it() -> None:
    assert images.full_name("brokergroup-operator:0.1.0") == "docker.io/library/brokergroup-operator:0.1.0"
    assert images.full_name("apache/rocketmq:5.5.0") == "docker.io/apache/rocketmq:5.5.0"
    for whole in ("localhost/brokergroup-operator:1", "ghcr.example/team/operator:1", "registry:5000/operator:1"):
        assert images.full_name(whole) == whole


def test_an_image_is_named_by_what_it_is_built_from(tmp_path: Path) -> None:
    (tmp_path / ".dockerignore").write_text("*\n!code\n!LICENSE\n**/__pycache__\n", encoding="utf-8")
    (tmp_path / "Dockerfile").write_text("FROM base\n", encoding="utf-8")
    (tmp_path / "LICENSE").touch()
    (tmp_path / "code" / "__pycache__").mkdir(parents=True)
    source = tmp_path / "code" / "main.py"
    source.write_text("1", encoding="utf-8")
    first = images.digest(tmp_path, ())
    (tmp_path / "code" / "__pycache__" / "main.pyc").write_text("x", encoding="utf-8")
    (tmp_path / "notes").write_text("x", encoding="utf-8")
    assert images.digest(tmp_path, ()) == first
    assert images.digest(tmp_path, ("--build-arg", "A=1")) != first
    source.write_text("2", encoding="utf-8")
    assert images.digest(tmp_path, ()) != first


def test_a_started_program_is_ended_and_another_of_its_number_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKERGROUP_NODE_FOLDER", str(tmp_path))
    processes.start("sleeper", [sys.executable, "-c", "import time; time.sleep(60)"])
    process = processes.started("sleeper")
    assert process is not None
    # The number is the same, the beginning is not: another program, which must live.
    processes.end_processes([processes.Process(process.pid, process.began - 1)], grace_seconds=0)
    assert process.lives()
    processes.end("sleeper")
    assert not process.lives()
    assert processes.started("sleeper") is None


def test_a_program_that_ends_before_it_answers_is_told_with_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKERGROUP_NODE_FOLDER", str(tmp_path))

    def bring_up() -> None:
        processes.start("broken", [sys.executable, "-c", "print('last words')"])
        processes.wait_for("broken", "answering", lambda: False, 10)

    # It may have ended before its state could be read: the error holds the log then too.
    with pytest.raises(processes.NodeError, match=r"(?s)broken ended (at once|before answering).*last words"):
        bring_up()


def test_what_ignores_a_polite_word_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKERGROUP_NODE_FOLDER", str(tmp_path))
    ready = tmp_path / "ready"
    code = f"import signal, time, pathlib; signal.signal(15, signal.SIG_IGN); pathlib.Path({str(ready)!r}).touch(); time.sleep(60)"
    processes.start("stubborn", [sys.executable, "-c", code])
    processes.wait_for("stubborn", "being ready", ready.exists, 10)
    process = processes.started("stubborn")
    assert process is not None
    began = time.monotonic()
    processes.end_processes([process], grace_seconds=0.2)
    assert not process.lives()
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("implementation", "line", "is_broker"),
    [
        (
            "Python",
            "/opt/brokergroup/bin/python /opt/brokergroup/bin/brokergroup replica --listen 0.0.0.0:10911",
            True,
        ),
        ("Python", "/opt/brokergroup/bin/python /opt/brokergroup/bin/brokergroup fence --listen 0.0.0.0:1", False),
        ("Java", "java -Xmx512m -cp lib/* org.apache.rocketmq.broker.BrokerStartup -c broker.conf", True),
        ("Java", "sh -c exec java org.apache.rocketmq.broker.BrokerStartup", True),
        ("Java", "java -cp lib/* org.apache.rocketmq.tools.command.MQAdminStartup clusterList", False),
    ],
)
def test_the_broker_is_known_by_its_command_line(implementation: str, line: str, is_broker: bool) -> None:
    assert bool(BROKER[implementation].search(line)) is is_broker


def test_our_own_process_is_seen_as_it_is() -> None:
    process = processes.process_of(os.getpid())
    assert process is not None
    assert process.lives()
    assert "pytest" in processes.command_line(os.getpid()) or "python" in processes.command_line(os.getpid())


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_each_fault_can_still_be_put_back_and_a_check_is_named_for_it(name: str) -> None:
    checks_there = {check.name for check in CHECKS}
    assert set(MUTANTS[name].found_by) <= checks_there
    for edit in MUTANTS[name].edits:
        text = (REPOSITORY / edit.file).read_text(encoding="utf-8")
        assert text.count(edit.old) == 1, f"{edit.file}: {edit.old!r}"
