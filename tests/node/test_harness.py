"""The harness's own verdicts: contradictions, changed settings, and that it ends only its own processes."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tests.node import helm_demo, images, machine, processes, whole_cluster
from tests.node.bench import CheckError, told_wrong
from tests.node.checks import CHECKS
from tests.node.e2e import beside
from tests.node.faults import BROKER
from tests.node.helm_demo import Demo, commands_of, verdict, with_small_brokers
from tests.node.kubectl import given_up
from tests.node.leftovers import left_over
from tests.node.mutants import MUTANTS
from tests.node.places import REPOSITORY
from tests.node.whole_cluster import GrpcClient
from tests.node.whole_run import interrupted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def incident(**changed: Any) -> dict[str, Any]:
    return {"kind": "failover", "outcome": "completed", "epoch": 2, "to": 1, "writtenBy": "operator-0", **changed}


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
        ({**STATUS, "master": {"epoch": 3, "brokerId": 2}}, [incident()], {"completed": 1}, "no incident of epoch 3"),
        ({**STATUS, "master": {"epoch": 3, "brokerId": 1}}, [incident()], {"completed": 1}, ""),
        ({**STATUS, "master": {"epoch": 4, "brokerId": 1}}, [incident()], {"completed": 1}, "no incident of epoch 4"),
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


def demo_that_holds(**changed: Any) -> Demo:
    seen: dict[str, Any] = {
        "first_message_s": 60.0,
        "sent": 1,
        "received": 1,
        "left": [],
        "claims": 4,
        "claims_kept": 4,
    }
    return Demo(steps=[("helm install shop", 1.5)], **(seen | changed))


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({}, []),
        ({"first_message_s": helm_demo.BOUND_SECONDS}, []),
        ({"first_message_s": helm_demo.BOUND_SECONDS + 0.1}, ["first_message_s"]),
        ({"first_message_s": None}, ["first_message_s"]),
        ({"sent": 0, "received": 0}, ["sent"]),
        ({"received": 0}, ["lost"]),
        ({"left": None}, ["left"]),
        ({"left": ["default/pod/shop-0-1"]}, ["left"]),
        ({"claims": 0, "claims_kept": 0}, ["claims"]),
        ({"claims": None, "claims_kept": None}, ["claims"]),
        ({"claims_kept": 3}, ["claims"]),
        ({"failed": {"first message": "no"}}, ["first message"]),
    ],
)
def test_the_helm_demo_holds_only_if_the_message_came_in_time_and_all_was_uninstalled(
    changed: dict[str, Any], why: list[str]
) -> None:
    told = verdict(demo_that_holds(**changed))
    assert list(told["why"]) == why
    assert told["lost"] == (1 if why == ["lost"] else 0)
    assert told["steps"] == [{"step": "helm install shop", "seconds": 1.5}]


def test_a_helm_demo_that_was_interrupted_before_its_first_command_does_not_hold() -> None:
    assert list(verdict(Demo())["why"]) == ["sent", "first_message_s", "left", "claims"]


def test_a_step_that_fails_is_measured_and_named() -> None:
    demo = Demo()
    with pytest.raises(CheckError), demo.step("helm install shop"):
        raise CheckError("no such chart")
    assert [name for name, _ in demo.steps] == ["helm install shop"]
    assert demo.failed == {"helm install shop": "CheckError: no such chart"}


@pytest.mark.parametrize(
    ("name", "is_left"),
    [
        ("default/persistentvolumeclaim/shop-0-1", False),
        ("default/brokergroupstate.brokergroup.dev/shop-0", False),
        ("brokergroup-system/lease.coordination.k8s.io/brokergroup-operator", False),
        ("brokergroup-system/secret/brokergroup-operator-fence-key", False),
        ("default/configmap/there-before", False),
        ("default/brokergroup.brokergroup.dev/shop-0", True),
        ("default/secret/sh.helm.release.v1.shop.v1", True),
        ("default/service/shop-proxy", True),
        ("brokergroup-system/persistentvolumeclaim/incidents", True),
        ("brokergroup-system/secret/brokergroup-operator-fence-key-2", True),
        ("clusterrole.rbac.authorization.k8s.io/brokergroup-operator", True),
    ],
)
def test_what_helm_uninstall_leaves_is_seen_but_for_what_stays_by_intent(name: str, is_left: bool) -> None:
    assert left_over({"default/configmap/there-before"}, {name}) == ([name] if is_left else [])


def test_the_helm_demo_runs_readme_s_commands_and_only_the_cluster_gets_small_brokers(tmp_path: Path) -> None:
    page = helm_demo.PAGE.read_text(encoding="utf-8")
    values = tmp_path / "small.yaml"
    install, uninstall = (commands_of(page, block) for block in helm_demo.BLOCKS)
    assert [helm_demo.name_of(line) for line in install] == [
        "helm install brokergroup-operator charts/brokergroup-operator",
        "kubectl rollout status statefulset/brokergroup-operator",
        "helm install shop charts/rocketmq-cluster",
        "kubectl wait rocketmqcluster/shop",
    ]
    changed = [line for line in [*install, *uninstall] if with_small_brokers(line, values) != line]
    assert changed == [install[2]]
    assert with_small_brokers(install[2], values) == f"{install[2]} --values {values}"
    assert "#" not in install[2], "expected nothing behind which --values would be a comment"
    assert [line.split()[:3] for line in uninstall if line.startswith("helm")] == [
        ["helm", "uninstall", "shop"],
        ["helm", "uninstall", "brokergroup-operator"],
    ]


@pytest.mark.parametrize("page", ["", "<!-- test-node: x -->\n```\ntrue\n```\n" * 2])
def test_a_page_without_the_block_or_with_two_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match="blocks x: expected one"):
        commands_of(page, "x")


# A client whose Proxy acknowledges each message, and hands out the first of them only.
FAKE_CLIENT = """
import json, sys
for line in sys.stdin:
    verb, first, count, *_ = line.split()
    keys = [f"g{number:06}" for number in range(int(first), int(first) + int(count))]
    print(json.dumps({"sent": int(count)} if verb == "produce" else {"keys": keys[:1]}), flush=True)
