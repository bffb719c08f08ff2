"""Another authority for a group of Java brokers that verify each other, by a running operator with the chart's rights, under load.

The test changes only what a user changes: the ConfigMap of spec.tls.trustBundleRef, the Secret, the operator's own files. It also
writes the Secret's new files into the pods that mount it, as a kubelet does and the process kubelet does not. The NameServer is
the test's own, as a BrokerGroup has it.
"""

from __future__ import annotations

import asyncio
import base64
import os
import shutil
import ssl
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
import yaml

from brokergroup_operator.api import names
from brokergroup_operator.api.pod_fields import LocalReference
from brokergroup_operator.api.tls_fields import TlsMode, TlsSpec
from brokergroup_operator.api.tls_steps import made_of, trust_file
from brokergroup_operator.demo.client import read_keys
from brokergroup_operator.kube.client import PatchType
from brokergroup_operator.kube.resources import CONFIG_MAPS, PODS, SECRETS
from brokergroup_operator.reconcile.render import tls
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode
from rocketmq_remoting.command import request
from rocketmq_remoting.tls import ClientTls, TlsFiles
from tests.e2e.conftest import JAVA_MARKS
from tests.e2e.house import NAMESPACE, WholeGroup, whole_group
from tests.e2e.java_house import EXAMPLES, PATIENCE, STORAGE_CLASS, house_of, java_spec
from tests.e2e.stories import condition, holds, pod_uids
from tests.real.clusters import as_yaml, real_cluster
from tests.real.parts.java_producer import JavaProducer, start_producer
from tests.security.certificates import Authority, make_authority

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from tests.real.clusters import Cluster

pytestmark = [pytest.mark.asyncio(loop_scope="module"), *JAVA_MARKS]
SECRET, BUNDLE, TOPIC, QUEUES = "shop-tls", "authorities", "numbered", 4
TLS = TlsSpec(certificate_secret_ref=LocalReference(name=SECRET), mode=TlsMode.ENFORCING)
SPEC = {"mode": "Enforcing", "certificateSecretRef": {"name": SECRET}, "trustBundleRef": {"name": BUNDLE}}
FAST = "-XX:TieredStopAtLevel=1"
ANSWER_SECONDS = 10.0
RETRY_MILLISECONDS = 120_000


@dataclass
class Rotated:
    """The group, and the authorities that its servers have certificates of, one after the other."""

    cluster: Cluster
    group: WholeGroup
    old: Authority
    new: Authority
    name_server: str = ""

    def pem(self, *authorities: Authority) -> str:
        return "".join(one.certificate.read_text(encoding="utf-8") for one in authorities)

    # ---- what a user does

    async def bundle_is(self, text: str) -> None:
        patch = {"data": {"ca.crt": text}}
        await self.cluster.api.patch(CONFIG_MAPS, BUNDLE, patch, namespace=NAMESPACE, content_type=PatchType.MERGE)

    def operator_trusts(self, text: str) -> None:
        self.operator_file("ca.crt").write_text(text, encoding="utf-8")

    def operator_file(self, name: str) -> Path:
        return self.cluster.folder / "operator-tls" / name

    async def certificates_are_of(self, authority: Authority) -> None:
        """The Secret's and the operator's, as cert-manager renews them."""
        await self.secret_is(secret_data(authority.issue("shop")))
        put_operator_certificate(self.operator_file("tls.crt").parent, authority)

    async def secret_is(self, data: dict[str, bytes]) -> None:
        """The Secret's files; the kubelet writes them into the pods."""
        await self.cluster.api.patch(SECRETS, SECRET, {"data": encoded(data)}, namespace=NAMESPACE)
        for mounted in sorted((self.cluster.folder / "node").rglob(f"{names.VOLUME_TLS}/*")):
            renewed = mounted.with_name(f"{mounted.name}.new")
            renewed.write_bytes(data[mounted.name])
            shutil.copystat(mounted, renewed)
            os.chown(renewed, mounted.stat().st_uid, mounted.stat().st_gid)
            renewed.replace(mounted)

    # ---- what is seen

    async def trusted(self) -> set[str]:
        pods = (await self.cluster.api.list(PODS, namespace=NAMESPACE, label_selector=names.LABEL_BROKER_GROUP)).items
        return {made_of(pod).trusts for pod in pods}

    async def all_trust(self, bundle: str) -> None:
        async def they_do() -> bool:
            return await self.trusted() == {trust_file(bundle)} and condition(self.group, "TlsChanging") == ("", "")

        await holds(self.group, "every pod trusts it", they_do)
        await self.group.until_settled()

    async def all_show(self, authority: Authority) -> None:
        """Wait until new connections to every server are shown certificates of this authority."""
        context = ssl.create_default_context(cafile=str(authority.certificate))
        context.check_hostname = False
        members = [str(member.address) for member in self.group.seen.members()]
        assert len(members) == self.group.replicas

        async def shown() -> bool:
            for address in (self.name_server, self.cluster_controller, *members):
                host, _, port = address.rpartition(":")
                try:
                    async with asyncio.timeout(ANSWER_SECONDS):
                        _, writer = await asyncio.open_connection(host, int(port), ssl=context)
                except OSError:
                    return False
                writer.close()
            return True

        await holds(self.group, "every server shows it", shown)

    @property
    def cluster_controller(self) -> str:
        return self.group.house.controller_address("operator")


