"""Both ways of a fence at once: the pod's deletion, and the signed order to the fence inside it. The first that confirms counts."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.api.pod_fence import FenceKeys
from brokergroup_operator.controller.change import fencing
from brokergroup_operator.controller.change.fencing import KubernetesFencer
from brokergroup_operator.fence.datagrams import CONFIRMATION, ORDER, KeyFile, KillOrders, Message, open_sealed, seal
from brokergroup_operator.kube.resources import PODS
from tests.controller.test_kubernetes_parts import ADDRESS, BINDING, TERMINATED, api, set_status
from tests.support.fake_broker import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from brokergroup_operator.kube.client import KubernetesApi

__all__ = ["api"]
# The port follows from the broker's address, so two of these tests at one time would take it from each other.
pytestmark = pytest.mark.xdist_group("the fence's port")

KEYS = FenceKeys(b"r" * 32)
GROUP_UID = "group-uid"
HOST, PORT = "127.64.1.1", 10913


class PodsFence(asyncio.DatagramProtocol):
    """What answers at the pod's port; `answers` says what."""

    def __init__(self, answers: Callable[[bytes], bytes | None]) -> None:
        self.answers = answers
        self.heard: list[bytes] = []

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.heard.append(data)
        reply = self.answers(data)
        if reply is not None:
            self.transport.sendto(reply, addr)


@contextlib.asynccontextmanager
async def listening(answers: Callable[[bytes], bytes | None]) -> AsyncIterator[PodsFence]:
    transport, fence = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: PodsFence(answers), local_addr=(HOST, PORT), family=socket.AF_INET
    )
    try:
        yield fence
    finally:
        transport.close()


async def make_pod(api: KubernetesApi, *, secret: str | None = None) -> str:
    """A pod as the reconcile plane renders it, in short; returns its uid."""
    owner = {"apiVersion": names.API_VERSION, "kind": names.BROKER_GROUP_KIND, "name": "orders", "uid": GROUP_UID}
    mounted = {"secretName": secret or KEYS.secret_name("orders", GROUP_UID)}
    fence = {
        "name": names.CONTAINER_FENCE,
        "image": "replica",
        "ports": [{"name": names.PORT_FENCE, "containerPort": PORT, "protocol": "UDP"}],
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": "default",
            "name": "orders-1",
            "labels": {names.LABEL_BROKER_GROUP: "orders"},
            "ownerReferences": [owner],
        },
        "spec": {
            "containers": [{"name": "broker", "image": "replica"}, fence],
            "volumes": [{"name": names.VOLUME_FENCE_KEY, "secret": mounted}],
            "nodeName": "node-1",
        },
    }
    await api.create(PODS, pod, timeout_seconds=60.0)
    await set_status(api, "orders-1", address=HOST, state={"running": {}})
    uid: str = (await api.get(PODS, "orders-1", namespace="default"))["metadata"]["uid"]
    return uid


async def is_dying(api: KubernetesApi) -> bool:
    return "deletionTimestamp" in (await api.get(PODS, "orders-1", namespace="default"))["metadata"]


def real_fence(folder: Path, pod_uid: str, *, started: float | None = 7.0) -> Callable[[bytes], bytes | None]:
    (folder / "key").write_text(KEYS.key_of(GROUP_UID).hex(), encoding="ascii")
    orders = KillOrders(pod_uid, KeyFile(folder / "key"), lambda: started)
    return lambda datagram: orders.answer(datagram, asyncio.get_running_loop().time())


async def test_the_fences_signed_word_confirms_before_any_kubelet_and_the_pod_goes_all_the_same(
    api: KubernetesApi, tmp_path: Path
) -> None:
    uid = await make_pod(api)
    fencer = KubernetesFencer(api, KEYS)
    async with listening(real_fence(tmp_path, uid)):
        outcome = await fencer.fence(BINDING, 1, ADDRESS, deadline_seconds=20.0)
    assert outcome.confirmed
    assert "signed" in outcome.how
    await eventually(lambda: is_dying(api), what="the pod to be deleted")
    await fencer.close()


@pytest.mark.parametrize("fence", ["absent", "mute", "another root's", "not dead"])
async def test_a_fence_that_proves_nothing_leaves_it_to_the_kubelet(
    api: KubernetesApi, tmp_path: Path, fence: str
) -> None:
    uid = await make_pod(api, secret="orders-fence-00000000" if fence == "another root's" else None)
    answers = {"not dead": real_fence(tmp_path, uid, started=None)}.get(fence, lambda _: None)
    async with contextlib.AsyncExitStack() as stack:
        heard = None if fence == "absent" else await stack.enter_async_context(listening(answers))
        fenced = asyncio.create_task(KubernetesFencer(api, KEYS).fence(BINDING, 1, ADDRESS, deadline_seconds=20.0))
        await eventually(lambda: is_dying(api), what="the pod to be deleted")
        assert not fenced.done()
        await set_status(api, "orders-1", address=HOST, state=TERMINATED)
        outcome = await fenced
        assert outcome.confirmed
        assert "signed" not in outcome.how
        if fence == "another root's":
            assert heard is not None
            assert not heard.heard, "a fence that holds another key is not even asked"


