"""`spec.localProxy`, RocketMQ's Proxy in the process of each Java broker: command, file, ports, Services, and what a change is."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.reconcile.plan import ApplyObject
from brokergroup_operator.reconcile.render import broker_config, children
from brokergroup_operator.reconcile.render.addressing import build_member_service
from brokergroup_operator.reconcile.render.containers import java_arguments
from brokergroup_operator.reconcile.render.pods import build_pod
from brokergroup_operator.reconcile.see.fetch import with_sources
from tests.reconcile import builders as b
from tests.reconcile import cases as c
from tests.reconcile.cases import lines_of, run

if TYPE_CHECKING:
    from pathlib import Path

    from brokergroup_operator.reconcile.see.observed import Observed

PROXY_PORTS = {"grpc": 8081, "remoting": 8080}
JAVA: dict[str, Any] = {"implementation": "Java", "nameServers": ["ns-0:9876", "ns-1:9876"]}
WITH_PROXY = JAVA | {"localProxy": {"config": {"maxMessageSize": "1024", "enableACL": "true", "proxyMode": "CLUSTER"}}}


def files_of(**spec: Any) -> dict[str, str]:
    data: dict[str, str] = children.build_config_map(b.group(**spec), b.SETTINGS)["data"]
    return data


def broker_of(**spec: Any) -> dict[str, Any]:
    container: dict[str, Any] = b.containers(build_pod(b.group(**spec), b.member(1), b.SETTINGS))[
        names.CONTAINER_BROKER
    ]
    return container


def test_the_proxy_is_configured_beside_the_broker() -> None:
    assert json.loads(files_of(**WITH_PROXY)["rmq-proxy.json"]) == {
        "proxyMode": "LOCAL",
        "rocketMQClusterName": "DefaultCluster",
        "namesrvAddr": "ns-0:9876;ns-1:9876",
        "grpcServerPort": 8081,
        "remotingListenPort": 8080,
        "topicRouteServiceCacheRefreshSeconds": 2,
        "topicRouteServiceCacheExpiredSeconds": 2,
        "grpcShutdownTimeSeconds": 3,
        "maxMessageSize": 1024,
        "enableACL": True,
    }
    assert files_of(**WITH_PROXY)["broker.conf"] == files_of(**JAVA)["broker.conf"]


@pytest.mark.parametrize("key", ["topicRouteServiceCacheExpiredSeconds", "grpcShutdownTimeSeconds"])
def test_times_of_the_proxy_may_be_others(key: str) -> None:
    told = files_of(**JAVA | {"localProxy": {"config": {key: "7"}}})["rmq-proxy.json"]
    assert json.loads(told)[key] == 7


def test_the_command_starts_broker_and_proxy_in_one_process(tmp_path: Path) -> None:
    """The command of the pod, with a `java` that only prints its arguments."""
    for name, text in files_of(**WITH_PROXY).items():
        (tmp_path / "config").mkdir(exist_ok=True)
        (tmp_path / "config" / name).write_text(text, encoding="utf-8")
    java, run_folder = tmp_path / "java", tmp_path / "run"
    run_folder.mkdir()
    java.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n', encoding="utf-8")
    java.chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "POD_IP": "10.1.2.3",
        "STORE_DIR": "/data/store",
        "CONFIG_DIR": str(tmp_path / "config"),
        "RUN_DIR": str(run_folder),
        "ROCKETMQ_HOME": "/opt/rocketmq",
    }
    command = broker_of(**WITH_PROXY)["command"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-9:] == [
        "-cp", "/opt/rocketmq/lib/*", "org.apache.rocketmq.proxy.ProxyStartup", "-pm", "local",
        "-pc", f"{tmp_path}/config/rmq-proxy.json", "-bc", f"{run_folder}/broker.conf",
    ]  # fmt: skip
    assert "brokerIP1=10.1.2.3\n" in (run_folder / "broker.conf").read_text(encoding="utf-8")


def test_the_pod_is_ready_when_the_last_port_is_open() -> None:
    broker = broker_of(**WITH_PROXY)
    ports = {port["name"]: port["containerPort"] for port in broker["ports"]}
    assert ports == {"broker": 10911, "ha": 10912, "fast": 10909} | PROXY_PORTS
    # A Proxy opens the broker's port, the gRPC port and this one, in that order: tests/real/test_java_local_proxy.py.
    assert broker["readinessProbe"]["tcpSocket"] == {"port": 8080}
    assert broker["livenessProbe"] == broker_of(**JAVA)["livenessProbe"]
    assert broker["lifecycle"] == broker_of(**JAVA)["lifecycle"]
    assert broker["env"] == broker_of(**JAVA)["env"], "the fence finds the process by its variables"


@pytest.mark.parametrize(
    ("limit", "heap", "direct"), [(None, 512, 512), ("2Gi", 1024, 512), ("768Mi", 277, 138), ("512Mi", 106, 53)]
)
def test_a_small_limit_leaves_the_proxy_its_own_part(limit: str | None, heap: int, direct: int) -> None:
    of = b.group(**WITH_PROXY, **({"resources": {"limits": {"memory": limit}}} if limit else {}))
    assert java_arguments(of.spec)[1:3] == [f"-Xmx{heap}m", f"-XX:MaxDirectMemorySize={direct}m"]


def ports_of(service: dict[str, Any]) -> dict[str, tuple[int, str]]:
    return {port["name"]: (port["port"], port["targetPort"]) for port in service["spec"]["ports"]}


def test_only_the_masters_service_leads_to_proxies() -> None:
    proxy = {name: (port, name) for name, port in PROXY_PORTS.items()}
    of = b.group(**WITH_PROXY)
    plain = b.group(**JAVA)
    master = children.build_master_service(of)
    assert ports_of(master) == ports_of(children.build_master_service(plain)) | proxy
    assert master["spec"]["selector"][names.LABEL_ROLE] == names.ROLE_MASTER
    assert children.build_members_service(of) == children.build_members_service(plain)


@pytest.mark.parametrize("addressing", ["ServiceIP", "LoadBalancer"])
def test_a_members_service_leads_to_its_proxy(addressing: str) -> None:
    """A Proxy sends clients to the address by which a broker is known, at its own gRPC port."""
    network = {"network": {"addressing": addressing}}
    service = build_member_service(b.group(**WITH_PROXY, **network), b.member(1), slot=0)
    plain = build_member_service(b.group(**JAVA, **network), b.member(1), slot=0)
    assert ports_of(service) == ports_of(plain) | {name: (port, name) for name, port in PROXY_PORTS.items()}


@pytest.mark.parametrize(
    ("before", "after", "restarts"),
    [
        (JAVA, JAVA | {"localProxy": {}}, True),
        (JAVA | {"localProxy": {}}, JAVA, True),
        (JAVA | {"localProxy": {}}, JAVA | {"localProxy": {"config": {"maxMessageSize": "1024"}}}, True),
        # A Proxy reads its list of NameServers when it starts; a broker alone follows another one.
        (JAVA | {"localProxy": {}}, JAVA | {"localProxy": {}, "nameServers": ["ns-2:9876"]}, True),
        (JAVA, JAVA | {"nameServers": ["ns-2:9876"]}, False),
        (JAVA | {"localProxy": {}}, JAVA | {"localProxy": {}, "config": {"fileReservedTime": "24"}}, False),
    ],
    ids=["given", "taken away", "another key", "NameServers", "NameServers without a Proxy", "a hot key of the broker"],
)
def test_a_change_is_a_rolling_update(before: dict[str, Any], after: dict[str, Any], *, restarts: bool) -> None:
    outdated = c.course(c.wishing(c.settled(**before), **after)).outdated
    assert [item.member.pod for item in outdated] == (["orders-1", "orders-2", "orders-3"] if restarts else [])


@pytest.mark.parametrize("spec", [JAVA, WITH_PROXY])
def test_a_settled_group_has_nothing_to_do_and_its_files_have_the_hash_of_its_spec(spec: dict[str, Any]) -> None:
    assert lines_of(run(c.settled(**spec))) == []
    of = b.group(**spec)
    stored = children.build_config_map(of, b.SETTINGS)
    assert broker_config.cold_hash_of(of, stored) == broker_config.cold_hash(of, b.SETTINGS)


def files_after(seen: Observed) -> dict[str, str]:
    """The data of the group's ConfigMap once the pass is carried out."""
    data: dict[str, str] = carried_out(seen).config_maps[names.config_map_name("orders")]["data"]
    return data


