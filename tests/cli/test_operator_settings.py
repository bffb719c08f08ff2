"""What the flags about TLS mean for the pods that the operator renders."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.cli.operator_command import OperatorOptions
from brokergroup_operator.cli.operator_process import reconcile_settings
from brokergroup_operator.controller.security import SecuritySettings
from rocketmq_remoting.tls import ClientCertificates, TlsFiles, TlsMode, TlsServerSettings

if TYPE_CHECKING:
    from pathlib import Path


OPTIONS = OperatorOptions(controller_addresses=["127.0.0.1:9878"], identity="operator-0")


@pytest.mark.parametrize("asked_for", list(ClientCertificates))
def test_pods_are_made_for_what_controllers_ask(tmp_path: Path, asked_for: ClientCertificates) -> None:
    ca = tmp_path / "ca.crt"
    ca.write_text("PEM of the authority\n", encoding="utf-8")
    files = TlsFiles(certificate=tmp_path / "tls.crt", key=tmp_path / "tls.key", ca=ca)
    tls = TlsServerSettings(mode=TlsMode.ENFORCING, files=files, client_certificates=asked_for)
    made = reconcile_settings(OPTIONS, SecuritySettings(tls=tls))
    assert (made.controller_tls, made.controller_authority) == (True, "PEM of the authority\n")
    assert made.client_certificates_required is (asked_for is ClientCertificates.REQUIRED)


def test_without_tls_nobody_is_asked_for_anything() -> None:
    made = reconcile_settings(OPTIONS, SecuritySettings())
    assert (made.controller_tls, made.controller_authority, made.client_certificates_required) == (False, None, False)
