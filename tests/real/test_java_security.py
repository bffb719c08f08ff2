"""Unmodified Java 5.5.0 programs that speak TLS and sign what they send, at our controller: enforcing, required, closed."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.api.brokergroup import BrokerGroupSpec, SecuritySpec, Signature
from brokergroup_operator.api.pod_fields import LocalReference
from brokergroup_operator.controller.directory.group_directory import FixedDirectory
from brokergroup_operator.controller.plane import ControllerPlane
from brokergroup_operator.controller.settings import AdminCredentials, PlaneSettings, SecuritySettings
from brokergroup_operator.observe.observer import Observer
from brokergroup_operator.reconcile.render import certificate
from brokergroup_operator.reconcile.see.served_certificates import VerifiedHandshake
from brokergroup_operator.records.memory import MemoryRecordStore
from controller_core.settings import ControllerSettings
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode, ResponseCode
from rocketmq_remoting.command import request
from rocketmq_remoting.controller_protocol import SyncStateSetBody
from rocketmq_remoting.errors import RemotingError
from rocketmq_remoting.serialization import decode_properties
from rocketmq_remoting.signature import Credentials
from rocketmq_remoting.tls import ClientCertificates, ClientTls, TlsFiles, TlsMode, TlsServerSettings, Validity
from tests.real.parts import mqadmin_output
from tests.security.certificates import make_authority, tls_flags
from tests.support.java_rig import KEY, eventually, in_sync, plane_beside, record_of
from tests.support.one_request import answer_to

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from controller_core.model import BrokerGroupRecord
    from tests.support.java_rig import JavaRig

pytestmark = [pytest.mark.real("java", "rocketmq"), pytest.mark.timeout(420)]

GROUP = Credentials(access_key="broker-a", secret_key="planted-group-secret-1")
ADMIN = Credentials(access_key="administrator", secret_key="planted-admin-secret-2")


class Answers(Observer):
    """Records requests and answers."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []

    def request_answered(self, request_code: int, response_code: int, duration_seconds: float | None = None) -> None:
        self.seen.append((request_code, response_code))

    def refused(self) -> list[int]:
        return [asked for asked, answered in self.seen if answered == ResponseCode.NO_PERMISSION]


def plane_with(
    security: SecuritySettings, *, name_server: str, answers: Answers | None = None, **group: Any
) -> AbstractAsyncContextManager[ControllerPlane]:
    group |= {"heartbeat_timeout_seconds": 5.0}
    return plane_beside(name_server, ControllerSettings(), observer=answers, plane={"security": security}, **group)


async def test_brokers_live_and_fail_over_on_tls_alone(rig: JavaRig, tmp_path: Path) -> None:
    """Enforced on both sides with client certificates required: register, elect, heartbeat, be told of a failover; mqadmin too."""
    authority = make_authority(tmp_path / "certificates")
    controller, brokers = authority.issue("controller"), authority.issue("broker-a.standalone")
    rig.flags = tls_flags(brokers)
    security = SecuritySettings(
        tls=TlsServerSettings(
            mode=TlsMode.ENFORCING, files=controller, client_certificates=ClientCertificates.REQUIRED
        ),
        broker_tls=controller,
        name_server_tls=controller,
    )
    name_server = rig.start_name_server()
    # The groups are closed: what lets these brokers in, none of them a pod, is the name in their certificate.
    async with plane_with(security, name_server=name_server.address, open_groups=False) as plane:
        await rig.start_pair(plane)
        before = record_of(plane)

        with pytest.raises(RemotingError):
            await answer_to(plane.address, request(1005))
        without_certificate = RemotingClient(tls=ClientTls(TlsFiles(ca=authority.certificate)))
        with pytest.raises(RemotingError):
            await without_certificate.invoke(plane.address, request(1005), timeout_seconds=5)
        await without_certificate.close()

        printed = await asyncio.to_thread(rig.mqadmin, "getSyncStateSet", "-a", plane.address, "-b", KEY.name)
        [shown] = mqadmin_output.sync_state_sets(printed)
        assert {replica.broker_id for replica in shown.in_sync} == {1, 2}

        await rig.kill_master(plane)
        await eventually(lambda: in_sync(plane, 1), "the other is master")
        assert record_of(plane).master_epoch > before.master_epoch


async def test_the_arguments_of_a_groups_certificate_let_java_brokers_in(rig: JavaRig, tmp_path: Path) -> None:
    """Only with the operator's rendered arguments: the NameServer is unchanged, and no other trust is configured."""
    authority = make_authority(tmp_path / "certificates")
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    mount(authority.issue("broker-a.standalone"), mounted)
    security = SecuritySettings(
        tls=TlsServerSettings(
            mode=TlsMode.ENFORCING,
            files=authority.issue("controller"),
            client_certificates=ClientCertificates.REQUIRED,
        )
    )
    name_server = rig.start_name_server()
    rig.flags = arguments_with(mounted)
    async with plane_with(security, name_server=name_server.address, open_groups=False) as plane:
        await rig.start_pair(plane)


