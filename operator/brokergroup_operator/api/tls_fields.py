"""TLS between the parts of a cluster (spec.tls of RocketMQCluster and BrokerGroup), and in which order its modes may follow.

Parts whose modes differ by one step understand each other, others may not: a part without TLS cannot reach one that enforces it,
and is not accepted by one that verifies. So a change goes step by step, and the next step waits for every part (`next_mode`).
"""

from collections.abc import Collection, Iterable
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final

from msgspec import Meta, Struct

from brokergroup_operator.api import names
from brokergroup_operator.api.bounds import JsonObject
from brokergroup_operator.api.pod_fields import LocalReference
from brokergroup_operator.api.rules import Rule


class TlsMode(StrEnum):
    """Which connections a part accepts, and whether it verifies the servers that it connects to."""

    PERMISSIVE = "Permissive"
    ENFORCING = "Enforcing"


class TlsSpec(Struct, frozen=True, rename="camel", kw_only=True):
    """TLS of the ports of brokers, NameServers and proxies, and of the connections between them and to the operator."""

    certificate_secret_ref: Annotated[
        LocalReference,
        Meta(
            description="Secret in the same namespace with the keys tls.crt, tls.key (PEM, the key as PKCS#8 without a password)"
            " and ca.crt, as cert-manager writes it. A pod does not start before the Secret exists. Servers take a renewed"
            " certificate without a restart if its key is new too (cert-manager: privateKey.rotationPolicy Always). A new ca.crt"
            " is read at the next restart. The operator does not read the Secret."
        ),
    ]
    mode: Annotated[
        TlsMode,
        Meta(
            description="Permissive: servers also accept connections without TLS; all parts connect with TLS, and accept any"
            " certificate. Enforcing: servers accept TLS only, and all parts accept only certificates of ca.crt. A cluster that"
            " runs changes step by step, each a rolling restart: no TLS, Permissive, Enforcing, and back likewise."
        ),
    ] = TlsMode.PERMISSIVE

    # Of the BrokerGroup's spec.
    RULES_OF_GROUP: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.tls) || self.implementation == 'Java'",
            "tls needs implementation Java: a Python replica takes TLS from the tls keys of spec.config",
            field_path=".tls",
        ),
    )


# The steps, in their order; None: no TLS.
STEPS: Final[tuple[TlsMode | None, ...]] = (None, TlsMode.PERMISSIVE, TlsMode.ENFORCING)


def next_mode(wanted: TlsMode | None, present: Collection[TlsMode | None]) -> TlsMode | None:
    """Return the mode nearest to the wanted one that is at most one step from every mode that a part still has."""
    if not present:
        return wanted
    steps = [STEPS.index(one) for one in present]
    return STEPS[min(max(STEPS.index(wanted), max(steps) - 1), min(steps) + 1)]


def strictest(modes: Iterable[TlsMode | None]) -> TlsMode | None:
    """Return the mode of these by which all of them can be reached."""
    return max(modes, key=STEPS.index, default=None)


def mode_of(obj: JsonObject) -> TlsMode | None:
    """Return the mode with which this pod was made, or the pods of this template are."""
    text = (obj["metadata"].get("annotations") or {}).get(names.ANNOTATION_TLS)
    return TlsMode(text) if text in tuple(TlsMode) else None


def secret_of(obj: JsonObject) -> str:
    """Return the Secret that the pod, or the template, mounts for TLS; the empty text if it mounts none."""
    volumes: list[dict[str, Any]] = (obj.get("spec") or {}).get("volumes") or []
    found = (one.get("secret") or {} for one in volumes if one.get("name") == names.VOLUME_TLS)
    return next((str(one.get("secretName") or "") for one in found), "")


def next_tls(wanted: TlsSpec | None, pods: Iterable[JsonObject]) -> TlsSpec | None:
    """Return the spec to make pods with, beside these. Where it goes on without a wanted one, it has the Secret of a pod."""
    there = list(pods)
    mode = next_mode(wanted.mode if wanted is not None else None, {mode_of(pod) for pod in there})
    if mode is None:
        return None
    if wanted is not None:
        return TlsSpec(certificate_secret_ref=wanted.certificate_secret_ref, mode=mode)
    secret = next((name for name in map(secret_of, there) if name), "")
    return TlsSpec(certificate_secret_ref=LocalReference(name=secret), mode=mode) if secret else None
