"""The JVM flags of TLS that work for unmodified Java programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rocketmq_remoting.tls import TlsFiles


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
