"""A real kube-apiserver on a real etcd in place of the embedded API, where the machine has both programs.

Kubelet, kinds and kubeconfig are the same. There is no controller-manager, so nothing collects objects without owners or empties
namespaces. The server does not reach the kubelet for logs: they are files in the data folder.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import aiohttp

from .client import ApiError, KubeClient, connection_of, write_kubeconfig
from .kubelet.files import lock_folder
from .kubelet.process import KUBELET_MARK, kill_leftovers

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from .client import Connection

HOST = "127.0.0.1"
# Within the addresses that the service carrier listens on; a kube-apiserver accepts no larger range.
SERVICE_ADDRESSES = "127.192.0.0/12"
START_SECONDS = 120.0
STOP_SECONDS = 10.0
POLL_SECONDS = 0.1
LOG_TAIL_LINES = 10


class ApiServerProgramsError(Exception):
    """A program is missing, did not start, or did not become ready; the message has the end of its log."""


@dataclass(frozen=True, slots=True)
class ApiServerPrograms:
    """The paths of the programs."""

    etcd: str
    kube_apiserver: str

    @classmethod
    def find(cls, folders: Iterable[Path] = ()) -> ApiServerPrograms:
        """Find the programs in these folders or in PATH; raises ApiServerProgramsError."""
        path = os.pathsep.join([*map(str, folders), os.environ.get("PATH", os.defpath)])
        found = [shutil.which(name, path=path) for name in ("etcd", "kube-apiserver", "openssl")]
        etcd, kube_apiserver, openssl = found
        if etcd is None or kube_apiserver is None or openssl is None:
            raise ApiServerProgramsError(f"expected the programs etcd, kube-apiserver and openssl in {path}")
        return cls(etcd, kube_apiserver)


class RealApiServer:
    """``start()`` returns when the server is ready. Objects are kept in the folder for the next start."""

    def __init__(self, folder: Path, programs: ApiServerPrograms, *, port: int = 0) -> None:
        self._folder = folder.resolve()
        self._programs = programs
        self._port = port
        self._token = secrets.token_hex(16)
        self._processes: list[tuple[str, asyncio.subprocess.Process]] = []
        self._lock: int | None = None

    @property
    def url(self) -> str:
        return f"https://{HOST}:{self._port}"

    @property
    def connection(self) -> Connection:
        """The kubelet's connection to this server, as administrator."""
        return connection_of(self._folder / "kubeconfig")

    def write_kubeconfig(self, path: Path) -> None:
        """Write the administrator's kubeconfig."""
        authority = self._folder / "certificates" / "apiserver.crt"
        write_kubeconfig(path, {"server": self.url, "certificate-authority": str(authority)}, {"token": self._token})

    async def start(self) -> None:
        """Start etcd and kube-apiserver; raises ApiServerProgramsError, FolderInUseError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._lock = lock_folder(self._folder / "api-server.lock")
        try:
            await asyncio.to_thread(kill_leftovers, self._folder)
            self._port = self._port or _free_port()
            async with asyncio.timeout(START_SECONDS):
                etcd_url = await self._start_etcd()
                await self._start_kube_apiserver(etcd_url)
        except TimeoutError as error:
            await self.stop()
            raise ApiServerProgramsError(f"not ready within {START_SECONDS:g} s: {self._tails()}") from error
        except (ApiServerProgramsError, OSError):
            await self.stop()
            raise

    async def stop(self) -> None:
        """Send SIGTERM to each, the last one first, and SIGKILL after 10 s."""
        for _, process in reversed(self._processes):
            if process.returncode is None:
                process.terminate()
                try:
                    async with asyncio.timeout(STOP_SECONDS):
                        await process.wait()
                except TimeoutError:
                    process.kill()
                    await process.wait()
        self._processes.clear()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def _start_etcd(self) -> str:
        url, peer = (f"http://{HOST}:{_free_port()}" for _ in range(2))
        await self._run(
            "etcd", self._programs.etcd,
            "--name", "sandbox", "--data-dir", str(self._folder / "etcd"), "--unsafe-no-fsync",
            "--listen-client-urls", url, "--advertise-client-urls", url,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"sandbox={peer}",
        )  # fmt: skip
        async with aiohttp.ClientSession() as session:
            while True:
                self._check()
                with suppress(aiohttp.ClientError):
                    async with session.get(f"{url}/health") as answer:
                        if answer.status == 200:
                            return url
                await asyncio.sleep(POLL_SECONDS)

    async def _start_kube_apiserver(self, etcd_url: str) -> None:
        key, tokens = self._folder / "service-account.key", self._folder / "tokens.csv"
        if not key.exists():
            made = await asyncio.create_subprocess_exec(
                "openssl", "genrsa", "-out", str(key), "2048", stderr=asyncio.subprocess.DEVNULL
            )
            if await made.wait():
                raise ApiServerProgramsError(
                    f"openssl genrsa ended with {made.returncode}: no key for service accounts"
                )
        tokens.touch(mode=0o600)
        tokens.write_text(f'{self._token},administrator,administrator,"system:masters"\n', encoding="ascii")
        await self._run(
            "kube-apiserver", self._programs.kube_apiserver,
            f"--etcd-servers={etcd_url}", f"--secure-port={self._port}",
            f"--bind-address={HOST}", f"--advertise-address={HOST}",
            f"--cert-dir={self._folder / 'certificates'}", f"--token-auth-file={tokens}", "--authorization-mode=RBAC",
            f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}",
            "--service-account-issuer=https://kubernetes.default.svc", f"--service-cluster-ip-range={SERVICE_ADDRESSES}",
            "--disable-admission-plugins=ServiceAccount", "--allow-privileged=true", "--profiling=false",
        )  # fmt: skip
        while not (self._folder / "certificates" / "apiserver.crt").exists():
            self._check()
            await asyncio.sleep(POLL_SECONDS)
        self.write_kubeconfig(self._folder / "kubeconfig")
        async with KubeClient(self.connection) as client:
            ready = False
            while not ready:
                self._check()
                await asyncio.sleep(POLL_SECONDS)
                with suppress(ApiError):
                    ready = await client.is_ready()

    async def _run(self, name: str, *command: str) -> None:
        """The mark lets the next start kill what a dead sandbox left."""
        with (self._folder / f"{name}.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, KUBELET_MARK: str(self._folder)},
                start_new_session=True,
            )
        self._processes.append((name, process))

    def _check(self) -> None:
        for name, process in self._processes:
            if process.returncode is not None:
                raise ApiServerProgramsError(f"{name} ended with {process.returncode}: {self._tails()}")

    def _tails(self) -> str:
        logs = [self._folder / f"{name}.log" for name, _ in self._processes]
        return "\n".join(
            f"{log} ends:\n" + "\n".join(log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]) for log in logs
        )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
