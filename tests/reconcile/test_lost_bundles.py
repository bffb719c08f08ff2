"""The file that pods trust, or all pods, are lost while another bundle is held: pods get the former bundle, or wait for it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pytest
from msgspec import structs

from brokergroup_operator.api import names
from brokergroup_operator.api.tls_fields import TlsMode
from brokergroup_operator.api.tls_steps import Made, TlsAsMade, trust_file
from brokergroup_operator.kube.resources import CONFIG_MAPS, DEPLOYMENTS, PODS
from brokergroup_operator.kubectl.explain import explanation
from brokergroup_operator.reconcile.other_groups import Turn
from brokergroup_operator.reconcile.see import lost_bundles
from tests.reconcile import cases as c
from tests.reconcile import world as w
from tests.reconcile.cluster_place import Place
from tests.reconcile.test_backups import backing_up
from tests.reconcile.test_silent_members import unheard
from tests.reconcile.test_tls import CLUSTER, PODS_OF_PARTS, pod_is_made, tls
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
    from brokergroup_operator.kube.client import KubernetesApi, ObjectList
    from brokergroup_operator.kube.resources import Resource
    from brokergroup_operator.reconcile.see.observed import Observed
    from tests.reconcile.world import World

__all__ = ["group", "pem", "place"]  # fixtures
OF_A_GROUP = {names.LABEL_BROKER_GROUP: "another"}
OF_A_CLUSTER = {names.LABEL_ROCKETMQ_CLUSTER: "another"}


async def copy_is(world: World | Place, file: str, text: str, labels: dict[str, str]) -> None:
    """Another ConfigMap of the namespace has this file."""
    metadata = {"name": "another-broker", "namespace": world.key.namespace, "labels": labels}
    await world.api.create(CONFIG_MAPS, {"metadata": metadata, "data": {file: text}})


async def loses_its_copy(group: World) -> str:
    """Delete the group's ConfigMap, and one of its pods; return that pod's name."""
    await group.delete(CONFIG_MAPS, names.config_map_name(group.key.name))
    lost = f"{group.key.name}-2"
    await group.delete(PODS, lost, grace_period_seconds=0)
    return lost


async def enforcing(place: Place, bundle: str) -> None:
    """All parts trust this bundle, and so do their pods."""
    await bundle_is(place, bundle)
    await place.made(**CLUSTER, tls=tls("Enforcing") | {"trustBundleRef": BUNDLE})
    for name in PODS_OF_PARTS:
        await pod_is_made(place, name, "Enforcing", trusts=trust_file(bundle))


# ---- another copy in the namespace


@pytest.mark.parametrize("labels", [OF_A_GROUP, OF_A_CLUSTER], ids=["of a group", "of a cluster"])
async def test_what_a_groups_pods_trust_is_made_again_from_another_copy(
    group: World, pem: dict[str, str], labels: dict[str, str]
) -> None:
    """While another bundle is held: the pods that run are left alone, and the lost one trusts what they trust."""
    await bundle_is(group, pem["new"])
    await group.settle()
    await copy_is(group, trust_file(pem["old"]), pem["old"], labels)
    left = await w.uids_of(group, PODS)
    left.pop(await loses_its_copy(group))
    await group.settle()
    assert left.items() <= (await w.uids_of(group, PODS)).items()
    assert len(await group.items(PODS)) == 3
    assert await trusted(group) == {trust_file(pem["old"])}
    assert await stored(group) == {trust_file(pem["old"]): pem["old"]}
    assert (await group.conditions())["Stalled"]["status"] == "False"


@pytest.mark.parametrize("labels", [OF_A_GROUP, {}], ids=["another text", "not of the operator"])
async def test_a_text_that_is_not_the_lost_one_is_given_to_no_pod(
    group: World, pem: dict[str, str], labels: dict[str, str]
) -> None:
    """The name of the file is a hash of its text; and only what the operator wrote is looked at."""
    await bundle_is(group, pem["new"])
    await group.settle()
    await copy_is(group, trust_file(pem["old"]), pem["new"] if labels else pem["old"], labels)
    await loses_its_copy(group)
    await group.settle()
    assert len(await group.items(PODS)) == 2
    stalled = (await group.conditions())["Stalled"]
    assert (stalled["status"], stalled["reason"]) == ("True", "AuthoritiesHeld")


async def test_in_the_middle_of_a_change_the_bundle_of_pods_whose_turn_comes_later_is_made_again_too(
    group: World, pem: dict[str, str]
) -> None:
    """A container of theirs may start again before that, and reads its file."""
    await copy_is(group, trust_file(pem["old"]), pem["old"], OF_A_GROUP)
    await bundle_is(group, pem["both"])
    await group.delete(CONFIG_MAPS, names.config_map_name(group.key.name))
    await group.run_pass()
    assert trust_file(pem["old"]) in await trusted(group)
    assert await stored(group) == {trust_file(pem[name]): pem[name] for name in ("old", "both")}
    await group.settle()
    assert await stored(group) == {trust_file(pem["both"]): pem["both"]}


async def test_what_name_servers_and_proxies_trust_is_made_again_from_a_groups_copy(
    place: Place, pem: dict[str, str]
) -> None:
    await enforcing(place, pem["old"])
    await bundle_is(place, pem["new"])
    await place.run()
    await copy_is(place, trust_file(pem["old"]), pem["old"], OF_A_GROUP)
    await place.delete(CONFIG_MAPS, "shop-trust")
    await place.changed({"image": "example.com/another:1"})
    assert await place.images() == ["example.com/another:1"] * 2
    assert await files(place) == await given(place) == {trust_file(pem["old"])}
    assert not await place.is_stalled()


async def test_an_operator_without_tls_makes_a_lost_copy_again(place: Place, pem: dict[str, str]) -> None:
    """It changes no mode, and the parts that enforce TLS still read their file whenever they start."""
    await enforcing(place, pem["old"])
    await copy_is(place, trust_file(pem["old"]), pem["old"], OF_A_GROUP)
    await place.delete(CONFIG_MAPS, "shop-trust")
    plain = Place(place.api, place.key.namespace)
    await plain.run()
    assert await files(place) == await given(place) == {trust_file(pem["old"])}


class NoRequests:
    """An API that nothing may be asked of."""

    async def list(self, resource: Resource, **_: object) -> ObjectList:
        raise AssertionError(f"{resource.kind} is listed")


@pytest.mark.parametrize(
    "made",
    [[], [Made()], [Made(TlsMode.ENFORCING, "secret")], [Made(TlsMode.ENFORCING, "secret", trust_file("a"))],
        [Made(TlsMode.ENFORCING, "secret", trust_file("b"))]],
    ids=["no part", "without TLS", "by the authority of its Secret", "its copy is there", "it reads the wanted bundle"],
)  # fmt: skip
async def test_other_copies_are_read_only_for_a_file_that_is_lost(made: list[Made]) -> None:
    stored = {"data": {trust_file("a"): "a"}}
    api = cast("KubernetesApi", NoRequests())
    assert await lost_bundles.with_lost(api, "default", stored, made, "b") == stored


# ---- no other copy


async def all_pods_are_lost(world: World) -> None:
    for pod in await world.items(PODS):
        await world.delete(PODS, pod["metadata"]["name"], grace_period_seconds=0)


async def test_a_group_that_loses_all_pods_while_a_bundle_is_held_comes_back_with_the_one_of_before(
    group: World, pem: dict[str, str]
) -> None:
    """With the held one each pod would refuse the servers that it was held for."""
    await bundle_is(group, pem["new"])
    await group.settle()
    await all_pods_are_lost(group)
    await group.settle()
    assert await trusted(group) == {trust_file(pem["old"])}
    assert (await group.conditions())["TlsChanging"]["reason"] == "AuthoritiesHeld"
    group.servers = Shown(pem["new"])
    await group.settle()
    assert await trusted(group) == {trust_file(pem["new"])}


async def test_a_group_whose_bundle_is_deleted_gets_its_lost_pods_back_with_the_one_of_before(
    group: World, pem: dict[str, str]
) -> None:
    await group.delete(CONFIG_MAPS, BUNDLE["name"])
    await all_pods_are_lost(group)
    await group.settle()
    assert len(await group.items(PODS)) == 3
    assert await trusted(group) == {trust_file(pem["old"])}
    assert await stored(group) == {trust_file(pem["old"]): pem["old"]}
    assert "which does not exist" in (await group.conditions())["Stalled"]["message"]


async def test_a_pod_that_is_lost_with_the_copy_of_its_bundle_is_made_when_there_is_one_that_it_can_trust(
    group: World, pem: dict[str, str]
) -> None:
    """While another bundle is held the operator has no text of the former one then: without it a broker connects without TLS."""
    await bundle_is(group, pem["new"])
    await group.settle()
    left = await w.uids_of(group, PODS)
    await group.delete(CONFIG_MAPS, names.config_map_name(group.key.name))
    lost = f"{group.key.name}-2"
    left.pop(lost)
    await group.delete(PODS, lost, grace_period_seconds=0)
    await group.patch_group({"spec": {"image": "example.com/another:1"}})
    await group.settle()
    assert await w.uids_of(group, PODS) == left, "none is made, and none is replaced"
    stalled = (await group.conditions())["Stalled"]
    assert (stalled["status"], stalled["reason"]) == ("True", "AuthoritiesHeld")
    assert f"{trust_file(pem['old'])}, which the group's pods trust, was deleted" in stalled["message"]
    assert any("put the certificates of that file back" in line for line in explanation(await group.group()))
    await group.patch_group({"spec": {"image": None}})
    await bundle_is(group, pem["old"])
    await group.settle()
    assert left.items() <= (await w.uids_of(group, PODS)).items()
    assert await trusted(group) == {trust_file(pem["old"])}
    assert await stored(group) == {trust_file(pem["old"]): pem["old"]}
    assert len(await group.items(PODS)) == 3


async def test_a_pod_that_is_lost_with_the_copy_of_its_bundle_is_made_when_every_server_is_verified(
    group: World, pem: dict[str, str]
) -> None:
    await bundle_is(group, pem["new"])
    await group.settle()
    await group.delete(CONFIG_MAPS, names.config_map_name(group.key.name))
    await group.delete(PODS, f"{group.key.name}-2", grace_period_seconds=0)
    await group.settle()
    assert len(await group.items(PODS)) == 2
    group.servers = Shown(pem["new"])
    await group.settle()
    assert len(await group.items(PODS)) == 3
    assert await trusted(group) == {trust_file(pem["new"])}


def losing_the_file(seen: Observed) -> Observed:
    """The operator has no more the text of the authorities that the group's pods read."""
    made = spec_of()
    lost = TlsAsMade(
        certificate_secret_ref=made.certificate_secret_ref,
        mode=made.mode,
        file="trust-000000000000.pem",
        authorities="",
    )
    return replace(seen, group=structs.replace(seen.group, spec=structs.replace(seen.group.spec, tls=lost)))


