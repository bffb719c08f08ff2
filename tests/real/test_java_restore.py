"""A Java broker does not start on a store that a backup was copied to only in part, whatever its command and its version."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.backup.files import LOCK
from tests.real.parts import java
from tests.support.places import free_port

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.real("java", "rocketmq"), pytest.mark.timeout(240)]


def test_a_java_broker_fails_to_open_the_lock_of_a_restore(tmp_path: Path) -> None:
    store = tmp_path / "store"
    (store / LOCK).mkdir(parents=True)
    properties = java.broker_properties(tmp_path, controllers="127.0.0.1:1", name_server="127.0.0.1:1") | {
        "enableControllerMode": "false", "brokerId": "0", "brokerRole": "ASYNC_MASTER", "storePathRootDir": str(store),
        "storePathCommitLog": str(store / "commitlog"), "listenPort": free_port(neighbours=2), "haListenPort": free_port(),
    }  # fmt: skip
    config = java.write_properties(tmp_path / "broker.conf", properties)
    command = [*java.java_command("broker", tmp_path), "-c", str(config)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert ended.returncode != 0
    assert list((store / LOCK).iterdir()) == []
    logs = "".join(one.read_text(errors="replace") for one in tmp_path.rglob("*.log")) + ended.stdout + ended.stderr
    assert "lock (Is a directory)" in logs
