"""What a group's pods show to controllers that ask for a certificate: spec.security.certificateSecretRef. Pure.

The Secret is mounted as a whole, so that a renewed one is followed. Broker and fence show the same; the operator never reads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup import Implementation

if TYPE_CHECKING:
    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.brokergroup import BrokerGroup, BrokerGroupSpec
    from brokergroup_operator.reconcile.settings import ReconcileSettings

FIELD: Final = "spec.security.certificateSecretRef"
VARIABLE: Final = "CERTIFICATE_DIR"
# Readable for the broker's group only, which the volume is given (fsGroup).
MODE: Final = 0o440


def problem(group: BrokerGroup, settings: ReconcileSettings) -> str:
    """What is wrong between the spec and what this operator's controllers ask for; else empty."""
    spec = group.spec
    secret = spec.security.certificate_secret_name
    if secret is not None and not settings.controller_tls:
        return (
            f"{FIELD} is {secret!r}, but this operator's controllers speak no TLS (--tls-certificate): expected none,"
            " since a broker that connects over TLS is not heard"
        )
    if secret is not None or not settings.client_certificates_required:
        return ""
    if spec.implementation is Implementation.PYTHON:
        lost = "" if "tls.client.certPath" in spec.config else "its brokers are not heard"
    else:
        # An image of one's own may bring a certificate for its brokers, never for the fences.
        lost = "its fences hear no controller and guard no broker" if spec.failover.isolation.enabled else ""
    name = f"{group.metadata['name']}.{group.metadata['namespace']}"
    return lost and (
        f"{FIELD} is absent, and controllers ask for a client certificate (--tls-client-certificates required): {lost}."
        f" Expected a Secret with {names.CERTIFICATE_FILE} and {names.CERTIFICATE_KEY_FILE} for the name {name}"
    )


def volumes(spec: BrokerGroupSpec) -> list[JsonObject]:
    secret = spec.security.certificate_secret_name
    if secret is None:
        return []
    return [{"name": names.VOLUME_CERTIFICATE, "secret": {"secretName": secret, "defaultMode": MODE}}]


def mounts(spec: BrokerGroupSpec) -> list[JsonObject]:
    if spec.security.certificate_secret_name is None:
        return []
    return [{"name": names.VOLUME_CERTIFICATE, "mountPath": names.CERTIFICATE_DIR, "readOnly": True}]


def broker_environment(spec: BrokerGroupSpec) -> list[JsonObject]:
    """The variable with the certificate's folder, for the arguments and properties below."""
    return [{"name": VARIABLE, "value": names.CERTIFICATE_DIR}] if spec.security.certificate_secret_name else []


def java_arguments(spec: BrokerGroupSpec) -> list[str]:
    """For a shell. Out of its test mode Java also serves TLS with a certificate of files only: the same one.

    It accepts any certificate of the other side unless `jvm.extraArguments` name an authority.
    """
    if spec.security.certificate_secret_name is None:
        return []
    files = (("certPath", names.CERTIFICATE_FILE), ("keyPath", names.CERTIFICATE_KEY_FILE))
    shown = [f'-Dtls.{side}.{key}="${VARIABLE}/{file}"' for side in ("client", "server") for key, file in files]
    return ["-Dtls.enable=true", "-Dtls.test.mode.enable=false", *shown]


def replica_properties(spec: BrokerGroupSpec) -> dict[str, str]:
    """The same for a Python replica."""
    if spec.security.certificate_secret_name is None:
        return {}
    return {
        "tls.enable": "true",
        "tls.client.certPath": f"${{{VARIABLE}}}/{names.CERTIFICATE_FILE}",
        "tls.client.keyPath": f"${{{VARIABLE}}}/{names.CERTIFICATE_KEY_FILE}",
    }


def fence_environment(spec: BrokerGroupSpec) -> list[JsonObject]:
    if spec.security.certificate_secret_name is None:
        return []
    return [
        {"name": "FENCE_CONTROLLER_CERTIFICATE", "value": f"{names.CERTIFICATE_DIR}/{names.CERTIFICATE_FILE}"},
        {"name": "FENCE_CONTROLLER_KEY", "value": f"{names.CERTIFICATE_DIR}/{names.CERTIFICATE_KEY_FILE}"},
    ]