@pytest.mark.parametrize(
    ("seen", "step"),
    [(unheard(2), "replace orders-2"), (backing_up(c.settled()), "stop orders-3")],
    ids=["a member that is not heard", "a backup"],
)
def test_while_no_pod_can_be_made_none_is_stopped_that_would_have_to_come_back(seen: Observed, step: str) -> None:
    assert c.steps(seen) == [step]
    held = losing_the_file(seen)
    assert c.steps(held) == []
    assert "trust-000000000000.pem, which the group's pods trust, was deleted" in c.course(held).first[0].why


def test_a_group_that_waits_for_its_lost_authorities_lets_others_roll_meanwhile() -> None:
    """A person must bring them back, perhaps after days."""
    assert c.course(c.rolling(c.outdated(c.settled()))).turn is Turn.HOLDS
    assert c.course(c.rolling(losing_the_file(c.settled()))).turn is Turn.NONE


@pytest.mark.parametrize("is_key_alone", [True, False], ids=["the key", "the ConfigMap"])
async def test_name_servers_and_proxies_whose_bundle_is_lost_are_left_as_they_are(
    place: Place, pem: dict[str, str], *, is_key_alone: bool
) -> None:
    """While another one is held: their next pods could not start, and a roll would begin by ending one that serves."""
    await enforcing(place, pem["old"])
    await bundle_is(place, pem["new"])
    await place.run()
    file = trust_file(pem["old"])
    if is_key_alone:
        await place.patch(CONFIG_MAPS, "shop-trust", {"data": {file: None}})
    else:
        await place.delete(CONFIG_MAPS, "shop-trust")
    [of_servers, _] = before = await place.images()
    await place.changed({"image": "example.com/another:1"})
    assert await place.images() == before
    await place.stalls(
        "AuthoritiesHeld", f"{file}, which NameServers and proxies trust, was deleted from ConfigMap shop-trust"
    )
    assert "ClusterAuthoritiesHeld" in await place.events()
    await place.delete(DEPLOYMENTS, "shop-proxy")
    await place.run()
    assert await place.images() == [of_servers]

    await bundle_is(place, pem["old"])
    await place.run()
    assert await place.images() == ["example.com/another:1"] * 2
    assert await files(place) == {file}
    assert not await place.is_stalled()


async def test_an_operator_without_tls_changes_no_part_whose_bundle_is_lost(place: Place, pem: dict[str, str]) -> None:
    await enforcing(place, pem["old"])
    await place.delete(CONFIG_MAPS, "shop-trust")
    plain = Place(place.api, place.key.namespace)
    await plain.run()
    assert await given(place) == {trust_file(pem["old"])}
    assert (await place.condition("Stalled"))[1] == "OperatorWithoutTls"
