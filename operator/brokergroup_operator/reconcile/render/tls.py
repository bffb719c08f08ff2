"""What the programs of RocketMQ are given for spec.tls: the mounted Secret, JVM arguments, keys of rmq-proxy.json. Pure.

A JVM has one such setting for all that it serves and all that it connects to. Java reads the server's files again when certificate
and key have both changed; what it presents and trusts as a client is read at its start (docs/concepts/security.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from brokergroup_operator.api import names
from brokergroup_operator.api.tls_fields import TlsMode
from brokergroup_operator.api.tls_steps import TlsAsMade

if TYPE_CHECKING:
    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.tls_fields import TlsSpec

VARIABLE: Final = "TLS_DIR"
# The folder with the files of `authorities`.
TRUST_VARIABLE: Final = "TRUST_DIR"
# Readable for the program's group only, which the volume is given (fsGroup).
MODE: Final = 0o440
# A Proxy's own default is an hour, which may be longer than the rest of a certificate's life. Brokers look every half second.
PROXY_WATCH_MILLISECONDS: Final = 5000


def volumes(tls: TlsSpec | None, config_map: str) -> list[JsonObject]:
    """The whole Secret, so that a renewed one is followed. `config_map`: the operator's own, with the files of `authorities`."""
    if tls is None:
        return []
    source = {"secretName": tls.certificate_secret_ref.name, "defaultMode": MODE}
    trusted = {"name": names.VOLUME_TRUST, "configMap": {"name": config_map}}
    return [{"name": names.VOLUME_TLS, "secret": source}, *([trusted] if trusted_file(tls) else [])]


def mounts(tls: TlsSpec | None) -> list[JsonObject]:
    if tls is None:
        return []
    trusted = {"name": names.VOLUME_TRUST, "mountPath": names.TRUST_DIR, "readOnly": True}
    own = {"name": names.VOLUME_TLS, "mountPath": names.TLS_DIR, "readOnly": True}
    return [own, *([trusted] if trusted_file(tls) else [])]


def environment(tls: TlsSpec | None) -> list[JsonObject]:
    """The variables with the folders, for the arguments below."""
    if tls is None:
        return []
    trusted = {"name": TRUST_VARIABLE, "value": names.TRUST_DIR}
    return [{"name": VARIABLE, "value": names.TLS_DIR}, *([trusted] if trusted_file(tls) else [])]


def pod_annotations(tls: TlsSpec | None) -> dict[str, str]:
    """What kubectl shows of a pod. The operator decides nothing by them: a user with the right to edit pods can change them."""
    if tls is None:
        return {}
    trusted = {names.ANNOTATION_TRUST: file} if (file := trusted_file(tls)) else {}
    return {names.ANNOTATION_TLS: tls.mode.value, **trusted}


def authorities(tls: TlsSpec | None) -> str:
    """The bundle that parts made now trust, as PEM; empty: ca.crt of the Secret, or any, or what is lost."""
    return tls.authorities if isinstance(tls, TlsAsMade) else ""


def trusted_file(tls: TlsSpec | None) -> str:
    """The name of the file with that bundle; empty without one."""
    return tls.file if isinstance(tls, TlsAsMade) else ""


def trust_files(tls: TlsSpec | None) -> dict[str, str]:
    """What the operator's ConfigMap must hold for parts that are made now, by name."""
    bundle = authorities(tls)
    return {trusted_file(tls): bundle} if bundle else {}


def java_arguments(tls: TlsSpec | None, *, presented: str = VARIABLE) -> list[str]:
    """For a shell. `presented`: the variable with the folder of the certificate that it shows to servers."""
    if tls is None:
        return []
    enforces = tls.mode is TlsMode.ENFORCING
    # While a part may still serve RocketMQ's test certificate, any is accepted.
    file = trusted_file(tls)
    trusted = (file, TRUST_VARIABLE) if file else (names.CERTIFICATE_AUTHORITY_FILE, VARIABLE)
    verified = ["-Dtls.client.authServer=true", _path("client", "trustCertPath", *trusted)]
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


def proxy_settings(*, with_tls: bool) -> dict[str, str | int | bool]:
    """Keys of rmq-proxy.json. A Proxy's own override the JVM's, also those of the broker in its process."""
    if not with_tls:
        return {}
    return {
        "tlsTestModeEnable": False,
        "tlsCertPath": f"{names.TLS_DIR}/{names.CERTIFICATE_FILE}",
        "tlsKeyPath": f"{names.TLS_DIR}/{names.CERTIFICATE_KEY_FILE}",
        "tlsCertWatchIntervalMs": PROXY_WATCH_MILLISECONDS,
    }
