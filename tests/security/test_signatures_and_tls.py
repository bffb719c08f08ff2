"""Brokers that sign with their group's key, the plane's own signatures, and planes that enforce TLS with client certificates."""

from __future__ import annotations

import itertools
import ssl
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from brokergroup_operator.api.brokergroup import Signature
from brokergroup_operator.api.tls_fields import TlsMode as SpecMode
from brokergroup_operator.controller.access.authorization import GUARDED
from brokergroup_operator.controller.directory.group_directory import FixedDirectory
from brokergroup_operator.controller.directory.pods import Peer
from brokergroup_operator.controller.peers.services import Planes
from brokergroup_operator.controller.settings import AdminCredentials, PlaneSettings, SecuritySettings, open_client
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import RemotingCommand, request
from rocketmq_remoting.controller_protocol import SyncStateSetBody
from rocketmq_remoting.errors import RemotingError
from rocketmq_remoting.signature import Credentials, SignatureState, sign_command, verify
from rocketmq_remoting.tls import ClientCertificates, ClientTls, TlsFiles, TlsMode, TlsServerSettings
from tests.controller.world import KEY, STRICT
from tests.security.certificates import Authority, make_authority
from tests.support.fake_broker import CLUSTER, NAME, FakeBroker, FakeGroup, eventually
from tests.support.fake_name_server import FakeNameServer
from tests.support.pods_directory import PodsDirectory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from brokergroup_operator.controller.plane import ControllerPlane
    from controller_core.model import BrokerGroupRecord
    from rocketmq_remoting.connection import RemotingConnection
    from tests.controller.conftest import StartPlane

GROUP = Credentials(access_key="group", secret_key="planted-secret-of-the-group")
ADMIN = Credentials(access_key="root", secret_key="planted-secret-of-the-administrator")
SUCCESS, REFUSED = ResponseCode.SUCCESS, ResponseCode.NO_PERMISSION
_times = itertools.count(1795210522768)


class Outside:
    """A peer at an address outside the pods; it signs with the test's credentials."""

    def __init__(self, plane: ControllerPlane) -> None:
        self.plane = plane
        self.client = RemotingClient(local_host="127.64.14.9")
        self.sent: list[RemotingCommand] = []

    async def send(self, command: RemotingCommand) -> int:
        self.sent.append(command)
        return (await self.client.invoke(self.plane.address, command, timeout_seconds=5)).code

    async def ask(
        self, code: int, signed_as: Credentials | None, *, body: bytes | None = None, **fields: object
    ) -> int:
        return await self.send(asked(code, signed_as, body=body, **fields))

    @property
    def record(self) -> BrokerGroupRecord:
        snapshot = self.plane.snapshot(KEY)
        assert snapshot is not None
        assert snapshot.record is not None
        return snapshot.record


def asked(code: int, signed_as: Credentials | None, *, body: bytes | None = None, **fields: object) -> RemotingCommand:
    named = {"clusterName": CLUSTER, "brokerName": NAME, "invokeTime": next(_times)} | fields
    command = request(code, ext_fields={name: str(value) for name, value in named.items()}, body=body)
    return command if signed_as is None else sign_command(command, signed_as)


async def outside_of(
    start_plane: StartPlane, signature: Signature, *, directory: PodsDirectory | None = None
) -> Outside:
    plane = await start_plane(
        directory=directory
        or PodsDirectory(open_groups=False, signature=signature, credentials=GROUP, heartbeat_timeout_seconds=60.0),
        security=SecuritySettings(admin_credentials=AdminCredentials([ADMIN])),
        pause_threshold_seconds=3600.0,
    )
    return Outside(plane)


@pytest.fixture(params=[Signature.ACCEPTED, Signature.REQUIRED])
async def outside(request: pytest.FixtureRequest, start_plane: StartPlane) -> AsyncIterator[Outside]:
    made = await outside_of(start_plane, request.param)
    yield made
    await made.client.close()


