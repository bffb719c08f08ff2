"""A kubeconfig gives the address and the identity, or an error that names the field."""

from __future__ import annotations

import base64
import ssl
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from brokergroup_operator.kube import KubernetesApi
from brokergroup_operator.kube import settings as under_test
from brokergroup_operator.kube.errors import ApiUnavailableError
from brokergroup_operator.kube.settings import (
    KubeconfigError,
    settings_from_kubeconfig,
    settings_from_url,
    settings_in_cluster,
)

if TYPE_CHECKING:
    from pathlib import Path


def write_kubeconfig(folder: Path, *, server: str, cluster: dict[str, Any], user: dict[str, Any]) -> Path:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "here",
    }
    file = folder / "kubeconfig"
    file.write_text(yaml.safe_dump(document))
    return file


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificate")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=test", "-days", "2",
         "-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")],
        check=True, capture_output=True,
    )  # fmt: skip
    return folder


def test_token(tmp_path: Path) -> None:
    settings = settings_from_kubeconfig(
        write_kubeconfig(tmp_path, server="http://127.0.0.1:1/", cluster={}, user={"token": "secret"})
    )
    assert settings.url == "http://127.0.0.1:1"
    assert settings.authorization() == "Bearer secret"


def test_token_file_is_relative_to_the_kubeconfig(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-file\n")
    file = write_kubeconfig(tmp_path, server="http://127.0.0.1:1", cluster={}, user={"tokenFile": "token"})
    assert settings_from_kubeconfig(file).authorization() == "Bearer from-file"


def test_while_the_token_cannot_be_read_the_last_one_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a process that may open no more files for a moment: the error ended each watch for good, and each request with it."""
    monkeypatch.setattr(under_test, "TOKEN_REREAD_SECONDS", 0.0)
    token = tmp_path / "token"
    settings = settings_from_url("http://127.0.0.1:1")
    settings.token_file = token
    with pytest.raises(ApiUnavailableError, match="token: No such file or directory, expected a token"):
        settings.authorization()
    token.write_bytes(b"\xff")
    with pytest.raises(ApiUnavailableError, match="token: no UTF-8, expected a token"):
        settings.authorization()
    token.write_text("first\n")
    assert settings.authorization() == "Bearer first"
    token.unlink()
    assert settings.authorization() == "Bearer first"
    token.write_text("second\n")
    assert settings.authorization() == "Bearer second"


def test_inline_authority_and_client_certificate(tmp_path: Path, certificate: Path) -> None:
    def inline(name: str) -> str:
        return base64.b64encode((certificate / name).read_bytes()).decode()

    file = write_kubeconfig(
        tmp_path,
        server="https://127.0.0.1:1",
        cluster={"certificate-authority-data": inline("cert.pem")},
        user={"client-certificate-data": inline("cert.pem"), "client-key-data": inline("key.pem")},
    )
    settings = settings_from_kubeconfig(file)
    assert settings.tls is not None
    assert settings.tls.verify_mode is ssl.CERT_REQUIRED
    assert [entry["subject"] for entry in settings.tls.get_ca_certs()] == [((("commonName", "test"),),)]


def test_half_a_client_certificate_is_refused(tmp_path: Path, certificate: Path) -> None:
    file = write_kubeconfig(
        tmp_path, server="https://h", cluster={}, user={"client-certificate": str(certificate / "cert.pem")}
    )
    with pytest.raises(KubeconfigError, match="only one of client-certificate and client-key"):
        settings_from_kubeconfig(file)


def test_bad_base64_names_the_field(tmp_path: Path) -> None:
    file = write_kubeconfig(tmp_path, server="https://h", cluster={"certificate-authority-data": "%%"}, user={})
    with pytest.raises(KubeconfigError, match="certificate-authority-data is not base64"):
        settings_from_kubeconfig(file)


def test_unknown_context_names_the_known_ones(tmp_path: Path) -> None:
    file = write_kubeconfig(tmp_path, server="http://h", cluster={}, user={})
    with pytest.raises(KubeconfigError, match="no entry named 'elsewhere', expected one of: 'here'"):
        settings_from_kubeconfig(file, context="elsewhere")


def test_a_log_in_program_is_refused(tmp_path: Path) -> None:
    file = write_kubeconfig(tmp_path, server="http://h", cluster={}, user={"exec": {"command": "x"}})
    with pytest.raises(KubeconfigError, match="expected a token or a certificate"):
        settings_from_kubeconfig(file)


NAMED = "contexts: [{name: here, context: {cluster: c, user: u}}]\ncurrent-context: here\n"
CLUSTER = "clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]\n"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"\xff\xfe\x00", "no UTF-8"),
        (b"clusters: [", "no YAML"),
        (b"[]", "expected a mapping"),
        (b"3", "expected a mapping"),
        (b"", "current-context is not set"),
        (b"clusters: 5", "current-context is not set"),
        (f"clusters: 5\n{NAMED}".encode(), "clusters is 5, expected a list"),
        (f"clusters: [5]\n{NAMED}".encode(), r"clusters\[0\] is 5, expected a mapping"),
        (f"clusters: [{{name: c, cluster: 7}}]\n{NAMED}".encode(), "cluster of 'c' is 7, expected a mapping"),
        (b"contexts: {here: 1}\ncurrent-context: here", "contexts is {'here': 1}, expected a list"),
        (b"contexts: []\ncurrent-context: [1]", "current-context is .1., expected a name"),
        (f"{CLUSTER}{NAMED}users: [{{name: u, user: {{token: [1]}}}}]".encode(), "token is .1., expected a text"),
        (f"{CLUSTER}{NAMED}users: [{{name: u, user: {{tokenFile: 5}}}}]".encode(), "tokenFile is 5, expected a text"),
        (
            f"{CLUSTER.replace('server', 'certificate-authority: nowhere, server')}{NAMED}users: [{{name: u}}]".encode(),
            "certificate-authority nowhere: No such file",
        ),
        (
            f"{CLUSTER.replace('server', 'certificate-authority-data: YWJj, server')}{NAMED}users: [{{name: u}}]".encode(),
            "certificate-authority",
        ),
        (
            f"{CLUSTER.replace('server', 'certificate-authority-data: gICA, server')}{NAMED}users: [{{name: u}}]".encode(),
            "certificate-authority",
        ),
        (
            f"{CLUSTER}{NAMED}users: [{{name: u, user: {{client-certificate-data: YWJj, client-key-data: YWJj}}}}]".encode(),
            "client-certificate",
        ),
        (f"{CLUSTER}{NAMED}users: [{{name: u, user: {{client-key-data: 5}}}}]".encode(), "client-key-data is 5"),
    ],
)
def test_a_file_that_is_no_kubeconfig_is_named_with_what_is_wrong(
    tmp_path: Path, content: bytes, complaint: str
) -> None:
    file = tmp_path / "kubeconfig"
    file.write_bytes(content)
    with pytest.raises(KubeconfigError, match=complaint) as refused:
        settings_from_kubeconfig(file)
    assert str(file) in str(refused.value)


def test_a_kubeconfig_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for file in (tmp_path, tmp_path / "absent"):
        with pytest.raises(KubeconfigError, match=str(file)):
            settings_from_kubeconfig(file)


def test_an_address_without_a_scheme_is_refused() -> None:
    with pytest.raises(KubeconfigError, match=r"server is '127\.0\.0\.1:6443'"):
        settings_from_url("127.0.0.1:6443")


def test_in_cluster(tmp_path: Path, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ca.crt").write_bytes((certificate / "cert.pem").read_bytes())
    (tmp_path / "token").write_text("pod-token")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    settings = settings_in_cluster(tmp_path)
    assert settings.url == "https://[fd00::1]:443"
    assert settings.authorization() == "Bearer pod-token"


def test_outside_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(KubeconfigError, match="not inside a cluster"):
        KubernetesApi.in_cluster()
