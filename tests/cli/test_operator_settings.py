"""What the flags about TLS mean for the pods that the operator renders."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.cli import operator_process
from brokergroup_operator.cli.operator_process import OperatorSettings
from brokergroup_operator.controller.security_settings import SecuritySettings
from rocketmq_remoting.tls import ClientCertificates, TlsFiles, TlsMode, TlsServerSettings

if TYPE_CHECKING:
    from pathlib import Path


def settings(security: SecuritySettings) -> OperatorSettings:
    return OperatorSettings(
        kubeconfig=None,
        namespace=None,
        listen=("127.0.0.1", 9878),
        advertise="127.0.0.1:9878",
        controller_addresses=("127.0.0.1:9878",),
        metrics_listen=None,
        incident_log=None,
        leader_election_namespace=None,
        identity="operator-0",
        replica_image="replica:1",
        rocketmq_image_repository="apache/rocketmq",
        rocketmq_version="5.5.0",
        security=security,
    )


@pytest.mark.parametrize("asked_for", list(ClientCertificates))
def test_pods_are_made_for_what_controllers_ask(tmp_path: Path, asked_for: ClientCertificates) -> None:
    ca = tmp_path / "ca.crt"
    ca.write_text("PEM of the authority\n", encoding="utf-8")
    files = TlsFiles(certificate=tmp_path / "tls.crt", key=tmp_path / "tls.key", ca=ca)
    tls = TlsServerSettings(mode=TlsMode.ENFORCING, files=files, client_certificates=asked_for)
    made = operator_process._reconcile_settings(settings(SecuritySettings(tls=tls)))
    assert (made.controller_tls, made.controller_authority) == (True, "PEM of the authority\n")
    assert made.client_certificates_required is (asked_for is ClientCertificates.REQUIRED)


def test_without_tls_nobody_is_asked_for_anything() -> None:
    made = operator_process._reconcile_settings(settings(SecuritySettings()))
    assert (made.controller_tls, made.controller_authority, made.client_certificates_required) == (False, None, False)