async def born(outside: Outside) -> None:
    """Run a broker's start: an id, a registration, a heartbeat, an election."""
    address: dict[str, Any] = {"brokerId": 1, "brokerAddress": "10.9.9.9:10911", "brokerAddr": "10.9.9.9:10911"}
    assert await outside.ask(1012, GROUP) == SUCCESS
    assert await outside.ask(1013, GROUP, appliedBrokerId=1, registerCheckCode="10.9.9.9:10911;1") == SUCCESS
    assert await outside.ask(1003, GROUP, **address) == SUCCESS
    assert await outside.ask(904, GROUP, **address, epoch=0, maxOffset=0) == SUCCESS
    assert await outside.ask(1002, GROUP, brokerId=1, designateElect="false") == SUCCESS
    assert outside.record.master_broker_id == 1


async def test_the_groups_key_is_heard_and_no_other(outside: Outside) -> None:
    wrong = replace(GROUP, secret_key="guessed")
    for signed_as in (None, wrong, replace(wrong, access_key="somebody"), ADMIN):
        assert await outside.ask(1012, signed_as) == REFUSED
        assert await outside.ask(904, signed_as, brokerId=1) == REFUSED
        assert await outside.ask(1013, signed_as, appliedBrokerId=1, registerCheckCode="x:1;1") == REFUSED
    await born(outside)


async def test_a_signed_request_is_no_use_to_whoever_overheard_it(outside: Outside) -> None:
    """Replay (F35): the record's epochs, check codes and the guard's memory make it ineffective."""
    await born(outside)
    assert await outside.ask(1013, GROUP, appliedBrokerId=2, registerCheckCode="10.9.9.8:10911;1") == SUCCESS
    assert await outside.ask(904, GROUP, brokerId=2, brokerAddr="10.9.9.8:10911", epoch=1, maxOffset=0) == SUCCESS
    both = SyncStateSetBody(frozenset({1, 2}), outside.record.sync_state_set_epoch).encode()
    epoch = outside.record.master_epoch
    assert await outside.ask(1001, GROUP, masterBrokerId=1, masterEpoch=epoch, body=both) == SUCCESS
    before = outside.record
    assert before.sync_state_set == {1, 2}
    attacker = Outside(outside.plane)
    attacker.client = RemotingClient(local_host="127.64.14.66")
    answers = [(command.code, await attacker.send(command)) for command in outside.sent]
    await attacker.client.close()
    assert [answer for code, answer in answers if code in GUARDED] == [REFUSED] * 3
    assert outside.record == before


async def test_a_signature_is_not_carried_to_another_code(outside: Outside) -> None:
    """A signature does not cover the code: with any other code the request lacks fields, or needs an administrator."""
    await born(outside)
    before = outside.record
    overheard = asked(1003, GROUP, brokerId=1, brokerAddress="10.9.9.9:10911")
    for code in (1001, 1002, 1011, 1012):
        await outside.send(msgspec.structs.replace(overheard, code=code))
    assert outside.record == before


async def test_designating_and_cleaning_need_the_administrators_key(outside: Outside) -> None:
    await born(outside)
    for signed_as in (None, GROUP, replace(ADMIN, secret_key="guessed")):
        assert await outside.ask(1002, signed_as, brokerId=1, designateElect="true") == REFUSED
        assert await outside.ask(1011, signed_as, isCleanLivingBroker="true") == REFUSED
    designated = await outside.ask(1002, ADMIN, brokerId=1, designateElect="true")
    assert designated == ResponseCode.CONTROLLER_MASTER_STILL_EXIST
    assert await outside.ask(1011, ADMIN, isCleanLivingBroker="true") == SUCCESS
    snapshot = outside.plane.snapshot(KEY)
    assert snapshot is not None
    assert snapshot.record is None or not snapshot.record.replicas