def encoded(data: dict[str, bytes]) -> dict[str, str]:
    return {name: base64.b64encode(content).decode() for name, content in data.items()}


def secret_data(files: TlsFiles) -> dict[str, bytes]:
    """As cert-manager writes it."""
    assert files.certificate is not None
    assert files.key is not None
    assert files.ca is not None
    sources = {
        names.CERTIFICATE_FILE: files.certificate,
        names.CERTIFICATE_KEY_FILE: files.key,
        names.CERTIFICATE_AUTHORITY_FILE: files.ca,
    }
    return {name: source.read_bytes() for name, source in sources.items()}


def put_operator_certificate(folder: Path, authority: Authority) -> None:
    files = authority.issue("controller")
    assert files.certificate is not None
    assert files.key is not None
    folder.mkdir(exist_ok=True)
    shutil.copyfile(files.certificate, folder / "tls.crt")
    shutil.copyfile(files.key, folder / "tls.key")


def name_server_pod() -> dict[str, Any]:
    """The pod of examples/nameserver.yaml, with TLS as the operator gives it to a cluster's."""
    pod: dict[str, Any] = next(yaml.safe_load_all((EXAMPLES / "nameserver.yaml").read_text(encoding="utf-8")))
    container = pod["spec"]["containers"][0]
    arguments = " ".join(tls.java_arguments(TLS))
    container["command"][-1] = container["command"][-1].replace("exec java", f"exec java {arguments}")
    container["env"] += tls.environment(TLS)
    container["volumeMounts"] += tls.mounts(TLS)
    pod["spec"]["volumes"] += tls.volumes(TLS, "")
    return pod


async def name_server_of(cluster: Cluster) -> str:
    await cluster.kubectl("apply", "-n", NAMESPACE, "-f", "-", stdin=as_yaml([name_server_pod()]))
    return await cluster.name_server_address(NAMESPACE)


