"""A group is scaled under load: no send is refused while its master stays, and no acknowledged message is lost.

Runs in the sandbox and at a real API server, there by kubectl and with Java brokers.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import pytest
import pytest_asyncio

from brokergroup_operator.kube.resources import BROKER_GROUPS, PODS
from tests.e2e.house import NAMESPACE, House, WholeGroup, whole_group
from tests.e2e.stories import change, holds, objects_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = [pytest.mark.longer, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

# A send waits as long as any other wait here, also in a Java broker's queue (200 ms by default): a slow machine
# causes no refusal.
PATIENT_SECONDS = 120.0
PATIENT_JAVA: Final = {"waitTimeMillsInSendQueue": str(int(1000 * PATIENT_SECONDS))}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(any_house: House) -> AsyncIterator[House]:
    """Each house in turn, with an operator."""
    await any_house.start_operator()
    yield any_house


async def begun(house: House, group: WholeGroup) -> None:
    """Create a single master whose manifest has no durability."""
    spec = {name: value for name, value in house.group_spec.items() if name != "durability"}
    config = PATIENT_JAVA if spec.get("implementation", "Java") == "Java" else {}
    await house.create(
        BROKER_GROUPS, group.name, {**spec, "replicas": 1, "config": {**spec.get("config", {}), **config}}
    )
    await group.until_settled()


async def became(group: WholeGroup, replicas: int, *, failures: int, epoch: int, since: int) -> None:
    """Wait until exactly this many members exist and are in sync; only a change of master may have refused a send."""
    group.replicas = replicas
    await group.until(
        lambda: len(group.pod_names()) == replicas and group.is_settled(),
        f"{replicas} are in sync",
        deadline_seconds=150,
    )
    await group.until_acknowledged()
    moved = group.seen.master_epoch != epoch
    times = [one.at_seconds for one in group.ledger.acknowledgements[max(0, since - 1) :]]
    gap = max(later - earlier for earlier, later in pairwise(times))
    refused = group.ledger.failures - failures
    print(
        f"{replicas} replicas: {len(times)} acknowledged, longest gap {1000 * gap:.0f} ms, {refused} refused,"
        f" the master {'changed' if moved else 'stayed'}"
    )
    assert moved or not refused, (group.ledger.reasons, group.story())


def now(group: WholeGroup) -> dict[str, int]:
    ledger = group.ledger
    return {
        "failures": ledger.failures, "epoch": group.seen.master_epoch, "since": len(ledger.acknowledgements),
    }  # fmt: skip


@pytest.mark.java_brokers
async def test_kubectl_scales_a_group_under_load(house: House) -> None:
    """From 1 to 3 every write was refused until a slave had joined: a lone master had got Strict's minimum."""
    async with whole_group(house, "scaled", replicas=1) as group:
        await begun(house, group)
        async with group.under_load(send_timeout_seconds=PATIENT_SECONDS):
            for replicas in (3, 2, 3, 1):
                before = now(group)
                await house.scale_group(group.name, replicas)
                await became(group, replicas, **before)
                stored = await house.api.get(BROKER_GROUPS, group.name, namespace=NAMESPACE)
                assert (stored["spec"]["replicas"], stored["spec"]["durability"]) == (replicas, "Available")
        await group.verify()
        print(group.ledger.reasons)
        print(
            f"{len(group.ledger.acknowledgements)} acknowledged, each of them in the log; {group.ledger.failures} refused"
        )


async def test_a_group_that_becomes_strict_as_it_grows_refuses_no_write(house: House) -> None:
    """The minimum rises once two are in sync, and falls before the others leave."""
    async with whole_group(house, "grows", replicas=1) as group:
        await begun(house, group)

        async def minimums() -> set[str]:
            pods = (await objects_of(group, PODS)).values()
            notes = [pod["metadata"]["annotations"]["brokergroup.dev/hot-config"] for pod in pods]
            return {note.partition('"minInSyncReplicas": ')[2].partition(",")[0].strip(' "}') for note in notes}

        async with group.under_load(send_timeout_seconds=PATIENT_SECONDS):
            wishes: list[dict[str, Any]] = [
                {"replicas": 3, "durability": "Strict"},
                {"replicas": 2},
                {"replicas": 1, "durability": "Available"},
            ]
            for wish, expected in zip(wishes, ("2", "2", "1"), strict=True):
                before = now(group)
                await change(group, {"spec": wish})
                await became(group, wish["replicas"], **before)

                async def given(minimum: str = expected) -> bool:
                    return await minimums() == {minimum}

                await holds(group, f"each broker has the minimum {expected}", given)
        await group.verify()
