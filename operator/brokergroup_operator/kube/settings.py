"""Address of the API server and our credentials: from a kubeconfig, from inside a pod, or from a plain URL."""

from __future__ import annotations

import base64
import binascii
import os
import socket
import ssl
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import yaml

from brokergroup_operator.kube.errors import ApiUnavailableError
from rocketmq_remoting.address import join_address

SERVICE_ACCOUNT_FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# The kubelet renews a pod's token at 80 % of its life; the official clients re-read the file every minute.
TOKEN_REREAD_SECONDS = 60.0
# By their names in Linux; other systems, where only the command line runs, lack some.
_PROBES: Final = {"TCP_KEEPIDLE": 1, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 4000}


class KubeconfigError(ValueError):
    """The kubeconfig cannot be used; the message names the field, its value and what was expected."""


@dataclass(slots=True)
class ConnectionSettings:
    """Everything a client needs before its first request. A token file is read again every minute: tokens are renewed."""

    url: str
    tls: ssl.SSLContext | None = None
    token: str | None = None
    token_file: Path | None = None
    basic_auth: tuple[str, str] | None = None
    _read_at: float | None = None

    def authorization(self) -> str | None:
        """The ``Authorization`` header of the next request, or None. Raises ApiUnavailableError while no token was ever read."""
        if self.token_file is not None:
            self._read_token(self.token_file)
        if self.token is not None:
            return f"Bearer {self.token}"
        if self.basic_auth is not None:
            pair = ":".join(self.basic_auth).encode()
            return f"Basic {base64.b64encode(pair).decode()}"
        return None

    def connector(self) -> aiohttp.TCPConnector:
        """Return a pool of connections without a limit, for a session that closes it."""
        return aiohttp.TCPConnector(limit=0, ssl=self.tls or True, socket_factory=_probing_socket)

    def _read_token(self, file: Path) -> None:
        """Read the token once a minute. While that fails the last one is sent, as by the official clients: it is good for longer.

        A process that may open no more files can't read it either; the watches go on.
        """
        now = time.monotonic()
        if self._read_at is not None and now - self._read_at < TOKEN_REREAD_SECONDS:
            return
        try:
            self.token = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            if self._read_at is None:
                why = error.strerror if isinstance(error, OSError) else "no UTF-8"
                raise ApiUnavailableError(f"not sent, token file {file}: {why}, expected a token") from error
            return
        self._read_at = now


def _probing_socket(place: aiohttp.AddrInfoType) -> socket.socket:
    """Return a socket whose kernel ends the connection when the other end has acknowledged nothing, or taken no more, for 4 s.

    A machine that lost its power, or a load balancer that forgot the connection, ends nothing. A watch would hang there for its
    whole minute, its copy growing old, and each request for its whole time at the next such connection of the pool.
    """
    family, kind, protocol, *_ = place
    probing = socket.socket(family, kind, protocol)
    probing.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _PROBES.items():
        with suppress(AttributeError, OSError):
            probing.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return probing


def settings_from_url(url: str, *, token: str | None = None, ca_file: Path | str | None = None) -> ConnectionSettings:
    """Settings for a plain URL; ``ca_file`` replaces the system's certificate authorities."""
    if not url.startswith(("http://", "https://")):
        raise KubeconfigError(f"server is {url!r}, expected an address that starts with http:// or https://")
    tls = None
    if url.startswith("https://"):
        tls = ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
    return ConnectionSettings(url=url.rstrip("/"), tls=tls, token=token)


