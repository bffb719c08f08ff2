"""spec.tls: in which order the modes of a cluster's parts follow each other (api/tls_steps.py)."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokergroup_operator.api import names
from brokergroup_operator.api.tls_fields import TlsMode, TlsSpec
from brokergroup_operator.api.tls_steps import (
    STEPS,
    Made,
    Trust,
    made_of,
    mode_of,
    next_mode,
    next_tls,
    strictest,
    trust_file,
)

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


def pod(mode: TlsMode | None, secret: str = "tls", trusts: str = "", **metadata: Any) -> dict[str, Any]:
    if mode is None:
        return {
            "metadata": metadata,
            "spec": {"containers": [{"name": "broker", "command": ["sh", "-c", "java Main"]}]},
        }
    volumes = [{"name": "run", "emptyDir": {}}, {"name": names.VOLUME_TLS, "secret": {"secretName": secret}}]
    trusted = f'-Dtls.client.trustCertPath="$TRUST_DIR/{trusts}"' if trusts else ""
    command = ["sh", "-c", f"java -Dtls.server.mode={mode.lower()} {trusted} Main"]
    return {"metadata": metadata, "spec": {"volumes": volumes, "containers": [{"name": "broker", "command": command}]}}


def spec(mode: TlsMode, secret: str = "tls", **more: Any) -> TlsSpec:
    return msgspec.convert({"certificateSecretRef": {"name": secret}, "mode": mode, **more}, TlsSpec)


def made(*pods: dict[str, Any]) -> list[Made]:
    return [made_of(one) for one in pods]


def test_without_a_wish_the_pods_secret_goes_on_to_the_last_step() -> None:
    assert next_tls(None, made(pod(ENFORCING, "theirs"))) == spec(PERMISSIVE, "theirs")
    assert next_tls(None, made(pod(PERMISSIVE), pod(NO_TLS))) is None
    assert next_tls(spec(ENFORCING), made(pod(NO_TLS))) == spec(PERMISSIVE)


@pytest.mark.parametrize("mode", STEPS)
def test_a_pod_says_with_which_mode_it_was_made(mode: TlsMode | None) -> None:
    assert mode_of(pod(mode)) is mode


@pytest.mark.parametrize("annotation", [{}, {names.ANNOTATION_TLS: "Enforcing"}, {names.ANNOTATION_TLS: "Permissive"}])
@pytest.mark.parametrize("mode", STEPS)
def test_an_annotation_that_is_lost_or_forged_changes_nothing(mode: TlsMode | None, annotation: dict[str, str]) -> None:
    """A user with the right to edit pods can change an annotation; no update changes a pod's command or volumes."""
    assert mode_of(pod(mode, annotations=annotation)) is mode


def test_several_are_reached_by_the_strictest() -> None:
    assert strictest([NO_TLS, ENFORCING, PERMISSIVE]) is ENFORCING
    assert strictest([]) is None


# ---- another Secret


def accepts(client: Made, server: Made) -> bool:
    """As `understand`, where a Secret's certificate is of an authority of its own, and its ca.crt has that alone."""
    if not understand(client.mode, server.mode):
        return False
    return not client.verifies or server.secret == client.secret


@given(st.sampled_from(STEPS), st.integers(1, 4), st.data())
def test_another_secret_cuts_no_part_off_in_whatever_order_parts_are_replaced(
    begin: TlsMode | None, many: int, data: st.DataObject
) -> None:
    """And the wish may change in between."""
    parts = [Made(begin, "a" if begin else "")] * many
    wish = spec(ENFORCING, "a")
    for _ in range(data.draw(st.integers(0, 12))):
        wish = spec(data.draw(st.sampled_from([PERMISSIVE, ENFORCING])), data.draw(st.sampled_from("ab")))
        parts[data.draw(st.integers(0, many - 1))] = given_to_a_part(next_tls(wish, parts))
        assert all(accepts(one, other) for one, other in itertools.product(parts, repeat=2)), parts
    for _ in range(6):
        for index in range(many):
            parts[index] = given_to_a_part(next_tls(wish, parts))
            assert all(accepts(one, other) for one, other in itertools.product(parts, repeat=2)), parts
    assert parts == [Made(wish.mode, wish.certificate_secret_ref.name)] * many


def given_to_a_part(tls: TlsSpec | None) -> Made:
    assert tls is not None
    return Made(tls.mode, tls.certificate_secret_ref.name)


