"""Planes that enforce TLS with client certificates: among each other, and what the name in a certificate opens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.controller.directory.group_directory import FixedDirectory
from brokergroup_operator.controller.peers.services import Planes
from brokergroup_operator.controller.settings import PlaneSettings, SecuritySettings, open_client
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import ResponseCode
from rocketmq_remoting.command import request
from rocketmq_remoting.errors import RemotingError
from rocketmq_remoting.tls import ClientCertificates, ClientTls, TlsFiles, TlsMode, TlsServerSettings
from tests.controller.conftest import KEY
from tests.security.certificates import Authority, make_authority
from tests.support.fake_broker import CLUSTER, NAME

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.controller.conftest import StartPlane


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
    client = open_client(settings.security, settings.peer_addresses, FixedDirectory().is_name_server)
    broker = client_of(authority, f"{NAME}.standalone")
    try:
        beat = {"brokerId": 1, "brokerAddr": "10.0.0.1:1", "heartbeatTimeoutMills": 60_000, "epoch": 0, "maxOffset": 0}
        for code, fields in ((1013, {"appliedBrokerId": 1, "registerCheckCode": "10.0.0.1:1;1"}), (904, beat)):
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
        applied = {"appliedBrokerId": 1, "registerCheckCode": "10.0.0.1:1;1"}
        assert await code_of(neighbour, plane.address, 1013, **applied) == ResponseCode.NO_PERMISSION
        assert await code_of(broker, plane.address, 1013, **applied) == ResponseCode.SUCCESS
        for client in (broker, neighbour):
            assert await code_of(client, plane.address, 1011, isCleanLivingBroker="true") == ResponseCode.NO_PERMISSION
        assert await code_of(administrator, plane.address, 1011, isCleanLivingBroker="true") == ResponseCode.SUCCESS
        plain = clients["plain"] = RemotingClient()
        with pytest.raises(RemotingError):
            await code_of(plain, plane.address, 1005)
        nobody = clients["nobody"] = RemotingClient(tls=ClientTls(TlsFiles(ca=authority.certificate)))
        with pytest.raises(RemotingError):
            await code_of(nobody, plane.address, 1005)
    finally:
        for client in clients.values():
            await client.close()


def test_each_kind_of_address_is_dialled_with_its_own_tls(authority: Authority) -> None:
    files = authority.issue("controller")
    directory = FixedDirectory(name_servers=("ns:9876",))
    directory.find(NAME, cluster_name=CLUSTER)

    def dialled(security: SecuritySettings) -> dict[str, bool]:
        client = open_client(security, ("plane:9878",), directory.is_name_server)
        assert callable(client._tls)
        return {address: client._tls(address) is not None for address in ("plane:9878", "ns:9876", "broker:10911")}

    permissive = TlsServerSettings(mode=TlsMode.PERMISSIVE, files=files)
    enforcing = TlsServerSettings(mode=TlsMode.ENFORCING, files=files)
    nothing = {"plane:9878": False, "ns:9876": False, "broker:10911": False}
    assert dialled(SecuritySettings()) == nothing
    assert dialled(SecuritySettings(tls=permissive)) == nothing
    assert dialled(SecuritySettings(tls=enforcing)) == {**nothing, "plane:9878": True}
    assert dialled(SecuritySettings(broker_tls=files)) == {**nothing, "broker:10911": True}
    assert dialled(SecuritySettings(broker_tls=files, name_server_tls=files)) == {
        **nothing,
        "broker:10911": True,
        "ns:9876": True,
    }
