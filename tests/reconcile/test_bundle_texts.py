"""What the text of a bundle is read as, and the ConfigMap that keeps it for its pods."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from brokergroup_operator.api.tls_fields import TlsMode
from brokergroup_operator.api.tls_steps import Made, next_tls, trust_file
from brokergroup_operator.kube.resources import BROKER_GROUPS, CONFIG_MAPS, DEPLOYMENTS, PODS, STATEFUL_SETS
from brokergroup_operator.reconcile.decide.tls_order import made_with
from brokergroup_operator.reconcile.see import authorities, bundles
from tests.reconcile.test_tls import CLUSTER, tls
from tests.reconcile.trust_bundles import (
    BUNDLE,
    Shown,
    bundle_is,
    files,
    given,
    group,
    pem,
    place,
    spec_of,
    stored,
    trusted,
)

if TYPE_CHECKING:
    from tests.reconcile.cluster_place import Place
    from tests.reconcile.world import World

__all__ = ["group", "pem", "place"]  # fixtures
BEGIN, END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


# ---- the text of a bundle


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "text",
    [BEGIN + "\n" * 390_000, (BEGIN + "\n") * 13_000, BEGIN + " \n" * 190_000 + "x", f"{BEGIN}\n{END}\n" * 7_000],
)
def test_a_bundle_of_garbage_is_read_in_a_moment(text: str) -> None:
    """The controller plane shares the loop: 1200 line breaks behind a BEGIN once took six seconds, and twice as many fifty."""
    assert authorities.read(text).complaint


def test_a_text_beyond_the_longest_is_not_read_at_all() -> None:
    assert "expected at most 400000" in authorities.read(BEGIN * 40_000).complaint


def test_byte_order_mark_carriage_returns_comments_and_doubles_change_no_bundle(pem: dict[str, str]) -> None:
    """So no part restarts for them, and what a JVM reads is what was verified."""
    for text in (
        "\ufeff" + pem["both"],
        pem["both"].replace("\n", "\r\n"),
        f"# Autoridad de Certificación\n{pem['both']}\n# end",
        pem["both"] + pem["old"],
    ):
        assert authorities.read(text).pem == pem["both"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{old}" + BEGIN + "\nMIIB\n", "certificate 2 has no end"),
        ("{old}" + BEGIN + "\nMI*B\n" + END, "certificate 2 is no base64"),
        ("{old}" + BEGIN + "\nMIIB\n" + END, "can't be read"),
    ],
)
def test_a_bundle_with_one_bad_certificate_is_refused_whole(pem: dict[str, str], text: str, told: str) -> None:
    assert told in authorities.read(text.format(old=pem["old"])).complaint


def test_a_key_beside_the_certificates_is_not_copied(pem: dict[str, str]) -> None:
    key = "-----BEGIN PRIVATE KEY-----\nMIIB\n-----END PRIVATE KEY-----\n"
    assert authorities.read(key + pem["old"]).pem == pem["old"]


# ---- the ConfigMap that keeps it


async def test_the_copies_of_a_group_without_pods_do_not_pile_up(group: World, pem: dict[str, str]) -> None:
    await group.patch_group({"spec": {"maintenance": {"hibernated": True}}})
    await group.settle()
    assert await group.items(PODS) == []
    for name, shows in (("both", "old"), ("new", "new"), ("both", "new")):
        group.servers = Shown(pem[shows])
        await bundle_is(group, pem[name])
        await group.settle()
        assert await stored(group) == {trust_file(pem[name]): pem[name]}
    await group.patch_group({"spec": {"maintenance": {"hibernated": False}}})
    await group.settle()
    assert await trusted(group) == {trust_file(pem["both"])}


async def test_more_bundles_than_a_config_map_holds_are_not_begun() -> None:
    """Else no ConfigMap of the group could be written any more, and none of its pods be made."""
    kept = {trust_file(text): text for text in ("a" * 390_000, "b" * 390_000)}
    made = [Made(TlsMode.ENFORCING, "shop-tls", name) for name in kept]
    trust = await bundles.trust_of(
        spec_of(), "c" * 390_000, problem="", made=made, pods=(), kept={"data": kept}, servers=Shown(""),
        addresses=(), controllers=(),
    )  # fmt: skip
    assert "1170000 characters" in trust.why_held
    now = next_tls(spec_of(), made, trust)
    assert made_with(now) in made


async def test_parts_are_made_with_no_bundle_whose_config_map_could_not_be_written(
    place: Place, pem: dict[str, str]
) -> None:
    """A file that is missing ends a NameServer at its start, and each broker."""
    await bundle_is(place, pem["old"])
    theirs = {"metadata": {"name": "shop-trust", "namespace": place.key.namespace}, "data": {"ca.crt": pem["old"]}}
    await place.api.create(CONFIG_MAPS, theirs)
    await place.made(**CLUSTER, tls=tls("Enforcing") | {"trustBundleRef": BUNDLE})
    assert [await place.names(kind) for kind in (STATEFUL_SETS, DEPLOYMENTS, BROKER_GROUPS)] == [[], [], []]
    assert "ConfigMap shop-trust" in (await place.condition("Stalled"))[2]
    await place.delete(CONFIG_MAPS, "shop-trust")
    await place.run()
    assert await given(place) == await files(place) == {trust_file(pem["old"])}
