"""Another authority for a whole cluster that enforces TLS: the commands of docs/concepts/security.md, as a user types them.

The operator gets TLS by its chart, and goes back at the end. In the folder of the commands lie the certificates of both
authorities, by the names that the page gives them. What a pod trusts is read from the API, what a server shows by a handshake, and
what a part refuses from RocketMQ's own log.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from brokergroup_operator.api.names import ANNOTATION_TRUST
from rocketmq_remoting.address import join_address
from tests.node import policies
from tests.node.acts import RELEASE, wait_for_operator
from tests.node.bench import expect
from tests.node.brokers import Brokers
from tests.node.cluster import GROUPS_NAMESPACE, OPERATOR_NAMESPACE, condition, say
from tests.node.deployments import BUNDLE, NAME, SECRET
from tests.node.kubectl import CHART, get, helm, kubectl, kubectl_run, run_commands, until
from tests.node.places import CLUSTER_DOMAIN, HOST_ADDRESS, REPOSITORY, nodes
from tests.node.whole_cluster import GrpcClient
from tests.security.certificates import make_authority
from tests.support.page_blocks import page_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rocketmq_remoting.tls import TlsFiles
    from tests.node.deployments import Deployment
    from tests.security.certificates import Authority

PAGE = REPOSITORY / "docs" / "concepts" / "security.md"
# Its blocks, in its order.
BLOCKS: Final = ("authorities-both", "authorities-certificates", "authorities-new")
OPERATOR_SECRET: Final = "controller-tls"
OPERATOR_PODS: Final = "brokergroup.dev/component=operator"
# Of one block: it waits for a rolling restart of all parts.
STEP_SECONDS = 900.0
# A kubelet changes a mounted file a minute or so after the object.
MOUNTED_SECONDS = 180.0
REFUSED_SECONDS = 120.0
HANDSHAKE_SECONDS = 5.0
GRPC_PORT = 8081
NAME_SERVER_PORT = 9876
# Of Java, of a certificate that no authority of its trust file has signed.
REFUSED: Final = "sun.security.validator.ValidatorException"
# A name server of the nodes' cluster for one program, which goes on with the rest of its arguments.
WITH_RESOLVER: Final = (
    "unshare",
    "--mount",
    "--propagation",
    "private",
    "sh",
    "-c",
    'mount --bind "$0" /etc/resolv.conf && exec "$@"',
)


@dataclass
class Authorities:
    """Both authorities, and the folder where the page's commands find their files. `trusted`: of clients that start now."""

    folder: Path
    old: Authority
    new: Authority
    trusted: Path

    def take(self, block: str) -> None:
        """Run one block of the page."""
        run_commands(commands_of_the_page(block), f"security.md: {block}", folder=self.folder, seconds=STEP_SECONDS)

    # ---- clients: they trust both until the end, as the page says

    def java_arguments(self) -> tuple[str, ...]:
        """For Java's client: TLS, and it verifies every server."""
        verify = ("-Dtls.test.mode.enable=false", "-Dtls.client.authServer=true")
        return ("-Dtls.enable=true", *verify, f"-Dtls.client.trustCertPath={self.trusted}")

    def name_servers(self) -> str:
        """The address of their Service, which exists on the nodes' networks only."""
        return join_address(get("service", f"{NAME}-nameserver")["spec"]["clusterIP"], NAME_SERVER_PORT)

    def grpc_client(self, service: str) -> GrpcClient:
        """It verifies the Service's name too, so it asks the cluster's DNS for it."""
        resolver = self.folder / "resolv.conf"
        resolver.write_text(f"nameserver {HOST_ADDRESS}\n", encoding="utf-8")
        enter = (*WITH_RESOLVER, str(resolver), *nodes()[0].enter)
        name = f"{service}.{GROUPS_NAMESPACE}.svc.{CLUSTER_DOMAIN}"
        return GrpcClient(join_address(name, GRPC_PORT), enter, trusted=self.trusted)

    # ---- what is seen in the end

    def trust_the_new_one_alone(self, deployment: Deployment) -> None:
        """Raise CheckError unless parts and operator trust the new authority alone, and each server shows a certificate of it."""
        self.trusted = self.folder / "new-ca.crt"
        until(
            "every part trusts the new authority alone", lambda: self._pods_trust_it(deployment), MOUNTED_SECONDS, 1.0
        )
        until("the operator's pods have it mounted", self._operator_has_it, MOUNTED_SECONDS, 1.0)
        servers = servers_of(deployment)
        wrong = {one: why for one in sorted(servers) if (why := handshake(one, self.new.certificate))}
        expect(not wrong, f"a client that trusts the new authority is refused: {wrong}")
        taken = [one for one in sorted(servers) if not handshake(one, self.old.certificate)]
        expect(not taken, f"a client that trusts the old authority alone accepts {taken}")
        self._operator_refuses_the_old_one(deployment)
        say(f"  {len(servers)} ports show the new authority, and none the old one")

    def _pods_trust_it(self, deployment: Deployment) -> bool:
        """By each pod's annotation, and by the ConfigMap that has the file of this name."""
        files = {pod["metadata"].get("annotations", {}).get(ANNOTATION_TRUST, "") for pod in pods_of(deployment)}
        data = get("configmap", f"{NAME}-trust")["data"]
        return files == data.keys() and [*map(der_of, data.values())] == [der_of(self._pem("new-ca.crt"))]

    def _operator_has_it(self) -> bool:
        found = get("-n", OPERATOR_NAMESPACE, "pods", "-l", OPERATOR_PODS)["items"]
        mounted = [
            file.read_text(encoding="utf-8")
            for pod in found
            for node in nodes()
            for file in node.folder.glob(
                f"kubelet/pods/{pod['metadata']['uid']}/volumes/kubernetes.io~configmap/trust/ca.crt"
            )
        ]
        return len(mounted) == len(found) > 0 and set(mounted) == {self._pem("new-ca.crt")}

    def _operator_refuses_the_old_one(self, deployment: Deployment) -> None:
        """A bundle with the old authority is given to no part: the operator itself does not trust it."""
        before = sorted(pod["metadata"]["uid"] for pod in pods_of(deployment))
        put_bundle(GROUPS_NAMESPACE, self.folder / "both.crt")
        until("the operator holds the old authority", is_held, MOUNTED_SECONDS)
        put_bundle(GROUPS_NAMESPACE, self.folder / "new-ca.crt")
        kubectl("wait", "--for=condition=Ready", f"rmq/{NAME}", "--timeout=60s", seconds=70)
        expect(
            sorted(pod["metadata"]["uid"] for pod in pods_of(deployment)) == before,
            "a bundle that the operator does not trust has restarted a part",
        )

    def refuse_the_old_one(self, deployment: Deployment) -> None:
        """Start a NameServer with a certificate of the old authority, which every broker and Proxy refuses; then undo it.

        The clients have ended: what the kubelets mount now may reach the other servers too.
        """
        verifying, brokers = pods_of(deployment, "broker", "proxy"), Brokers(deployment)
        early = [one for one in verifying if refuses(one)]
        expect(not early, f"these refused a server before there was one of the old authority: {names_of(early)}")
        pod = f"{NAME}-nameserver-0"
        put_secret(GROUPS_NAMESPACE, SECRET, cluster_certificate(self.old))
        try:
            kubectl("delete", "pod", pod, "--timeout=60s", seconds=70)
            until(f"{names_of(verifying)} refuse {pod}", lambda: all(map(refuses, verifying)), REFUSED_SECONDS, 1.0)
            listed = brokers.listed_at(address_of(pod))
            expect(not listed, f"{pod} with a certificate of the old authority has {listed}: expected no broker")
            say(f"  {pod} with a certificate of the old authority is refused by {names_of(verifying)}")
        finally:
            put_secret(GROUPS_NAMESPACE, SECRET, cluster_certificate(self.new))
            kubectl("delete", "pod", pod, "--timeout=60s", seconds=70)
        until(f"{pod} has the brokers again", lambda: brokers.listed_at(address_of(pod)), MOUNTED_SECONDS, 1.0)

    def _pem(self, name: str) -> str:
        return (self.folder / name).read_text(encoding="utf-8")