async def test_an_order_that_fails_whyever_leaves_it_to_the_kubelet(
    monkeypatch: pytest.MonkeyPatch, api: KubernetesApi
) -> None:
    async def failing(_: object) -> str | None:
        raise ValueError("a port that is none")

    monkeypatch.setattr(fencing, "confirmed_kill", failing)
    await make_pod(api)
    fence = asyncio.create_task(KubernetesFencer(api, KEYS).fence(BINDING, 1, ADDRESS, deadline_seconds=20.0))
    await eventually(lambda: is_dying(api), what="the pod to be deleted")
    await set_status(api, "orders-1", address=HOST, state=TERMINATED)
    assert (await fence).confirmed


async def test_a_forged_replayed_or_other_pods_confirmation_proves_nothing(api: KubernetesApi, tmp_path: Path) -> None:
    """Whoever sits in the network has every datagram, and may answer first; the key he has not."""
    uid = await make_pod(api)
    key, honest = KEYS.key_of(GROUP_UID), real_fence(tmp_path, uid)
    overheard = seal(Message(CONFIRMATION, b"n" * 16, b"c" * 16, 7.0), key, uid)

    def answers(datagram: bytes) -> bytes | None:
        said = open_sealed(datagram, key, uid)
        if said is None or said.tag != ORDER:
            return honest(datagram)
        forged = Message(CONFIRMATION, said.nonce, said.challenge, 7.0)
        sent.append(said)
        return [
            seal(forged, b"x" * 32, uid),
            seal(forged, key, "another-pod"),
            overheard,
            seal(forged._replace(challenge=b"c" * 16), key, uid),
            seal(forged._replace(nonce=b"n" * 16), key, uid),
        ][len(sent) % 5]

    sent: list[Message] = []
    async with listening(answers):
        fenced = asyncio.create_task(KubernetesFencer(api, KEYS).fence(BINDING, 1, ADDRESS, deadline_seconds=20.0))
        await eventually(lambda: len(sent) >= 10, what="ten orders")
        assert not fenced.done()
        await set_status(api, "orders-1", address=HOST, state=TERMINATED)
        assert "signed" not in (await fenced).how


async def test_a_pod_at_another_address_is_ordered_nothing(api: KubernetesApi, tmp_path: Path) -> None:
    """Safety rule 8: it may be the innocent successor of the silent one."""
    uid = await make_pod(api)
    async with listening(real_fence(tmp_path, uid)) as fence:
        outcome = await KubernetesFencer(api, KEYS).fence(BINDING, 1, "127.64.1.9:10911", deadline_seconds=5.0)
    assert not outcome.confirmed
    assert not fence.heard


async def test_a_fence_that_was_started_again_is_asked_anew(
    monkeypatch: pytest.MonkeyPatch, api: KubernetesApi, tmp_path: Path
) -> None:
    """It has forgotten the challenge: the order would be refused for ever."""
    monkeypatch.setattr(fencing, "ANEW_SECONDS", 0.1)
    uid = await make_pod(api)
    fences = [real_fence(tmp_path, uid), real_fence(tmp_path, uid)]
    key = KEYS.key_of(GROUP_UID)

    def answers(datagram: bytes) -> bytes | None:
        said = open_sealed(datagram, key, uid)
        if said is not None and said.tag == ORDER and len(fences) == 2:
            del fences[0]
        return fences[0](datagram)

    async with listening(answers):
        outcome = await KubernetesFencer(api, KEYS).fence(BINDING, 1, ADDRESS, deadline_seconds=20.0)
    assert "signed" in outcome.how


def test_the_root_and_the_keys_are_in_no_repr() -> None:
    fence = fencing.PodFence("orders-1", "uid", HOST, PORT, b"s" * 32)
    assert "sss" not in repr(fence)
    assert "rrr" not in repr(KEYS)


def test_each_group_has_its_own_key_and_another_root_another_name() -> None:
    assert KEYS.key_of("a") != KEYS.key_of("b")
    assert KEYS.secret_name("orders", "a") != FenceKeys(b"q" * 32).secret_name("orders", "a")
    assert KEYS.secret_name("orders", "a").startswith("orders-fence-")
