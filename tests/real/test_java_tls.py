"""spec.tls with Java 5.5.0: from no TLS to enforced TLS under load, a failover on TLS alone, a renewed certificate."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.api.proxy_fields import GRPC_PORT, REMOTING_PORT
from brokergroup_operator.api.tls_fields import TlsMode
from brokergroup_operator.api.tls_steps import trust_file
from brokergroup_operator.demo.client import read_keys
from brokergroup_operator.reconcile.render.tls import trust_files
from rocketmq_remoting.codes import RequestCode
from rocketmq_remoting.command import request
from rocketmq_remoting.errors import RemotingError
from rocketmq_remoting.serialization import load_json
from rocketmq_remoting.tls import ClientTls, TlsFiles
from tests.interop.proxy import GROUP, TOPIC, GrpcClient
from tests.real.parts.java_producer import start_producer
from tests.real.tls_cluster import (
    ANSWER_SECONDS,
    BROKER_PORT,
    MEMBERS,
    NAME_SERVER,
    PORTS,
    PROXY,
    MountedSecret,
    Part,
    TlsCluster,
    issue,
    tls_cluster,
)
from tests.security.certificates import make_authority
from tests.support.java_rig import eventually, in_sync, record_of
from tests.support.one_request import answer_to

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from tests.real.parts.java_producer import JavaProducer
    from tests.security.certificates import Authority

pytestmark = [
    pytest.mark.real("java", "rocketmq", "rocketmq-proxy", "rocketmq-python-client", "netns"),
    pytest.mark.timeout(600),
]
NUMBERED = "numbered"
QUEUES = 4
SHARE = 50
CLIENT_SECONDS = 120.0
RETRY_MILLISECONDS = 60_000
# Of Java, of a certificate that no authority of its trust file has signed.
REFUSED = "sun.security.validator.ValidatorException"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[TlsCluster]:
    async with tls_cluster(tmp_path) as cluster:
        yield cluster


@pytest.fixture
def producers(cluster: TlsCluster) -> Iterator[list[JavaProducer]]:
    """Those that run; each is stopped at the end."""
    started: list[JavaProducer] = []
    yield started
    for one in started:
        one.stop()


def java_client(cluster: TlsCluster, name: str, *flags: str) -> JavaProducer:
    """Java's own client. It connects with TLS, and accepts any certificate unless flags say otherwise."""
    return start_producer(
        cluster.folder / name,
        name_server_address=cluster.name_server,
        topic=NUMBERED,
        workers=2,
        pause_ms=20,
        retry_for_ms=RETRY_MILLISECONDS,
        flags=("-Dtls.enable=true", *flags),
    )


async def sends_more(cluster: TlsCluster, producer: JavaProducer, many: int = 100) -> None:
    target = len(producer.acknowledged()) + many
    await eventually(lambda: len(producer.acknowledged()) >= target, f"{many} more acknowledgements\n{cluster.logs()}")


async def step_to(cluster: TlsCluster, mode: TlsMode) -> None:
    """A rolling restart with this mode, the NameServer first, the master last; the slave copies topics in between."""
    await cluster.restarted(NAME_SERVER, mode)
    cluster.expects(mode)
    for _ in MEMBERS:
        await cluster.until_in_sync()
        await cluster.restarted(cluster.name_of(cluster.slave()), mode)
        await cluster.until_in_sync()
        topic = f"made-at-{mode}-{cluster.name_of(cluster.slave())}"
        await cluster.make_topic(topic)
        await cluster.slave_has_copied(topic)
        await cluster.switch_over()
    await cluster.until_in_sync()
    await cluster.registered()


async def answers_plainly(part: Part, port: int) -> bool:
    with contextlib.suppress(RemotingError):
        command = request(RequestCode.GET_BROKER_CLUSTER_INFO)
        await answer_to(f"{part.address.ip}:{port}", command, timeout_seconds=ANSWER_SECONDS)
        return True
    return False


