"""Record stores by name, also in Kubernetes for brokers that are not pods."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.migrate.java_state import record_of
from brokergroup_operator.migrate.plan import Standing
from brokergroup_operator.migrate.records import write_record
from brokergroup_operator.records.file import FileRecordStore
from brokergroup_operator.records.memory import MemoryRecordStore
from brokergroup_operator.records.store import GroupKey
from brokergroup_operator.records.stores import OwnKubernetesRecordStore, namespace_of, open_record_store
from tests.migrate.test_plan import STATE
from tests.our_kinds import server_with_our_kinds

if TYPE_CHECKING:
    from pathlib import Path

RECORD = record_of(STATE, cluster_name="cl", next_broker_id=4)


async def test_the_record_of_brokers_that_are_not_pods_is_a_broker_group_state(tmp_path: Path) -> None:
    async with server_with_our_kinds() as server:
        kubeconfig = tmp_path / "kubeconfig"
        server.write_kubeconfig(kubeconfig)
        store = open_record_store("kubernetes:default", kubeconfig=kubeconfig)
        assert isinstance(store, OwnKubernetesRecordStore)
        try:
            key = GroupKey(namespace_of("kubernetes:default"), "bn")
            assert await write_record(store, key, RECORD, replace_older=False) is Standing.ABSENT
            later = replace(RECORD, sync_state_set_epoch=RECORD.sync_state_set_epoch + 1)
            assert await write_record(store, key, later, replace_older=True) is Standing.BEHIND
            found = await store.read(key)
            assert found is not None
            assert found.record == later
        finally:
            await store.close()


async def test_stores_by_name(tmp_path: Path) -> None:
    assert isinstance(open_record_store("memory"), MemoryRecordStore)
    file = open_record_store(f"file:{tmp_path / 'records'}")
    assert isinstance(file, FileRecordStore)
    await file.close()
    assert namespace_of("memory") == namespace_of("file:x") == "standalone"
    assert namespace_of("kubernetes:brokers") == "brokers"


@pytest.mark.parametrize("text", ["", "file:", "memory:x", "kubernetes:", "etcd:http://x"])
def test_another_store_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="kubernetes:<namespace>"):
        open_record_store(text)
