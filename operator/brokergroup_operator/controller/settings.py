"""The controller plane's settings, and how 1010 shows them. Settings of one group are in its spec.

All times are monotonic seconds. A broker's RPC gives up after 3 s and closes its connection, which would count as a death here. So
every answer leaves before `answer_deadline_seconds`, and what an answer waits for (the record store) has less.
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from brokergroup_operator.api.tls_fields import TlsMode
from rocketmq_remoting.address import heard_address
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codec import FrameLimits
from rocketmq_remoting.signature import Credentials
from rocketmq_remoting.tls import ClientCertificates, ClientTls, TlsFiles, TlsServerSettings
from rocketmq_remoting.tls import TlsMode as ServerMode

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path


# The longest frame of an unknown caller, and of a known one.
UNTIL_KNOWN_BYTES = 64 * 1024
KNOWN_BYTES = 1024 * 1024
# The standalone controller's `max_new_names_per_host`.
NEW_NAMES_PER_HOST = 64
# How often the file of the administrators' keys is read again.
CHECK_SECONDS = 2.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuritySettings:
    """What is demanded of callers, and how this plane's own connections are secured (docs/concepts/security.md).

    The defaults are those of an operator in a cluster: a broker is known by its pod's address, no caller is an administrator
    until one is named, the configuration is not readable. `brokergroup controller` opens some of it.
    """

    # On the controller's own port; None: plain frames only.
    tls: TlsServerSettings | None = None
    # How we dial; None: plainly.
    broker_tls: TlsFiles | None = None
    name_server_tls: TlsFiles | None = None

    # Designating a master (1002) and cleaning (1011) need one of these, or are open to every caller that reaches the port.
    admin_credentials: AdminCredentials | None = None
    admin_certificate_names: frozenset[str] = frozenset()
    open_admin: bool = False
    # Whether 1010 answers with the settings in effect. They hold no secret.
    configuration_readable: bool = False
    # Brokers that are no pods of the group (a machine beside the cluster) may take part without a signature or a certificate.
    brokers_without_pods: bool = False

    # The longest frame before and after the caller is known. The longest honest request is a 1006 with the names of thousands of
    # groups; with Java's 16 MiB for every caller 100 unknown ones could take 1.6 GiB.
    frame_limits: FrameLimits = field(
        default_factory=lambda: FrameLimits(max_frame_bytes=KNOWN_BYTES, max_frame_bytes_until_known=UNTIL_KNOWN_BYTES)
    )
    # All of them with a frame begun and a TLS handshake done hold about 130 MiB. None: where no caller is known by its address.
    max_unknown_connections: int | None = 1024
    max_unknown_connections_per_host: int | None = 128
    # How many names without a registered broker an address may begin in an hour (`NewNames`). None: names are declared.
    max_new_names_per_host: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaneSettings:
    listen_host: str = "0.0.0.0"  # noqa: S104 - brokers come from other pods
    listen_port: int = 9878
    # What 1005 answers as "the leader": how brokers reach this very process. Empty: listen_host:port.
    advertise_address: str = ""
    # All planes of this installation, for mqadmin's list of peers. Empty: only this one.
    peer_addresses: tuple[str, ...] = ()
    controller_group: str = "brokergroup-operator"
    security: SecuritySettings = field(default_factory=SecuritySettings)

    # Brokers give up after 3 s; half a second is left for the way there and back and for a busy loop.
    answer_deadline_seconds: float = 2.5
    # One look-up or commit of the record, and all of them for one answer.
    record_deadline_seconds: float = 1.8

    # Several planes see one death: for each group the one of rank k waits k times this before it acts. Safety never rests on it.
    rank_delay_seconds: float = 0.03

    # How often deadlines are looked at. Also the resolution of the self-pause guard.
    tick_seconds: float = 0.05
    # A group in which nothing is to be done is looked at this seldom, if nothing happens in it.
    rest_seconds: float = 2.0
    # If this process's own event loop stood still for longer than this (two heartbeat intervals), all silences restart.
    pause_threshold_seconds: float = 1.0
    # While stopping, brokers are told for this long to ask another controller (1500), then their connections are closed. They ask
    # every 5 s; where there is no other controller it only delays the restart.
    drain_seconds: float = 0.0
    # A closed connection alone is given this long to come back (a broker reconnects with its next heartbeat).
    reconnect_grace_seconds: float = 0.4
    # A silent master is not given that long; one probe of its address takes at most this.
    probe_seconds: float = 0.2
    # Before a silent master is fenced the other planes have this long to say that they hear it; one that is down costs as much.
    other_planes_deadline_seconds: float = 0.25
    # A minority of the planes is believed for this long of one silence; a majority always is.
    other_planes_patience_seconds: float = 30.0
    # A master left alone on their word is looked at again after this.
    other_planes_pause_seconds: float = 0.05
    # Brokers look for controllers every 3 s: after our start a living one may stay unheard so long.
    broker_rescan_seconds: float = 3.5
    # A broker that has just registered heartbeats every 5 s only, until its start is complete.
    startup_timeout_seconds: float = 12.0
    # Two heartbeats this close together are a rhythm: from then on silence means what the group's spec says.
    regular_heartbeat_seconds: float = 2.0
    # Where neither the group's spec nor the broker's heartbeat says when it counts as silent.
    heartbeat_timeout_seconds: float = 3.0

    # What members hold is written down (marks, safety rule 2) at most this often for each group, unless it is a loss.
    mark_pause_seconds: float = 30.0
    # A broker with an unknown id that was not adopted is proposed again by its heartbeats after this.
    adoption_pause_seconds: float = 10.0
    # A 1001 that knows more than the record is believed if its sender repeats it after this long (`DisputedSets`).
    believed_again_seconds: float = 0.5
    # A master that proposes from another set than the record's for this long has not learnt it by its own poll (2 s).
    set_apart_seconds: float = 2.5
    # A master that has answered its role change and denies it (907) for this long gets an epoch far above.
    denied_master_seconds: float = 1.0
    # An election that a broker asks for waits this long for its first heartbeat, which its request may overtake.
    first_heartbeat_seconds: float = 1.0
    # How long an election of whose SyncStateSet there is no doubt waits for reports made after the loss.
    fresh_report_seconds: float = 0.1
    # An administrator's election waits so long for a change of master under way: its own caller waits 3 s.
    election_waits_seconds: float = 1.0

    # A silent master that no member could replace is left alone for this long, checked after each pause, then fenced as stuck.
    no_successor_patience_seconds: float = 30.0
    no_successor_pause_seconds: float = 0.25

    # 1008 answers when the role change is done, which takes 5 s in the worst case measured.
    role_change_deadline_seconds: float = 6.5
    # The new master is told when the slaves have answered, or after this long: a stuck slave must not hold up the group.
    slaves_first_seconds: float = 0.3
    # The same where the old master may still be alive: a slave needs up to 1 s to notice that its link is to go.
    slaves_first_unfenced_seconds: float = 1.5
    name_server_deadline_seconds: float = 0.5
    small_rpc_deadline_seconds: float = 1.0
    # 1004 keeps telling the old state for this long at most while a change is told.
    hold_back_seconds: float = 7.0
    # A change of another plane that has not moved for this long, by this plane's clock, is taken over; one that is still being
    # quieted, longer than a switchover waits for its slaves.
    takeover_seconds: float = 3.0
    takeover_quieting_seconds: float = 8.0
    # If the plane that carries it out still listens: it may wait for a broker that sleeps over its role change.
    takeover_from_living_seconds: float = 15.0
    # The end of a change is written by itself if nothing else is written for this long.
    end_of_change_seconds: float = 1.0

    # How often is asked about a member that is not heard. A slave that runs all the same is made to register again after a silence
    # of this many heartbeat timeouts, once more after the pause, then after twice that, and so on.
    unheard_check_seconds: float = 1.0
    register_after_timeouts: float = 2.0
    register_pause_seconds: float = 15.0

    # The keeper: a live slave without a link to the master is told again after this long, then after twice as long, and so on.
    link_missing_seconds: float = 0.3
    link_missing_longest_seconds: float = 5.0
    # A settled group's master is asked for its links this often; a living slave without one is an alarm after this long.
    link_check_seconds: float = 5.0
    # The same for a while after a change of roles, and for how long.
    new_links_check_seconds: float = 0.25
    new_links_seconds: float = 10.0
    unlinked_alarm_seconds: float = 5.0
    # A slave without a link is cured by new epochs after this (links.py); once more after the pause, then after twice that.
    cure_after_seconds: float = 20.0
    cure_pause_seconds: float = 600.0
    # A slave without a link for this long, although it was told, is given up: the reconcile plane replaces its process.
    link_given_up_seconds: float = 30.0
    # A master that was refused a member is told the set again once that member has had no link for this long. Longer than a slave's
    # restart takes.
    link_refused_seconds: float = 5.0
    # After a link has stood for this long, what was counted against its slave is forgotten.
    link_trusted_seconds: float = 10.0
    # A member that cannot be asked (it registers before its port is open) is asked again after this long, then twice, up to:
    keeper_longest_retry_seconds: float = 1.0
    # After this many tries in vain it is not starting, and the pauses grow on, up to:
    keeper_patient_tries: int = 16
    keeper_longest_pause_seconds: float = 10.0
    keeper_poll_seconds: float = 0.1
    keeper_slow_poll_seconds: float = 1.0
    # A broker that has refused to acknowledge (minInSyncReplicas 99) for this long was left behind by a switchover that died.
    leftover_fence_seconds: float = 8.0
    # An answer of the API counts as of now for this long: a group closed after it is looked at for longer than that and a request.
    binding_is_now_seconds: float = 1.0
    # And it is looked for this often in a group where all seems well.
    configuration_check_seconds: float = 10.0
    # Nothing is settled while the SyncStateSet lacks a live member; after this long it is looked at less often.
    settling_seconds: float = 10.0
    # An incident is closed as it stands when its members are not in sync after this long: a report is about the long ones.
    incident_deadline_seconds: float = 600.0
    # How long a new master's consume queues and routes are watched; 0: never. A Java broker registers again every 30 s.
    recovery_watch_seconds: float = 35.0
    # How often the canary sends; and after a failure or while the master changes.
    canary_period_seconds: float = 1.0
    canary_retry_seconds: float = 0.1

    # Topics, groups and offsets are compared this often. A slave has had the time to copy after the second (Java: 10 s and a tick).
    metadata_period_seconds: float = 60.0
    metadata_copy_seconds: float = 15.0
    metadata_deadline_seconds: float = 3.0

    # A planned switchover waits this long for the slaves to have everything the old master acknowledged.
    drain_deadline_seconds: float = 3.0
    switchover_deadline_seconds: float = 30.0
    # A plane that stops lets a switchover or failover under way come to its end for this long.
    last_change_seconds: float = 5.0
    # A master whose pod is about to go is moved at once by the plane of rank 0, by the one of rank k after k times this.
    drain_rank_delay_seconds: float = 1.0
    drain_again_seconds: float = 1.0

    def peers_and_own_index(self, own_address: str) -> tuple[tuple[str, ...], int]:
        """Return all planes as 1005 and 1010 list them, and the place of the one at this address."""
        peers = self.peer_addresses or (own_address,)
        return peers, peers.index(own_address) if own_address in peers else 0


def effective_configuration(settings: PlaneSettings, *, advertise_address: str) -> dict[str, str]:
    """Return what 1010 shows: Java's keys, then ours with `brokergroup.`. Of credentials only whether there are any."""
    security, tls = settings.security, settings.security.tls
    wanted = tls.client_certificates if tls is not None else ClientCertificates.NONE
    peers, own = settings.peers_and_own_index(advertise_address)
    heard = heard_address(advertise_address)
    shown: dict[str, str | int | bool] = {
        "bindAddress": settings.listen_host,
        "listenPort": heard.port if heard is not None else settings.listen_port,
        "controllerType": "Kubernetes",
        "controllerDLegerGroup": settings.controller_group,
        "controllerDLegerPeers": ";".join(f"n{index}-{peer}" for index, peer in enumerate(peers)),
        "controllerDLegerSelfId": f"n{own}",
        "scanNotActiveBrokerInterval": _milliseconds(settings.tick_seconds),
        "scanInactiveMasterInterval": _milliseconds(settings.tick_seconds),
        "notifyBrokerRoleChanged": True,
        "isProcessReadEvent": True,
        "enableShutdownGracefully": True,
        "serverChannelMaxIdleTimeSeconds": 120,
        "tls.server.mode": (tls.mode if tls is not None else ServerMode.DISABLED).value,
        "tls.server.need.client.auth": "require" if wanted is ClientCertificates.REQUIRED else wanted.value,
        "tls.enable": security.broker_tls is not None,
        "brokergroup.openAdmin": security.open_admin,
        "brokergroup.adminAccessKeys": security.admin_credentials is not None,
        "brokergroup.brokersWithoutPods": security.brokers_without_pods,
        "brokergroup.maxFrameBytes": security.frame_limits.max_frame_bytes,
        "brokergroup.answerDeadlineMilliseconds": _milliseconds(settings.answer_deadline_seconds),
        "brokergroup.recordDeadlineMilliseconds": _milliseconds(settings.record_deadline_seconds),
        "brokergroup.heartbeatTimeoutMilliseconds": _milliseconds(settings.heartbeat_timeout_seconds),
        "brokergroup.reconnectGraceMilliseconds": _milliseconds(settings.reconnect_grace_seconds),
        "brokergroup.switchoverDeadlineMilliseconds": _milliseconds(settings.switchover_deadline_seconds),
    }
    return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in shown.items()}


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