async def test_a_broker_serves_a_renewed_certificate_at_once_and_shows_it_after_its_restart(
    rig: JavaRig, tmp_path: Path
) -> None:
    """What the operator goes by: the certificate of the broker's connection is that of its start, its port's is the present one."""
    authority = make_authority(tmp_path / "certificates")
    mounted = tmp_path / "mounted"
    mounted.mkdir()

    mount(authority.issue("broker-a.standalone", days=30), mounted)
    # RocketMQ's default; the rig's programs serve none otherwise.
    rig.flags = (*arguments_with(mounted), "-Dtls.server.mode=permissive")
    files = authority.issue("controller")
    tls = TlsServerSettings(mode=TlsMode.ENFORCING, files=files, client_certificates=ClientCertificates.REQUIRED)
    name_server, handshake = rig.start_name_server(), VerifiedHandshake(authority.certificate)
    async with plane_with(SecuritySettings(tls=tls), name_server=name_server.address, open_groups=False) as plane:

        def shown() -> list[float]:
            snapshot = plane.snapshot(KEY)
            return [] if snapshot is None else [days_of(one) for one in snapshot.certificates.values()]

        async def served(days: float) -> bool:
            found = await handshake(record_of(plane).replicas[1].address)
            return found is not None and days_of(found) == days

        rig.start_broker("one", controllers=plane.address)
        await eventually(lambda: shown() == [30], "the broker is heard")
        await eventually(lambda: served(30), "its port serves the certificate of its start")
        mount(authority.issue("broker-a.standalone", days=60), mounted)
        await eventually(lambda: served(60), "its port serves the renewed one")
        assert shown() == [30]
        rig.kill_at(record_of(plane).replicas[1].address)
        await eventually(lambda: shown() == [], "it is gone")
        rig.start_broker("one", controllers=plane.address)
        await eventually(lambda: shown() == [60], "its next process shows the renewed one")


def mount(files: TlsFiles, folder: Path) -> None:
    """Each file is replaced whole, as the kubelet does."""
    for name, path in ((names.CERTIFICATE_FILE, files.certificate), (names.CERTIFICATE_KEY_FILE, files.key)):
        assert path is not None
        shutil.copyfile(path, folder / f"{name}.new")
        (folder / f"{name}.new").replace(folder / name)


def arguments_with(mounted: Path) -> tuple[str, ...]:
    """The operator's rendered arguments for a JVM, with this folder in place of the mounted one."""
    spec = BrokerGroupSpec(security=SecuritySpec(certificate_secret_ref=LocalReference(name="orders-certificate")))
    filled_in = f"${certificate.VARIABLE}"
    return tuple(text.replace(filled_in, str(mounted)).replace('"', "") for text in certificate.java_arguments(spec))


def days_of(life: Validity) -> float:
    return (life.not_after - life.not_before) / 86_400


