"""The demo's eyes: the BrokerGroup and its record, watched as anybody with kubectl could."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from brokergroup_operator.demo.screen import MemberRow
from brokergroup_operator.kube import KubernetesApi, Reflector
from brokergroup_operator.kube.resources import BROKER_GROUP_STATES, BROKER_GROUPS

_SYNC_SECONDS = 10.0


@dataclass(frozen=True)
class WatchedGroup:
    """One group, always as of the last watch event."""

    namespace: str
    name: str
    groups: Mapping[tuple[str, str], dict[str, Any]]
    states: Mapping[tuple[str, str], dict[str, Any]]

    @property
    def record(self) -> dict[str, Any]:
        """The controller's record; empty until there is one."""
        record: dict[str, Any] = self.states.get((self.namespace, self.name), {}).get("record", {})
        return record

    @property
    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.groups.get((self.namespace, self.name), {}).get("status", {})
        return status

    @property
    def master_id(self) -> int | None:
        return self.record.get("masterBrokerId")

    @property
    def master_epoch(self) -> int:
        return int(self.record.get("masterEpoch", 0))

    @property
    def sync_state_set(self) -> list[int]:
        return sorted(self.record.get("syncStateSet", []))

    def master_address(self) -> str | None:
        """Where the master takes sends, as the record has it."""
        master_id = self.master_id
        for replica in self.record.get("replicas", []):
            if replica["brokerId"] == master_id:
                return replica.get("address") or None
        return None

    def is_ready(self) -> bool:
        return any(
            condition["type"] == "Ready" and condition["status"] == "True"
            for condition in self.status.get("conditions", [])
        )

    def members(self) -> list[MemberRow]:
        return [
            MemberRow(
                broker_id=int(member["brokerId"]),
                pod=str(member.get("pod", "")),
                address=str(member.get("address", "")),
                role=str(member.get("role", "")),
                state=str(member.get("state", "")),
            )
            for member in self.status.get("members", [])
        ]


@asynccontextmanager
async def watch_group(api: KubernetesApi, namespace: str, name: str) -> AsyncIterator[WatchedGroup]:
    """Watch a group for the length of a block."""
    groups = Reflector(api, BROKER_GROUPS, namespace=namespace, on_change=lambda _: None)
    states = Reflector(api, BROKER_GROUP_STATES, namespace=namespace, on_change=lambda _: None)
    tasks = [asyncio.create_task(reflector.run()) for reflector in (groups, states)]
    try:
        for reflector in (groups, states):
            await reflector.wait_synced(_SYNC_SECONDS)
        yield WatchedGroup(namespace, name, groups.objects, states.objects)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
