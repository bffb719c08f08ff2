"""What a group's pods are shown by Secrets: their certificate for controllers, and the key by which a fence verifies orders. Pure.

The Secret of spec.security.certificateSecretRef is mounted as a whole, so that a renewed one is followed. Broker and fence show the
same; the operator never reads it. Only the fence's container mounts the fence's key. Its volume is optional: a pod starts without
the Secret too, and its fence then obeys no order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from brokergroup_operator.api import names, pod_fence
from brokergroup_operator.api.brokergroup import Implementation
from brokergroup_operator.kube.recipes import ENTRY, secret_object
from brokergroup_operator.reconcile import identity
from brokergroup_operator.reconcile.plan import MakeSecret
from brokergroup_operator.reconcile.render import tls
from brokergroup_operator.reconcile.see.observed import annotations_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.brokergroup import BrokerGroup, BrokerGroupSpec
    from brokergroup_operator.api.pod_fence import FenceKeys
    from brokergroup_operator.reconcile.settings import ReconcileSettings


FIELD: Final = "spec.security.certificateSecretRef"
TLS_FIELD: Final = "spec.tls"
VARIABLE: Final = "CERTIFICATE_DIR"
_NO_TLS_FOR: Final = (
    "{field} is {what}, but this operator's controllers speak no TLS (--tls-certificate): expected none,"
    " since a broker that connects over TLS is not heard"
)
# Readable for the broker's group only, which the volume is given (fsGroup).
MODE: Final = 0o440


def problem(group: BrokerGroup, settings: ReconcileSettings) -> str:
    """What is wrong between the spec and what this operator's controllers ask for; else empty."""
    spec = group.spec
    if spec.tls is not None:
        # `with_next_tls` makes no pod with it until then.
        return "" if settings.controller_tls else _NO_TLS_FOR.format(field=TLS_FIELD, what="given")
    secret = spec.security.certificate_secret_name
    if secret is not None and not settings.controller_tls:
        return _NO_TLS_FOR.format(field=FIELD, what=repr(secret))
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


def volumes(group: BrokerGroup, settings: ReconcileSettings) -> list[JsonObject]:
    secrets: dict[str, JsonObject] = {}
    if (certificate := group.spec.security.certificate_secret_name) is not None:
        secrets[names.VOLUME_CERTIFICATE] = {"secretName": certificate, "defaultMode": MODE}
    if settings.fence_keys is not None and pod_fence.wanted(group.spec):
        key = _key_name(group, settings.fence_keys)
        secrets[names.VOLUME_FENCE_KEY] = {"secretName": key, "defaultMode": MODE, "optional": True}
    return [
        *({"name": name, "secret": source} for name, source in secrets.items()),
        *tls.volumes(group.spec.tls, names.config_map_name(identity.name_of(group))),
    ]


def mounts(spec: BrokerGroupSpec) -> list[JsonObject]:
    shown = {"name": names.VOLUME_CERTIFICATE, "mountPath": names.CERTIFICATE_DIR, "readOnly": True}
    return [*([shown] if spec.security.certificate_secret_name is not None else []), *tls.mounts(spec.tls)]


def broker_environment(spec: BrokerGroupSpec) -> list[JsonObject]:
    """The variables with the folders, for the arguments and properties below."""
    shown = [{"name": VARIABLE, "value": names.CERTIFICATE_DIR}] if spec.security.certificate_secret_name else []
    return [*shown, *tls.environment(spec.tls)]


def java_arguments(spec: BrokerGroupSpec) -> list[str]:
    """For a shell. Java accepts any certificate of the other side unless `jvm.extraArguments` name an authority."""
    has_its_own = spec.security.certificate_secret_name is not None
    if spec.tls is not None:
        return tls.java_arguments(spec.tls, presented=VARIABLE if has_its_own else tls.VARIABLE)
    if not has_its_own:
        return []
    # Out of its test mode it also serves TLS with a certificate of files only: the same one.
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
    if spec.security.certificate_secret_name is not None:
        folder = names.CERTIFICATE_DIR
    elif spec.tls is not None:
        folder = names.TLS_DIR
    else:
        return []
    return [
        {"name": "FENCE_CONTROLLER_CERTIFICATE", "value": f"{folder}/{names.CERTIFICATE_FILE}"},
        {"name": "FENCE_CONTROLLER_KEY", "value": f"{folder}/{names.CERTIFICATE_KEY_FILE}"},
    ]


def make_key(group: BrokerGroup, settings: ReconcileSettings) -> Iterator[MakeSecret]:
    """Make the Secret with the key before a pod is made that mounts it."""
    keys = settings.fence_keys
    if keys is None or not pod_fence.wanted(group.spec):
        return
    key, namespace = keys.key_of(str(group.metadata["uid"])), identity.namespace_of(group)
    secret = secret_object(_key_name(group, keys), key, namespace=namespace, labels=identity.child_labels(group))
    secret["metadata"]["ownerReferences"] = [identity.owner_reference(group)]
    yield MakeSecret(reason="the fences' key", object=secret)


def _key_name(group: BrokerGroup, keys: FenceKeys) -> str:
    return keys.secret_name(identity.name_of(group), str(group.metadata["uid"]))


def with_key_of(group: BrokerGroup, pod: JsonObject) -> BrokerGroup:
    """The group as the pod was made for it: an orphaned group's pods go on with its key, which the operator still knows."""
    uid = annotations_of(pod).get(names.ANNOTATION_GROUP_UID)
    return replace(group, metadata=group.metadata | {"uid": uid}) if uid and uid != group.metadata.get("uid") else group


def key_mounts(settings: ReconcileSettings) -> list[JsonObject]:
    shown = {"name": names.VOLUME_FENCE_KEY, "mountPath": names.FENCE_KEY_DIR, "readOnly": True}
    return [shown] if settings.fence_keys is not None else []


def key_environment(settings: ReconcileSettings) -> list[JsonObject]:
    file = {"name": "FENCE_KEY_FILE", "value": f"{names.FENCE_KEY_DIR}/{ENTRY}"}
    return [file] if settings.fence_keys is not None else []