class AdminCredentialsError(ValueError):
    """The file cannot be used; the message names it and what was expected, never what is in it
    (`test_a_file_that_cannot_be_used_is_named_and_not_quoted`).
    """


class AdminCredentials:
    """The access keys of administrators, from a file that is read again, so that a change of it counts within 2 s.

    The file is a folder with `accessKey` and `secretKey` (a mounted Secret), or JSON of one such pair or a list of them.
    mqadmin signs as one of them if its `conf/tools.yml` says so.
    """

    def __init__(self, credentials: Iterable[Credentials] = (), *, path: Path | None = None) -> None:
        self._path = path
        self._by_key = {one.access_key: one for one in (credentials if path is None else read_credentials(path))}
        self._read_seconds, self._is_broken = time.monotonic(), False

    def get(self, access_key: str) -> Credentials | None:
        now_seconds = time.monotonic()
        if self._path is not None and now_seconds - self._read_seconds >= CHECK_SECONDS:
            self._read_seconds = now_seconds
            try:
                self._by_key = {one.access_key: one for one in read_credentials(self._path)}
                self._is_broken = False
            except AdminCredentialsError as error:
                if not self._is_broken:
                    logger.error("the old administrators stay in force: %s", error)  # noqa: TRY400 - the cause may quote the file
                self._is_broken = True
        return self._by_key.get(access_key)


