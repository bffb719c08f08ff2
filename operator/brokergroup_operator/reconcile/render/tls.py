"""What the programs of RocketMQ are given for spec.tls: the mounted Secret, JVM arguments, keys of rmq-proxy.json. Pure.

A JVM has one such setting for all that it serves and all that it connects to. Java reads the server's files again when certificate
and key have both changed; what it presents and trusts as a client is read at its start (docs/concepts/security.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from brokergroup_operator.api import names
from brokergroup_operator.api.tls_fields import TlsMode

if TYPE_CHECKING:
    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.tls_fields import TlsSpec

VARIABLE: Final = "TLS_DIR"
# Readable for the program's group only, which the volume is given (fsGroup).
MODE: Final = 0o440
# A Proxy's own default is an hour, which may be longer than the rest of a certificate's life. Brokers look every half second.
PROXY_WATCH_MILLISECONDS: Final = 5000


def volumes(tls: TlsSpec | None) -> list[JsonObject]:
    """The whole Secret, so that a renewed one is followed."""
    if tls is None:
        return []
    source = {"secretName": tls.certificate_secret_ref.name, "defaultMode": MODE}
    return [{"name": names.VOLUME_TLS, "secret": source}]


def mounts(tls: TlsSpec | None) -> list[JsonObject]:
    return [] if tls is None else [{"name": names.VOLUME_TLS, "mountPath": names.TLS_DIR, "readOnly": True}]


def environment(tls: TlsSpec | None) -> list[JsonObject]:
    """The variable with the Secret's folder, for the arguments below."""
    return [] if tls is None else [{"name": VARIABLE, "value": names.TLS_DIR}]


def mode_annotation(tls: TlsSpec | None) -> dict[str, str]:
    """By which a pod's mode is known."""
    return {} if tls is None else {names.ANNOTATION_TLS: tls.mode.value}


def java_arguments(tls: TlsSpec | None, *, presented: str = VARIABLE) -> list[str]:
    """For a shell. `presented`: the variable with the folder of the certificate that it shows to servers."""
    if tls is None:
        return []
    enforces = tls.mode is TlsMode.ENFORCING
    # While a part may still serve RocketMQ's test certificate, any is accepted.
    verified = ["-Dtls.client.authServer=true", _path("client", "trustCertPath", names.CERTIFICATE_AUTHORITY_FILE)]
    return [
        "-Dtls.enable=true",
        "-Dtls.test.mode.enable=false",
        f"-Dtls.server.mode={'enforcing' if enforces else 'permissive'}",
        _path("server", "certPath", names.CERTIFICATE_FILE),
        _path("server", "keyPath", names.CERTIFICATE_KEY_FILE),
        _path("client", "certPath", names.CERTIFICATE_FILE, presented),
        _path("client", "keyPath", names.CERTIFICATE_KEY_FILE, presented),
        *(verified if enforces else []),
    ]


def _path(side: str, key: str, file: str, folder: str = VARIABLE) -> str:
    return f'-Dtls.{side}.{key}="${folder}/{file}"'


def proxy_settings(tls: TlsSpec | None) -> dict[str, str | int | bool]:
    """Keys of rmq-proxy.json. A Proxy's own override the JVM's, also those of the broker in its process."""
    if tls is None:
        return {}
    return {
        "tlsTestModeEnable": False,
        "tlsCertPath": f"{names.TLS_DIR}/{names.CERTIFICATE_FILE}",
        "tlsKeyPath": f"{names.TLS_DIR}/{names.CERTIFICATE_KEY_FILE}",
        "tlsCertWatchIntervalMs": PROXY_WATCH_MILLISECONDS,
    }