async def test_a_running_cluster_changes_to_enforced_tls_and_renews_its_certificate_without_a_loss(
    cluster: TlsCluster, producers: list[JavaProducer]
) -> None:
    for name in (NAME_SERVER, *map(str, MEMBERS)):
        await cluster.listening(name, None)
    await cluster.until_in_sync()
    await cluster.make_topic(NUMBERED)
    await cluster.slave_has_copied(NUMBERED)
    await cluster.registered()
    producer = java_client(cluster, "producer")
    producers.append(producer)
    await sends_more(cluster, producer)

    await step_to(cluster, TlsMode.PERMISSIVE)
    await sends_more(cluster, producer)
    assert await answers_plainly(cluster.master(), PORTS["1"][0])
    await step_to(cluster, TlsMode.ENFORCING)
    await sends_more(cluster, producer)
    proxy = await cluster.listening(PROXY, TlsMode.ENFORCING)
    for name, part in cluster.found.items():
        assert not [port for port in PORTS[name] if await answers_plainly(part, port)], f"{name} answers without TLS"

    await cluster.make_topic(TOPIC)
    await make_consumer_group(cluster)
    await cluster.slave_has_copied(TOPIC)
    async with grpc_client(cluster, "client", proxy) as client:
        await produced(client, 0)
        await check_a_failover(cluster, producer)
        await produced(client, SHARE)
        await check_a_renewal(cluster, producer)
        await produced(client, 2 * SHARE)
        # A client that connects now sees the new certificate.
        async with grpc_client(cluster, "later", proxy) as later:
            assert len(await received(later, 0, 3 * SHARE)) == 3 * SHARE

    await asyncio.to_thread(producer.stop)
    assert producer.failed() == []
    verified = ClientTls(TlsFiles(ca=cluster.authority.certificate))
    kept = await read_keys(cluster.master().endpoint, NUMBERED, QUEUES, tls=verified)
    assert {one["key"] for one in producer.acknowledged()} <= kept


async def test_the_authority_changes_wholly_under_load_and_the_old_one_is_refused_at_the_end(
    cluster: TlsCluster, producers: list[JavaProducer]
) -> None:
    """As docs/concepts/security.md says it: both authorities, then the certificates, then the new authority alone."""
    old, new = cluster.authority, make_authority(cluster.folder / "new-authority")
    cluster.bundle = alone = old.certificate.read_text(encoding="utf-8")
    coming = new.certificate.read_text(encoding="utf-8")
    await cluster.decided()
    cluster.expects(TlsMode.ENFORCING)
    for name in (NAME_SERVER, *map(str, MEMBERS), PROXY):
        await cluster.listening(name, TlsMode.ENFORCING)
    await cluster.until_in_sync()
    await cluster.make_topic(NUMBERED)
    await cluster.slave_has_copied(NUMBERED)
    await cluster.registered()
    producer = java_client(cluster, "producer")
    producers.append(producer)
    await sends_more(cluster, producer)
    assert cluster.trusted == {trust_file(alone)}

    # Too early: every server still shows a certificate of the old one, and the operator does not trust the new one itself.
    cluster.bundle = coming
    assert "the operator itself does not trust" in (await cluster.decided()).why_held
    cluster.operator_authorities.write_text(alone + coming, encoding="utf-8")
    held = (await cluster.decided()).why_held
    assert all(part.endpoint in held for name, part in cluster.found.items() if name != PROXY), held
    assert trust_files(cluster.now) == {trust_file(alone): alone}

    await authorities_are(cluster, alone + coming)
    await sends_more(cluster, producer)

    cluster.authority = new
    cluster.renew()
    its_own = new.issue("controller")
    for before, after in zip(controller_files(old), (its_own.certificate, its_own.key), strict=True):
        assert after is not None
        shutil.copyfile(after, before)
    for name, part in cluster.found.items():
        for port in PORTS[name]:
            await shows(cluster, part, port)
    # Connections of the parts among each other are made anew under it.
    await cluster.switch_over()
    await cluster.until_in_sync()
    await cluster.registered()
    await sends_more(cluster, producer)

    await authorities_are(cluster, coming)
    cluster.operator_authorities.write_text(coming, encoding="utf-8")
    await cluster.switch_over()
    await cluster.until_in_sync()
    await sends_more(cluster, producer)
    await asyncio.to_thread(producer.stop)
    assert producer.failed() == []
    verified = ClientTls(TlsFiles(ca=new.certificate))
    kept = await read_keys(cluster.master().endpoint, NUMBERED, QUEUES, tls=verified)
    assert {one["key"] for one in producer.acknowledged()} <= kept

    # A NameServer of the old authority: brokers that were restarted for the new one alone refuse it.
    cluster.secret = MountedSecret(cluster.folder / "old-secret")
    cluster.secret.write(issue(old, cluster.addresses))
    assert not [name for name in map(str, MEMBERS) if REFUSED in cluster.program_logs(name)]
    await cluster.restarted(NAME_SERVER, TlsMode.ENFORCING)
    await eventually(
        lambda: all(REFUSED in cluster.program_logs(name) for name in map(str, MEMBERS)),
        "both brokers refuse it",
        every_seconds=0.5,
    )
    answer = await cluster.ask(cluster.found[NAME_SERVER], RequestCode.GET_BROKER_CLUSTER_INFO)
    assert not load_json(answer.body or b"{}")["brokerAddrTable"]


