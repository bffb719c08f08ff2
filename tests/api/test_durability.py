"""What follows from a spec for the controller: which masters make their own set smaller before they ask."""

from __future__ import annotations

import pytest

from brokergroup_operator.api.brokergroup import BrokerGroupSpec, Implementation
from brokergroup_operator.api.durability import masters_shrink_first


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
