"""What a group's owner wants at this moment, read from the API before a plane opens a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.kube.client import KubernetesApi
from brokergroup_operator.kube.resources import BROKER_GROUPS
from tests.controller.cluster import ORDERS, create_group, known
from tests.support.fake_broker import eventually

if TYPE_CHECKING:
    from tests.controller.cluster import Cluster

MARK = {"metadata": {"annotations": {names.ANNOTATION_CLOSED_BY: "uid"}}}


async def test_what_a_group_is_now_is_read_from_the_api(cluster: Cluster) -> None:
    """The watch's copy may be old; a group that is gone, or an API that does not answer, says nothing."""
    await create_group(cluster.api)
    now = await cluster.directory.binding_now(ORDERS)
    assert now is not None
    assert (now.closed, now.deleting) == (False, False)
    await cluster.api.patch(BROKER_GROUPS, ORDERS.name, MARK, namespace=ORDERS.namespace)
    now = await cluster.directory.binding_now(ORDERS)
    assert now is not None
    assert now.closed
    await cluster.api.delete(BROKER_GROUPS, ORDERS.name, namespace=ORDERS.namespace)
    assert await cluster.directory.binding_now(ORDERS) is None


@pytest.mark.parametrize(
    ("metadata", "closed", "deleting"),
    [
        ({}, False, False),
        (MARK["metadata"], True, False),
        ({"deletionTimestamp": "2026-11-30T00:00:00Z"}, False, True),
    ],
    ids=["open", "closed", "being deleted"],
)
async def test_a_group_of_a_newer_crd_is_what_was_known_of_it_and_its_marks(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, metadata: dict[str, Any], closed: bool, deleting: bool
) -> None:
    """Without an answer a master that a dead switchover left at 99 acknowledged nothing for as long as its spec has the field."""
    await create_group(cluster.api)
    await eventually(lambda: cluster.directory.binding(ORDERS) is not None, what="the directory to know the group")
    expected = known(cluster.directory)

    async def newer(_api: KubernetesApi, *_arguments: Any, **_options: Any) -> dict[str, Any]:
        spec = {"replicas": 3, "implementation": "of a later version"}
        return {"metadata": {"name": ORDERS.name, "namespace": ORDERS.namespace, **metadata}, "spec": spec}

    monkeypatch.setattr(KubernetesApi, "get", newer)
    now = await cluster.directory.binding_now(ORDERS)
    assert now is not None
    assert (now.settings, now.closed, now.deleting) == (expected.settings, closed, deleting)