@contextlib.contextmanager
def served(folder: Path) -> Iterator[Authorities]:
    """Until the block ends the operator enforces TLS by its chart. Its Secret and the cluster's are of the old authority."""
    made = make(folder)
    values = {"secretName": OPERATOR_SECRET, "trustBundle.configMapName": BUNDLE}
    try:
        for namespace, secret, files in (
            (GROUPS_NAMESPACE, SECRET, cluster_certificate(made.old)),
            (OPERATOR_NAMESPACE, OPERATOR_SECRET, operator_certificate(made.old)),
        ):
            put_secret(namespace, secret, files)
            put_bundle(namespace, made.folder / "old-ca.crt")
        upgrade_operator(*(word for key, value in values.items() for word in ("--set", f"security.tls.{key}={value}")))
        yield made
    finally:
        upgrade_operator("--reset-values")
        for namespace, secret in ((GROUPS_NAMESPACE, SECRET), (OPERATOR_NAMESPACE, OPERATOR_SECRET)):
            names = (f"secret/{secret}", f"configmap/{BUNDLE}")
            kubectl_run("-n", namespace, "delete", *names, "--ignore-not-found", "--timeout=60s", seconds=70)


def make(folder: Path) -> Authorities:
    """Make both authorities, and the files of the new one by the names that the page's commands have."""
    old, new = (make_authority(folder / name, name) for name in ("old", "new"))
    cluster, operator = cluster_certificate(new), operator_certificate(new)
    for source, name in (
        (old.certificate, "old-ca.crt"),
        (new.certificate, "new-ca.crt"),
        (cluster.certificate, "shop.crt"),
        (cluster.key, "shop.key"),
        (operator.certificate, "controller.crt"),
        (operator.key, "controller.key"),
    ):
        assert source is not None
        shutil.copyfile(source, folder / name)
    trusted = folder / "clients.crt"
    trusted.write_bytes(old.certificate.read_bytes() + new.certificate.read_bytes())
    return Authorities(folder, old, new, trusted)


