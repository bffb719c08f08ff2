"""A RocketMQCluster by one manifest: Ready, messages by both kinds of client, a failover under both, and deleted clean.

The manifest is `examples/cluster.yaml` as it stands, but for what seven JVMs on two nodes of one small machine need.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import yaml

from tests.node import faults
from tests.node.bench import Bench, CheckError, Group, expect
from tests.node.cluster import condition, say
from tests.node.evidence import RECORDS, keep_brokers_labelled
from tests.node.kubectl import get, kubectl, until
from tests.node.places import REPOSITORY, state_folder
from tests.node.processes import NodeError
from tests.real.parts import install
from tests.real.parts.java import FAST_START

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from types import TracebackType

EXAMPLE = REPOSITORY / "examples" / "cluster.yaml"
NAME = "shop"
LABEL = f"brokergroup.dev/rocketmq-cluster={NAME}"
BROKERS = f"brokergroup.dev/broker-group in ({NAME}-0,{NAME}-1)"
READY_SECONDS = 300.0
GONE_SECONDS = 180.0
CLIENT = REPOSITORY / "tests" / "interop" / "grpc_client.py"
# The topic that the example declares: the operator makes it in both groups.
TOPIC, READERS = "orders", "orders-readers"
MESSAGES = 100
# The client asks until it has them all.
CONSUME_SECONDS = 120
# It repeats a send that fails without end, so its answer has a deadline here.
ANSWER_SECONDS = CONSUME_SECONDS + 60.0
# So often it looks whether the run was interrupted.
ASK_SECONDS = 0.5
# Memory and processor time of each broker, so that seven JVMs fit on two nodes of one small machine.
SMALL_BROKERS: dict[str, Any] = {
    "resources": {},
    "jvm": {"extraArguments": list(FAST_START)},
    "config": {"mappedFileSizeCommitLog": "67108864"},
}


def whole_cluster(bench: Bench) -> None:
    """Apply, use, break and delete it."""
    began = time.monotonic()
    kubectl("apply", "-f", "-", stdin=yaml.safe_dump(manifest()))
    try:
        kubectl(
            "wait", "--for=condition=Ready", f"rmq/{NAME}", f"--timeout={READY_SECONDS:g}s", seconds=READY_SECONDS + 10
        )
        bench.seconds["cluster_ready"] = round(time.monotonic() - began, 1)
        say(kubectl("get", "rmq", NAME).rstrip())
        use(bench)
    except (CheckError, NodeError, AssertionError):
        keep_brokers_labelled(RECORDS / "whole-cluster-as-it-failed", BROKERS, "Java")
        raise
    finally:
        delete(bench)


def manifest() -> dict[str, Any]:
    """Less memory than the example asks for, one Proxy, one broker in the second group, and JVMs that start fast."""
    wanted: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    template = wanted["spec"]["brokerGroups"]["template"]
    template |= {**SMALL_BROKERS, "config": template["config"] | SMALL_BROKERS["config"]}
    wanted["spec"]["brokerGroups"]["overrides"] = [{"index": 1, "replicas": 1}]
    wanted["spec"]["proxy"] = {"replicas": 1}
    return wanted


def use(bench: Bench) -> None:
    """The gRPC client by the Proxy, then a remoting client by a NameServer while the master dies, then the first once more.

    A Proxy sends nothing to a topic that no broker has: the first message shows that the operator made the declared one.
    """
    group, alone = Group(f"{NAME}-0", "Java"), bench.name_server
    proxy = get("pods", "-l", f"{LABEL},app.kubernetes.io/component=proxy")["items"][0]
    with GrpcClient(f"{proxy['status']['podIP']}:8081") as client:
        client.carry(0)
        bench.name_server = f"{faults.pod_named(f'{NAME}-nameserver-1')['status']['podIP']}:9876"
        try:
            bench.strike(group, "cluster_kill", faults.kill, kind="failover")
        finally:
            bench.name_server = alone
        client.carry(MESSAGES)
    found = get("rmq", NAME)
    expect(
        condition(found, "Available").get("status") == "True",
        f"rmq/{NAME} after a failover of {group.name}: {found['status']['conditions']}",
    )


def delete(bench: Bench) -> None:
    """Delete the cluster, check that only the claims are left, which outlive their group, and delete them."""
    began = time.monotonic()
    kubectl("delete", "rmq", NAME, "--wait=true", f"--timeout={GONE_SECONDS:g}s", seconds=GONE_SECONDS + 10)
    kinds = "brokergroups,statefulsets,deployments,services,configmaps,poddisruptionbudgets"
    until(f"{kinds} of {NAME} are gone", lambda: not get(kinds, "-l", LABEL)["items"], GONE_SECONDS, 0.5)
    names = " ".join(f"{NAME}-{index}" for index in range(2))
    selector = f"brokergroup.dev/broker-group in ({names.replace(' ', ',')})"
    until(f"pods of {names} are gone", lambda: not get("pods", "-l", selector)["items"], GONE_SECONDS, 0.5)
    bench.seconds["cluster_gone"] = round(time.monotonic() - began, 1)
    kubectl("delete", "persistentvolumeclaims", "-l", selector, "--wait=false")
    kubectl("delete", "brokergroupstates", *names.split(), "--ignore-not-found")


class Exchange(NamedTuple):
    """Messages that were sent and acknowledged: how many, the keys of those not received, the client's answer about them."""

    sent: int
    missing: list[str]
    told: dict[str, Any]


