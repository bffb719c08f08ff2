"""The certificate of a group, from the spec to its containers, and what is said where controllers ask for one that nobody gave."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.fence.settings import FenceSettings, TlsSettings
from brokergroup_operator.reconcile.evaluate import evaluate
from brokergroup_operator.reconcile.render import broker_config, certificate
from brokergroup_operator.reconcile.render.pods import build_pod
from tests.reconcile import builders as b

GIVEN = {"security": {"certificateSecretRef": {"name": "orders-certificate"}}}
JAVA = {"implementation": "Java"}
OF_TLS = replace(b.SETTINGS, controller_tls=True, controller_authority="PEM\n")
ASKED_FOR = replace(OF_TLS, client_certificates_required=True)
MOUNT = {"name": names.VOLUME_CERTIFICATE, "mountPath": names.CERTIFICATE_DIR, "readOnly": True}


def containers(pod: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in pod["spec"]["containers"]}


def test_broker_and_fence_have_the_same_one() -> None:
    pod = build_pod(b.group(**JAVA, **GIVEN), b.member(2), OF_TLS)
    assert {"name": names.VOLUME_CERTIFICATE, "secret": {"secretName": "orders-certificate", "defaultMode": 0o440}} in (
        pod["spec"]["volumes"]
    )
    both = containers(pod)
    assert all(MOUNT in both[name]["volumeMounts"] for name in ("broker", "fence"))
    shell = both["broker"]["command"][-1]
    for argument in (
        "-Dtls.enable=true",
        '-Dtls.client.certPath="$CERTIFICATE_DIR/tls.crt"',
        '-Dtls.client.keyPath="$CERTIFICATE_DIR/tls.key"',
    ):
        assert argument in shell
    assert {"name": "CERTIFICATE_DIR", "value": names.CERTIFICATE_DIR} in both["broker"]["env"]


def test_the_fence_reads_what_it_is_rendered() -> None:
    pod = build_pod(b.group(**JAVA, **GIVEN), b.member(2), OF_TLS)
    told = {entry["name"]: str(entry.get("value", "10.0.0.2")) for entry in containers(pod)["fence"]["env"]}
    told |= {"FENCE_BROKER_ADDRESS": "10.0.0.2:10911", "FENCE_LOCAL_ADDRESS": "10.0.0.2:10911"}
    folder = Path(names.CERTIFICATE_DIR)
    authority = Path(names.CONFIG_DIR) / names.AUTHORITY_FILE
    assert FenceSettings.from_environment(told).controller_tls == TlsSettings(
        authority, folder / "tls.crt", folder / "tls.key"
    )


def test_what_a_user_says_to_java_stands_last() -> None:
    wish = JAVA | GIVEN | {"jvm": {"extraArguments": ["-Dtls.enable=false"]}}
    shell = containers(build_pod(b.group(**wish), b.member(1), OF_TLS))["broker"]["command"][-1]
    assert shell.index("-Dtls.enable=true") < shell.index("-Dtls.enable=false")


def test_a_python_replica_has_it_by_its_configuration() -> None:
    of = b.group(implementation="Python", config={"tls.client.trustCertPath": "/ca.crt"}, **GIVEN)
    properties = broker_config.broker_properties("orders", of.spec, OF_TLS)
    assert properties["tls.enable"] == "true"
    assert properties["tls.client.certPath"] == "${CERTIFICATE_DIR}/tls.crt"
    assert properties["tls.client.keyPath"] == "${CERTIFICATE_DIR}/tls.key"
    pod = build_pod(of, b.member(1), OF_TLS)
    assert MOUNT in containers(pod)["broker"]["volumeMounts"]


def test_without_one_nothing_of_it_is_anywhere() -> None:
    for implementation in ("Java", "Python"):
        pod = str(build_pod(b.group(implementation=implementation), b.member(1), ASKED_FOR))
        assert not [word for word in ("CERTIFICATE", "tls.crt", names.VOLUME_CERTIFICATE) if word in pod]


@pytest.mark.parametrize(
    ("settings", "spec", "said"),
    [
        (ASKED_FOR, JAVA, "its fences hear no controller and guard no broker"),
        (ASKED_FOR, JAVA | GIVEN, ""),
        (ASKED_FOR, JAVA | {"failover": {"isolation": {"enabled": False}}}, ""),
        (OF_TLS, JAVA, ""),
        (ASKED_FOR, {"implementation": "Python"}, "its brokers are not heard"),
        (ASKED_FOR, {"implementation": "Python", "config": {"tls.client.certPath": "/own.crt"}}, ""),
        (b.SETTINGS, JAVA | GIVEN, "is 'orders-certificate', but this operator's controllers speak no TLS"),
        (b.SETTINGS, JAVA, ""),
    ],
    ids=[
        "asked for", "asked for and given", "no fence, and an image may bring one", "not asked for", "a replica without",
        "a replica with its own", "nobody to show it to", "neither",
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told(settings: Any, spec: dict[str, Any], said: str) -> None:
    found = certificate.problem(b.group(**spec), settings)
    assert bool(found) == bool(said)
    assert said in found
    assert not found or found.startswith("spec.security.certificateSecretRef is ")


def test_the_group_is_stalled_with_it_and_still_repaired() -> None:
    """No pod is lost over it: the brokers may have a certificate by their image."""
    seen = b.settled(**JAVA)
    pods = {name: pod for name, pod in seen.pods.items() if name != "orders-3"}
    plan = evaluate(replace(seen, pods=pods), ASKED_FOR, now=b.NOW)
    targets = [action.target for action in plan.actions]
    assert "Pod orders-3" in targets
    [status] = [action for action in plan.actions if type(action).__name__ == "WriteStatus"]
    stalled = next(one for one in status.status["conditions"] if one["type"] == "Stalled")  # type: ignore[attr-defined]
    assert (stalled["status"], stalled["reason"]) == ("True", "InvalidSpec")
    assert "Expected a Secret with tls.crt and tls.key for the name orders.shop" in stalled["message"]