def carried_out(seen: Observed) -> Observed:
    """The group after its ConfigMap was applied."""
    name = names.config_map_name("orders")
    stored = seen.config_maps[name]
    made = [
        one.object for one in run(seen).actions if isinstance(one, ApplyObject) and one.object["kind"] == "ConfigMap"
    ]
    return replace(seen, config_maps={name: {**stored, **made[0]} if made else stored})


@pytest.mark.parametrize(
    "more", [{}, {"config": {"fileReservedTime": "24"}}], ids=["nothing else", "with another change of the ConfigMap"]
)
@pytest.mark.parametrize("update", [{}, {"type": "OnDelete"}, {"masterUpdate": "Supervised"}], ids=str)
def test_taken_away_a_container_restarts_before_its_turn(more: dict[str, Any], update: dict[str, Any]) -> None:
    """Its pod's command still names rmq-proxy.json: without the file the container would crash until its pod is made anew."""
    wished = JAVA | {"updateStrategy": update}
    before = c.settled(**WITH_PROXY | {"updateStrategy": update})
    seen = c.wishing(before, **wished | more)
    assert names.PROXY_CONFIG_FILE in broker_of(**WITH_PROXY)["command"][-1]
    kept = files_of(**WITH_PROXY)[names.PROXY_CONFIG_FILE]
    for _ in range(2):
        assert files_after(seen) == files_of(**wished | more) | {names.PROXY_CONFIG_FILE: kept}
        seen = carried_out(seen)
    # The last pod of that revision needs it as the first did.
    new = c.settled(**wished | more)
    assert names.PROXY_CONFIG_FILE in files_after(replace(seen, pods={**new.pods, "orders-2": before.pods["orders-2"]}))
    assert files_after(replace(seen, pods=new.pods)) == files_of(**wished | more)


