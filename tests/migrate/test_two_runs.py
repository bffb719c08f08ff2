"""Two runs of `adopt claims` for one group: the second one waits for nothing and changes nothing."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.kube.errors import ApiUnavailableError, NotFoundError
from brokergroup_operator.kube.resources import LEASES
from brokergroup_operator.migrate.claims import sole_adoption
from brokergroup_operator.migrate.sole_run import LEASE_SECONDS, SoleRunError
from tests.migrate.fake_node import NAMESPACE
from tests.migrate.test_claims import GROUP, OLD, WISH, a_cluster, expected, state_of, take
from tests.support.memory_api import MemoryApi

if TYPE_CHECKING:
    from pathlib import Path

OTHER_ORDER = replace(WISH, sources=tuple(reversed(WISH.sources)))


@pytest.mark.parametrize("yes", [True, False])
@pytest.mark.parametrize("later_seconds", [0.0, 0.3, 0.6, 1.2])
async def test_a_second_run_with_another_master_is_refused_and_the_first_ends_as_if_alone(
    tmp_path: Path, later_seconds: float, yes: bool
) -> None:
    async with a_cluster(tmp_path) as node:
        first = asyncio.create_task(take(node.api))
        await asyncio.sleep(later_seconds)
        second = asyncio.create_task(take(node.api, OTHER_ORDER, yes=yes))
        ended = await asyncio.gather(first, second, return_exceptions=True)
        refused = [one for one in ended if isinstance(one, BaseException)]
        assert [type(one) for one in refused] == [SoleRunError], ended
        assert f"another run of adopt for group {GROUP} goes on" in str(refused[0])
        assert refused[0] is ended[1]
        assert await state_of(node.api, tmp_path) == expected(tmp_path)
        with pytest.raises(NotFoundError):
            await node.api.get(LEASES, f"{GROUP}-adopt", namespace=NAMESPACE)


async def test_a_run_that_loses_its_lease_ends_before_another_may_take_it(tmp_path: Path) -> None:
    """Cut off from the API, it would go on when the API comes back."""

    class CutOff(MemoryApi):
        async def _request(self, method: str, path: str, **more: Any) -> dict[str, Any]:
            if "/leases/" in path and method == "PUT":
                raise ApiUnavailableError(f"{method} {path}: cut off")
            return await super()._request(method, path, **more)

    clock = asyncio.get_running_loop().time
    async with a_cluster(tmp_path) as node:
        began_seconds = clock()
        with pytest.raises(SoleRunError, match="could not be renewed for 8 s: run it again"):
            async with sole_adoption(CutOff(node.api.server), WISH):
                await asyncio.Event().wait()
        assert clock() - began_seconds < LEASE_SECONDS


async def test_a_run_that_was_killed_is_forgotten(tmp_path: Path) -> None:
    clock = asyncio.get_running_loop().time
    async with a_cluster(tmp_path) as node:
        spec = {"holderIdentity": "killed", "leaseDurationSeconds": LEASE_SECONDS}
        await node.api.create(LEASES, {"metadata": {"name": f"{GROUP}-adopt", "namespace": NAMESPACE}, "spec": spec})
        began_seconds = clock()
        await take(node.api)
        assert clock() - began_seconds >= LEASE_SECONDS
        assert await state_of(node.api, tmp_path) == expected(tmp_path)


async def test_after_the_first_has_ended_the_second_may_begin(tmp_path: Path) -> None:
    async with a_cluster(tmp_path) as node:
        await take(node.api, yes=False)
        await take(node.api)
        assert await state_of(node.api, tmp_path) == expected(tmp_path)
        assert {claim for _, claim in node.ran} >= set(OLD)