async def test_required_is_required_of_pods_too(start_plane: StartPlane) -> None:
    """No downgrade: neither the pod's own address nor a plain connection replaces the signature."""
    directory = PodsDirectory(
        open_groups=False, signature=Signature.REQUIRED, credentials=GROUP, heartbeat_timeout_seconds=60.0
    )
    directory.introduce("127.64.14.9", Peer(namespace="standalone", pod_name=f"{NAME}-1", group=KEY))
    pod = await outside_of(start_plane, Signature.REQUIRED, directory=directory)
    for code in (1012, 1003, 904, 1004):
        assert await pod.ask(code, None, brokerId=1) == REFUSED
    assert await pod.ask(1012, GROUP) == SUCCESS
    await pod.client.close()


async def test_no_secret_is_in_what_is_logged_or_answered(
    outside: Outside, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level("DEBUG")
    await born(outside)
    for code in (904, 1001, 1002, 1003, 1010, 1011, 1012, 1013, 1500):
        for signed_as in (GROUP, ADMIN, replace(GROUP, secret_key=ADMIN.secret_key)):
            answer = await outside.client.invoke(
                outside.plane.address, asked(code, signed_as, brokerId="x"), timeout_seconds=5
            )
            assert "planted-secret" not in repr(answer)
    told = caplog.text + "".join(capsys.readouterr())
    assert "request refused" in told
    assert "planted-secret" not in told


# ---- The plane signs every request to brokers that have credentials.

SIGNER = Credentials(access_key="group", secret_key="secret-of-the-group")


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[int, SignatureState]]:
    """The requests to brokers and NameServers, with their signatures."""
    counted: Counter[tuple[int, SignatureState]] = Counter()

    def watch(kind: type[FakeBroker | FakeNameServer]) -> None:
        plain = kind.handle

        def handle(self: object, command: RemotingCommand, connection: RemotingConnection) -> object:
            counted[command.code, verify(command.ext_fields, command.body, SIGNER)] += 1
            return plain(self, command, connection)  # type: ignore[arg-type]

        monkeypatch.setattr(kind, "handle", handle)

    watch(FakeBroker)
    watch(FakeNameServer)
    return counted


async def test_a_failover_and_a_switchover_are_told_with_signatures(
    start_plane: StartPlane, seen: Counter[tuple[int, SignatureState]]
) -> None:
    plane = await start_plane(directory=FixedDirectory(settings=STRICT, credentials=SIGNER))
    fakes = FakeGroup(plane.address)
    brokers = await fakes.three()
    assert (await plane.switch_master(KEY, from_broker_id=1)).to_broker_id in (2, 3)
    await eventually(lambda: len(fakes.master().sync_state_set) == 3, what="all in sync after the switchover")
    before = plane.snapshot(KEY)
    assert before is not None
    await fakes.master().kill()

    def replaced() -> bool:
        snapshot = plane.snapshot(KEY)
        return (
            snapshot is not None and snapshot.writable and snapshot.record != before.record and len(snapshot.live) == 2
        )

    await eventually(replaced, what="another master that was told")
    asked = {code for code, _ in seen}
    assert {
        RequestCode.NOTIFY_BROKER_ROLE_CHANGED,
        RequestCode.EXCHANGE_BROKER_HA_INFO,
        RequestCode.GET_BROKER_HA_STATUS,
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.GET_BROKER_CONFIG,
    } <= asked
    assert {code: state for code, state in seen if state is not SignatureState.VALID} == {}
    assert brokers
    await fakes.stop()


async def test_without_credentials_nothing_is_signed(
    start_plane: StartPlane, seen: Counter[tuple[int, SignatureState]]
) -> None:
    plane = await start_plane(directory=FixedDirectory())
    fakes = FakeGroup(plane.address)
    await fakes.three()
    assert (await plane.switch_master(KEY, from_broker_id=1)).to_broker_id in (2, 3)
    assert seen
    assert {state for _, state in seen} == {SignatureState.UNSIGNED}
    await fakes.stop()


