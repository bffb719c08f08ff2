"""Where the kubelet keeps what under its data folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .pods_file import FILE_NAME

if TYPE_CHECKING:
    from pathlib import Path

    from brokergroup_operator.kube.client import JsonObject


@dataclass(frozen=True, slots=True)
class DataFolders:
    """``pods/`` goes with the pod, ``claims/`` with the claim, ``logs/`` stays."""

    root: Path

    @property
    def lock_file(self) -> Path:
        """Held while a kubelet uses this data folder."""
        return self.root / "kubelet.lock"

    @property
    def pods_file(self) -> Path:
        """Which pods run here, for people and scripts."""
        return self.root / FILE_NAME

    @property
    def all_pods(self) -> Path:
        """The pods' own folders."""
        return self.root / "pods"

    @property
    def all_claims(self) -> Path:
        """One folder per bound claim."""
        return self.root / "claims"

    def pod(self, pod: JsonObject) -> Path:
        """emptyDir, configMap and secret volumes, and each container's scratch folder."""
        return self.all_pods / unique_name(pod)

    def claim(self, claim: JsonObject) -> Path:
        """The claim's volume."""
        return self.all_claims / unique_name(claim)

    def logs(self, pod: JsonObject) -> Path:
        """One folder per container, one file per start in it."""
        return self.root / "logs" / unique_name(pod)

    def container_log(self, pod: JsonObject, container: str, restart_count: int) -> Path:
        """The log of one start of one container."""
        return self.logs(pod) / container / f"{restart_count}.log"


def unique_name(obj: JsonObject) -> str:
    """``<namespace>_<name>_<uid>``: readable, and never the same for a successor of the same name."""
    metadata = obj["metadata"]
    return f"{metadata['namespace']}_{metadata['name']}_{metadata['uid']}"
