"""The operator's copy of what parts trust is lost while another bundle is held: another copy in the namespace has it, or none."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.api.tls_fields import TlsMode
from brokergroup_operator.api.tls_steps import Made, trust_file
from brokergroup_operator.kube.resources import CONFIG_MAPS, PODS
from brokergroup_operator.reconcile.see import lost_bundles
from tests.reconcile import world as w
from tests.reconcile.cluster_place import Place
from tests.reconcile.test_rotation import bundle_is, files, given, group, pem, place, stored, trusted
from tests.reconcile.test_rotation_attacked import enforcing

if TYPE_CHECKING:
    from brokergroup_operator.kube.client import KubernetesApi, ObjectList
    from brokergroup_operator.kube.resources import Resource
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
