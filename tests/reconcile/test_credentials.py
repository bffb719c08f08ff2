"""A group's Secret, from the API to the pods and the status: what is there, what is missing, and that it stays a secret."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.kube.errors import ApiError
from brokergroup_operator.kube.resources import BROKER_GROUPS, EVENTS, SECRETS, Resource
from brokergroup_operator.reconcile.access import ClusterAccess
from brokergroup_operator.reconcile.see.fetch import GroupFetcher
from brokergroup_operator.records.store import GroupKey
from tests.reconcile.world import World, applier_for

if TYPE_CHECKING:
    from brokergroup_operator.kube.client import KubernetesApi
    from kube_sandbox.api_server.server import SandboxApiServer

KEY = GroupKey("default", "orders")
PLANTED = "planted-secret-5d41402abc4b2a76"


async def create_secret(api: KubernetesApi, **entries: str) -> None:
    data = {key: base64.b64encode(value.encode()).decode() for key, value in entries.items()}
    await api.create(SECRETS, {"metadata": {"namespace": "default", "name": "keys"}, "data": data})


async def conditions(api: KubernetesApi) -> dict[str, Any]:
    group = await api.get(BROKER_GROUPS, KEY.name, namespace=KEY.namespace)
    return {item["type"]: item for item in group["status"]["conditions"]}


async def test_a_secret_is_asked_for_used_and_never_repeated(
    sandbox: SandboxApiServer, api: KubernetesApi, capsys: pytest.CaptureFixture[str]
) -> None:
    applier = applier_for(ClusterAccess(url=sandbox.url))
    world = World(api, applier, KEY)
    await world.create_group(
        implementation="Java",
        nameServers=["ns:9876"],
        security={"signature": "Required", "credentialsSecretRef": {"name": "keys"}},
    )
    await world.settle()
    missing = (await conditions(api))["CredentialsMissing"]
    assert missing["reason"] == "SecretNotFound"
    assert "create it with the keys accessKey and secretKey" in missing["message"]

    await create_secret(api, accessKey="orders", secretKey="")
    await world.settle()
    assert (await conditions(api))["CredentialsMissing"]["reason"] == "SecretIncomplete"

    await api.patch(SECRETS, "keys", {"stringData": {"secretKey": PLANTED}}, namespace="default")
    await world.settle()
    assert "CredentialsMissing" not in await conditions(api)
    events = (await api.list(EVENTS, namespace="default")).items
    told = json.dumps([await world.everything(), events]) + "".join(capsys.readouterr())
    assert "secretKeyRef" in told
    for form in (PLANTED, base64.b64encode(PLANTED.encode()).decode()):
        assert form not in told
    await applier.close()


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
    sandbox: SandboxApiServer, api: KubernetesApi
) -> None:
    applier = applier_for(ClusterAccess(url=sandbox.url))
    world = World(api, applier, KEY)
    await world.create_group(security={"credentialsSecretRef": {"name": "keys"}})
    refused: Any = Refusing(api, ApiError("secrets is forbidden", status=403, reason="Forbidden"))
    seen = await GroupFetcher(refused, world.view).fetch(KEY)
    assert seen is not None
    assert seen.credentials_problem is not None
    assert seen.credentials_problem.reason.value == "SecretNotReadable"

    away: Any = Refusing(api, ApiError("slow down", status=429))
    with pytest.raises(ApiError, match="slow down"):
        await GroupFetcher(away, world.view).fetch(KEY)
    await applier.close()