def test_another_secret_goes_over_permissive_with_the_former_one_first() -> None:
    wanted = spec(ENFORCING, "new")
    assert next_tls(wanted, made(pod(ENFORCING, "old"), pod(PERMISSIVE, "old"))) == spec(PERMISSIVE, "old")
    assert next_tls(wanted, made(pod(PERMISSIVE, "new"), pod(PERMISSIVE, "old"))) == spec(PERMISSIVE, "new")
    assert next_tls(wanted, made(pod(PERMISSIVE, "new"), pod(PERMISSIVE, "new"))) == wanted
    assert next_tls(spec(ENFORCING, "old"), made(pod(ENFORCING, "old"), pod(PERMISSIVE, "old"))) == spec(
        ENFORCING, "old"
    )


# ---- another bundle

OLD, BOTH, NEW = "OLD", "OLD NEW", "NEW"
KEPT = {trust_file(one): one for one in (OLD, BOTH, NEW)}
BUNDLED = spec(ENFORCING, trustBundleRef={"name": "authorities"})


def trusted(tls: TlsSpec | None) -> str:
    assert tls is not None
    return str(getattr(tls, "authorities", ""))


@pytest.mark.parametrize(
    ("wanted", "why", "silence", "there", "now"),
    [
        (BOTH, "", False, [OLD, OLD], BOTH),
        (BOTH, "", False, [BOTH, OLD], BOTH),
        (NEW, "a server shows OLD", False, [BOTH, BOTH], BOTH),
        (NEW, "a server shows OLD", False, [NEW, BOTH], BOTH),
        (NEW, "a server does not answer", True, [BOTH, BOTH], BOTH),
        (NEW, "a server does not answer", True, [NEW, BOTH], NEW),
        (BOTH, "", False, ["", ""], BOTH),
        (BOTH, "a server shows OLD", False, ["", ""], ""),
    ],
)
def test_a_bundle_is_given_once_it_verifies_every_server(
    wanted: str, why: str, silence: bool, there: list[str], now: str
) -> None:
    """A server that is silent since its turn has come holds nothing up that has begun."""
    pods = made(*(pod(ENFORCING, trusts=trust_file(one)) for one in there))
    assert trusted(next_tls(BUNDLED, pods, Trust(wanted, why, silence, KEPT))) == now


def test_of_the_authorities_that_parts_read_those_are_given_whose_text_is_left() -> None:
    """One text was lost, and the other is there: a part that is made anew has authorities that its neighbours have."""
    parts = made(*(pod(ENFORCING, trusts=trust_file(text)) for text in (OLD, NEW)))
    held = Trust("third", "a server shows another", kept={trust_file(NEW): NEW})
    assert trusted(next_tls(BUNDLED, parts, held)) == NEW


def test_no_part_verifies_while_the_bundle_would_refuse_a_server() -> None:
    held = Trust(NEW, "a server shows another", kept=KEPT)
    there = made(pod(PERMISSIVE), pod(PERMISSIVE))
    assert next_tls(BUNDLED, there, held) == spec(PERMISSIVE, trustBundleRef={"name": "authorities"})
    assert trusted(next_tls(BUNDLED, there, Trust(NEW))) == NEW
    assert trusted(next_tls(BUNDLED, (), Trust(NEW))) == NEW


def test_a_bundle_that_the_spec_names_no_more_is_left_over_permissive() -> None:
    """What ca.crt of the Secret has the operator does not know."""
    assert next_tls(spec(ENFORCING), made(pod(ENFORCING, trusts=trust_file(OLD)))) == spec(PERMISSIVE)


@given(st.data())
def test_a_whole_change_of_the_authority_leaves_no_moment_in_which_a_part_refuses_another(data: st.DataObject) -> None:
    """Bundle old, then both, then the certificate, then new: as the user writes it, whatever order parts are replaced in."""
    parts, shown = [Made(ENFORCING, "tls", trust_file(OLD))] * 3, OLD
    for bundle, certificate in ((BOTH, OLD), (BOTH, NEW), (NEW, NEW)):
        # The user may drop the old authority too early: that is held, and asked for again.
        early = Trust(NEW, "" if shown == NEW else "a server shows OLD", kept=KEPT)
        index = data.draw(st.integers(0, 2))
        parts[index] = replace(parts[index], trusts=trust_file(trusted(next_tls(BUNDLED, parts, early))))
        for index in data.draw(st.permutations(range(3))):
            parts[index] = replace(
                parts[index], trusts=trust_file(trusted(next_tls(BUNDLED, parts, Trust(bundle, kept=KEPT))))
            )
            assert all(shown in KEPT[one.trusts] for one in parts)
        shown = certificate
        assert all(shown in KEPT[one.trusts] for one in parts)
    assert {one.trusts for one in parts} == {trust_file(NEW)}
