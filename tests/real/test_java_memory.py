"""A Java broker stays within spec.resources.limits.memory, even at 512 MiB, without sizes derived from the host's memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import convert

from brokergroup_operator.api.brokergroup import BrokerGroupSpec
from brokergroup_operator.reconcile.render.containers import JAVA_MAIN_CLASS, java_arguments
from tests.real.parts import install, java
from tests.real.parts.process import accepts_connections, start
from tests.support.places import free_port

pytestmark = [pytest.mark.real("java", "rocketmq"), pytest.mark.timeout(240)]
LIMIT_MEBIBYTES = 512


def test_issue_36_a_broker_fits_into_512_mebibytes(tmp_path: Path) -> None:
    """apache/rocketmq-operator #19, #36, #84, #109, #198, #201, #230: killed for sizes that fit the host but not the pod."""
    spec = convert(
        # The whole heap is touched at the start, as after a while of use.
        {
            "implementation": "Java",
            "resources": {"limits": {"memory": f"{LIMIT_MEBIBYTES}Mi"}},
            "jvm": {"extraArguments": ["-XX:+AlwaysPreTouch"]},
        },
        BrokerGroupSpec,
    )
    arguments = java_arguments(spec)
    port = free_port(neighbours=2)
    properties = java.broker_properties(tmp_path, controllers="127.0.0.1:1", name_server="127.0.0.1:1") | {
        "enableControllerMode": "false", "brokerId": "0", "brokerRole": "ASYNC_MASTER",
        "listenPort": port, "haListenPort": free_port(),
    }  # fmt: skip
    config = java.write_properties(tmp_path / "broker.conf", properties)
    command = [
        *("java", *arguments, f"-Duser.home={tmp_path}", f"-Drocketmq.home.dir={tmp_path}"),
        *("-cp", str(install.rocketmq_home() / "lib" / "*"), JAVA_MAIN_CLASS, "-c", str(config)),
    ]
    broker = start("broker", command, log=tmp_path / "broker.log")
    try:
        broker.wait_until(lambda: accepts_connections("127.0.0.1", port), what="listening", deadline_seconds=150)
        # Memory of files (the commit log) is the kernel's to take back; what is anonymous is not.
        anonymous = mebibytes_of(broker.pid, "RssAnon")
    finally:
        broker.kill()
    direct = next(int(item.rpartition("=")[2][:-1]) for item in arguments if "MaxDirectMemorySize" in item)
    assert anonymous + direct < LIMIT_MEBIBYTES, f"{anonymous} MiB, and {direct} MiB of direct memory may be added"


def mebibytes_of(pid: int, field: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith(f"{field}:"))