def settings_in_cluster(folder: Path = SERVICE_ACCOUNT_FOLDER) -> ConnectionSettings:
    """Settings of a pod's service account, as every Kubernetes pod finds them."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise KubeconfigError("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set: not inside a cluster")
    settings = settings_from_url(f"https://{join_address(host, port)}", ca_file=folder / "ca.crt")
    settings.token_file = folder / "token"
    return settings


def settings_from_kubeconfig(path: Path | str, *, context: str | None = None) -> ConnectionSettings:
    """Settings of one context of a kubeconfig file (its current context, unless named)."""
    file = Path(path)
    document = _read(file)
    context_name = context or _text(file, document, "current-context")
    if not context_name:
        raise KubeconfigError(f"{file}: current-context is not set, expected the name of a context")
    chosen = _named(file, document, "contexts", "context", context_name)
    cluster = _named(file, document, "clusters", "cluster", str(chosen.get("cluster", "")))
    user = _named(file, document, "users", "user", str(chosen["user"])) if chosen.get("user") else {}
    if "exec" in user or "auth-provider" in user:
        raise KubeconfigError(
            f"{file}: user {chosen['user']!r} needs a log-in program, expected a token or a certificate"
        )
    server = str(cluster.get("server", ""))
    settings = settings_from_url(server)
    if settings.tls is not None:
        settings.tls = _tls_context(file, cluster, user)
    settings.token = _text(file, user, "token") or None
    if _text(file, user, "tokenFile"):
        settings.token_file = _beside(file, user["tokenFile"])
    if user.get("username"):
        settings.basic_auth = (str(user["username"]), str(user.get("password", "")))
    return settings


def _read(file: Path) -> dict[str, Any]:
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise KubeconfigError(f"{file}: {error.strerror}, expected a kubeconfig") from error
    except UnicodeDecodeError as error:
        raise KubeconfigError(f"{file}: no UTF-8: {error}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise KubeconfigError(f"{file}: no YAML: {' '.join(str(error).split())}") from error
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise KubeconfigError(f"{file}: expected a mapping with clusters, users and contexts")
    return document


def _text(file: Path, entry: dict[str, Any], field: str) -> str:
    """The field's text; empty where it is absent."""
    value = entry.get(field)
    if value is not None and not isinstance(value, str):
        kind = "name" if field == "current-context" else "text"
        raise KubeconfigError(f"{file}: {field} is {value!r}, expected a {kind}")
    return value or ""


def _named(file: Path, document: dict[str, Any], section: str, inner: str, name: str) -> dict[str, Any]:
    entries = document.get(section) or []
    if not isinstance(entries, list):
        raise KubeconfigError(f"{file}: {section} is {entries!r}, expected a list")
    for index, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise KubeconfigError(f"{file}: {section}[{index}] is {entry!r}, expected a mapping")
        if entry.get("name") == name:
            found = entry.get(inner) or {}
            if not isinstance(found, dict):
                raise KubeconfigError(f"{file}: {inner} of {name!r} is {found!r}, expected a mapping")
            return found
    known = ", ".join(repr(entry.get("name")) for entry in entries) or "none"
    raise KubeconfigError(f"{file}: {section} has no entry named {name!r}, expected one of: {known}")


def _tls_context(file: Path, cluster: dict[str, Any], user: dict[str, Any]) -> ssl.SSLContext:
    authority = _data(file, cluster, "certificate-authority")
    try:
        context = ssl.create_default_context(cadata=None if authority is None else authority.decode("ascii"))
    except (ValueError, ssl.SSLError) as error:
        raise KubeconfigError(f"{file}: certificate-authority holds no certificate in PEM: {error}") from error
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    certificate, key = _data(file, user, "client-certificate"), _data(file, user, "client-key")
    if (certificate is None) != (key is None):
        raise KubeconfigError(
            f"{file}: user has only one of client-certificate and client-key, expected both or neither"
        )
    if certificate is not None and key is not None:
        _load_client_certificate(file, context, certificate, key)
    return context


def _load_client_certificate(file: Path, context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    # The ssl module reads a client certificate only from files: keep it in a private folder for as long as that takes.
    with tempfile.TemporaryDirectory() as folder:
        chain = Path(folder) / "client.pem"
        chain.touch(mode=0o600)
        chain.write_bytes(certificate + b"\n" + key)
        try:
            context.load_cert_chain(str(chain))
        except ssl.SSLError as error:
            raise KubeconfigError(f"{file}: client-certificate and client-key are no pair in PEM: {error}") from error


def _data(file: Path, entry: dict[str, Any], field: str) -> bytes | None:
    """A kubeconfig keeps each piece inline (``<field>-data``, base64) or in a file named relative to the kubeconfig."""
    inline = _text(file, entry, f"{field}-data")
    if inline:
        try:
            return base64.b64decode(inline, validate=True)
        except (binascii.Error, ValueError) as error:
            raise KubeconfigError(f"{file}: {field}-data is not base64: {error}") from error
    name = _text(file, entry, field)
    if not name:
        return None
    try:
        return _beside(file, name).read_bytes()
    except OSError as error:
        raise KubeconfigError(f"{file}: {field} {name}: {error.strerror}") from error


def _beside(file: Path, name: str) -> Path:
    return file.parent / name