@asynccontextmanager
async def verifying_group(
    folder: Path, *, operator_arguments: tuple[str, ...] = (), issued: Callable[[Authority], TlsFiles] | None = None
) -> AsyncIterator[Rotated]:
    """All verify by the old authority, and every server has a certificate of it; brokers start with one that is `issued`."""
    async with real_cluster(folder) as cluster:
        old, new = (make_authority(folder / "authorities" / name, name) for name in ("old", "new"))
        own = folder / "operator-tls"
        put_operator_certificate(own, old)
        house = house_of(cluster, PATIENCE)
        house.operator_arguments += (
            *("--tls-mode", "enforcing", "--tls-certificate", str(own / "tls.crt"), "--tls-key", str(own / "tls.key")),
            *("--tls-ca", str(own / "ca.crt")),
            *operator_arguments,
        )
        async with whole_group(house, "orders", replicas=3) as group:
            rotated = Rotated(cluster, group, old, new)
            rotated.operator_trusts(rotated.pem(old))
            first = encoded(secret_data(old.issue("shop")))
            await cluster.api.create(SECRETS, {"metadata": {"name": SECRET, "namespace": NAMESPACE}, "data": first})
            bundle = {"metadata": {"name": BUNDLE, "namespace": NAMESPACE}, "data": {"ca.crt": rotated.pem(old)}}
            await cluster.api.create(CONFIG_MAPS, bundle)
            await cluster.kubectl("apply", "-f", "-", stdin=as_yaml([STORAGE_CLASS]))
            rotated.name_server = await name_server_of(cluster)
            try:
                await house.start_operator()
                if issued is not None:
                    await rotated.secret_is(secret_data(issued(old)))
                # Without the argument by which the other houses' brokers serve no TLS: a JVM takes the last of them.
                house.group_spec = java_spec(rotated.name_server) | {"jvm": {"extraArguments": [FAST]}}
                await house.create_group("orders", tls=SPEC)
                await group.until_settled()
                yield rotated
            finally:
                await house.processes.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rotated(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rotated]:
    async with verifying_group(tmp_path_factory.mktemp("house")) as running:
        yield running


async def make_topic(rotated: Rotated) -> None:
    fields = {"topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": str(QUEUES), "writeQueueNums": str(QUEUES)}
    fields |= {"perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
    client = RemotingClient(tls=ClientTls(TlsFiles(ca=rotated.old.certificate)))
    try:
        create = request(RequestCode.UPDATE_AND_CREATE_TOPIC, ext_fields=fields)
        answer = await client.invoke(str(rotated.group.seen.master_address()), create, timeout_seconds=ANSWER_SECONDS)
    finally:
        await client.close()
    assert answer.code == 0, answer


def load_of(rotated: Rotated) -> JavaProducer:
    """Start Java's producer, over TLS."""
    return start_producer(
        rotated.cluster.folder / "producer",
        name_server_address=rotated.name_server,
        topic=TOPIC,
        workers=2,
        pause_ms=20,
        retry_for_ms=RETRY_MILLISECONDS,
        flags=("-Dtls.enable=true",),
    )


async def sends_more(rotated: Rotated, producer: JavaProducer, many: int = 100) -> None:
    target = len(producer.acknowledged()) + many
    await rotated.group.until(lambda: len(producer.acknowledged()) >= target, f"{many} more acknowledgements")


async def test_a_running_operator_changes_the_authority_wholly_under_load(rotated: Rotated) -> None:
    """As docs/concepts/security.md says it: both authorities, then the certificates, then the new authority alone."""
    group, old, new = rotated.group, rotated.old, rotated.new
    assert await rotated.trusted() == {trust_file(rotated.pem(old))}
    await make_topic(rotated)
    producer = load_of(rotated)
    try:
        await sends_more(rotated, producer)
        first = await pod_uids(group)

        # Too early: every server still shows the old one.
        rotated.operator_trusts(rotated.pem(old, new))
        await rotated.bundle_is(rotated.pem(new))
        await group.until(lambda: condition(group, "TlsChanging") == ("True", "AuthoritiesHeld"), "it is held")
        await sends_more(rotated, producer)
        assert await pod_uids(group) == first

        await rotated.bundle_is(rotated.pem(old, new))
        await rotated.all_trust(rotated.pem(old, new))
        second = await pod_uids(group)
        assert not set(first.values()) & set(second.values())
        await sends_more(rotated, producer)

        await rotated.certificates_are_of(new)
        await rotated.all_show(new)
        await sends_more(rotated, producer)

        await rotated.bundle_is(rotated.pem(new))
        await rotated.all_trust(rotated.pem(new))
        assert not set(second.values()) & set((await pod_uids(group)).values())
        rotated.operator_trusts(rotated.pem(new))
        await sends_more(rotated, producer)
    finally:
        await asyncio.to_thread(producer.stop)
    await group.until_settled()
    assert producer.failed() == []
    verified = ClientTls(TlsFiles(ca=new.certificate))
    kept = await read_keys(str(group.seen.master_address()), TOPIC, QUEUES, tls=verified)
    assert not {one["key"] for one in producer.acknowledged()} - kept
    assert not group.history.violations()