def cluster_certificate(authority: Authority) -> TlsFiles:
    """Issue one with the names that the chart rocketmq-cluster asks cert-manager for."""
    domains = ("", f".{GROUPS_NAMESPACE}.svc", f".{GROUPS_NAMESPACE}.svc.{CLUSTER_DOMAIN}")
    hosts = (f"{NAME}-nameserver", f"{NAME}-proxy", f"{NAME}-0-master")
    every = ["localhost", *(f"{host}{domain}" for host in hosts for domain in domains)]
    every += [f"*.{NAME}-nameservers.{GROUPS_NAMESPACE}.svc", f"{NAME}-0.{GROUPS_NAMESPACE}"]
    return authority.issue(NAME, alternative_names=",".join(f"DNS:{one}" for one in every))


def operator_certificate(authority: Authority) -> TlsFiles:
    """Issue one with the names that the chart brokergroup-operator asks cert-manager for."""
    every = [f"{RELEASE}-{ordinal}.{OPERATOR_NAMESPACE}.svc.{CLUSTER_DOMAIN}" for ordinal in range(3)]
    return authority.issue(RELEASE, alternative_names=",".join(f"DNS:{one}" for one in every))


def put_secret(namespace: str, name: str, files: TlsFiles) -> None:
    keys = {"tls.crt": files.certificate, "tls.key": files.key, "ca.crt": files.ca}
    put(namespace, "secret", "generic", name, *(f"--from-file={key}={path}" for key, path in keys.items()))


def put_bundle(namespace: str, file: Path) -> None:
    put(namespace, "configmap", BUNDLE, f"--from-file=ca.crt={file}")


def put(namespace: str, *words: str) -> None:
    """Create an object by `kubectl create`, or change it to what that would create."""
    made = kubectl("-n", namespace, "create", *words, "--dry-run=client", "-o", "yaml")
    kubectl("-n", namespace, "apply", "-f", "-", stdin=made)


def upgrade_operator(*values: str) -> None:
    helm("upgrade", RELEASE, str(CHART), "--namespace", OPERATOR_NAMESPACE, *values)
    wait_for_operator()


def commands_of_the_page(block: str) -> str:
    """Return the block of security.md that is marked for the nodes by this name."""
    [found] = [
        one.commands
        for one in page_blocks(PAGE.read_text(encoding="utf-8"))
        if (one.how, one.what) == ("test-node", block)
    ]
    return found


def is_held() -> bool:
    """Whether the cluster says that its parts keep what they trust, because the operator does not trust all of the bundle."""
    ready = condition(get("rmq", NAME), "Ready")
    return ready.get("reason") == "TlsPending" and "the operator itself does not trust" in ready["message"]


def pods_of(deployment: Deployment, *parts: str) -> list[dict[str, Any]]:
    """Return the pods of these parts of the cluster; of all without one."""
    selectors = deployment.parts()
    return [pod for part in parts or selectors for pod in get("pods", "-l", selectors[part])["items"]]


def address_of(name_server: str) -> str:
    """Return where this pod listens; an address that nothing has before the pod gets one."""
    return join_address(get("pod", name_server)["status"].get("podIP", "127.0.0.1"), NAME_SERVER_PORT)


def names_of(pods: list[dict[str, Any]]) -> str:
    return ", ".join(pod["metadata"]["name"] for pod in pods)


def servers_of(deployment: Deployment) -> set[tuple[str, int]]:
    """Every port that speaks TLS: of NameServers, brokers, proxies and controllers."""
    found = {
        (ip, port)
        for part, ports in policies.FOR_CLIENTS.items()
        for ip in policies.addresses(deployment.parts()[part])
        for port in ports
    }
    controllers = policies.addresses(OPERATOR_PODS, OPERATOR_NAMESPACE)
    return found | {(ip, policies.CONTROLLER_PORT) for ip in controllers}


def handshake(server: tuple[str, int], authority: Path) -> str:
    """Connect, trusting this authority alone; return why the certificate is refused, or empty. Raise OSError without an answer."""
    context = ssl.create_default_context(cafile=str(authority))
    context.check_hostname = False
    try:
        with socket.create_connection(server, HANDSHAKE_SECONDS) as plain, context.wrap_socket(plain):
            return ""
    except ssl.SSLCertVerificationError as error:
        return error.verify_message


def der_of(pem: str) -> bytes:
    return ssl.PEM_cert_to_DER_cert(pem)


def refuses(pod: dict[str, Any]) -> bool:
    """Whether a log of this pod's programs has a certificate that it refused."""
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    places = (f"kubelet/pods/{uid}/volumes/*/*/**/rocketmqlogs/*.log", f"pod-logs/*_{name}_{uid}/*/*.log")
    logs = (log for node in nodes() for place in places for log in node.folder.glob(place))
    return any(REFUSED in log.read_text(encoding="utf-8", errors="replace") for log in logs)
