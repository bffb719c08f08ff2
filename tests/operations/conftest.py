"""The embedded API with our kinds, for tests of the operations pass's writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.kube.client import KubernetesApi
from brokergroup_operator.reconcile.decide import unread
from brokergroup_operator.reconcile.operations.procedures import retire
from brokergroup_operator.records.store import GroupKey
from tests.operations.world import OPERATOR_TOKEN, World
from tests.reconcile.conftest import api, sandbox

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kube_sandbox.api_server.server import SandboxApiServer

__all__ = ["api", "sandbox"]


@pytest.fixture
async def operator_api(sandbox: SandboxApiServer) -> AsyncIterator[KubernetesApi]:
    """A client that the embedded API's observers identify as the operator's."""
    async with KubernetesApi.from_url(sandbox.url, token=OPERATOR_TOKEN) as client:
        yield client


@pytest.fixture
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Retire waits a second where it waits 3 s and more; tests/operations/test_retire_*.py have their own times."""
    monkeypatch.setattr(unread, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(retire, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(retire, "CLOSED_SECONDS", 0.0)


@pytest.fixture
async def world(api: KubernetesApi, operator_api: KubernetesApi, sandbox: SandboxApiServer) -> World:
    """A group of three in `default/orders`, and its operator's passes; the embedded API shows it each request."""
    made = World(api, operator_api, GroupKey("default", "orders"))
    sandbox.before_request = made.observe
    await made.create_group()
    return made
