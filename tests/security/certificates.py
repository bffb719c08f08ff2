"""Certificates from the openssl program, as PEM files with PKCS#8 keys, and the JVM flags for unmodified Java."""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rocketmq_remoting.tls import TlsFiles

if TYPE_CHECKING:
    from pathlib import Path

_CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True)
class Authority:
    """A certificate authority in its own folder."""

    folder: Path
    name: str

    @property
    def certificate(self) -> Path:
        return self.folder / f"{self.name}.crt"

    @property
    def key(self) -> Path:
        return self.folder / f"{self.name}.key"

    def issue(
        self, name: str, *, alternative_names: str = "", days: int = 30, constraint: str = "CA:FALSE"
    ) -> TlsFiles:
        """Return the files of a new certificate with this common name; they replace earlier ones."""
        request, certificate = self.folder / f"{name}.csr", self.folder / f"{name}.crt"
        extensions = self.folder / f"{name}.ext"
        lines = [f"basicConstraints={constraint}", "subjectKeyIdentifier=hash", "authorityKeyIdentifier=keyid"]
        lines += [f"subjectAltName={alternative_names}"] if alternative_names else []
        extensions.write_text("\n".join(lines) + "\n", encoding="utf-8")
        key = self.folder / f"{name}.key"
        _openssl("req", *_CURVE, "-keyout", str(key), "-out", str(request), "-subj", f"/CN={name}")
        _openssl(
            *("x509", "-req", "-in", str(request), "-CA", str(self.certificate), "-CAkey", str(self.key)),
            *("-CAcreateserial", "-days", str(days), "-extfile", str(extensions), "-out", str(certificate)),
        )
        return TlsFiles(certificate=certificate, key=key, ca=self.certificate)

    def issue_lasting(self, name: str, begins: float, ends: float) -> TlsFiles:
        """Return the files of a new certificate that holds between these times, in seconds since 1970; it may have begun."""
        made = self.folder / f"{name}.issued"
        made.mkdir(exist_ok=True)
        configuration, request, key = (self.folder / f"{name}.{end}" for end in ("cnf", "csr", "key"))
        (made / "index").write_text("", encoding="utf-8")
        lines = [
            "[ca]",
            "default_ca=ours",
            "[ours]",
            f"database={made / 'index'}",
            f"new_certs_dir={made}",
            "rand_serial=yes",
        ]
        lines += ["default_md=sha256", "policy=any", "x509_extensions=leaf", "unique_subject=no"]
        lines += ["[any]", "commonName=supplied", "[leaf]", "basicConstraints=CA:FALSE", "subjectKeyIdentifier=hash"]
        configuration.write_text("\n".join(lines) + "\n", encoding="utf-8")
        _openssl("req", *_CURVE, "-keyout", str(key), "-out", str(request), "-subj", f"/CN={name}")
        start, end = (time.strftime("%Y%m%d%H%M%SZ", time.gmtime(at)) for at in (begins, ends))
        certificate = self.folder / f"{name}.crt"
        _openssl(
            *("ca", "-batch", "-notext", "-config", str(configuration), "-in", str(request), "-out", str(certificate)),
            *("-cert", str(self.certificate), "-keyfile", str(self.key), "-startdate", start, "-enddate", end),
        )
        return TlsFiles(certificate=certificate, key=key, ca=self.certificate)


def make_authority(folder: Path, name: str = "authority") -> Authority:
    folder.mkdir(parents=True, exist_ok=True)
    authority = Authority(folder, name)
    _openssl(
        *("req", "-x509", *_CURVE, "-keyout", str(authority.key), "-out", str(authority.certificate)),
        *("-days", "30", "-subj", f"/CN={name}", "-addext", "keyUsage=critical,keyCertSign,cRLSign"),
    )
    return authority


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, stdin=subprocess.DEVNULL)


def tls_flags(files: TlsFiles, *, server_mode: str = "enforcing") -> tuple[str, ...]:
    """Return the flags of a JVM that uses this certificate as client and server, and trusts only one authority."""
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
