"""A lost record, as the reconcile plane sees it: pods that run under unknown ids are about to be adopted, not missing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brokergroup_operator.reconcile.see.members import membership
from controller_core.model import BrokerGroupRecord, Replica
from tests.reconcile import builders as b

ADOPTED = Replica(2, "10.0.0.2:10911;adopted", "10.0.0.2:10911", reserved_for="orders-2", registered=True)


def _pods() -> tuple[str, ...]:
    return tuple(sorted(b.settled().pods))


def _after(record: BrokerGroupRecord | None) -> list[str]:
    seen = replace(b.settled(), record=record, snapshot=None)
    return [member.pod for member in membership(seen).to_reserve]


def test_nobody_is_reserved_an_id_while_all_pods_run_under_unknown_ones() -> None:
    assert len(_pods()) == 3
    assert _after(None) == []


def test_nobody_is_reserved_an_id_while_some_are_adopted() -> None:
    group = _pods()[0].rpartition("-")[0]
    adopted = replace(ADOPTED, reserved_for=f"{group}-2")
    assert _after(BrokerGroupRecord("c", "b", next_broker_id=3, replicas={2: adopted})) == []


def test_a_pod_whose_id_was_cleaned_on_purpose_is_replaced() -> None:
    before = b.settled().record
    assert before is not None
    kept = {broker_id: replica for broker_id, replica in before.replicas.items() if broker_id != 3}
    assert len(_after(replace(before, replicas=kept, sync_state_set=frozenset({1, 2})))) == 1


@pytest.mark.parametrize("leaving", [True, False])
def test_a_pod_that_is_leaving_is_waited_for_by_nobody(leaving: bool) -> None:
    seen = b.settled()
    pods = dict(seen.pods)
    name = _pods()[-1]
    if leaving:
        pods[name] = pods[name] | {"metadata": pods[name]["metadata"] | {"deletionTimestamp": "2026-01-01T00:00:00Z"}}
    missing = membership(replace(seen, record=None, snapshot=None, pods=pods)).to_reserve
    assert len(missing) == int(leaving)
