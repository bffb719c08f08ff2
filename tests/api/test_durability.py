"""Consequences of a spec: masters that shrink their own set before 1001, and the durability of a spec without one."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

from brokergroup_operator.api.brokergroup import BrokerGroup, BrokerGroupSpec, Implementation
from brokergroup_operator.api.durability import masters_shrink_first, with_durability
from brokergroup_operator.kube.client import KubernetesApi
from brokergroup_operator.kube.errors import InvalidError
from brokergroup_operator.kube.resources import BROKER_GROUPS
from tests.our_kinds import api_with_our_kinds


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param(BrokerGroupSpec(version="5.5.0"), True, id="known to"),
        pytest.param(BrokerGroupSpec(version="5.3.3"), False, id="known not to"),
        pytest.param(BrokerGroupSpec(version="5.1.1-patched"), False, id="older, with a suffix"),
        pytest.param(BrokerGroupSpec(version="5.10.0"), True, id="compared as numbers"),
        pytest.param(BrokerGroupSpec(), True, id="the operator's own version"),
        pytest.param(BrokerGroupSpec(image="example.com/rocketmq:1"), True, id="an image says nothing"),
        pytest.param(BrokerGroupSpec(implementation=Implementation.PYTHON, version="5.5.0"), False, id="replicas ask"),
    ],
)
def test_masters_shrink_first(spec: BrokerGroupSpec, expected: bool) -> None:
    assert masters_shrink_first(spec) is expected


def in_force(spec: dict[str, Any], promised: str | None) -> str:
    status = {"durability": promised} if promised else None
    group = with_durability(msgspec.convert({"spec": spec, "status": status}, BrokerGroup))
    assert group.spec.durability is not None
    return group.spec.durability.value


@pytest.mark.parametrize(
    ("spec", "promised", "expected"),
    [
        pytest.param({"replicas": 1}, None, "Available", id="a new one of one"),
        pytest.param({"replicas": 2}, None, "Available", id="a new one of two"),
        pytest.param({}, None, "Strict", id="a new one of three"),
        pytest.param({"replication": {"learners": 1}}, None, "Available", id="learners do not vote"),
        pytest.param({}, "Available", "Available", id="grown since"),
        pytest.param({"replicas": 2}, "Strict", "Strict", id="shrunk since"),
        pytest.param({"replicas": 1}, "Strict", "Available", id="one disk can't be Strict"),
        pytest.param({"durability": "Fast"}, "Strict", "Fast", id="the spec wins"),
    ],
)
def test_the_durability_in_force(spec: dict[str, Any], promised: str | None, expected: str) -> None:
    assert in_force(spec, promised) == expected


async def test_what_is_in_force_is_taken_wherever_a_spec_without_it_was() -> None:
    """Otherwise the operator could not write it to the spec."""
    taken = 0
    async with api_with_our_kinds(KubernetesApi) as api:

        async def is_taken(spec: dict[str, Any]) -> bool:
            group = {"metadata": {"name": "a", "namespace": "default"}, "spec": {"implementation": "Python"} | spec}
            try:
                await api.apply(BROKER_GROUPS, group, field_manager="test", dry_run=True)
            except InvalidError:
                return False
            return True

        for replicas, learners, unclean, minimum, policy in itertools.product(
            (1, 2, 3), (0, 1), ("Never", "Allowed"), (None, 1, 2), ("most-data", "preferred-zone")
        ):
            spec = {
                "replicas": replicas,
                "replication": {"learners": learners} | ({"minInSyncReplicas": minimum} if minimum else {}),
                "failover": {"uncleanElection": unclean, "electionPolicy": policy},
            }
            if not await is_taken(spec):
                continue
            for promised in (None, "Strict", "Available", "Fast"):
                assert await is_taken(spec | {"durability": in_force(spec, promised)}), (spec, promised)
                taken += 1
    assert taken > 100
