"""A real kube-apiserver on a real etcd, on loopback and in a folder of its own.

There is no controller-manager: nothing collects garbage, makes service accounts or ends namespaces, which is what makes it a
strict peer for an operator that may not rely on any of it.
"""

from __future__ import annotations

import json
import secrets
import ssl
import subprocess
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.real.parts import install
from tests.real.parts.kubectl import Kubectl
from tests.real.parts.process import RealProcess, RealProcessError, start
from tests.support.places import free_port

if TYPE_CHECKING:
    from pathlib import Path

HOST = "127.0.0.1"
SERVICE_CIDR = "10.96.0.0/16"
ADMINISTRATOR = "administrator"
# Who the operator is when it runs with the rights of the chart, released as `brokergroup-operator` in `brokergroup-system`.
OPERATOR_NAMESPACE = "brokergroup-system"
OPERATOR = f"system:serviceaccount:{OPERATOR_NAMESPACE}:brokergroup-operator"
GROUPS = {ADMINISTRATOR: "system:masters", OPERATOR: "system:serviceaccounts"}


@dataclass
class KubeApiserver:
    """A running API server, its credentials, and kubectl bound to it."""

    folder: Path
    url: str
    tokens: dict[str, str]
    processes: list[RealProcess] = field(default_factory=list)

    @property
    def ca_file(self) -> Path:
        return self.folder / "certificates" / "apiserver.crt"

    @property
    def token(self) -> str:
        """The token of an identity in system:masters."""
        return self.tokens[ADMINISTRATOR]

    @property
    def kubeconfig(self) -> Path:
        return self.kubeconfig_of(ADMINISTRATOR)

    def kubeconfig_of(self, identity: str) -> Path:
        """The kubeconfig of one of the identities in `tokens`."""
        return self.folder / f"kubeconfig-{identity.replace(':', '_')}"

    @property
    def audit_log(self) -> Path:
        return self.folder / "audit.log"

    def audited(self, identity: str) -> list[dict[str, Any]]:
        """The requests of an identity, as the server logged them."""
        entries = [json.loads(line) for line in self.audit_log.read_text(encoding="utf-8").splitlines()]
        return [entry for entry in entries if entry["user"]["username"] == identity]

    @property
    def client(self) -> Kubectl:
        """kubectl as the administrator."""
        return Kubectl(self.kubeconfig)

    def kubectl(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        return self.client.run(*arguments, stdin=stdin)

    def must(self, *arguments: str, stdin: str | None = None) -> str:
        return self.client.must(*arguments, stdin=stdin)

    def get(self, *arguments: str) -> Any:
        return self.client.get(*arguments)

    def is_ready(self) -> bool:
        if not self.ca_file.exists():
            return False
        request = urllib.request.Request(f"{self.url}/readyz", headers={"Authorization": f"Bearer {self.token}"})
        try:
            context = ssl.create_default_context(cafile=str(self.ca_file))
            with urllib.request.urlopen(request, timeout=2, context=context) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, ssl.SSLError, OSError):
            return False

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.stop()


def start_etcd(folder: Path) -> tuple[RealProcess, str]:
    """A single etcd without fsync: the tests ask what is decided, not how fast a disk is."""
    url, peer = f"http://{HOST}:{free_port()}", f"http://{HOST}:{free_port()}"
    command = [
        str(install.etcd_program()),
        *("--name", "tests", "--data-dir", str(folder / "etcd"), "--unsafe-no-fsync"),
        *("--listen-client-urls", url, "--advertise-client-urls", url),
        *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"tests={peer}"),
    ]
    etcd = start("etcd", command, log=folder / "etcd.log")

    def healthy() -> bool:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    etcd.wait_until(healthy, what="being healthy")
    return etcd, url


def start_kube_apiserver(folder: Path, *, audit: bool = False) -> KubeApiserver:
    """etcd and kube-apiserver, ready, with RBAC in force for all but the administrator. `audit`: it logs every request."""
    folder.mkdir(parents=True, exist_ok=True)
    key = folder / "service-account.key"
    subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
    tokens = {identity: secrets.token_hex(16) for identity in GROUPS}
    token_file = folder / "tokens.csv"
    token_file.touch(mode=0o600)
    lines = [f'{token},{identity},{identity},"{GROUPS[identity]}"\n' for identity, token in tokens.items()]
    token_file.write_text("".join(lines), encoding="utf-8")
    etcd, etcd_url = start_etcd(folder)
    port = free_port()
    server = KubeApiserver(folder=folder, url=f"https://{HOST}:{port}", tokens=tokens, processes=[etcd])
    command = [
        str(install.kubernetes_folder() / "kube-apiserver"),
        *(
            f"--etcd-servers={etcd_url}",
            f"--secure-port={port}",
            f"--bind-address={HOST}",
            f"--advertise-address={HOST}",
        ),
        *(f"--cert-dir={folder / 'certificates'}", f"--token-auth-file={token_file}", "--authorization-mode=RBAC"),
        *(f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}"),
        *("--service-account-issuer=https://kubernetes.default.svc", f"--service-cluster-ip-range={SERVICE_CIDR}"),
        *("--disable-admission-plugins=ServiceAccount", "--allow-privileged=true", "--profiling=false"),
        *(audit_arguments(server) if audit else ()),
    ]
    apiserver = start("kube-apiserver", command, log=folder / "kube-apiserver.log")
    server.processes.append(apiserver)
    try:
        apiserver.wait_until(server.is_ready, what="being ready", deadline_seconds=90)
    except RealProcessError:
        server.stop()
        raise
    for identity in tokens:
        write_kubeconfig(server, identity)
    return server


def audit_arguments(server: KubeApiserver) -> list[str]:
    """Who asked for what, and the answer's code; no bodies."""
    policy = server.folder / "audit-policy.yaml"
    rules = [{"level": "Metadata", "omitStages": ["RequestReceived"]}]
    policy.write_text(json.dumps({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules}), encoding="utf-8")
    return [f"--audit-policy-file={policy}", f"--audit-log-path={server.audit_log}", "--audit-log-mode=blocking"]


def write_kubeconfig(server: KubeApiserver, identity: str) -> None:
    """A kubeconfig in JSON, which is YAML."""
    cluster = {"server": server.url, "certificate-authority": str(server.ca_file)}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "tests", "cluster": cluster}],
        "users": [{"name": "tests", "user": {"token": server.tokens[identity]}}],
        "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "tests", "namespace": "default"}}],
        "current-context": "tests",
    }
    target = server.kubeconfig_of(identity)
    target.touch(mode=0o600)
    target.write_text(json.dumps(config), encoding="utf-8")
