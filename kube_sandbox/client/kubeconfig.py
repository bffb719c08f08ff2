"""Where an API is and what it wants to see: the current context of a kubeconfig with a token or a client certificate."""

from __future__ import annotations

import base64
import binascii
import ssl
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from pathlib import Path


class KubeconfigError(Exception):
    """The file cannot be used; names it and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Connection:
    """What a client needs before its first request."""

    url: str
    tls: ssl.SSLContext | None = None
    token: str = ""


def connection_of(path: Path) -> Connection:
    """Raises KubeconfigError."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        context = _named(document, "contexts", document["current-context"])["context"]
        cluster = _named(document, "clusters", context["cluster"])["cluster"]
        user = _named(document, "users", context["user"])["user"] if context.get("user") else {}
        url = str(cluster["server"]).rstrip("/")
        tls = _tls(path.parent, cluster, user) if url.startswith("https://") else None
        return Connection(url, tls, str(user.get("token", "")))
    except (OSError, ValueError, RecursionError, yaml.YAMLError, ssl.SSLError) as error:
        raise KubeconfigError(f"{path}: {error}") from error
    except (KeyError, TypeError, AttributeError, StopIteration) as error:
        raise KubeconfigError(f"{path}: expected a kubeconfig with a current context ({error!r})") from error


def _named(document: dict[str, Any], section: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(entry for entry in document[section] if entry["name"] == name)
    return found


def _tls(folder: Path, cluster: dict[str, Any], user: dict[str, Any]) -> ssl.SSLContext:
    authority = _bytes(folder, cluster, "certificate-authority")
    context = ssl.create_default_context(cadata=authority.decode("ascii") if authority else None)
    certificate, key = _bytes(folder, user, "client-certificate"), _bytes(folder, user, "client-key")
    if certificate:
        # The ssl module reads a client certificate only from a file; a temporary one is ours alone.
        with tempfile.NamedTemporaryFile() as file:
            file.write(certificate + b"\n" + key)
            file.flush()
            context.load_cert_chain(file.name)
    return context


def _bytes(folder: Path, entry: dict[str, Any], field: str) -> bytes:
    """A kubeconfig keeps each piece inline (``<field>-data``, base64) or in a file named relative to the kubeconfig."""
    if inline := entry.get(f"{field}-data"):
        try:
            return base64.b64decode(inline, validate=True)
        except binascii.Error as error:
            raise ValueError(f"{field}-data is not base64: {error}") from error
    return (folder / entry[field]).read_bytes() if entry.get(field) else b""
