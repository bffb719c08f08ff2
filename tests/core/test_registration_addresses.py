"""A registration needs an address that can be dialled: Java's controller accepts any text and sends it to every broker."""

import pytest

from controller_core.decision import ControllerCode
from controller_core.requests import ApplyBrokerId, RegisterBroker
from controller_core.settings import ControllerSettings
from controller_core.step import step


def answer_to(address: str | None) -> tuple[ControllerCode, str]:
    settings = ControllerSettings()
    claimed = step(
        None,
        ApplyBrokerId(cluster_name="cl", broker_name="bn", applied_broker_id=1, register_check_code="10.0.0.1:10911;1"),
        {},
        settings,
    )
    request = RegisterBroker(cluster_name="cl", broker_name="bn", broker_id=1, broker_address=address)
    decision = step(claimed.record, request, {}, settings)
    if decision.code != ControllerCode.SUCCESS:
        assert decision.record is None or decision.record == claimed.record, "a refusal changes nothing"
    return decision.code, decision.remark or ""


@pytest.mark.parametrize(
    "address", ["10.0.0.1:1", "broker-1.orders.default.svc:65535", "[fd00::10]:10911", "fd00::10:10911", "b_1:10911"]
)
def test_an_address_that_can_be_dialled_is_taken(address: str) -> None:
    assert answer_to(address)[0] == ControllerCode.SUCCESS


@pytest.mark.parametrize(
    "address",
    [
        None,
        "",
        "x",
        ";",
        ":",
        ":10911",
        "x:",
        "x:0",
        "x:65536",
        "x:-1",
        "x:+1",
        "x:1e3",
        "x:٣",
        "x: 1",
        "a b:1",
        "a;b:1",
    ]
    + ["a,b:1", "x:" + "9" * 5000, "x:10911\n", "\tx:10911"],
)
def test_any_other_text_is_refused_with_what_was_expected(address: str | None) -> None:
    code, remark = answer_to(address)
    assert code == ControllerCode.SYSTEM_ERROR
    assert remark == f"brokerAddress is {address!r}, expected <host>:<port>"
