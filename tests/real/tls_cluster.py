"""A NameServer, two Java brokers and a Proxy, each started by its rendered pod's own command, with a Secret mounted as kubelets do.

Each has a network namespace of its own; our controller plane in this process serves TLS only.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import ssl
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import structs

from brokergroup_operator.api import names
from brokergroup_operator.api.proxy_fields import GRPC_PORT, REMOTING_PORT
from brokergroup_operator.api.rocketmq_cluster import RocketMQCluster
from brokergroup_operator.api.tls_fields import TlsMode, TlsSpec
from brokergroup_operator.api.tls_steps import made_of, next_tls
from brokergroup_operator.controller.directory.group_directory import FixedDirectory
from brokergroup_operator.controller.plane import ControllerPlane
from brokergroup_operator.controller.settings import PlaneSettings, SecuritySettings
from brokergroup_operator.observe.group_view import GroupViewError
from brokergroup_operator.reconcile.clusters import parts
from brokergroup_operator.reconcile.render.children import build_config_map
from brokergroup_operator.reconcile.render.pods import build_pod
from brokergroup_operator.reconcile.render.tls import trust_files
from brokergroup_operator.reconcile.see import bundles
from brokergroup_operator.reconcile.settings import ReconcileSettings
from brokergroup_operator.records.memory import MemoryRecordStore
from controller_core.settings import ControllerSettings
from kube_sandbox.kubelet.network import NetworkNamespaces
from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codes import RequestCode
from rocketmq_remoting.command import request
from rocketmq_remoting.serialization import load_json
from rocketmq_remoting.tls import ClientTls, TlsFiles, TlsServerSettings
from rocketmq_remoting.tls import TlsMode as ServerMode
from tests.real.parts import java
from tests.real.parts.process import RealProcess, accepts_connections, start
from tests.real.test_java_local_proxy import home_as_in_the_image
from tests.reconcile import builders as b
from tests.security.certificates import Authority, make_authority
from tests.support.java_rig import KEY, eventually, in_sync, record_of
from tests.support.places import pod_network_place

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from brokergroup_operator.api.bounds import JsonObject
    from brokergroup_operator.api.brokergroup import BrokerGroup
    from brokergroup_operator.api.tls_steps import Trust
    from kube_sandbox.kubelet.network import PodAddress
    from rocketmq_remoting.command import RemotingCommand

BROKER_PORT = 10911
NAME_SERVER, PROXY = "name-server", "proxy"
MEMBERS = (1, 2)
ANSWER_SECONDS = 10.0


@dataclass
class MountedSecret:
    """A folder as the kubelet mounts a Secret: each file is a link through `..data`, which a change swaps at once."""

    folder: Path
    versions: count[int] = field(default_factory=count)

    def write(self, files: TlsFiles) -> None:
        assert files.certificate is not None
        assert files.key is not None
        assert files.ca is not None
        version = self.folder / f"..{next(self.versions)}"
        version.mkdir(parents=True)
        content = {
            names.CERTIFICATE_FILE: files.certificate,
            names.CERTIFICATE_KEY_FILE: files.key,
            names.CERTIFICATE_AUTHORITY_FILE: files.ca,
        }
        for name, source in content.items():
            shutil.copyfile(source, version / name)
            if not (self.folder / name).is_symlink():
                (self.folder / name).symlink_to(f"..data/{name}")
        (self.folder / "..data_tmp").symlink_to(version.name)
        os.replace(self.folder / "..data_tmp", self.folder / "..data")  # noqa: PTH105 (rename(2), as the kubelet does)

    @property
    def serial(self) -> str:
        return serial_of(str((self.folder / names.CERTIFICATE_FILE).read_text(encoding="utf-8")))


def serial_of(pem: str) -> str:
    """Something that only this certificate has: its bytes."""
    return ssl.PEM_cert_to_DER_cert(pem).hex()


@dataclass
class Part:
    """The process of one pod's container."""

    address: PodAddress
    port: int
    process: RealProcess

    @property
    def endpoint(self) -> str:
        return f"{self.address.ip}:{self.port}"

    def served_serial(self) -> str:
        """The certificate that a new connection is shown."""
        return serial_of(ssl.get_server_certificate((self.address.ip, self.port), timeout=ANSWER_SECONDS))


