"""spec.tls: in which order the modes of a cluster's parts follow each other (api/tls_fields.py)."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokergroup_operator.api import names
from brokergroup_operator.api.tls_fields import STEPS, TlsMode, TlsSpec, mode_of, next_mode, next_tls, strictest

NO_TLS, PERMISSIVE, ENFORCING = None, TlsMode.PERMISSIVE, TlsMode.ENFORCING
MODES = st.sampled_from(STEPS)


def understand(client: TlsMode | None, server: TlsMode | None) -> bool:
    """Whether a part that was made with one mode reaches one that was made with the other.

    A Java server without spec.tls shows RocketMQ's test certificate: a client with TLS accepts it unless it verifies. A server that
    enforces accepts no client without TLS.
    """
    if client is NO_TLS:
        return server is not ENFORCING
    return client is PERMISSIVE or server is not NO_TLS


def test_only_modes_one_step_apart_understand_each_other() -> None:
    for one, other in itertools.product(STEPS, repeat=2):
        apart = abs(STEPS.index(one) - STEPS.index(other))
        assert (understand(one, other) and understand(other, one)) == (apart <= 1), (one, other)


@given(MODES, MODES, st.integers(1, 4), st.data())
def test_every_part_reaches_every_other_at_each_moment_of_each_change(
    begin: TlsMode | None, wanted: TlsMode | None, many: int, data: st.DataObject
) -> None:
    """Parts are replaced one by one in any order, and the wish may change in between; in the end all have the wanted mode."""
    parts = [begin] * many
    for _ in range(data.draw(st.integers(0, 6))):
        wish = data.draw(MODES)
        parts[data.draw(st.integers(0, many - 1))] = next_mode(wish, parts)
        assert all(understand(one, other) for one, other in itertools.product(parts, repeat=2)), parts
    for _ in range(4):
        for index in range(many):
            parts[index] = next_mode(wanted, parts)
            assert all(understand(one, other) for one, other in itertools.product(parts, repeat=2)), parts
    assert parts == [wanted] * many


def test_a_new_cluster_begins_with_the_wanted_mode() -> None:
    assert next_mode(ENFORCING, ()) is ENFORCING
    assert next_mode(NO_TLS, ()) is NO_TLS


def test_a_wrong_wish_can_be_taken_back_while_its_first_pods_wait() -> None:
    """A pod that mounts a Secret that is not there never starts: it must not hold the way back up."""
    assert next_mode(NO_TLS, (NO_TLS, PERMISSIVE)) is NO_TLS
    assert next_mode(PERMISSIVE, (PERMISSIVE, ENFORCING)) is PERMISSIVE


def pod(mode: TlsMode | None, secret: str = "tls") -> dict[str, Any]:
    if mode is None:
        return {"metadata": {}, "spec": {}}
    volumes = [{"name": "run", "emptyDir": {}}, {"name": names.VOLUME_TLS, "secret": {"secretName": secret}}]
    return {"metadata": {"annotations": {names.ANNOTATION_TLS: mode.value}}, "spec": {"volumes": volumes}}


def spec(mode: TlsMode, secret: str = "tls") -> TlsSpec:
    return msgspec.convert({"certificateSecretRef": {"name": secret}, "mode": mode}, TlsSpec)


def test_without_a_wish_the_pods_secret_goes_on_to_the_last_step() -> None:
    assert next_tls(None, [pod(ENFORCING, "theirs")]) == spec(PERMISSIVE, "theirs")
    assert next_tls(None, [pod(PERMISSIVE), pod(NO_TLS)]) is None
    assert next_tls(spec(ENFORCING, "new"), [pod(PERMISSIVE, "old")]) == spec(ENFORCING, "new")
    assert next_tls(spec(ENFORCING), [pod(NO_TLS)]) == spec(PERMISSIVE)


@pytest.mark.parametrize("mode", STEPS)
def test_a_pod_says_with_which_mode_it_was_made(mode: TlsMode | None) -> None:
    assert mode_of(pod(mode)) is mode


def test_several_are_reached_by_the_strictest() -> None:
    assert strictest([NO_TLS, ENFORCING, PERMISSIVE]) is ENFORCING
    assert strictest([]) is None