class GrpcClient:
    """RocketMQ's gRPC client, in the Python that has its packages; on a node's network with that node's `enter`.

    With `trusted`, a file of authorities, it connects over TLS, and verifies the Proxy's certificate and name.
    """

    def __init__(self, endpoint: str, enter: Iterable[str] = (), *, trusted: Path | None = None) -> None:
        self._endpoint = endpoint
        self._enter = tuple(enter)
        self._tls = (
            {} if trusted is None else {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(trusted), "ROCKETMQ_CLIENT_TLS": "1"}
        )
        self._log_name = "grpc-client" if trusted is None else f"grpc-client-{trusted.stem}"

    def __enter__(self) -> Self:
        environment = {
            **os.environ,
            **self._tls,
            "PYTHONPATH": str(install.python_client_folder()),
            "HOME": str(state_folder()),
        }
        self._log = (state_folder() / "logs" / f"{self._log_name}.log").open("wb")
        self._process = subprocess.Popen(
            [*self._enter, "python3", str(CLIENT), self._endpoint, TOPIC, READERS],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()
        self._log.close()

    def carry(self, first: int) -> None:
        """Send messages and receive them all."""
        _, missing, told = self.exchange(first, MESSAGES)
        expect(not missing, f"sent by the Proxy and not received: {missing[:5]} of {len(missing)}: {told}")

    def exchange(self, first: int, count: int) -> Exchange:
        """Send so many messages, and receive them as far as they come. Raises CheckError if they are not all acknowledged."""
        self.send(first, count)
        return self.receive(first, count)

    def send(self, first: int, count: int) -> None:
        """Raises CheckError if they are not all acknowledged."""
        sent = self._ask(f"produce {first} {count}")
        expect(sent.get("sent") == count, f"by the Proxy: {sent}")
        if failed := sent.get("failed"):
            say(f"  by the Proxy: {count} sent, {len(failed)} tries failed, the last with {failed[-1]}")

    def receive(self, first: int, count: int) -> Exchange:
        """Receive messages that were sent, as far as they come."""
        told = self._ask(f"consume {first} {count} {CONSUME_SECONDS}")
        missing = {f"g{number:06}" for number in range(first, first + count)} - set(told.get("keys", ()))
        if (failed := told.get("failed", ())) or missing:
            why = f"{len(failed)} tries failed, the last with {failed[-1:]}; {told.get('new_consumers')} new consumers"
            say(f"  by the Proxy: {count - len(missing)} of {count} received, {why}")
        return Exchange(count, sorted(missing), told)

    def _ask(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        answers = [self._process.stdout]
        try:
            until(f"an answer to {line!r}", lambda: select.select(answers, [], [], ASK_SECONDS)[0], ANSWER_SECONDS, 0.0)
        except NodeError as error:
            return {"error": str(error)}
        answer: dict[str, Any] = json.loads(self._process.stdout.readline() or '{"error": "the client ended"}')
        return answer