@dataclass
class TlsCluster:
    """Its parts by name; a member's name is its number."""

    folder: Path
    authority: Authority
    secret: MountedSecret
    addresses: dict[str, PodAddress]
    rocketmq_home: Path
    directory: FixedDirectory
    plane: ControllerPlane
    client: RemotingClient
    # Of the groups, beside spec.tls.
    further: dict[str, Any] = field(default_factory=dict)
    # The text of the ConfigMap of spec.tls.trustBundleRef; empty: the spec names none.
    bundle: str = ""
    # With what parts are made where it names one, and the pod of each part, by its name.
    now: TlsSpec | None = None
    pods: dict[str, JsonObject] = field(default_factory=dict)
    found: dict[str, Part] = field(default_factory=dict)
    starts: count[int] = field(default_factory=count)

    # ---- what is rendered

    def tls(self, mode: TlsMode | None) -> dict[str, Any]:
        spec = {"certificateSecretRef": {"name": "shop-tls"}, "mode": mode}
        return {"tls": spec} if mode is not None else {}

    @property
    def name_server(self) -> str:
        return f"{self.addresses[NAME_SERVER].ip}:{parts.NAME_SERVER_PORT}"

    @property
    def settings(self) -> ReconcileSettings:
        return ReconcileSettings(controller_addresses=(self.plane.address,), controller_tls=True)

    def cluster(self, mode: TlsMode | None) -> RocketMQCluster:
        metadata = {"name": "shop", "namespace": KEY.namespace, "uid": "u"}
        spec = {**self.tls(mode), "nameServer": {"replicas": 1}, "proxy": {"replicas": 1}}
        made = msgspec.convert({"metadata": metadata, "spec": spec}, RocketMQCluster)
        return made if self.now is None else structs.replace(made, spec=structs.replace(made.spec, tls=self.now))

    def group(self, mode: TlsMode | None) -> BrokerGroup:
        made = b.group(
            implementation="Java",
            brokerName=KEY.name,
            replicas=len(MEMBERS),
            durability="Available",
            nameServers=[self.name_server],
            config={key: str(value) for key, value in java.SPARING_BROKER.items()},
            resources={"limits": {"memory": "768Mi"}},
            jvm={"extraArguments": ["-XX:TieredStopAtLevel=1"]},
            **self.further,
            **self.tls(mode),
        )
        return made if self.now is None else structs.replace(made, spec=structs.replace(made.spec, tls=self.now))

    # ---- what the operator decides

    async def decided(self) -> Trust:
        """Decide with what parts are made, as a pass of the operator: by the bundle, the pods, and what each server shows."""
        spec = self.tls(TlsMode.ENFORCING)["tls"] | {"trustBundleRef": {"name": "authorities"}}
        wanted = msgspec.convert(spec, TlsSpec)
        made = [made_of(self.pods[name]) for name in self.found]
        serving = [part.endpoint for name, part in self.found.items() if name != PROXY]
        own = bundles.HandshakingServers(self.operator_authorities)
        trust = await bundles.trust_of(
            wanted,
            self.bundle,
            problem="",
            made=made,
            pods=(),
            kept={"data": {one.name: one.read_text(encoding="utf-8") for one in self.trust_folder.iterdir()}},
            servers=own,
            addresses=serving,
            controllers=[self.plane.address],
        )
        self.now = next_tls(wanted, made, trust)
        for name, text in trust_files(self.now).items():
            (self.trust_folder / name).write_text(text, encoding="utf-8")
        return trust

    @property
    def trust_folder(self) -> Path:
        folder = self.folder / "trust"
        folder.mkdir(exist_ok=True)
        return folder

    @property
    def operator_authorities(self) -> Path:
        """What the operator itself trusts (--tls-ca)."""
        return self.folder / "operator-ca.pem"

    @property
    def trusted(self) -> set[str]:
        """The files of the authorities that the parts trust."""
        return {made_of(pod).trusts for pod in self.pods.values()}

    # ---- its processes

    def start_name_server(self, mode: TlsMode | None) -> Part:
        [stateful_set] = [
            one for one in parts.name_servers(self.cluster(mode), self.settings) if one["kind"] == "StatefulSet"
        ]
        return self._start(NAME_SERVER, stateful_set["spec"]["template"], parts.NAME_SERVER_PORT, {})

    def start_member(self, number: int, mode: TlsMode | None) -> Part:
        group = self.group(mode)
        pod = build_pod(group, b.member(number), self.settings)
        return self._start(str(number), pod, BROKER_PORT, build_config_map(group, self.settings)["data"])

    def start_proxy(self, mode: TlsMode | None) -> Part:
        made = {one["kind"]: one for one in parts.proxies(self.cluster(mode), self.settings)}
        return self._start(PROXY, made["Deployment"]["spec"]["template"], GRPC_PORT, made["ConfigMap"]["data"])

    def _start(self, name: str, pod: JsonObject, port: int, files: dict[str, str]) -> Part:
        """Start the pod's first container; of what it mounts only a member's store outlives an earlier start."""
        container = pod["spec"]["containers"][0]
        folders = {one: self.folder / name / one for one in ("STORE_DIR", "CONFIG_DIR", "RUN_DIR")}
        for folder in folders.values():
            folder.mkdir(parents=True, exist_ok=True)
        named = parts.name_server_addresses("shop", KEY.namespace, 1)[0]
        for file, text in files.items():
            here = text.replace(names.TLS_DIR, str(self.secret.folder)).replace(named, self.name_server)
            (folders["CONFIG_DIR"] / file).write_text(here, encoding="utf-8")
        address = self.addresses[name]
        self.pods[name] = pod
        environment = {one: str(folder) for one, folder in folders.items()} | {"TRUST_DIR": str(self.trust_folder)}
        environment |= {"TLS_DIR": str(self.secret.folder), "ROCKETMQ_HOME": str(self.rocketmq_home)}
        environment |= {"POD_IP": address.ip, "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"}
        command = [word.replace("/etc/rocketmq", str(folders["CONFIG_DIR"])) for word in container["command"]]
        log = self.folder / name / f"{next(self.starts)}.log"
        process = start(name, [*address.command_prefix, *command], log=log, env=environment)
        self.found[name] = part = Part(address, port, process)
        return part

    async def restarted(self, name: str, mode: TlsMode | None) -> Part:
        """Stop the part as its kubelet does, start it anew, and wait until it listens."""
        await asyncio.to_thread(self.found[name].process.stop, 30.0)
        return await self.listening(name, mode)

    async def listening(self, name: str, mode: TlsMode | None) -> Part:
        if name == NAME_SERVER:
            part = self.start_name_server(mode)
        elif name == PROXY:
            part = self.start_proxy(mode)
        else:
            part = self.start_member(int(name), mode)
        await asyncio.to_thread(
            part.process.wait_until,
            lambda: accepts_connections(part.address.ip, part.port),
            what=f"listening at {part.endpoint}",
            deadline_seconds=120.0,
        )
        return part

    # ---- what it is asked

    def master(self) -> Part:
        record = record_of(self.plane)
        host = (record.address_of(record.granted_master_id or 0) or "").rpartition(":")[0]
        return next(part for part in self.found.values() if part.address.ip == host)

    def slave(self) -> Part:
        return next(self.found[str(one)] for one in MEMBERS if self.found[str(one)] is not self.master())

    def name_of(self, part: Part) -> str:
        return next(name for name, one in self.found.items() if one is part)

    def id_of(self, part: Part) -> int:
        replicas = record_of(self.plane).replicas.values()
        return next(one.broker_id for one in replicas if (one.address or "").startswith(f"{part.address.ip}:"))

    async def until_in_sync(self) -> None:
        await eventually(lambda: in_sync(self.plane, len(MEMBERS)), f"both in sync\n{self.logs()}")

    async def switch_over(self) -> None:
        """To the slave; tried again as the reconcile plane does, for a broker on a busy machine may answer late."""
        wanted = self.id_of(self.slave())

        async def moved() -> bool:
            with contextlib.suppress(GroupViewError):
                await self.plane.switch_master(KEY, to_broker_id=wanted)
            return record_of(self.plane).granted_master_id == wanted

        await eventually(moved, f"member {wanted} is master\n{self.logs()}", every_seconds=1.0)

    async def ask(self, part: Part, code: RequestCode, **wish: Any) -> RemotingCommand:
        return await self.client.invoke(part.endpoint, request(code, **wish), timeout_seconds=ANSWER_SECONDS)

    async def make_topic(self, topic: str) -> None:
        """At the master; the slave copies it through its own connection to it."""
        fields = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
        fields |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
        answer = await self.ask(self.master(), RequestCode.UPDATE_AND_CREATE_TOPIC, ext_fields=fields)
        assert answer.code == 0, answer

    async def slave_has_copied(self, topic: str) -> None:
        async def copied() -> bool:
            answer = await self.ask(self.slave(), RequestCode.GET_TOPIC_CONFIG, ext_fields={"topic": topic})
            return answer.code == 0

        await eventually(copied, f"topic {topic} at the slave\n{self.logs()}")

    async def registered(self) -> None:
        """Wait until the NameServer names both brokers."""

        async def named() -> bool:
            answer = await self.ask(self.found[NAME_SERVER], RequestCode.GET_BROKER_CLUSTER_INFO)
            table = load_json(answer.body or b"{}")["brokerAddrTable"] or {}
            return len((table.get(KEY.name) or {}).get("brokerAddrs") or {}) == len(MEMBERS)

        await eventually(named, f"both brokers at the NameServer\n{self.logs()}")

    def expects(self, mode: TlsMode | None) -> None:
        """From now on our plane reaches brokers and NameServers as the directory says of this mode."""
        self.directory.template = replace(self.directory.template, tls=mode)

    def logs(self) -> str:
        return "\n".join(f"--- {name}\n{part.process.tail()}" for name, part in self.found.items())

    def program_logs(self, name: str) -> str:
        """What RocketMQ's own loggers of this part have written."""
        files = sorted((self.folder / name / "RUN_DIR").glob("logs/**/*.log"))
        return "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in files)

    def renew(self) -> None:
        """Another certificate and key for the same names, of the same authority."""
        self.secret.write(issue(self.authority, self.addresses))

    def kill(self) -> None:
        for part in self.found.values():
            part.process.kill()


