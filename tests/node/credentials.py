"""The cluster's certificates, and a token with a kubeconfig for each program that speaks to the API server."""

from __future__ import annotations

import json
import secrets

from tests.node.places import API_PORT, CLUSTER_DOMAIN, HOST_ADDRESS, kubeconfig, nodes, state_folder
from tests.node.processes import command

# The API server's Service is the first address of the range.
API_SERVICE_ADDRESS = "10.96.0.1"
KEEP_DAYS = "30"


def identities() -> dict[str, tuple[str, str]]:
    """User and group by the name of the kubeconfig."""
    return {
        "admin": ("admin", "system:masters"),
        "controller-manager": ("system:kube-controller-manager", ""),
        "scheduler": ("system:kube-scheduler", ""),
        "proxy": ("system:kube-proxy", ""),
        "coredns": ("coredns", "system:masters"),
        **{node.name: (f"system:node:{node.name}", "system:nodes") for node in nodes()},
    }


def make() -> None:
    """Once for the life of a cluster: what is there already stays as it is."""
    folder = state_folder() / "pki"
    if (folder / "tokens.csv").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    make_certificates()
    lines = []
    for name, (user, group) in identities().items():
        token = secrets.token_hex(16)
        lines.append(f'{token},{user},{user},"{group}"\n')
        write_kubeconfig(name, token)
    (folder / "tokens.csv").write_text("".join(lines), encoding="utf-8")


def make_certificates() -> None:
    pki = state_folder() / "pki"
    ca, api, service_account = pki / "ca", pki / "api", pki / "service-account"
    openssl = ("openssl", "req", "-newkey", "rsa:2048", "-nodes")
    command(*openssl, "-x509", "-days", KEEP_DAYS, "-subj", "/CN=ca", "-keyout", f"{ca}.key", "-out", f"{ca}.crt")
    command(*openssl, "-subj", "/CN=kube-apiserver", "-keyout", f"{api}.key", "-out", f"{api}.csr")
    names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", f"kubernetes.default.svc.{CLUSTER_DOMAIN}"]
    alternatives = [f"IP:{address}" for address in (API_SERVICE_ADDRESS, HOST_ADDRESS)] + [
        f"DNS:{name}" for name in names
    ]
    (pki / "extensions").write_text(f"subjectAltName={','.join(alternatives)}\n", encoding="utf-8")
    sign = (
        "openssl",
        "x509",
        "-req",
        "-in",
        f"{api}.csr",
        "-CA",
        f"{ca}.crt",
        "-CAkey",
        f"{ca}.key",
        "-CAcreateserial",
    )
    command(*sign, "-days", KEEP_DAYS, "-extfile", str(pki / "extensions"), "-out", f"{api}.crt")
    command("openssl", "genrsa", "-out", f"{service_account}.key", "2048")
    command("openssl", "rsa", "-in", f"{service_account}.key", "-pubout", "-out", f"{service_account}.pub")


def write_kubeconfig(name: str, token: str) -> None:
    authority = str(state_folder() / "pki" / "ca.crt")
    server = f"https://{HOST_ADDRESS}:{API_PORT}"
    text = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "nodes", "cluster": {"server": server, "certificate-authority": authority}}],
        "users": [{"name": name, "user": {"token": token}}],
        "contexts": [{"name": "nodes", "context": {"cluster": "nodes", "user": name}}],
        "current-context": "nodes",
    }
    file = kubeconfig(name)
    file.touch(mode=0o600)
    file.write_text(json.dumps(text, indent=1), encoding="utf-8")
