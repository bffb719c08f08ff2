"""Signatures as Java's own ``AclClientRPCHook`` (5.5.0) makes them, and what they do not cover."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from rocketmq_remoting.command import request
from rocketmq_remoting.signature import (
    ACCESS_KEY,
    SIGNATURE,
    Credentials,
    SignatureState,
    sign,
    sign_command,
    signature_of,
    verify,
)

BROKER = Credentials(access_key="broker-a", secret_key="12345678")

# Printed by org.apache.rocketmq.acl.common.AclClientRPCHook 5.5.0 for these fields, this body and this secret key.
BY_JAVA = {
    "register": (
        {
            "clusterName": "DefaultCluster",
            "brokerName": "broker-a",
            "brokerId": "1",
            "brokerAddress": "10.0.0.1:10911",
            "invokeTime": "1795210522768",
        },
        None,
        "12345678",
        "7+QliFGZIMiHXgotVWtjONNdp0w=",
    ),
    "alter": (
        {"brokerName": "broker-a", "masterBrokerId": "1", "masterEpoch": "3", "invokeTime": "1795210522768"},
        b'{"syncStateSet":[1,2],"syncStateSetEpoch":2}',
        "12345678",
        "nQyejuRGplh1IqBhmRKC6niZuGo=",
    ),
    "no fields": ({}, None, "a long secret key with spaces \u00e9\u4e2d", "UHMeJmaqtipRofv+s0PKxF0S8VU="),
    # Java sorts by UTF-16 units: the astral name comes before the one at U+FF5E, code points would say after.
    "unicode": (
        {"\uff5e": "last?", "\U0001f600": "astral", "Z": "upper", "a": "lower", "brokerName": "\u4e2d\u6587\U0001f600"},
        b"\x00\xff\x80",
        "s",
        "pqTjyObejMU7ll23JsXSyP5FxIA=",
    ),
}


@pytest.mark.parametrize("name", BY_JAVA)
def test_what_java_signed_is_what_we_sign(name: str) -> None:
    fields, body, secret_key, expected = BY_JAVA[name]
    credentials = replace(BROKER, secret_key=secret_key)
    signed = sign(fields, body, credentials)
    assert signed == {**fields, ACCESS_KEY: "broker-a", SIGNATURE: expected}
    assert verify(signed, body, credentials) is SignatureState.VALID


def test_a_signed_command_is_signed_anew_when_it_changes() -> None:
    once = sign_command(request(1008, ext_fields={"masterEpoch": "1"}, body=b"x"), BROKER)
    twice = sign_command(structs.replace(once, ext_fields={**(once.ext_fields or {}), "masterEpoch": "2"}), BROKER)
    assert verify(twice.ext_fields, twice.body, BROKER) is SignatureState.VALID
    assert (once.ext_fields or {})[SIGNATURE] != (twice.ext_fields or {})[SIGNATURE]


FIELDS = st.dictionaries(st.text(min_size=1), st.text(), max_size=6).map(
    lambda fields: {name: value for name, value in fields.items() if name not in (ACCESS_KEY, SIGNATURE)}
)


@given(FIELDS, st.none() | st.binary(max_size=64))
def test_any_request_verifies_with_its_own_key_and_no_other(fields: dict[str, str], body: bytes | None) -> None:
    signed = sign(fields, body, BROKER)
    assert verify(signed, body, BROKER) is SignatureState.VALID
    assert verify(signed, body, replace(BROKER, secret_key="87654321")) is SignatureState.INVALID
    assert verify(signed, body, replace(BROKER, access_key="broker-b")) is SignatureState.UNKNOWN_KEY
    assert verify(signed, (body or b"") + b"x", BROKER) is SignatureState.INVALID
    assert verify(fields, body, BROKER) is SignatureState.UNSIGNED


@given(st.dictionaries(st.sampled_from(["a", ACCESS_KEY, SIGNATURE]), st.text()), st.none() | st.binary(max_size=8))
def test_no_text_in_the_fields_is_an_exception(fields: dict[str, str], body: bytes | None) -> None:
    assert verify(fields, body, BROKER) in SignatureState


@pytest.mark.parametrize("cut", [{ACCESS_KEY}, {SIGNATURE}])
def test_half_a_signature_is_a_wrong_one(cut: set[str]) -> None:
    signed = {name: value for name, value in sign({"a": "b"}, None, BROKER).items() if name not in cut}
    assert verify(signed, None, BROKER) is SignatureState.INVALID


def test_what_a_signature_does_not_cover_is_known() -> None:
    """Weaknesses of RocketMQ's scheme, kept for its sake: they are why `docs/concepts/security.md` asks for TLS beside it."""
    assert signature_of({"a": "12", "b": "3"}, None, "s") == signature_of({"a": "1", "b": "23"}, None, "s")
    assert signature_of({"a": "1"}, b"2", "s") == signature_of({"a": "12"}, None, "s")
    assert signature_of({"a": "1"}, None, "s") == signature_of({"z": "1"}, None, "s")