# ---- Planes that enforce TLS with client certificates: among each other, and the rights by a certificate's name.


APPLIED: dict[str, object] = {"appliedBrokerId": 1, "registerCheckCode": "10.0.0.1:1;1"}
BEAT: dict[str, object] = {
    "brokerId": 1, "brokerAddr": "10.0.0.1:1", "heartbeatTimeoutMills": 600_000, "epoch": 0, "maxOffset": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return make_authority(tmp_path_factory.mktemp("authority"))


def enforced(authority: Authority, **more: object) -> SecuritySettings:
    files = authority.issue("controller")
    tls = TlsServerSettings(mode=TlsMode.ENFORCING, files=files, client_certificates=ClientCertificates.REQUIRED)
    return SecuritySettings(tls=tls, **more)  # type: ignore[arg-type]


def client_of(authority: Authority, name: str) -> RemotingClient:
    return RemotingClient(tls=ClientTls(authority.issue(name)))


async def code_of(client: RemotingClient, address: str, code: int, **fields: object) -> int:
    named = {"clusterName": CLUSTER, "brokerName": NAME} | fields
    command = request(code, ext_fields={name: str(value) for name, value in named.items()})
    return (await client.invoke(address, command, timeout_seconds=5)).code


async def test_planes_hear_each_others_testimony_over_tls(
    authority: Authority, start_plane: StartPlane, unused_tcp_port_factory: Callable[[], int]
) -> None:
    addresses = tuple(f"127.0.0.1:{unused_tcp_port_factory()}" for _ in range(2))
    security = enforced(authority)
    for address in addresses:
        await start_plane(listen_port=int(address.rpartition(":")[2]), peer_addresses=addresses, security=security)
    settings = PlaneSettings(peer_addresses=addresses, advertise_address=addresses[0], security=security)
    client = open_client(settings.security, settings.peer_addresses, FixedDirectory())
    broker = client_of(authority, f"{NAME}.standalone")
    try:
        for code, fields in ((1013, APPLIED), (904, BEAT)):
            assert await code_of(broker, addresses[1], code, **fields) == ResponseCode.SUCCESS
        asking = Planes(client, settings)
        assert (await asking.who_hears(KEY, NAME, 1)).hearing == addresses[1:]
        assert (await asking.who_hears(KEY, NAME, 2)).hearing == ()
    finally:
        await client.close()
        await broker.close()


async def test_the_name_in_a_certificate_opens_its_group_and_no_other(
    authority: Authority, start_plane: StartPlane
) -> None:
    plane = await start_plane(
        directory=FixedDirectory(open_groups=False),
        security=enforced(authority, admin_certificate_names=frozenset({"administrator"})),
    )
    clients = {name: client_of(authority, name) for name in (f"{NAME}.standalone", "other.standalone", "administrator")}
    broker, neighbour, administrator = clients.values()
    try:
        assert await code_of(neighbour, plane.address, 1012) == ResponseCode.NO_PERMISSION
        assert await code_of(broker, plane.address, 1012) == ResponseCode.SUCCESS
        assert await code_of(neighbour, plane.address, 1013, **APPLIED) == ResponseCode.NO_PERMISSION
        assert await code_of(broker, plane.address, 1013, **APPLIED) == ResponseCode.SUCCESS
        for client in (broker, neighbour):
            assert await code_of(client, plane.address, 1011, isCleanLivingBroker="true") == ResponseCode.NO_PERMISSION
        assert await code_of(administrator, plane.address, 1011, isCleanLivingBroker="true") == ResponseCode.SUCCESS
        plain = clients["plain"] = RemotingClient()
        with pytest.raises(RemotingError):
            await code_of(plain, plane.address, 1005)
        without_certificate = clients["without certificate"] = RemotingClient(
            tls=ClientTls(TlsFiles(ca=authority.certificate))
        )
        with pytest.raises(RemotingError):
            await code_of(without_certificate, plane.address, 1005)
    finally:
        for client in clients.values():
            await client.close()


@pytest.mark.parametrize("asked", ClientCertificates)
async def test_the_plane_knows_until_when_the_certificate_holds_that_a_member_shows(
    authority: Authority, start_plane: StartPlane, asked: ClientCertificates
) -> None:
    """Of the connection of its last heartbeat; a plane that asks for no certificate knows of none."""
    files = authority.issue("controller")
    tls = TlsServerSettings(mode=TlsMode.ENFORCING, files=files, client_certificates=asked)
    plane = await start_plane(security=SecuritySettings(tls=tls))

    def lives_for_days() -> list[float]:
        snapshot = plane.snapshot(KEY)
        assert snapshot is not None
        assert snapshot.live.keys() == {1}
        return [(one.not_after - one.not_before) / 86_400 for one in snapshot.certificates.values()]

    for days in (30, 60):
        client = RemotingClient(tls=ClientTls(authority.issue(f"{NAME}.standalone", days=days)))
        register = ((1013, APPLIED), (1003, {"brokerId": 1, "brokerAddress": "10.0.0.1:1"})) if days == 30 else ()
        for code, fields in (*register, (904, BEAT)):
            assert await code_of(client, plane.address, code, **fields) == SUCCESS
        assert lives_for_days() == ([] if asked is ClientCertificates.NONE else [days])
        await client.close()


def test_each_kind_of_address_is_dialled_with_its_own_tls(authority: Authority) -> None:
    files = authority.issue("controller")
    directory = FixedDirectory(name_servers=("ns:9876",))
    directory.find(NAME, cluster_name=CLUSTER)

    def dialled(security: SecuritySettings) -> dict[str, bool]:
        client = open_client(security, ("plane:9878",), directory)
        assert callable(client._tls)
        return {address: client._tls(address) is not None for address in ("plane:9878", "ns:9876", "broker:10911")}

    permissive = TlsServerSettings(mode=TlsMode.PERMISSIVE, files=files)
    enforcing = TlsServerSettings(mode=TlsMode.ENFORCING, files=files)
    nothing = {"plane:9878": False, "ns:9876": False, "broker:10911": False}
    assert dialled(SecuritySettings()) == nothing
    assert dialled(SecuritySettings(tls=permissive)) == nothing
    assert dialled(SecuritySettings(tls=enforcing)) == {**nothing, "plane:9878": True}
    assert dialled(SecuritySettings(broker_tls=files)) == {**nothing, "broker:10911": True}
    both = SecuritySettings(broker_tls=files, name_server_tls=files)
    assert dialled(both) == {**nothing, "broker:10911": True, "ns:9876": True}


def test_an_address_is_dialled_as_its_mode_says(authority: Authority) -> None:
    """Verified only where every part has a certificate of ours; the flags for all addresses go first."""
    files = authority.issue("controller")
    served = TlsServerSettings(mode=TlsMode.PERMISSIVE, files=files)

    def verifies(mode: SpecMode | None, **settings: Any) -> ssl.VerifyMode | None:
        directory = FixedDirectory(name_servers=("ns:9876",), tls=mode)
        client = open_client(SecuritySettings(**settings), ("plane:9878",), directory)
        assert callable(client._tls)
        assert client._tls("plane:9878") is None
        found = [client._tls(address) for address in ("ns:9876", "broker:10911")]
        [tls] = {None if one is None else one.context.get(0.0).verify_mode for one in found}
        return tls

    assert verifies(None, tls=served) is None
    assert verifies(SpecMode.PERMISSIVE, tls=served) == ssl.CERT_NONE
    assert verifies(SpecMode.ENFORCING, tls=served) == ssl.CERT_REQUIRED
    assert verifies(SpecMode.PERMISSIVE, tls=served, broker_tls=files, name_server_tls=files) == ssl.CERT_REQUIRED
    # Without files of its own it has no authority to verify by.
    assert verifies(SpecMode.ENFORCING) == ssl.CERT_NONE