def issue(authority: Authority, addresses: dict[str, PodAddress]) -> TlsFiles:
    alternatives = ",".join(["DNS:localhost", *(f"IP:{one.ip}" for one in addresses.values())])
    return authority.issue("shop", alternative_names=alternatives)


@asynccontextmanager
async def tls_cluster(folder: Path) -> AsyncIterator[TlsCluster]:
    """Nothing of it runs yet but our plane."""
    async with AsyncExitStack() as stack:
        place = stack.enter_context(pod_network_place())
        network = NetworkNamespaces(folder / "next-address", bridge=place.bridge, subnet=place.subnet)
        await network.open()
        stack.push_async_callback(network.close)
        addresses = {name: await network.attach(name) for name in (NAME_SERVER, PROXY, *map(str, MEMBERS))}
        authority = make_authority(folder / "certificates")
        secret = MountedSecret(folder / "secret")
        secret.write(issue(authority, addresses))
        own = folder / "operator-ca.pem"
        shutil.copyfile(authority.certificate, own)
        controller = replace(authority.issue("controller"), ca=own)
        directory = FixedDirectory(
            settings=ControllerSettings(),
            name_servers=(f"{addresses[NAME_SERVER].ip}:{parts.NAME_SERVER_PORT}",),
            heartbeat_timeout_seconds=5.0,
        )
        security = SecuritySettings(tls=TlsServerSettings(mode=ServerMode.PERMISSIVE, files=controller))
        plane = ControllerPlane(
            store=MemoryRecordStore(),
            directory=directory,
            settings=PlaneSettings(listen_host=network.node_ip, listen_port=0, security=security),
        )
        await plane.start()
        stack.push_async_callback(plane.stop)
        # It asks every part over TLS, and accepts any certificate: RocketMQ's own too.
        client = RemotingClient(tls=ClientTls(TlsFiles()))
        stack.push_async_callback(client.close)
        cluster = TlsCluster(
            folder=folder,
            authority=authority,
            secret=secret,
            addresses=addresses,
            rocketmq_home=home_as_in_the_image(folder / "rocketmq"),
            directory=directory,
            plane=plane,
            client=client,
        )
        stack.callback(cluster.kill)
        yield cluster


# Ports of a part that speak TLS, by its name.
PORTS = {
    NAME_SERVER: (parts.NAME_SERVER_PORT,),
    PROXY: (GRPC_PORT, REMOTING_PORT),
    "1": (BROKER_PORT,),
    "2": (BROKER_PORT,),
}
