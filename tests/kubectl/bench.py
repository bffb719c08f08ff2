"""Runs the plugin against the embedded API, makes and reads objects beside it; and command lines of generate."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import requests
import yaml
from typer.testing import CliRunner

from brokergroup_operator.kubectl.cluster import BrokerGroup, BrokerGroupOperation, Kind
from brokergroup_operator.kubectl.command_line import PluginError
from brokergroup_operator.kubectl.main import app

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


DEADLINE_SECONDS = 20.0
TOO_FEW = (
    "Beside master 2, 2 live members in sync are needed, one of them to take over; there is 1;"
    " broker 3: linked, not in the SyncStateSet"
)
STATUS: dict[str, Any] = {
    "observedGeneration": 1,
    "replicas": 3,
    "readyReplicas": 3,
    "durability": "Strict",
    "master": {"brokerId": 2, "pod": "orders-2", "address": "10.0.0.2:10911", "epoch": 5},
    "syncStateSet": {"brokerIds": [1, 2], "epoch": 9},
    "members": [
        {
            "brokerId": number, "pod": f"orders-{number}", "podIP": f"10.0.0.{number}", "address": f"10.0.0.{number}:10911",
            "role": "master" if number == 2 else "slave", "state": "CatchingUp" if number == 3 else "InSync",
            "seat": "None" if number == 3 else "InSyncStateSet", "lagBytes": 3 * 2**20 if number == 3 else 0,
            "node": f"node-{number}",
        }
        for number in (1, 2, 3)
    ],
    "failovers": [{
        "trigger": "connectionRefused", "from": 1, "to": 2, "epoch": 5, "startedAt": "2026-01-01T00:00:00Z",
        "durationMilliseconds": 41, "phases": {"detected": 0, "committed": 12, "roleChanged": 41},
    }],
    "conditions": [
        {
            "type": "Ready", "status": "False", "reason": "MembersOutOfSync",
            "message": "broker 3: linked, not in the SyncStateSet",
            "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1,
        },
        {
            "type": "FailoverSafe", "status": "False", "reason": "NotEnoughCandidates", "message": TOO_FEW,
            "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1,
        },
    ],
}  # fmt: skip


@dataclass(frozen=True)
class Said:
    """The result of a run of the plugin."""

    code: int
    out: str
    err: str


class Bench:
    """One namespace of the embedded API."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder
        self.namespace = f"t-{uuid.uuid4().hex[:8]}"
        self.kubeconfig = folder / "kubeconfig"
        self.session = requests.Session()
        self.api("POST", "/api/v1/namespaces", {"metadata": {"name": self.namespace}})
        self.write_kubeconfig(url)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.session.close()

    def write_kubeconfig(self, url: str, user: dict[str, Any] | None = None) -> None:
        context = {"cluster": "c", "user": "u", "namespace": self.namespace}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "users": [{"name": "u", "user": user or {}}],
            "contexts": [
                {"name": "here", "context": context},
                {"name": "elsewhere", "context": context | {"namespace": "default"}},
            ],
            "current-context": "here",
        }
        self.kubeconfig.write_text(yaml.safe_dump(document), encoding="utf-8")

    def run(self, *arguments: str, typed: str | None = None) -> Said:
        """In this process, as `kubectl brokergroup ...` would."""
        result = CliRunner().invoke(app, list(arguments), input=typed, env={"KUBECONFIG": str(self.kubeconfig)})
        error = result.exception
        if isinstance(error, PluginError):
            return Said(error.exit_code, result.stdout, f"{result.stderr}{error}")
        if error is not None and not isinstance(error, SystemExit):
            raise error
        return Said(result.exit_code, result.stdout, result.stderr)

    def must(self, *arguments: str) -> str:
        said = self.run(*arguments)
        assert said.code == 0, said
        return said.out

    def api(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        headers = {"Content-Type": "application/merge-patch+json"} if method == "PATCH" else {}
        answer = self.session.request(method, self.url + path, json=body, headers=headers, timeout=DEADLINE_SECONDS)
        assert answer.ok, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def path(self, kind: Kind, name: str = "") -> str:
        root = f"/apis/{kind.version}" if "/" in kind.version else f"/api/{kind.version}"
        return f"{root}/namespaces/{self.namespace}/{kind.endpoint}/{name}".rstrip("/")

    def create(self, kind: Kind, name: str, **content: Any) -> dict[str, Any]:
        metadata = {"name": name, **content.pop("metadata", {})}
        body = {"apiVersion": kind.version, "kind": kind.kind, "metadata": metadata, **content}
        return self.api("POST", self.path(kind), body)

    def get(self, kind: Kind, name: str) -> dict[str, Any]:
        return self.api("GET", self.path(kind, name))

    def items(self, kind: Kind) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.api("GET", self.path(kind))["items"]
        return found

    def set_status(self, kind: Kind, name: str, status: dict[str, Any]) -> None:
        self.api("PATCH", f"{self.path(kind, name)}/status", {"status": status})

    def create_group(self, name: str = "orders", *, status: dict[str, Any] | None = None, **spec: Any) -> None:
        self.create(BrokerGroup, name, spec={"version": "5.5.0", "nameServers": ["ns:9876"], **spec})
        self.set_status(BrokerGroup, name, STATUS if status is None else status)

    @contextlib.contextmanager
    def operator(self, answer: Callable[[dict[str, Any]], dict[str, Any]]) -> Iterator[None]:
        """Something that gives every new operation a status, beside the test."""
        stop = threading.Event()
        errors: list[BaseException] = []

        def work() -> None:
            try:
                while not stop.is_set():
                    for item in self.items(BrokerGroupOperation):
                        if not item.get("status"):
                            self.set_status(BrokerGroupOperation, item["metadata"]["name"], answer(item))
                    time.sleep(0.02)
            except BaseException as error:  # noqa: BLE001 (raised again in the test's own thread)
                errors.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(DEADLINE_SECONDS)
        assert not errors, errors


NAMED: Final = ("--name-server", "ns:9876")
ACCEPTED: Final[list[tuple[str, ...]]] = [
    NAMED,
    (*NAMED, "--replicas", "1"),
    (*NAMED, "--replicas", "16", "--durability", "Strict"),
    ("--replicas", "2", "--implementation", "Python", "--size", "1Gi", "--storage-class", "fast", "--durability", "Available"),
    ("--version", "5.3.3", "--name-server", "ns-1:9876", "--name-server", "ns-2:9876", "-o", "json"),
]  # fmt: skip
# The group's name, the options, the field.
REFUSED: Final[list[tuple[str, tuple[str, ...], str]]] = [
    ("orders", (), "spec.nameServers"),
    ("orders", (*NAMED, "--durability", "Best"), "spec.durability"),
    ("orders", ("--implementation", "kafka"), "spec.implementation"),
    ("orders", (*NAMED, "--replicas", "1", "--durability", "Strict"), "spec.replicas"),
    ("orders", ("--name-server", "nameserver"), "spec.nameServers[0]"),
    ("orders", (*NAMED, "--size", "8 GB"), "spec.storage.size"),
    ("orders", (*NAMED, "--version", "5.5.0 "), "spec.version"),
    ("Orders", NAMED, "metadata.name"),
    ("o" * 53, NAMED, "metadata.name"),
]
REFUSED_IDS: Final = [" ".join((group[:9], *options)) for group, options, _ in REFUSED]