def test_a_file_that_is_kept_makes_no_pod_outdated() -> None:
    """While configFrom is missing, a pod has the hash of the stored ConfigMap: the Proxy's file is no part of it any more."""
    of = b.group(**JAVA)
    stored = children.build_config_map(of, b.SETTINGS, proxy=files_of(**WITH_PROXY)[names.PROXY_CONFIG_FILE])
    assert names.PROXY_CONFIG_FILE in stored["data"]
    assert broker_config.cold_hash_of(of, stored) == broker_config.cold_hash(of, b.SETTINGS)


def test_an_acl_from_a_config_map_is_one_of_the_proxy_too() -> None:
    """The API server sees only spec.config."""
    sources = {"configFrom": [{"configMapRef": {"name": "site"}}]}
    site = {"site": {"metadata": {"name": "site"}, "data": {"authenticationEnabled": "true"}}}
    of = b.group(**JAVA, **sources, localProxy={})
    group, complaint = with_sources(of, site)
    assert group is of
    assert "config.authenticationEnabled 'true' needs localProxy.config.authenticationEnabled 'true'" in complaint
    same = {"localProxy": {"config": {"authenticationEnabled": "true"}}}
    for spec in ({}, same, {"localProxy": {}, "config": {"authenticationEnabled": "false"}}):
        assert with_sources(b.group(**JAVA, **sources, **spec), site)[1] == ""
