"""Unmodified Java programs with TLS and with ACL 2.0: the flags that work."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.real.parts import java
from tests.real.parts.process import start
from tests.support.places import free_port

if TYPE_CHECKING:
    from pathlib import Path

    from rocketmq_remoting.signature import Credentials
    from rocketmq_remoting.tls import TlsFiles
    from tests.real.parts.java import JavaProgram

HOST = "127.0.0.1"
MQADMIN_SECONDS = 120.0


def tls_flags(files: TlsFiles, *, server_mode: str = "enforcing") -> tuple[str, ...]:
    """A JVM that shows this certificate wherever it dials or listens, and believes one authority only."""
    return (
        "-Dtls.enable=true",
        "-Dtls.test.mode.enable=false",
        "-Dtls.config.file=/nonexistent/tls.properties",
        f"-Dtls.server.mode={server_mode}",
        "-Dtls.server.need.client.auth=require",
        "-Dtls.server.authClient=true",
        "-Dtls.client.authServer=true",
        *(f"-Dtls.{side}.certPath={files.certificate}" for side in ("server", "client")),
        *(f"-Dtls.{side}.keyPath={files.key}" for side in ("server", "client")),
        *(f"-Dtls.{side}.trustCertPath={files.ca}" for side in ("server", "client")),
    )


@dataclass
class JavaLab:
    """Programs of one test, all with the same flags; stopped together."""

    folder: Path
    flags: tuple[str, ...] = ()
    programs: dict[str, JavaProgram] = field(default_factory=dict)

    def start_name_server(self) -> JavaProgram:
        folder, port = self.folder / "namesrv", free_port(HOST)
        config = java.write_properties(folder / "namesrv.conf", {"listenPort": port, "bindAddress": HOST})
        return self._start("namesrv", "namesrv", folder, config, port)

    def start_broker(self, name: str, *, controllers: str, name_server: str, **extra: str | int) -> JavaProgram:
        """Started again under the same name, it keeps its store, its identity and its port."""
        folder = self.folder / name
        before = self.programs.get(name)
        port = before.port if before is not None else free_port(HOST, neighbours=2)
        properties = java.broker_properties(folder, controllers=controllers, name_server=name_server, host=HOST)
        properties |= {
            "listenPort": port,
            "haListenPort": free_port(HOST),
            "brokerHeartbeatInterval": 500,
            "syncBrokerMetadataPeriod": 1000,
            "checkSyncStateSetPeriod": 1000,
            **java.SPARING_BROKER,
            **extra,
        }
        config = java.write_properties(folder / "broker.conf", properties)
        return self._start(name, "broker", folder, config, port)

    def _start(self, name: str, program: str, folder: Path, config: Path, port: int) -> JavaProgram:
        command = [*java.java_command(program, folder, heap="256m", flags=self.flags), "-c", str(config)]
        started = java.JavaProgram(start(name, command, log=folder / f"{name}.log"), HOST, port)
        self.programs[name] = started
        return started

    def mqadmin(
        self, *arguments: str, signed_as: Credentials | None = None, name_server: str = java.NO_NAME_SERVER
    ) -> str:
        """Everything it prints, also when it fails. Its credentials come from ``conf/tools.yml``."""
        folder = self.folder / f"mqadmin-{signed_as.access_key if signed_as is not None else 'nobody'}"
        (folder / "conf").mkdir(parents=True, exist_ok=True)
        if signed_as is not None:
            text = f"accessKey: {signed_as.access_key}\nsecretKey: {signed_as.secret_key}\n"
            (folder / "conf" / "tools.yml").write_text(text, encoding="utf-8")
        flags = (*self.flags, java.QUIET, f"-Drocketmq.namesrv.addr={name_server}")
        done = subprocess.run(
            [*java.java_command("mqadmin", folder, flags=flags), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=MQADMIN_SECONDS,
            check=False,
        )
        return done.stdout + done.stderr

    def log_of(self, name: str) -> str:
        """What the program printed and what it logged."""
        folder = self.folder / name
        files = [folder / f"{name}.log", *sorted(folder.glob("logs/**/*.log"))]
        return "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in files if path.exists())

    def stop(self) -> None:
        for program in self.programs.values():
            program.process.kill()
