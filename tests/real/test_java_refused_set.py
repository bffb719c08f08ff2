"""A Java 5.5.0 master whose SyncStateSet was refused, and whose slave is gone that it had proposed: it would wait for it for ever.

So a refusal is no backoff for a slave whose link comes and ends, and our plane ends the wait (docs/adr/0008-in-pod-fence.md).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from controller_core import sync_state
from controller_core.decision import ControllerCode
from tests.real.parts.java_producer import start_producer
from tests.real.test_java_brokers import TOPIC, Lab, lab
from tests.support.java_rig import address_of, eventually, in_sync

if TYPE_CHECKING:
    from pathlib import Path

    from controller_core.model import BrokerGroupRecord
    from controller_core.requests import AlterSyncStateSet

__all__ = ["lab"]  # a fixture
pytestmark = [pytest.mark.nightly, pytest.mark.real("java", "rocketmq"), pytest.mark.timeout(300)]


class KeepsOut:
    """Refuses each 1001 that would take this slave into the set, as if its heartbeats did not arrive."""

    def __init__(self, slave: int) -> None:
        self.slave, self.refused = slave, 0
        self.checked = sync_state._check_members

    def __call__(self, record: BrokerGroupRecord, request: AlterSyncStateSet, *others: Any, **kept: Any) -> Any:
        if self.slave not in request.sync_state_set - record.sync_state_set:
            return self.checked(record, request, *others, **kept)
        self.refused += 1
        return ControllerCode.CONTROLLER_BROKER_NOT_ALIVE, "kept out by the test"


async def test_a_java_master_goes_on_without_a_slave_that_it_was_refused_and_that_is_gone(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the next epoch it acknowledged nothing in 25 s (measured), although the record's set was its own, and alive."""
    for name in ("first", "second", "third"):
        lab.start_member(name)
    await eventually(lambda: in_sync(lab.plane, 3), f"three Java brokers in sync\n{lab.logs()}")
    slave = next(one for one in lab.record.sync_state_set if one != lab.record.master_broker_id)
    name = lab.kill_at(address_of(lab.plane, slave))
    await eventually(lambda: in_sync(lab.plane, 2), "the master to go on with two")
    keeps_out = KeepsOut(slave)
    monkeypatch.setattr(sync_state, "_check_members", keeps_out)
    lab.start_member(name)
    await eventually(lambda: keeps_out.refused >= 3, "the master to propose it")
    producer = start_producer(tmp_path / "producer", name_server_address=lab.name_server_address, topic=TOPIC)
    try:
        await eventually(lambda: len(producer.acknowledged()) >= 100, "acknowledgements while it is linked")
        before = lab.record
        lab.kill_at(address_of(lab.plane, slave))
        # The wait may be shorter than a send's patience (0.5 s), so that none fails.
        await eventually(lambda: lab.record.master_epoch > before.master_epoch, "the next epoch")
        acknowledged = len(producer.acknowledged())
        await eventually(lambda: len(producer.acknowledged()) > acknowledged + 100, "the master to go on without it")
    finally:
        await asyncio.to_thread(producer.stop)
    assert lab.record.sync_state_set == before.sync_state_set
    assert lab.record.master_epoch == before.master_epoch + 1
