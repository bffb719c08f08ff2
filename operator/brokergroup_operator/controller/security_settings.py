"""What the controller plane asks of those who speak to it: TLS, signatures, administrators, readable configuration.

The defaults are an operator's in a cluster: a broker is known by its pod's address, administrators are nobody until they are
named, the configuration is nobody's business. ``brokergroup controller`` opens some of it (``docs/concepts/security.md``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rocketmq_remoting.codec import FrameLimits

if TYPE_CHECKING:
    from brokergroup_operator.controller.admin_credentials import AdminCredentials
    from rocketmq_remoting.tls import TlsFiles, TlsServerSettings

UNTIL_KNOWN_BYTES = 64 * 1024
KNOWN_BYTES = 1024 * 1024
NEW_NAMES_PER_HOST = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuritySettings:
    """Who is let in, who is believed, and what our own connections show."""

    # TLS on the controller's own port; None: plain frames only.
    tls: TlsServerSettings | None = None
    # How we dial brokers, NameServers and the other planes; None: plainly. Our certificate is what they may ask of us.
    broker_tls: TlsFiles | None = None
    name_server_tls: TlsFiles | None = None

    # Designating a master (1002) and cleaning (1011) need one of these, or are opened to everybody who reaches the port.
    admin_credentials: AdminCredentials | None = None
    admin_certificate_names: frozenset[str] = frozenset()
    open_admin: bool = False
    # 1010 answers with the settings in effect; there is nothing secret in them, but nothing that strangers need either.
    configuration_readable: bool = False
    # Brokers that are no pods of the group (a machine beside the cluster) may take part without a signature or a certificate.
    brokers_without_pods: bool = False

    # The longest frame before and after we know who speaks. The longest honest request is a 1006
    # with the names of thousands of groups; Java's 16 MiB for everybody would let 100 strangers take 1.6 GiB.
    frame_limits: FrameLimits = field(
        default_factory=lambda: FrameLimits(max_frame_bytes=KNOWN_BYTES, max_frame_bytes_until_known=UNTIL_KNOWN_BYTES)
    )
    # Strangers' share of the connections: theirs to fight over, never the brokers'. All of them with a frame begun and a
    # TLS handshake done hold about 130 MiB. None: no share of their own, where nobody is known by his address.
    max_unknown_connections: int | None = 1024
    max_unknown_connections_per_host: int | None = 128
    # How many names without a registered broker an address may begin in an hour (``new_names.py``). None: names are declared.
    max_new_names_per_host: int | None = None
