"""A real kube-apiserver on a real etcd, on loopback and in a folder of its own (`real-node.md`).

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
from tests.real.parts.process import RealProcess, RealProcessError, free_port, start

if TYPE_CHECKING:
    from pathlib import Path

HOST = "127.0.0.1"


@dataclass
class KubeApiserver:
    """A running API server, its credentials, and kubectl bound to it."""

    folder: Path
    url: str
    token: str
    processes: list[RealProcess] = field(default_factory=list)

    @property
    def ca_file(self) -> Path:
        return self.folder / "certificates" / "apiserver.crt"

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    def kubectl(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run the real kubectl; the caller looks at the exit code and the output."""
        program = str(install.kubernetes_folder() / "kubectl")
        return subprocess.run(
            [program, "--kubeconfig", str(self.kubeconfig), *arguments],
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def must(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl, which has to succeed, and hand back what it printed."""
        done = self.kubectl(*arguments, stdin=stdin)
        if done.returncode != 0:
            raise RealProcessError(f"kubectl {' '.join(arguments)}: exit code {done.returncode}\n{done.stderr}")
        return done.stdout

    def get(self, *arguments: str) -> Any:
        """`kubectl get ... -o json`, read."""
        return json.loads(self.must("get", *arguments, "-o", "json"))

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


def start_kube_apiserver(folder: Path) -> KubeApiserver:
    """etcd and kube-apiserver, ready; the token's identity is in system:masters."""
    folder.mkdir(parents=True, exist_ok=True)
    key = folder / "service-account.key"
    subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
    token = secrets.token_hex(16)
    tokens = folder / "tokens.csv"
    tokens.touch(mode=0o600)
    tokens.write_text(f'{token},tests,tests,"system:masters"\n', encoding="utf-8")
    etcd, etcd_url = start_etcd(folder)
    port = free_port()
    server = KubeApiserver(folder=folder, url=f"https://{HOST}:{port}", token=token, processes=[etcd])
    command = [
        str(install.kubernetes_folder() / "kube-apiserver"),
        *(
            f"--etcd-servers={etcd_url}",
            f"--secure-port={port}",
            f"--bind-address={HOST}",
            f"--advertise-address={HOST}",
        ),
        *(f"--cert-dir={folder / 'certificates'}", f"--token-auth-file={tokens}", "--authorization-mode=RBAC"),
        *(f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}"),
        *("--service-account-issuer=https://kubernetes.default.svc", "--service-cluster-ip-range=10.96.0.0/16"),
        *("--disable-admission-plugins=ServiceAccount", "--allow-privileged=true", "--profiling=false"),
    ]
    apiserver = start("kube-apiserver", command, log=folder / "kube-apiserver.log")
    server.processes.append(apiserver)
    try:
        apiserver.wait_until(server.is_ready, what="being ready", deadline_seconds=90)
    except RealProcessError:
        server.stop()
        raise
    write_kubeconfig(server)
    return server


def write_kubeconfig(server: KubeApiserver) -> None:
    """A kubeconfig in JSON, which is YAML."""
    cluster = {"server": server.url, "certificate-authority": str(server.ca_file)}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "tests", "cluster": cluster}],
        "users": [{"name": "tests", "user": {"token": server.token}}],
        "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "tests", "namespace": "default"}}],
        "current-context": "tests",
    }
    server.kubeconfig.touch(mode=0o600)
    server.kubeconfig.write_text(json.dumps(config), encoding="utf-8")
