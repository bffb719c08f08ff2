"""etcd, kube-apiserver, controller-manager, scheduler and CoreDNS, as processes at the machine's address on the bridge."""

from __future__ import annotations

from tests.node import credentials
from tests.node.kubectl import kubectl_run
from tests.node.places import (
    API_PORT,
    CLUSTER_DOMAIN,
    HOST_ADDRESS,
    SERVICE_RANGE,
    SERVICE_RANGE_6,
    etcd_folder,
    kubeconfig,
    state_folder,
)
from tests.node.processes import start, wait_for
from tests.real.parts import install
from tests.support.kube_apiserver import as_options, etcd_command, etcd_is_healthy, kube_apiserver_command

ETCD_CLIENT = "http://127.0.0.1:23790"
ETCD_PEER = "http://127.0.0.1:23800"
# In the order in which they are ended.
PROGRAMS = ("scheduler", "controller-manager", "coredns", "apiserver", "etcd")
# Services have answers; any other name is unknown at once, so that no pod waits for a missing server.
COREFILE = """\
{domain}:53 {{
  bind {address}
  errors
  kubernetes {domain} {{
    kubeconfig {kubeconfig} nodes
    ttl 5
  }}
}}
.:53 {{
  bind {address}
  errors
  template IN ANY . {{
    rcode NXDOMAIN
  }}
}}
"""


def start_all() -> None:
    credentials.make()
    start_etcd()
    start_apiserver()
    start_controller_manager()
    start_scheduler()
    start_coredns()


def start_etcd() -> None:
    start("etcd", etcd_command(etcd_folder(), ETCD_CLIENT, ETCD_PEER))
    wait_for("etcd", "being healthy", lambda: etcd_is_healthy(ETCD_CLIENT))


def start_apiserver() -> None:
    pki = state_folder() / "pki"
    arguments = {
        "etcd-servers": ETCD_CLIENT,
        "bind-address": HOST_ADDRESS,
        "advertise-address": HOST_ADDRESS,
        "secure-port": API_PORT,
        "tls-cert-file": pki / "api.crt",
        "tls-private-key-file": pki / "api.key",
        # Else `kubectl logs` asks for the node by its name, which no DNS knows.
        "kubelet-preferred-address-types": "InternalIP",
        "authorization-mode": "Node,RBAC",
        "token-auth-file": pki / "tokens.csv",
        "service-cluster-ip-range": f"{SERVICE_RANGE},{SERVICE_RANGE_6}",
        "service-account-key-file": pki / "service-account.pub",
        "service-account-signing-key-file": pki / "service-account.key",
    }
    start("apiserver", kube_apiserver_command(arguments))
    wait_for("apiserver", "being ready", lambda: kubectl_run("get", "--raw", "/readyz").returncode == 0)


def start_controller_manager() -> None:
    arguments = {
        "kubeconfig": kubeconfig("controller-manager"),
        "secure-port": 26257,
        "bind-address": "127.0.0.1",
        "cert-dir": state_folder() / "controller-manager",
        "root-ca-file": state_folder() / "pki" / "ca.crt",
        "service-account-private-key-file": state_folder() / "pki" / "service-account.key",
        "use-service-account-credentials": "true",
        "leader-elect": "false",
        "profiling": "false",
    }
    start("controller-manager", [str(install.node_folder() / "kube-controller-manager"), *as_options(arguments)])


def start_scheduler() -> None:
    arguments = {
        "kubeconfig": kubeconfig("scheduler"),
        "secure-port": 26259,
        "bind-address": "127.0.0.1",
        "cert-dir": state_folder() / "scheduler",
        "leader-elect": "false",
        "profiling": "false",
    }
    start("scheduler", [str(install.node_folder() / "kube-scheduler"), *as_options(arguments)])


def start_coredns() -> None:
    corefile = state_folder() / "Corefile"
    text = COREFILE.format(domain=CLUSTER_DOMAIN, address=HOST_ADDRESS, kubeconfig=kubeconfig("coredns"))
    corefile.write_text(text, encoding="utf-8")
    start("coredns", [str(install.coredns_program()), "-conf", str(corefile)])
