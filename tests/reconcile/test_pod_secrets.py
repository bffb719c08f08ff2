"""What pods have of a group's Secrets: credentials, certificates, and the key by which a fence knows the operator."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.api.pod_fence import FenceKeys
from brokergroup_operator.fence.settings import FenceSettings, TlsSettings
from brokergroup_operator.kube.errors import ApiError
from brokergroup_operator.kube.resources import EVENTS, SECRETS, Resource
from brokergroup_operator.reconcile.evaluate import evaluate
from brokergroup_operator.reconcile.plan import ApplyObject, MakeSecret, WriteStatus
from brokergroup_operator.reconcile.render import certificate
from brokergroup_operator.reconcile.render.broker_config import broker_conf, broker_properties
from brokergroup_operator.reconcile.render.pods import build_pod
from brokergroup_operator.reconcile.see.fetch import GroupFetcher
from rocketmq_remoting.serialization import decode_properties
from tests.reconcile import builders as b
from tests.reconcile import cases as c
from tests.reconcile.world import KEY

if TYPE_CHECKING:
    from brokergroup_operator.kube.client import KubernetesApi
    from brokergroup_operator.reconcile.plan import Action
    from brokergroup_operator.reconcile.settings import ReconcileSettings
    from tests.reconcile.world import World

IMPLEMENTATIONS = ("Java", "Python")
SIGNS: dict[str, Any] = {"security": {"credentialsSecretRef": {"name": "keys"}}}


def conf_of(**spec: Any) -> dict[str, str]:
    """Return the broker.conf of this group, as its broker reads it."""
    return decode_properties(broker_conf(b.group(**spec), b.SETTINGS).encode())


def environment_of(container: str, **spec: Any) -> dict[str, Any]:
    pod = build_pod(b.group(**spec), b.member(1), b.SETTINGS)
    return {entry["name"]: entry for entry in b.containers(pod)[container]["env"]}


def test_a_python_replica_gets_the_credentials_from_its_environment() -> None:
    given = json.loads(conf_of(implementation="Python", **SIGNS)["innerClientAuthenticationCredentials"])
    assert given == {"accessKey": "${BROKER_ACCESS_KEY}", "secretKey": "${BROKER_SECRET_KEY}"}


@pytest.mark.parametrize(
    ("signature", "asked_for"), [("Disabled", "false"), ("Accepted", "true"), ("Required", "true")]
)
def test_a_python_replica_hears_only_us_unless_the_key_is_being_changed(signature: str, asked_for: str) -> None:
    security = SIGNS["security"] | {"signature": signature}
    assert conf_of(implementation="Python", security=security)["authenticationEnabled"] == asked_for
    assert "authenticationEnabled" not in conf_of(implementation="Python")


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_credentials_reach_the_pod_from_the_secret_and_nothing_else(implementation: str) -> None:
    with_keys = environment_of("broker", implementation=implementation, **SIGNS)
    plain = environment_of("broker", implementation=implementation)
    assert with_keys["BROKER_ACCESS_KEY"]["valueFrom"] == {"secretKeyRef": {"name": "keys", "key": "accessKey"}}
    assert with_keys["BROKER_SECRET_KEY"]["valueFrom"] == {"secretKeyRef": {"name": "keys", "key": "secretKey"}}
    assert set(plain) == set(with_keys) - {"BROKER_ACCESS_KEY", "BROKER_SECRET_KEY"}


PLANTED = "planted-secret-5d41402abc4b2a76"


async def test_a_secret_is_asked_for_used_and_never_repeated(
    sandbox_world: World, api: KubernetesApi, capsys: pytest.CaptureFixture[str]
) -> None:
    world = sandbox_world
    security = SIGNS["security"] | {"signature": "Required"}
    await world.create_group(implementation="Java", nameServers=["ns:9876"], security=security)
    await world.settle()
    missing = (await world.conditions())["CredentialsMissing"]
    assert missing["reason"] == "SecretNotFound"
    assert "create it with the keys accessKey and secretKey" in missing["message"]

    secret = {"metadata": {"namespace": "default", "name": "keys"}}
    await api.create(SECRETS, secret | {"stringData": {"accessKey": "orders", "secretKey": ""}})
    await world.settle()
    assert (await world.conditions())["CredentialsMissing"]["reason"] == "SecretIncomplete"

    await api.patch(SECRETS, "keys", {"stringData": {"secretKey": PLANTED}}, namespace="default")
    await world.settle()
    assert "CredentialsMissing" not in await world.conditions()
    events = (await api.list(EVENTS, namespace="default")).items
    told = json.dumps([await world.everything(), events]) + "".join(capsys.readouterr())
    assert "secretKeyRef" in told
    for form in (PLANTED, base64.b64encode(PLANTED.encode()).decode()):
        assert form not in told


class Refusing:
    """An API whose role for us may not read Secrets, or that has no time."""

    def __init__(self, api: KubernetesApi, error: ApiError) -> None:
        self._api = api
        self._error = error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)

    async def get(self, resource: Resource, name: str, **options: Any) -> Any:
        if resource == SECRETS:
            raise self._error
        return await self._api.get(resource, name, **options)


async def test_a_secret_that_may_not_be_read_is_a_condition_and_an_api_that_is_away_is_none(
    sandbox_world: World, api: KubernetesApi
) -> None:
    await sandbox_world.create_group(**SIGNS)
    refused: Any = Refusing(api, ApiError("secrets is forbidden", status=403, reason="Forbidden"))
    seen = await GroupFetcher(refused, sandbox_world.view).fetch(KEY)
    assert seen is not None
    assert seen.credentials_problem is not None
    assert seen.credentials_problem.reason.value == "SecretNotReadable"
    away: Any = Refusing(api, ApiError("slow down", status=429))
    with pytest.raises(ApiError, match="slow down"):
        await GroupFetcher(away, sandbox_world.view).fetch(KEY)


GIVEN = {"security": {"certificateSecretRef": {"name": "orders-certificate"}}}
JAVA = {"implementation": "Java"}
OF_TLS = replace(b.SETTINGS, controller_tls=True, controller_authority="PEM\n")
ASKED_FOR = replace(OF_TLS, client_certificates_required=True)
MOUNT = {"name": names.VOLUME_CERTIFICATE, "mountPath": names.CERTIFICATE_DIR, "readOnly": True}


def test_broker_and_fence_have_the_same_one() -> None:
    pod = build_pod(b.group(**JAVA, **GIVEN), b.member(2), OF_TLS)
    assert {"name": names.VOLUME_CERTIFICATE, "secret": {"secretName": "orders-certificate", "defaultMode": 0o440}} in (
        pod["spec"]["volumes"]
    )
    both = b.containers(pod)
    assert all(MOUNT in both[name]["volumeMounts"] for name in ("broker", "fence"))
    shell = both["broker"]["command"][-1]
    assert "-Dtls.enable=true" in shell
    assert '-Dtls.client.certPath="$CERTIFICATE_DIR/tls.crt"' in shell
    assert '-Dtls.client.keyPath="$CERTIFICATE_DIR/tls.key"' in shell
    assert {"name": "CERTIFICATE_DIR", "value": names.CERTIFICATE_DIR} in both["broker"]["env"]


def test_the_fence_reads_what_it_is_rendered() -> None:
    pod = build_pod(b.group(**JAVA, **GIVEN), b.member(2), OF_TLS)
    told = {entry["name"]: str(entry.get("value", "10.0.0.2")) for entry in b.containers(pod)["fence"]["env"]}
    told |= {"FENCE_BROKER_ADDRESS": "10.0.0.2:10911", "FENCE_LOCAL_ADDRESS": "10.0.0.2:10911"}
    folder = Path(names.CERTIFICATE_DIR)
    authority = Path(names.CONFIG_DIR) / names.AUTHORITY_FILE
    assert FenceSettings.from_environment(told).controller_tls == TlsSettings(
        authority, folder / "tls.crt", folder / "tls.key"
    )


def test_what_a_user_says_to_java_stands_last() -> None:
    wish = JAVA | GIVEN | {"jvm": {"extraArguments": ["-Dtls.enable=false"]}}
    shell = b.containers(build_pod(b.group(**wish), b.member(1), OF_TLS))["broker"]["command"][-1]
    assert shell.index("-Dtls.enable=true") < shell.index("-Dtls.enable=false")


def test_a_python_replica_has_it_by_its_configuration() -> None:
    of = b.group(implementation="Python", config={"tls.client.trustCertPath": "/ca.crt"}, **GIVEN)
    properties = broker_properties("orders", of.spec, OF_TLS)
    assert properties["tls.enable"] == "true"
    assert properties["tls.client.certPath"] == "${CERTIFICATE_DIR}/tls.crt"
    assert properties["tls.client.keyPath"] == "${CERTIFICATE_DIR}/tls.key"
    pod = build_pod(of, b.member(1), OF_TLS)
    assert MOUNT in b.containers(pod)["broker"]["volumeMounts"]


def test_without_one_nothing_of_it_is_anywhere() -> None:
    for implementation in ("Java", "Python"):
        pod = str(build_pod(b.group(implementation=implementation), b.member(1), ASKED_FOR))
        assert not [word for word in ("CERTIFICATE", "tls.crt", names.VOLUME_CERTIFICATE) if word in pod]


OWN_BY_IMAGE = {"implementation": "Python", "config": {"tls.client.certPath": "/own.crt"}}
MISFITS: list[tuple[str, ReconcileSettings, dict[str, Any], str]] = [
    ("asked for", ASKED_FOR, JAVA, "its fences hear no controller and guard no broker"),
    ("asked for and given", ASKED_FOR, JAVA | GIVEN, ""),
    ("no fence, and an image may bring one", ASKED_FOR, JAVA | {"failover": {"isolation": {"enabled": False}}}, ""),
    ("not asked for", OF_TLS, JAVA, ""),
    ("a replica without", ASKED_FOR, {"implementation": "Python"}, "its brokers are not heard"),
    ("a replica with its own", ASKED_FOR, OWN_BY_IMAGE, ""),
    ("no controller asks", b.SETTINGS, JAVA | GIVEN, "is 'orders-certificate', but this operator's controllers speak no TLS"),
    ("neither", b.SETTINGS, JAVA, ""),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "spec", "said"), c.table(MISFITS))
def test_what_does_not_fit_is_reported(settings: ReconcileSettings, spec: dict[str, Any], said: str) -> None:
    found = certificate.problem(b.group(**spec), settings)
    assert bool(found) == bool(said)
    assert said in found
    assert not found or found.startswith("spec.security.certificateSecretRef is ")


def actions(settings: ReconcileSettings, **spec: Any) -> tuple[Action, ...]:
    """Return the actions of a pass in which two pods are missing."""
    seen = b.settled(**spec)
    return evaluate(b.changed(seen, pods=b.without(seen.pods, "orders-2", "orders-3")), settings, now=b.NOW).actions


def test_the_group_is_stalled_with_it_and_still_repaired() -> None:
    """No pod is lost over it: the brokers may have a certificate by their image."""
    plan = actions(ASKED_FOR, **JAVA)
    assert "Pod orders-3" in [action.target for action in plan]
    [status] = [action.status for action in plan if isinstance(action, WriteStatus)]
    stalled = next(one for one in status["conditions"] if one["type"] == "Stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", "InvalidSpec")
    assert "Expected a Secret with tls.crt and tls.key for the name orders.shop" in stalled["message"]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_only_the_fences_container_mounts_the_key_and_hears_orders(implementation: str) -> None:
    both = b.containers(build_pod(b.group(implementation=implementation), b.member(2), b.SIGNED))
    fence, broker = both[names.CONTAINER_FENCE], both[names.CONTAINER_BROKER]
    mounted = [one["name"] for one in fence["volumeMounts"]]
    told = {entry["name"]: entry.get("value") for entry in fence["env"]}
    assert names.VOLUME_FENCE_KEY in mounted
    assert names.VOLUME_FENCE_KEY not in [one["name"] for one in broker["volumeMounts"]]
    assert told["FENCE_KEY_FILE"] == "/etc/brokergroup/fence/key"
    assert told["FENCE_LOCAL_ADDRESS"] == "$(POD_IP):10911"
    assert fence["ports"] == [{"name": names.PORT_FENCE, "containerPort": 10913, "protocol": "UDP"}]
    # What a variable refers to stands before it.
    assert list(told).index("POD_IP") < list(told).index("FENCE_LOCAL_ADDRESS")


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_the_key_that_is_mounted_is_the_one_that_the_operator_uses(implementation: str) -> None:
    group = b.group(implementation=implementation)
    pod = build_pod(group, b.member(2), b.SIGNED)
    [made] = [one for one in actions(b.SIGNED, implementation=implementation) if isinstance(one, MakeSecret)]
    secret = made.object
    [mounted] = [one["secret"] for one in pod["spec"]["volumes"] if one["name"] == names.VOLUME_FENCE_KEY]
    assert mounted["secretName"] == secret["metadata"]["name"]
    assert b.FENCE_KEYS.key_in(pod) == bytes.fromhex(base64.b64decode(secret["data"]["key"]).decode())
    assert secret["metadata"]["ownerReferences"][0]["uid"] == "group-uid"
    assert FenceKeys(b"q" * 32).key_in(pod) is None, "a fence with another root's key is not asked"
    assert secret["data"]["key"] not in repr(made)


def test_the_secret_is_made_before_a_pod_and_only_where_one_is_missing() -> None:
    kinds = [one.resource.kind if isinstance(one, ApplyObject) else type(one).__name__ for one in actions(b.SIGNED)]
    assert kinds.index("MakeSecret") < kinds.index("Pod")
    assert kinds.count("MakeSecret") == 1
    settled = evaluate(b.settled(), b.SIGNED, now=b.NOW).actions
    assert not any(isinstance(one, MakeSecret) for one in settled)


@pytest.mark.parametrize(
    ("settings", "spec"),
    [(b.SETTINGS, {}), (b.SIGNED, {"failover": {"isolation": {"enabled": False}}})],
    ids=["no key", "no fence"],
)
def test_without_a_key_or_a_fence_there_is_no_secret(settings: Any, spec: dict[str, Any]) -> None:
    group = b.group(**spec)
    assert not any(isinstance(one, MakeSecret) for one in actions(settings, **spec))
    pod = build_pod(group, b.member(2), settings)
    assert names.VOLUME_FENCE_KEY not in [one["name"] for one in pod["spec"]["volumes"]]
