"""The kube-apiserver of the tests: a real one on a real etcd, on loopback and in a folder of its own.

There are two others: kube_sandbox/real_api_server.py is part of the product (tests/sandbox/test_http.py), and the one of the
two nodes has certificates, node authorization, and outlives its command (tests/node/control_plane.py).
There is no controller-manager: no garbage collection, no service accounts, no end of namespaces. That makes it a
strict environment for an operator, which must not rely on them.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import ssl
import subprocess
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.real.parts import install
from tests.real.parts.kubectl import Kubectl
from tests.real.parts.process import RealProcess, start
from tests.support.places import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

CRDS = Path(__file__).resolve().parents[2] / "crds"
HOST = "127.0.0.1"
ISSUER = "https://kubernetes.default.svc"
SERVICE_CIDR = "10.96.0.0/16"
ADMINISTRATOR = "administrator"
# The operator's identity with the chart's rights, released as `brokergroup-operator` in `brokergroup-system`.
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
        """Return the token of an identity in system:masters."""
        return self.tokens[ADMINISTRATOR]

    @property
    def kubeconfig(self) -> Path:
        return self.kubeconfig_of(ADMINISTRATOR)

    def kubeconfig_of(self, identity: str) -> Path:
        """Return the kubeconfig of one of the identities in `tokens`."""
        return self.folder / f"kubeconfig-{identity.replace(':', '_')}"

    @property
    def audit_log(self) -> Path:
        return self.folder / "audit.log"

    def audited(self, identity: str) -> list[dict[str, Any]]:
        """Return an identity's requests from the server's audit log."""
        entries = [json.loads(line) for line in self.audit_log.read_text(encoding="utf-8").splitlines()]
        return [entry for entry in entries if entry["user"]["username"] == identity]

    @property
    def client(self) -> Kubectl:
        """Return kubectl as the administrator."""
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

    def define_our_kinds(self) -> None:
        """Apply crds/, and return when its kinds can be listed."""
        self.must("apply", "--server-side", "--force-conflicts", "-f", str(CRDS))
        self.client.wait_for_kinds()

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.stop()


@contextlib.contextmanager
def running_kube_apiserver(folder: Path, *, audit: bool = False, our_kinds: bool = False) -> Iterator[KubeApiserver]:
    """Run etcd and kube-apiserver for the block, with RBAC in force for all but the administrator.

    `audit`: it logs every request. `our_kinds`: it serves the kinds of crds/.
    """
    folder.mkdir(parents=True, exist_ok=True)
    key, token_file = folder / "service-account.key", folder / "tokens.csv"
    subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
    server = KubeApiserver(folder, f"https://{HOST}:{free_port()}", {one: secrets.token_hex(16) for one in GROUPS})
    lines = [f'{token},{identity},{identity},"{GROUPS[identity]}"\n' for identity, token in server.tokens.items()]
    token_file.touch(mode=0o600)
    token_file.write_text("".join(lines), encoding="utf-8")
    try:
        _start(server, key, token_file, audit_options(server) if audit else {})
        for identity in server.tokens:
            write_kubeconfig(server, identity)
        if our_kinds:
            server.define_our_kinds()
        yield server
    finally:
        server.stop()


def _start(server: KubeApiserver, key: Path, token_file: Path, more: dict[str, object]) -> None:
    client, peer = f"http://{HOST}:{free_port()}", f"http://{HOST}:{free_port()}"
    etcd = start("etcd", etcd_command(server.folder / "etcd", client, peer), log=server.folder / "etcd.log")
    server.processes.append(etcd)
    etcd.wait_until(lambda: etcd_is_healthy(client), what="being healthy")
    options = {
        "etcd-servers": client,
        "bind-address": HOST,
        "advertise-address": HOST,
        "secure-port": server.url.rpartition(":")[2],
        "cert-dir": server.folder / "certificates",
        "token-auth-file": token_file,
        "authorization-mode": "RBAC",
        "service-account-key-file": key,
        "service-account-signing-key-file": key,
        "service-cluster-ip-range": SERVICE_CIDR,
        "disable-admission-plugins": "ServiceAccount",
    }
    log = server.folder / "kube-apiserver.log"
    apiserver = start("kube-apiserver", kube_apiserver_command(options | more), log=log)
    server.processes.append(apiserver)
    apiserver.wait_until(server.is_ready, what="being ready", deadline_seconds=90)


def etcd_command(data: Path, client: str, peer: str) -> list[str]:
    """Return the command of a single etcd without fsync: the tests check decisions, not the disk's speed."""
    options = {
        "name": "tests",
        "data-dir": data,
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": f"tests={peer}",
    }
    return [str(install.etcd_program()), "--unsafe-no-fsync", *as_options(options)]


def etcd_is_healthy(client: str) -> bool:
    """Whether the etcd with this client URL answers that it is healthy."""
    try:
        with urllib.request.urlopen(f"{client}/health", timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def kube_apiserver_command(options: dict[str, object]) -> list[str]:
    """Return the command of a kube-apiserver with these options and the tests' common ones."""
    common = {"service-account-issuer": ISSUER, "allow-privileged": "true", "profiling": "false"}
    return [str(install.kubernetes_folder() / "kube-apiserver"), *as_options(common | options)]


def as_options(options: Mapping[str, object]) -> list[str]:
    """Return `--name=value` for each."""
    return [f"--{name}={value}" for name, value in options.items()]


def audit_options(server: KubeApiserver) -> dict[str, object]:
    """Return options that log each request's user, verb, object and status code, without bodies."""
    policy = server.folder / "audit-policy.yaml"
    rules = [{"level": "Metadata", "omitStages": ["RequestReceived"]}]
    policy.write_text(json.dumps({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules}), encoding="utf-8")
    return {"audit-policy-file": policy, "audit-log-path": server.audit_log, "audit-log-mode": "blocking"}


def write_kubeconfig(server: KubeApiserver, identity: str) -> None:
    """Write a kubeconfig in JSON, which is valid YAML."""
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