async def test_brokers_with_acl_hear_our_signed_requests_and_nobody_elses(
    rig: JavaRig, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """A broker with ``authenticationEnabled`` signs what it sends and refuses what is unsigned, as the Java controller's 1008.

    Our side requires signatures. Then mqadmin, with the administrator's key and without.
    """
    answers = Answers()
    security = SecuritySettings(admin_credentials=AdminCredentials([ADMIN]), configuration_readable=True)
    name_server = rig.start_name_server()
    group = {"signature": Signature.REQUIRED, "credentials": GROUP, "open_groups": False}
    async with plane_with(security, name_server=name_server.address, answers=answers, **group) as plane:
        await rig.start_pair(plane, **acl_of(GROUP))
        assert answers.refused() == []

        slave = next(one for one in (1, 2) if one != record_of(plane).master_broker_id)
        address = record_of(plane).replicas[slave].address
        assert await notified(address, None, record_of(plane)) == ResponseCode.NO_PERMISSION
        assert await notified(address, ADMIN, record_of(plane)) == ResponseCode.NO_PERMISSION
        assert await notified(address, GROUP, record_of(plane)) == ResponseCode.SUCCESS

        wanted = ("electMaster", "-a", plane.address, "-b", str(slave), "-bn", KEY.name, "-c", "DefaultCluster")
        refused = await asyncio.to_thread(rig.mqadmin, *wanted)
        assert "CODE: 16" in refused, refused
        assert record_of(plane).master_broker_id != slave
        told = await asyncio.to_thread(rig.mqadmin, *wanted, signed_as=ADMIN)
        assert record_of(plane).granted_master_id == slave, told
        await eventually(lambda: in_sync(plane, 2), "both in sync under the new master")

        await check_configuration(rig, plane)
        everything = caplog.text + "".join(capsys.readouterr())
    for secret in (GROUP.secret_key, ADMIN.secret_key):
        assert secret not in everything


async def check_configuration(rig: JavaRig, plane: ControllerPlane) -> None:
    """getControllerConfig prints what is in force; updateControllerConfig is refused, also to the administrator."""
    shown = await asyncio.to_thread(rig.mqadmin, "getControllerConfig", "-a", plane.address, signed_as=ADMIN)
    lines = {line.split("=", 1)[0].strip(): line.split("=", 1)[1].strip() for line in shown.splitlines() if "=" in line}
    assert lines["listenPort"] == plane.address.rpartition(":")[2], shown
    assert lines["tls.server.mode"] == "disabled", shown
    answer = await answer_to(plane.address, request(RequestCode.GET_CONTROLLER_CONFIG))
    assert decode_properties(answer.body).items() <= lines.items()
    update = ("updateControllerConfig", "-a", plane.address, "-k", "enableElectUncleanMaster", "-v", "true")
    assert "CODE: 16" in await asyncio.to_thread(rig.mqadmin, *update, signed_as=ADMIN)


def acl_of(credentials: Credentials) -> dict[str, str | int]:
    """Return a broker's ACL 2.0 settings: its identity, allowed users, and the users' folder."""
    package = "org.apache.rocketmq.auth.authentication.provider"
    return {
        "authenticationEnabled": "true",
        "authenticationProvider": f"{package}.DefaultAuthenticationProvider",
        "authenticationMetadataProvider": f"{package}.LocalAuthenticationMetadataProvider",
        "initAuthenticationUser": f'{{"username":"{credentials.access_key}","password":"{credentials.secret_key}"}}',
        "innerClientAuthenticationCredentials": (
            f'{{"accessKey":"{credentials.access_key}","secretKey":"{credentials.secret_key}"}}'
        ),
    }


async def notified(address: str, credentials: Credentials | None, record: BrokerGroupRecord) -> int:
    """The broker's answer to a 1008 that says nothing new."""
    master = record.master_broker_id or 0
    fields = {
        "masterAddress": record.replicas[master].address,
        "masterBrokerId": str(master),
        "masterEpoch": str(record.master_epoch),
        "syncStateSetEpoch": str(record.sync_state_set_epoch),
    }
    body = SyncStateSetBody(record.sync_state_set, record.sync_state_set_epoch).encode()
    command = request(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, ext_fields=fields, body=body)
    return (await answer_to(address, command, signed_as=credentials)).code


async def test_a_broker_leaves_a_draining_controller_for_the_other_one(rig: JavaRig) -> None:
    """1500 to a real broker: no master change, no id change, no missing heartbeat; its requests go to the second address."""
    name_server = rig.start_name_server()
    store = MemoryRecordStore()
    first_answers, second_answers = Answers(), Answers()
    planes = [
        ControllerPlane(
            store=store,
            directory=FixedDirectory(name_servers=(name_server.address,), heartbeat_timeout_seconds=10.0),
            settings=PlaneSettings(listen_host="127.0.0.1", listen_port=0, drain_seconds=4.0),
            observer=answers,
        )
        for answers in (first_answers, second_answers)
    ]
    first, second = planes
    for plane in planes:
        await plane.start()
    addresses = f"{first.address};{second.address}"
    rig.start_broker("one", controllers=addresses, syncControllerMetadataPeriod=1000)
    try:
        await eventually(lambda: in_sync(first, 1) or in_sync(second, 1), "a master")
        asked = RequestCode.CONTROLLER_GET_REPLICA_INFO
        polled = (asked, ResponseCode.SUCCESS)
        both = ((first, first_answers), (second, second_answers))
        leader, leaders_answers = await eventually(
            lambda: next(((plane, answers) for plane, answers in both if polled in answers.seen), None),
            "the broker polls one of them",
        )
        [(other, others_answers)] = [(plane, answers) for plane, answers in both if plane is not leader]
        await eventually(lambda: in_sync(other, 1), "the other hears it too")
        before = record_of(other)
        others_answers.seen.clear()
        leaders_answers.seen.clear()
        await leader.stop()
        assert [code for code, answer in leaders_answers.seen if answer == ResponseCode.GO_AWAY], leaders_answers.seen
        # It logs on a thread of its own.
        await eventually(lambda: "Receive go away" in rig.log_of("one"), "the broker logs that it was sent away")
        await eventually(lambda: polled in others_answers.seen, "the broker polls the other one")
        after = record_of(other)
        assert (after.master_broker_id, after.master_epoch) == (before.master_broker_id, before.master_epoch)
        snapshot = other.snapshot(KEY)
        assert snapshot is not None
        assert snapshot.live.keys() == {1}
        assert others_answers.refused() == []
    finally:
        for plane in planes:
            await plane.stop()
