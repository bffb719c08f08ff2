"""TLS between the parts of a cluster: spec.tls of RocketMQCluster and BrokerGroup. In which order it changes: `tls_steps.py`."""

from enum import StrEnum
from typing import Annotated, ClassVar, Final

from msgspec import Meta, Struct

from brokergroup_operator.api import bounds
from brokergroup_operator.api.pod_fields import LocalReference
from brokergroup_operator.api.rules import Rule

# JVM arguments that follow from spec.tls.
_OF_THE_OPERATOR: Final = (
    "^-Dtls[.](enable|test[.]mode[.]enable|config[.]file|server[.](mode|certPath|keyPath)"
    "|client[.](certPath|keyPath|authServer|trustCertPath))="
)


class TlsMode(StrEnum):
    """Which connections a part accepts, and whether it verifies the servers that it connects to."""

    PERMISSIVE = "Permissive"
    ENFORCING = "Enforcing"


class TrustBundleReference(Struct, frozen=True, rename="camel", kw_only=True):
    """A key of a ConfigMap in the same namespace."""

    name: Annotated[bounds.ObjectName, Meta(description="Its metadata.name.")]
    key: Annotated[
        str,
        Meta(description="The key with the certificates.", min_length=1, max_length=253, pattern="^[-._a-zA-Z0-9]+$"),
    ] = "ca.crt"


class TlsSpec(Struct, frozen=True, rename="camel", kw_only=True):
    """TLS of the ports of brokers, NameServers and proxies, and of the connections between them and to the operator."""

    certificate_secret_ref: Annotated[
        LocalReference,
        Meta(
            description="Secret in the same namespace with the keys tls.crt, tls.key (PEM, the key as PKCS#8 without a password)"
            " and ca.crt, as cert-manager writes it. A pod does not start before the Secret exists. Servers take a renewed"
            " certificate without a restart if its key is new too (cert-manager: privateKey.rotationPolicy Always). ca.crt counts"
            " where trustBundleRef is absent, and is read at the start of a pod. The operator does not read the Secret. While"
            " Enforcing, a change to another Secret goes over Permissive."
        ),
    ]
    trust_bundle_ref: Annotated[
        TrustBundleReference | None,
        Meta(
            description="ConfigMap with the authorities that all parts trust (PEM, one or more), in place of ca.crt of the Secret:"
            " as trust-manager writes it. Absent: ca.crt. The operator copies it, and while Enforcing restarts the parts one by one"
            " for a changed one once it verifies the certificate of every server; until then the parts go on with the one before."
        ),
    ] = None
    mode: Annotated[
        TlsMode,
        Meta(
            description="Permissive: servers also accept connections without TLS; all parts connect with TLS, and accept any"
            " certificate. Enforcing: servers accept TLS only, and all parts accept only certificates of the authorities. A cluster"
            " that runs changes step by step, each a rolling restart: no TLS, Permissive, Enforcing, and back likewise."
        ),
    ] = TlsMode.PERMISSIVE

    # Of the BrokerGroup's spec.
    RULES_OF_GROUP: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.tls) || self.implementation == 'Java'",
            "tls needs implementation Java: a Python replica takes TLS from the tls keys of spec.config",
            field_path=".tls",
        ),
        Rule(
            # A JVM takes the last one, which is the user's: brokers would serve none, and the operator take them for enforcing.
            "!has(self.tls) || !has(self.jvm) || !has(self.jvm.extraArguments)"
            f" || !self.jvm.extraArguments.exists(one, one.matches('{_OF_THE_OPERATOR}'))",
            "beside tls, jvm.extraArguments may not set tls.enable, tls.server.mode, nor which certificates and authorities count:"
            " those are the operator's own; use mode, certificateSecretRef and trustBundleRef",
            field_path=".tls",
        ),
    )