def read_credentials(path: Path) -> tuple[Credentials, ...]:
    """Return the credentials in the file; raise `AdminCredentialsError` if there are none."""
    try:
        if path.is_dir():
            read = {name: (path / name).read_text(encoding="utf-8").strip() for name in ("accessKey", "secretKey")}
        else:
            read = json.loads(path.read_text(encoding="utf-8"))
        pairs = read if isinstance(read, list) else [read]
        return tuple(Credentials(access_key=pair["accessKey"], secret_key=pair["secretKey"]) for pair in pairs)
    except (OSError, ValueError, RecursionError, TypeError, KeyError) as error:
        # Not "from error": an error of the JSON reader quotes what it read.
        raise AdminCredentialsError(
            f"{path}: expected a folder with the files accessKey and secretKey, or JSON of such pairs"
            f" ({type(error).__name__})"
        ) from None


class AddressBook(Protocol):
    """What the directory knows of an address (host:port)."""

    def is_name_server(self, address: str) -> bool: ...

    def tls_at(self, address: str) -> TlsMode | None: ...


def open_client(security: SecuritySettings, planes: Collection[str], known: AddressBook) -> RemotingClient:
    """Return the plane's client. Raise `TlsConfigurationError` if its TLS files cannot be used.

    TLS is chosen by address: brokers may enforce it while NameServers have none; the other planes speak what this one demands.
    """
    served = security.tls
    demanded = served.files if served is not None and served.mode is ServerMode.ENFORCING else None
    to_planes, to_brokers, to_name_servers = (
        ClientTls(files) if files is not None else None
        for files in (demanded, security.broker_tls, security.name_server_tls)
    )
    own = served.files if served is not None else TlsFiles()
    # Beside spec.tls: a part that enforces it has a certificate of our authority, and before that perhaps RocketMQ's own.
    by_mode = {TlsMode.ENFORCING: ClientTls(own), TlsMode.PERMISSIVE: ClientTls(replace(own, ca=None))}

    def tls_for(address: str) -> ClientTls | None:
        if address in planes:
            return to_planes
        of_all = to_name_servers if to_brokers is not to_name_servers and known.is_name_server(address) else to_brokers
        if of_all is not None or (mode := known.tls_at(address)) is None:
            return of_all
        return by_mode[mode]

    return RemotingClient(tls=tls_for)
