"""Opens the record store that a text names: ``memory``, ``file:<folder>``, or ``kubernetes:<namespace>``.

The last one is for brokers that are not pods: their records are BrokerGroupStates in a namespace, so that several controller
planes outside or inside the cluster may decide over one group. The kubeconfig is the one given, else ``KUBECONFIG``, else the
service account of the pod this runs in.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from brokergroup_operator.kube import KubernetesApi
from brokergroup_operator.records.file import FileRecordStore
from brokergroup_operator.records.kubernetes import KubernetesRecordStore
from brokergroup_operator.records.memory import MemoryRecordStore

if TYPE_CHECKING:
    from brokergroup_operator.records.store import RecordStore

STANDALONE_NAMESPACE = "standalone"
"""Where a group without Kubernetes is kept: its key is this and its brokerName."""


class OwnKubernetesRecordStore(KubernetesRecordStore):
    """A store in Kubernetes that owns its API client."""

    def __init__(self, api: KubernetesApi, *, namespace: str) -> None:
        super().__init__(api, namespace=namespace)
        self._own_api = api

    async def close(self) -> None:
        """End the watch, then the client."""
        await super().close()
        await self._own_api.close()


def open_record_store(text: str, *, kubeconfig: Path | None = None) -> RecordStore:
    """Return the store of this name. Raises ValueError for another form, ``RecordStoreError`` for a folder in use."""
    kind, place = parse_store(text)
    if kind == "memory":
        return MemoryRecordStore()
    if kind == "file":
        return FileRecordStore(Path(place))
    return OwnKubernetesRecordStore(kubernetes_api(kubeconfig), namespace=place)


def parse_store(text: str) -> tuple[str, str]:
    """Kind and place of a store by its name, nothing opened. ValueError names what was expected."""
    kind, _, place = text.partition(":")
    if (kind == "memory" and not place) or (kind in {"file", "kubernetes"} and place):
        return kind, place
    raise ValueError(f"store is {text!r}, expected memory or file:<folder>, or kubernetes:<namespace>")


def namespace_of(text: str) -> str:
    """The namespace of the keys in the store of this name."""
    kind, _, place = text.partition(":")
    return place if kind == "kubernetes" else STANDALONE_NAMESPACE


def kubernetes_api(kubeconfig: Path | None) -> KubernetesApi:
    """Return a client by this kubeconfig, else by ``KUBECONFIG``, else as the pod's service account."""
    file = kubeconfig or (Path(os.environ["KUBECONFIG"]) if os.environ.get("KUBECONFIG") else None)
    return KubernetesApi.from_kubeconfig(file) if file is not None else KubernetesApi.in_cluster()