"""


@pytest.fixture
def fake_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[GrpcClient]:
    (tmp_path / "logs").mkdir()
    program = tmp_path / "client.py"
    program.write_text(request.param, encoding="utf-8")
    monkeypatch.setenv("BROKERGROUP_NODE_FOLDER", str(tmp_path))
    monkeypatch.setattr(whole_cluster, "CLIENT", program)
    monkeypatch.setattr(whole_cluster, "ANSWER_SECONDS", 60.0)
    with GrpcClient("nowhere:8081", ("env",)) as client:
        yield client


@pytest.mark.parametrize("fake_client", [FAKE_CLIENT], indirect=True)
def test_a_message_that_was_acknowledged_and_not_received_is_missing(fake_client: GrpcClient) -> None:
    assert fake_client.exchange(0, 1).missing == []
    assert fake_client.exchange(7, 3)[:2] == (3, ["g000008", "g000009"])
    with pytest.raises(CheckError, match="and not received"):
        fake_client.carry(0)


@pytest.mark.parametrize("fake_client", ["input()", "import time; time.sleep(60)"], indirect=True)
def test_a_client_that_ends_or_does_not_answer_is_no_message(
    fake_client: GrpcClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_cluster, "ANSWER_SECONDS", 0.5)
    with pytest.raises(CheckError, match=r"the client ended|an answer to 'produce 0 1': not within"):
        fake_client.exchange(0, 1)


@pytest.mark.parametrize("fake_client", ["import time; time.sleep(600)"], indirect=True)
def test_an_interrupt_waits_for_no_client(fake_client: GrpcClient) -> None:
    """The runner kills a lane 90 s after its interrupt, and with it what would end the nodes."""
    over, told = threading.Event(), list[str]()

    def send() -> None:
        with pytest.raises(CheckError) as failed:
            fake_client.send(0, 1)
        told.append(str(failed.value))

    try:
        with pytest.raises(KeyboardInterrupt), beside(send, over):
            interrupted(signal.SIGTERM, None)
    finally:
        given_up.clear()
    assert "interrupted" in told[0]
