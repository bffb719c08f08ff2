"""A real kube-apiserver accepts the objects rendered from every text that our kinds accept, as in tests/api/test_names_fit.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.kube.client import KubernetesApi
from brokergroup_operator.kube.errors import ApiError
from brokergroup_operator.kube.resources import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    NETWORK_POLICIES,
    PERSISTENT_VOLUME_CLAIMS,
    POD_DISRUPTION_BUDGETS,
    PODS,
    SERVICES,
    STATEFUL_SETS,
    Resource,
)
from tests.api.test_names_fit import PLACES, objects_for, taken
from tests.support.rendered import made_of

if TYPE_CHECKING:
    from tests.support.kube_apiserver import KubeApiserver
    from tests.support.schema_strings import Place

pytestmark = [pytest.mark.real("kube-apiserver"), pytest.mark.timeout(600)]

FORBIDDEN = 403
# Only the API server compares a range with its exception (cidr() of CEL came with 1.31). The group is Stalled, as with any refusal.
NOT_WITHIN = "ipBlock.except[0]: Invalid value: {}: must be a strict subset of `cidr`"
BUILTIN: dict[str, Resource] = {
    one.kind: one
    for one in (
        CONFIG_MAPS, DEPLOYMENTS, NETWORK_POLICIES, PERSISTENT_VOLUME_CLAIMS, PODS, POD_DISRUPTION_BUDGETS, SERVICES,
        STATEFUL_SETS,
    )
}  # fmt: skip


async def complaint(api: KubernetesApi, made: dict[str, Any]) -> str:
    """Return the API server's complaint; empty if it would accept the object."""
    try:
        await api.apply(BUILTIN[made["kind"]], made, field_manager="test", dry_run=True)
    except ApiError as error:
        # Admission: the account, the PriorityClass or the RuntimeClass is not there.
        return "" if error.status == FORBIDDEN else str(error)
    return ""


@pytest.mark.parametrize("place", PLACES, ids=str)
async def test_whatever_is_taken_can_be_made(with_kinds: KubeApiserver, place: Place) -> None:
    broken: list[str] = []
    async with KubernetesApi.from_kubeconfig(with_kinds.kubeconfig) as api:
        for text, obj in objects_for(place, place.candidates()):
            stored = await taken(api, obj)
            for made in made_of(stored) if stored is not None else ():
                if made["kind"] not in BUILTIN:
                    broken += [] if await taken(api, made) else [f"{text!r}: {made['kind']} is refused"]
                elif (said := await complaint(api, made)) and not _is_about_a_range(place, text, said):
                    broken.append(f"{text!r}: {made['kind']}: {said}")
    assert broken == [], "\n".join(broken[:20])


def _is_about_a_range(place: Place, text: str, said: str) -> bool:
    return "except" in place.path and said.endswith(NOT_WITHIN.format(f'"{text}"'))