def controller_files(authority: Authority) -> tuple[Path, Path]:
    """Of the certificate and the key that the operator serves, as they were made."""
    return authority.folder / "controller.crt", authority.folder / "controller.key"


async def authorities_are(cluster: TlsCluster, bundle: str) -> None:
    """Each part is made anew for this bundle in its turn, as the operator decides before each of them."""
    cluster.bundle = bundle
    for name in (NAME_SERVER, PROXY):
        await taken(cluster, name)
    for _ in MEMBERS:
        await cluster.until_in_sync()
        await taken(cluster, cluster.name_of(cluster.slave()))
        await cluster.until_in_sync()
        topic = f"made-at-{trust_file(bundle)[:12]}-{cluster.name_of(cluster.slave())}"
        await cluster.make_topic(topic)
        await cluster.slave_has_copied(topic)
        await cluster.switch_over()
    await cluster.until_in_sync()
    await cluster.registered()
    assert cluster.trusted == {trust_file(bundle)}


async def taken(cluster: TlsCluster, name: str) -> None:
    why = (await cluster.decided()).why_held
    assert not why, why
    await cluster.restarted(name, TlsMode.ENFORCING)


async def check_a_failover(cluster: TlsCluster, producer: JavaProducer) -> None:
    before, killed = record_of(cluster.plane), cluster.master()
    name = cluster.name_of(killed)
    killed.process.kill()
    await eventually(
        lambda: record_of(cluster.plane).granted_master_id not in (None, before.master_broker_id),
        f"the other one is master\n{cluster.logs()}",
    )
    await sends_more(cluster, producer)
    await cluster.listening(name, TlsMode.ENFORCING)
    await cluster.until_in_sync()


async def check_a_renewal(cluster: TlsCluster, producer: JavaProducer) -> None:
    """Every port of every part shows the new certificate to new connections, in the same process; old connections stay."""
    pids = {name: part.process.pid for name, part in cluster.found.items()}
    before = cluster.secret.serial
    cluster.renew()
    assert cluster.secret.serial != before
    for name, part in cluster.found.items():
        for port in PORTS[name]:
            await shows(cluster, part, port)
    await sends_more(cluster, producer)
    # Connections of the parts among each other are made anew under it.
    await cluster.switch_over()
    await cluster.until_in_sync()
    await cluster.registered()
    await sends_more(cluster, producer)
    assert {name: part.process.pid for name, part in cluster.found.items()} == pids
    assert all(part.process.process.poll() is None for part in cluster.found.values())


