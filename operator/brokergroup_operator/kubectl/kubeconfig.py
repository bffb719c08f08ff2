"""The kubeconfig as kubectl reads it: several files in $KUBECONFIG, the context's namespace, and log-in programs.

pykube-ng knows neither a list of files nor log-in programs of `client.authentication.k8s.io/v1`, which the large clouds use.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import yaml
from pykube.config import KubeConfig
from pykube.exceptions import PyKubeError

from brokergroup_operator.kubectl.command_line import CannotConnectError

EXEC_TIMEOUT_SECONDS = 60
# The lists of a kubeconfig, and what each of their entries is.
SECTIONS = {"clusters": "cluster", "users": "user", "contexts": "context"}
# Entries that name files, relative to the kubeconfig they stand in.
FILE_FIELDS = ("certificate-authority", "client-certificate", "client-key", "tokenFile")


def load(path: Path | None, context: str | None) -> KubeConfig:
    """Return the configuration of one context; the current one, unless named. Raise CannotConnectError if it cannot be used."""
    document = _merged(_files(path))
    if document is None:
        return _in_cluster(path)
    chosen = context or str(document.get("current-context") or "")
    known = [str(entry["name"]) for entry in document["contexts"]]
    if chosen not in known:
        raise CannotConnectError(f"kubeconfig: no context {chosen!r}, expected one of: {', '.join(known) or 'none'}")
    _log_in(document, chosen)
    try:
        config: KubeConfig = KubeConfig(document, chosen)  # type: ignore[no-untyped-call]
        config.cluster["server"]  # what it points to is looked up only now
    except (PyKubeError, KeyError, TypeError) as error:
        why = f"it names {error}, which is not there" if isinstance(error, KeyError) else str(error)
        raise CannotConnectError(f"kubeconfig: context {chosen!r}: {why}") from error
    return config


def _files(path: Path | None) -> list[Path]:
    if path is not None:
        if not path.is_file():
            raise CannotConnectError(f"kubeconfig: {path} is not a file")
        return [path]
    named = [Path(item) for item in os.environ.get("KUBECONFIG", "").split(os.pathsep) if item]
    return [item for item in named or [Path("~/.kube/config").expanduser()] if item.is_file()]


def _in_cluster(path: Path | None) -> KubeConfig:
    try:
        config: KubeConfig = KubeConfig.from_service_account()  # type: ignore[no-untyped-call]
    except (OSError, KeyError) as error:
        raise CannotConnectError(
            f"no kubeconfig: expected one at {path or '$KUBECONFIG or ~/.kube/config'}, or to run in a pod"
        ) from error
    return config


def _merged(files: list[Path]) -> dict[str, Any] | None:
    """Merge the files as kubectl does: of two entries with one name, the first file's counts."""
    if not files:
        return None
    merged: dict[str, Any] = {"clusters": [], "users": [], "contexts": [], "current-context": ""}
    for file in files:
        document = _read(file)
        for section in SECTIONS:
            known = {entry["name"] for entry in merged[section]}
            entries = [entry for entry in document.get(section) or [] if entry.get("name") not in known]
            merged[section] += [_with_whole_paths(entry, file.parent) for entry in entries]
        merged["current-context"] = merged["current-context"] or document.get("current-context") or ""
    return merged


def _read(file: Path) -> dict[str, Any]:
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, RecursionError, yaml.YAMLError) as error:
        why = "no UTF-8" if isinstance(error, UnicodeDecodeError) else str(error).splitlines()[0]
        raise CannotConnectError(f"kubeconfig: {file}: {why}") from error
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise CannotConnectError(f"kubeconfig: {file}: expected a mapping with clusters, users and contexts")
    for section, entry in SECTIONS.items():
        _check_section(file, section, entry, document.get(section))
    return document


def _check_section(file: Path, section: str, entry: str, found: Any) -> None:
    """Raise CannotConnectError unless the section is a list of names, each with a mapping."""
    if found is not None and not isinstance(found, list):
        raise CannotConnectError(f"kubeconfig: {file}: {section} is {found!r}, expected a list")
    for item in found or []:
        whole = isinstance(item, dict) and "name" in item
        if not whole or not isinstance(item.get(entry) or {}, dict):
            raise CannotConnectError(
                f"kubeconfig: {file}: {section} has {item!r}, expected a name and a mapping {entry}"
            )


def _with_whole_paths(entry: dict[str, Any], folder: Path) -> dict[str, Any]:
    whole = {}
    for key, value in entry.items():
        if isinstance(value, dict):
            files = {field: str(folder / value[field]) for field in FILE_FIELDS if value.get(field)}
            whole[key] = {**value, **files}
        else:
            whole[key] = value
    return whole


def _log_in(document: dict[str, Any], context: str) -> None:
    """Replace the user's log-in program, or token file, by the credentials that it gives."""
    name = next((entry.get("context") or {}).get("user") for entry in document["contexts"] if entry["name"] == context)
    user = next((entry.get("user") for entry in document["users"] if entry["name"] == name), None) or {}
    if user.get("tokenFile") and not user.get("token"):
        user["token"] = _read_token(Path(user["tokenFile"]))
    if "exec" not in user:
        return
    status = _run_exec(user.pop("exec"))
    if status.get("token"):
        user["token"] = status["token"]
    if status.get("clientCertificateData"):
        import base64

        for field, key in (("client-certificate", "clientCertificateData"), ("client-key", "clientKeyData")):
            user[f"{field}-data"] = base64.b64encode(status[key].encode()).decode()


def _read_token(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CannotConnectError(f"kubeconfig: tokenFile {file}: {error}") from error


def _run_exec(program: dict[str, Any]) -> dict[str, Any]:
    environment = {item["name"]: item["value"] for item in program.get("env") or []}
    information = {
        "apiVersion": program.get("apiVersion", ""),
        "kind": "ExecCredential",
        "spec": {"interactive": False},
    }
    environment["KUBERNETES_EXEC_INFO"] = json.dumps(information)
    command = [str(program["command"]), *map(str, program.get("args") or [])]
    try:
        done = subprocess.run(  # noqa: S603 (the user's own kubeconfig names it, as for kubectl)
            command,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            timeout=EXEC_TIMEOUT_SECONDS,
            check=True,
        )
        status = json.loads(done.stdout)["status"]
    except (OSError, subprocess.SubprocessError, ValueError, KeyError) as error:
        raise CannotConnectError(f"kubeconfig: log-in program {command[0]!r}: {error}") from error
    return dict(status)
