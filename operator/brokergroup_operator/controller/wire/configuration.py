"""What 1010 shows: the settings in effect, under Java's names where Java has one for the same thing.

mqadmin reads it as Java properties. Nothing secret is in it: of credentials and keys it says whether there are any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketmq_remoting.address import heard_address
from rocketmq_remoting.serialization import encode_properties
from rocketmq_remoting.tls import ClientCertificates, TlsMode

if TYPE_CHECKING:
    from brokergroup_operator.controller.settings import PlaneSettings


def configuration_text(settings: PlaneSettings, *, advertise_address: str) -> bytes:
    """Sorted ``key=value`` lines."""
    return encode_properties(effective_configuration(settings, advertise_address=advertise_address))


def effective_configuration(settings: PlaneSettings, *, advertise_address: str) -> dict[str, str]:
    """Java's keys first, then ours, which begin with ``brokergroup.``."""
    peers = settings.peer_addresses or (advertise_address,)
    own = peers.index(advertise_address) if advertise_address in peers else 0
    java = {
        "bindAddress": settings.listen_host,
        "listenPort": _port_of(advertise_address, settings.listen_port),
        "controllerType": "Kubernetes",
        "controllerDLegerGroup": settings.controller_group,
        "controllerDLegerPeers": ";".join(f"n{index}-{peer}" for index, peer in enumerate(peers)),
        "controllerDLegerSelfId": f"n{own}",
        "scanNotActiveBrokerInterval": _milliseconds(settings.tick_seconds),
        "scanInactiveMasterInterval": _milliseconds(settings.tick_seconds),
        "notifyBrokerRoleChanged": "true",
        "isProcessReadEvent": "true",
        "enableShutdownGracefully": "true",
        "serverChannelMaxIdleTimeSeconds": "120",
    }
    return java | _security(settings) | _timing(settings)


def _security(settings: PlaneSettings) -> dict[str, str]:
    security = settings.security
    tls = security.tls
    wanted = tls.client_certificates if tls is not None else ClientCertificates.NONE
    return {
        "tls.server.mode": (tls.mode if tls is not None else TlsMode.DISABLED).value,
        "tls.server.need.client.auth": "require" if wanted is ClientCertificates.REQUIRED else wanted.value,
        "tls.enable": _truth(security.broker_tls is not None),
        "brokergroup.openAdmin": _truth(security.open_admin),
        "brokergroup.adminAccessKeys": _truth(security.admin_credentials is not None),
        "brokergroup.brokersWithoutPods": _truth(security.brokers_without_pods),
        "brokergroup.maxFrameBytes": str(security.frame_limits.max_frame_bytes),
    }


def _timing(settings: PlaneSettings) -> dict[str, str]:
    return {
        "brokergroup.answerDeadlineMilliseconds": _milliseconds(settings.answer_deadline_seconds),
        "brokergroup.recordDeadlineMilliseconds": _milliseconds(settings.record_deadline_seconds),
        "brokergroup.heartbeatTimeoutMilliseconds": _milliseconds(settings.heartbeat_timeout_seconds),
        "brokergroup.reconnectGraceMilliseconds": _milliseconds(settings.reconnect_grace_seconds),
        "brokergroup.switchoverDeadlineMilliseconds": _milliseconds(settings.switchover_deadline_seconds),
    }


def _port_of(address: str, otherwise: int) -> str:
    found = heard_address(address)
    return str(found.port if found is not None else otherwise)


def _milliseconds(seconds: float) -> str:
    return str(round(seconds * 1000))


def _truth(value: bool) -> str:
    return "true" if value else "false"