async def shows(cluster: TlsCluster, part: Part, port: int) -> None:
    """Wait until a new connection to this port is shown the certificate that the Secret has now."""
    asked = Part(part.address, port, part.process)

    async def shown() -> bool:
        with contextlib.suppress(OSError):
            return await asyncio.to_thread(asked.served_serial) == cluster.secret.serial
        return False

    await eventually(shown, f"{cluster.name_of(part)} shows it at {port}\n{cluster.logs()}", every_seconds=0.2)


async def make_consumer_group(cluster: TlsCluster) -> None:
    body = json.dumps({"groupName": GROUP}).encode()
    answer = await cluster.ask(cluster.master(), RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    assert answer.code == 0, answer


@asynccontextmanager
async def grpc_client(cluster: TlsCluster, name: str, proxy: Part) -> AsyncIterator[GrpcClient]:
    """RocketMQ's gRPC client; it verifies the Proxy's certificate, and the address in it."""
    folder = cluster.folder / f"grpc-{name}"
    folder.mkdir()
    client = GrpcClient(folder, proxy.endpoint, authority=cluster.authority.certificate)
    try:
        yield client
    finally:
        client.kill()


async def produced(client: GrpcClient, first: int) -> None:
    async with asyncio.timeout(CLIENT_SECONDS):
        answer = await client.ask("produce", first, SHARE)
    assert answer.get("sent") == SHARE, answer


async def received(client: GrpcClient, first: int, many: int) -> set[str]:
    async with asyncio.timeout(CLIENT_SECONDS):
        answer = await client.ask("consume", first, many, int(CLIENT_SECONDS) // 2)
    return set(answer["keys"])


async def test_the_proxy_in_a_brokers_process_serves_and_renews_the_same_certificate(cluster: TlsCluster) -> None:
    """Its settings override the JVM's, also those of the broker in its process: neither may fall back to the test certificate."""
    cluster.further["localProxy"] = {}
    cluster.expects(TlsMode.ENFORCING)
    await cluster.listening(NAME_SERVER, TlsMode.ENFORCING)
    await cluster.listening("1", TlsMode.ENFORCING)
    await eventually(lambda: in_sync(cluster.plane, 1), f"a master\n{cluster.logs()}")
    member = cluster.master()
    ports = (BROKER_PORT, GRPC_PORT, REMOTING_PORT)
    for port in ports:
        await shows(cluster, member, port)
        assert not await answers_plainly(member, port)
    await cluster.make_topic(TOPIC)
    await make_consumer_group(cluster)
    proxy = Part(member.address, GRPC_PORT, member.process)
    async with grpc_client(cluster, "client", proxy) as client:
        await produced(client, 0)
        cluster.renew()
        for port in ports:
            await shows(cluster, member, port)
        await produced(client, SHARE)
    async with grpc_client(cluster, "later", proxy) as later:
        assert len(await received(later, 0, 2 * SHARE)) == 2 * SHARE
    assert member.process.process.poll() is None


async def test_a_broker_that_enforces_registers_at_no_name_server_of_another_authority(cluster: TlsCluster) -> None:
    cluster.expects(TlsMode.ENFORCING)
    others = make_authority(cluster.folder / "others")
    ours = cluster.secret
    cluster.secret = MountedSecret(cluster.folder / "other-secret")
    cluster.secret.write(issue(others, cluster.addresses))
    await cluster.listening(NAME_SERVER, TlsMode.ENFORCING)
    cluster.secret = ours
    await cluster.listening("1", TlsMode.ENFORCING)
    await eventually(
        lambda: in_sync(cluster.plane, 1), f"heard by the operator, which is of its authority\n{cluster.logs()}"
    )
    await eventually(
        lambda: REFUSED in cluster.program_logs("1"), "the broker's log has the refusal", every_seconds=0.5
    )
    answer = await cluster.ask(cluster.found[NAME_SERVER], RequestCode.GET_BROKER_CLUSTER_INFO)
    assert not load_json(answer.body or b"{}")["brokerAddrTable"]
