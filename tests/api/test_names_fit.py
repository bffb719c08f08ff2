"""For every text that the API accepts, all rendered objects keep Kubernetes' own rules.

Seen: `metadata.name: 1st` was accepted, but no Service may be called `1st-master`. Each string of our schemas gets texts of all
forms and lengths (`make test`: a draw of them, another one for each string); if the kind's schema and rules accept it, it is
rendered, and each object is validated as by kube-apiserver (`kube_sandbox`, checked by `make test-sandbox-parity`;
tests/real/test_names_fit.py uses a real one).
"""

from __future__ import annotations

import copy
import shlex
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

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

pytestmark = pytest.mark.asyncio(loop_scope="module")

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
            section = next((one for one in ("switchover", "elect", "backup") if one in obj["spec"]), "restart")
            obj["spec"] |= {"type": section.capitalize(), section: obj["spec"].get(section, {})}
        if beside := BESIDE.get(".".join(place.path)):
            _item_at(obj, place.path[:-1]).update(beside)
        if "volumeMounts" in place.path:
            mount = _item_at(obj, place.path[:-1])
            obj["spec"]["podTemplate"]["spec"]["volumes"] = [{"name": mount["name"], "emptyDir": {}}]
        yield text, obj


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


async def test_an_argument_of_the_jvm_reaches_it_as_it_is(api: KubernetesApi) -> None:
    """The argument is part of a shell command line."""
    [place] = [one for one in PLACES if str(one) == "BrokerGroup.spec.jvm.extraArguments.[]"]
    for text, obj in objects_for(place, place.candidates()):
        stored = await taken(api, obj)
        if stored is None:
            continue
        pod = next(made for made in made_of(stored) if made["kind"] == "Pod")
        line = pod["spec"]["containers"][0]["command"][2]
        words = shlex.shlex(line, posix=True, punctuation_chars=True)
        words.whitespace_split = True
        words.commenters = "#"
        assert text in list(words), line
