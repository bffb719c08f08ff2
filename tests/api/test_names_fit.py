"""Names: for every text that the API accepts all rendered objects keep Kubernetes' rules; and which group keeps a broker name."""

from __future__ import annotations

import copy
import itertools
import shlex
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from brokergroup_operator.api import names
from brokergroup_operator.api.broker_names import NameClaim, claim_of, complaint, holder_before, shared_by
from brokergroup_operator.api.definitions.generate import KINDS
from brokergroup_operator.kube.client import KubernetesApi
from brokergroup_operator.kube.errors import ApiError, InvalidError, NotFoundError
from brokergroup_operator.kube.resources import BROKER_GROUP_OPERATIONS, BROKER_GROUPS, ROCKETMQ_CLUSTERS
from kube_sandbox.api_server.kinds.builtin import builtin_resources
from kube_sandbox.api_server.store import metadata
from rocketmq_remoting.serialization import decode_properties
from tests.our_kinds import api_with_our_kinds
from tests.support.draws import sample
from tests.support.rendered import made_of
from tests.support.schema_strings import GOOD, Place, places_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator


IN_ONE_LOOP = pytest.mark.asyncio(loop_scope="module")

RESOURCES = {one.kind: one for one in (BROKER_GROUPS, BROKER_GROUP_OPERATIONS, ROCKETMQ_CLUSTERS)}
BUILTIN = {one.kind: one for one in builtin_resources()}
# The template of a RocketMQCluster is a copy of BrokerGroup.spec.
PLACES = [
    place
    for kind in KINDS
    if kind.type.__name__ in RESOURCES
    for place in places_of(kind, but=("spec.brokerGroups.template",))
]
# Its StatefulSet's name with a hash of ten digits is a label's value on each pod (controller-revision-hash).
LONGEST_STATEFUL_SET = 63 - len("-0123456789")
BAD_REQUEST = 400
# `make test` draws this many of a field's texts, plus these: each field accepts one of them.
TEXTS = 16
ALWAYS = frozenset((*GOOD, "memory", "UTC"))
# Other fields that a rule requires with a text.
BESIDE: dict[str, dict[str, Any]] = {
    "spec.podTemplate.spec.tolerations.[].value": {"key": "a"},
    "spec.nameServer.podTemplate.spec.tolerations.[].value": {"key": "a"},
    "spec.proxy.podTemplate.spec.tolerations.[].value": {"key": "a"},
    "spec.podTemplate.spec.containers.[].name": {"image": "a"},
    "spec.podTemplate.spec.initContainers.[].name": {"image": "a"},
    "spec.podTemplate.spec.broker.volumeMounts.[].name": {"mountPath": "/a"},
    "spec.bootstrap.fromBackup.claim.name": {"folder": "a/b"},
    "spec.bootstrap.fromBackup.claim.folder": {"name": "a"},
    "spec.podTemplate.spec.broker.volumeMounts.[].mountPath": {"name": "a"},
    **{
        f"spec.network.policy.{sources}.[].{selector}.matchExpressions.[].values.[]": {"operator": "In"}
        for sources in ("clientsFrom", "metricsFrom", "proxyClientsFrom")
        for selector in ("podSelector", "namespaceSelector")
    },
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api() -> AsyncIterator[KubernetesApi]:
    async with api_with_our_kinds(KubernetesApi) as client:
        yield client


def texts_of(place: Place) -> list[str]:
    """Return the texts that the string's own schema allows; in `make test` a draw of them."""
    every = list(place.candidates())
    drawn = ALWAYS.union(sample(every, TEXTS, salt=str(place)))
    return [text for text in every if text in drawn]


def objects_for(place: Place, texts: Iterable[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return each text with an object that has it there."""
    for text in texts:
        obj = place.object_with(text)
        if place.kind == "BrokerGroup":
            # Java brokers: their pods carry the version as well.
            obj["spec"] = {"implementation": "Java", "nameServers": ["ns:9876"], **obj.get("spec", {})}
        elif place.kind == "RocketMQCluster":
            obj["spec"] = {"proxy": {}, **obj.get("spec", {})}
        elif place.kind == "BrokerGroupOperation":
            obj["spec"] = {"brokerGroupRef": {"name": "a"}, "type": "Restart", **obj.get("spec", {})}
            section = next(
                (one for one in ("switchover", "elect", "backup", "retire") if one in obj["spec"]), "restart"
            )
            obj["spec"] |= {"type": section.capitalize(), section: obj["spec"].get(section, {})}
            if section == "backup" and not obj["spec"][section].keys() & {"claim", "snapshot"}:
                obj["spec"][section] = {**obj["spec"][section], "snapshot": {}}
        if "acl" in place.path:
            _complete_acl(obj["spec"])
        if beside := BESIDE.get(".".join(place.path)):
            _item_at(obj, place.path[:-2] if place.path[-1] == "[]" else place.path[:-1]).update(beside)
        if "volumeMounts" in place.path:
            mount = _item_at(obj, place.path[:-1])
            obj["spec"]["podTemplate"]["spec"]["volumes"] = [{"name": mount["name"], "emptyDir": {}}]
        yield text, obj


def _complete_acl(spec: dict[str, Any]) -> None:
    """What rules want beside users and policies."""
    del spec["proxy"]
    spec["brokerGroups"] = {"template": {"security": {"credentialsSecretRef": {"name": "a"}}}}
    for policy in spec["acl"].get("policies", ()):
        policy["actions"] = ["Pub"]
        spec["acl"]["users"] = [{"name": policy["subject"].removeprefix("User:"), "passwordSecretRef": {"name": "a"}}]


def _item_at(obj: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    found: Any = obj
    for step in path:
        found = found[0] if step == "[]" else found[step]
    item: dict[str, Any] = found
    return item


async def taken(api: KubernetesApi, obj: dict[str, Any]) -> dict[str, Any] | None:
    """Return the object as the API server would store it, or None if it is refused."""
    try:
        return await api.apply(RESOURCES[obj["kind"]], obj, field_manager="test", dry_run=True)
    except (InvalidError, NotFoundError):
        # A name with a slash is another path.
        return None
    except ApiError as error:
        if error.status != BAD_REQUEST:
            raise
        return None


def complaints(made: dict[str, Any]) -> list[str]:
    """Return kube-apiserver's complaints about an object of its own kinds."""
    behaviour = BUILTIN[made["kind"]].behaviour
    made = copy.deepcopy(made)
    behaviour.set_defaults(made)
    found = metadata.validate(made["metadata"], None, name_rule=behaviour.name_rule)
    told = [str(error) for error in (*found, *behaviour.validate(made, None, ""))]
    if made["kind"] == "StatefulSet" and len(made["metadata"]["name"]) > LONGEST_STATEFUL_SET:
        told.append(
            f"metadata.name: no pod of it may have the label controller-revision-hash: {made['metadata']['name']}"
        )
    return told


@pytest.mark.sampled
@pytest.mark.parametrize("place", PLACES, ids=str)
@IN_ONE_LOOP
async def test_whatever_is_taken_can_be_made(api: KubernetesApi, place: Place) -> None:
    """A name with a leading digit was accepted. Reports: percona-server-mongodb-operator #672, scylla-operator #2722."""
    broken: list[str] = []
    judged = 0
    for text, obj in objects_for(place, texts_of(place)):
        stored = await taken(api, obj)
        if stored is None:
            continue
        judged += 1
        for made in made_of(stored):
            if made["kind"] in BUILTIN:
                broken += [f"{text!r}: {made['kind']}: {said}" for said in complaints(made)]
            elif await taken(api, made) is None:
                broken.append(f"{text!r}: {made['kind']} {made['metadata']['name']} is refused")
        if place.kind == "BrokerGroupOperation" and place.path[-2:] == ("brokerGroupRef", "name"):
            its_name = {"name": text, "namespace": "default"}
            named = {"kind": "BrokerGroup", "metadata": its_name, "spec": {"implementation": "Python"}}
            broken += [] if await taken(api, named) else [f"{text!r}: no BrokerGroup may have that name"]
    assert broken == [], "\n".join(broken[:20])
    assert judged, "no text was accepted: the test's own objects are refused"


@IN_ONE_LOOP
async def test_a_value_of_the_configuration_reaches_a_broker_as_it_is(api: KubernetesApi) -> None:
    """Java reads the file byte by byte (ISO 8859-1), and properties drop leading blanks of a value."""
    [place] = [one for one in PLACES if str(one) == "BrokerGroup.spec.config.{}"]
    for text, obj in objects_for(place, place.candidates()):
        stored = await taken(api, obj)
        if stored is None:
            continue
        conf = next(made["data"]["broker.conf"] for made in made_of(stored) if made["kind"] == "ConfigMap")
        assert conf.isascii(), text
        assert decode_properties(conf.encode())["memory"] == text
        assert len(decode_properties(conf.encode())) == conf.count("\n") - 1, "one line, one key"


@IN_ONE_LOOP
async def test_an_argument_of_the_jvm_reaches_it_as_it_is(api: KubernetesApi) -> None:
    """The argument is part of a shell command line."""
    [place] = [one for one in PLACES if str(one) == "BrokerGroup.spec.jvm.extraArguments.[]"]
    for text, obj in objects_for(place, place.candidates()):
        stored = await taken(api, obj)
        if stored is None:
            continue
        pod = next(made for made in made_of(stored) if made["kind"] == "Pod")
        line = pod["spec"]["containers"][0]["command"][-1]
        words = shlex.shlex(line, posix=True, punctuation_chars=True)
        words.whitespace_split = True
        words.commenters = "#"
        assert text in list(words), line


CREATED = "2026-11-25T10:00:00Z"


def claim(
    namespace: str = "team-a",
    name: str = "orders",
    *,
    created: str = CREATED,
    uid: str = "u-1",
    begun: bool = False,
    registered: bool = False,
    **spec: Any,
) -> NameClaim:
    metadata: dict[str, Any] = {"namespace": namespace, "name": name, "creationTimestamp": created, "uid": uid}
    if begun:
        metadata["finalizers"] = [names.FINALIZER_BROKER_GROUP]
    return claim_of({"metadata": metadata, "spec": spec}, has_registered=registered)


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        pytest.param(["ns.infra:9876"], ["ns.infra:9876"], "ns.infra:9876", id="alike"),
        pytest.param(["ns.infra:9876"], ["ns.infra.svc:9876"], "ns.infra:9876", id="with svc"),
        pytest.param(["ns.infra:9876"], ["ns.infra.svc.cluster.local:9876"], "ns.infra:9876", id="the whole name"),
        pytest.param(["ns.infra:9876"], ["ns.infra.svc.cluster.local.:9876"], "ns.infra:9876", id="the whole name, ended"),
        pytest.param(["ns.infra:9876"], ["NS.Infra:9876"], "ns.infra:9876", id="case"),
        pytest.param(["ns.infra:9876"], ["ns.infra:09876"], "ns.infra:9876", id="a port with a nought"),
        pytest.param(["10.0.0.1:9876", "10.0.0.2:9876"], ["10.0.0.2:9876", "10.0.0.1:9876"], "10.0.0.1:9876", id="order"),
        pytest.param(["10.0.0.1:9876", "10.0.0.2:9876"], ["10.0.0.2:9876"], "10.0.0.2:9876", id="one of two"),
        pytest.param(["ns.team-b:9876"], ["ns:9876"], "ns.team-b:9876", id="beside the other group"),
        pytest.param(["ns-0.ns.team-b:9876"], ["ns-0.ns:9876"], "ns-0.ns.team-b:9876", id="a pod's name, beside the other"),
        pytest.param(["ns-0.ns.infra.svc:9876"], ["ns.infra:9876"], "ns.infra:9876", id="a pod of the Service"),
        pytest.param(["localhost:9876"], ["localhost:9876"], "localhost:9876", id="the node itself"),
        pytest.param(["[fd00::1]:9876"], ["[FD00::1]:9876"], "[fd00::1]:9876", id="IPv6"),
        pytest.param(["ns:9876"], ["ns:9876"], "", id="a NameServer in each namespace"),
        pytest.param(["ns.infra:9876"], ["ns.infra:9877"], "", id="another port"),
        pytest.param(["ns.infra:9876"], ["ns.svcs.infra:9876"], "", id="a name that begins alike"),
        pytest.param(["ns.infra:9876"], ["ns.infra2:9876"], "", id="a namespace that begins alike"),
        pytest.param(["10.0.0.1:9876"], ["20.0.0.1:9876"], "", id="addresses that end alike"),
        pytest.param(["ns-0.ns.infra:9876"], ["ns-1.ns.infra:9876"], "", id="two pods"),
        pytest.param([], [], "", id="none"),
    ],
)  # fmt: skip
def test_what_two_groups_of_two_namespaces_share(one: list[str], other: list[str], shared: str) -> None:
    first, second = claim("team-a", nameServers=one), claim("team-b", nameServers=other)
    for each in (shared_by(first, second), shared_by(second, first)):
        assert each.startswith(f"at NameServer {shared}") if shared else each == ""


@pytest.mark.parametrize(
    ("other", "shared"),
    [
        pytest.param(
            claim(name="twin", brokerName="orders"), "in cluster DefaultCluster of namespace team-a", id="no NameServer"
        ),
        pytest.param(
            claim(name="twin", brokerName="orders", nameServers=["b:1"]),
            "in cluster DefaultCluster of namespace team-a",
            id="other NameServers",
        ),
        pytest.param(claim(name="twin", brokerName="orders", brokerClusterName="Other"), "", id="another cluster"),
        pytest.param(
            claim(name="twin", brokerName="orders", brokerClusterName="Other", nameServers=["a:1"]),
            "at NameServer a.team-a:1",
            id="a NameServer keeps one list whatever the cluster",
        ),
        pytest.param(claim(name="twin"), "", id="another name"),
        pytest.param(claim(name="twin", brokerName="Orders"), "", id="case tells broker names apart"),
        pytest.param(claim(), "", id="itself"),
    ],
)
def test_what_two_groups_of_one_namespace_share(other: NameClaim, shared: str) -> None:
    assert shared_by(claim(nameServers=["a:1"]), other) == shared


ORDERED = (
    claim(name="lives-younger", brokerName="x", begun=True, registered=True, created="2026-11-25T12:00:00Z"),
    claim(name="begun", brokerName="x", begun=True, created="2026-11-25T11:00:00Z"),
    claim(name="record-kept", brokerName="x", registered=True, created="2026-11-25T10:30:00Z"),
    claim(name="older", brokerName="x", created="2026-11-25T10:00:00Z", uid="u-9"),
    claim(name="of-one-second-a", brokerName="x", created="2026-11-25T10:00:01Z", uid="u-3"),
    claim(name="of-one-second-b", brokerName="x", created="2026-11-25T10:00:01Z", uid="u-4"),
)


def test_the_first_keeps_it_whatever_is_looked_at_first() -> None:
    for claims in itertools.permutations(ORDERED):
        assert [str(holder_before(own, claims)) for own in ORDERED] == ["None"] + ["team-a/lives-younger"] * 5, claims
        left = list(claims)
        for own in ORDERED:
            assert holder_before(own, left) is None, claims
            left = [one for one in left if one is not own]


def test_only_groups_of_the_same_name_are_ranked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pass looks for a holder: among 1,000 groups, the ranks of all of them cost 1.4 ms of a pass of 7 ms."""
    ranked: list[str] = []
    rank: Any = vars(NameClaim)["rank"]

    def counted(own: NameClaim) -> Any:
        ranked.append(own.name)
        return rank.fget(own)

    monkeypatch.setattr(NameClaim, "rank", property(counted))
    others = [claim(name=f"other-{number}") for number in range(100)]
    twin = claim(name="twin", brokerName="orders", created="2026-11-25T09:00:00Z")
    assert holder_before(claim(), [*others, twin]) == twin
    assert set(ranked) == {"orders", "twin"}


def test_what_is_said_names_field_value_and_holder() -> None:
    told = complaint(claim(name="twin", brokerName="orders"), claim())
    assert told.startswith(
        "spec.brokerName is 'orders', and group team-a/orders has that name in cluster DefaultCluster"
    )
    assert "Expected another spec.brokerName" in told
    assert "starts by itself" in told
    both = complaint(claim(name="twin", brokerName="orders", begun=True, registered=True), claim())
    assert "both run on" in both
