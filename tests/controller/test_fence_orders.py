"""The signed order to the fence inside the pod, beside the pod's deletion: the first confirmation counts."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.api import names
from brokergroup_operator.api.pod_fence import FenceKeys
from brokergroup_operator.controller.change import fencing
from brokergroup_operator.controller.change.fencing import FenceOutcome, KubernetesFencer
from brokergroup_operator.fence.datagrams import CONFIRMATION, ORDER, KeyFile, KillOrders, Message, open_sealed, seal
from brokergroup_operator.kube.errors import NotFoundError
from brokergroup_operator.kube.resources import PODS
from tests.controller.cluster import ADDRESS, BINDING, HOST, TERMINATED, create_pod, is_dying, let_go, set_status
from tests.support.fake_broker import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from brokergroup_operator.kube.client import KubernetesApi

# The port follows from the broker's address, so two of these tests at one time would take it from each other.
pytestmark = pytest.mark.xdist_group("the fence's port")

KEYS = FenceKeys(b"r" * 32)
GROUP_UID = "group-uid"
PORT = 10913


class PodsFence(asyncio.DatagramProtocol):
    """The fence at the pod's port; `answers` sets its answer."""

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
    """Create a reduced form of the pod that the reconcile plane renders; return its uid."""
    ports = [{"name": names.PORT_FENCE, "containerPort": PORT, "protocol": "UDP"}]
    mounted = {"secretName": secret or KEYS.secret_name("orders", GROUP_UID)}
    owner = {"apiVersion": names.API_VERSION, "kind": names.BROKER_GROUP_KIND, "name": "orders", "uid": GROUP_UID}
    await create_pod(
        api,
        fence={"ports": ports},
        metadata={"ownerReferences": [owner]},
        spec={"volumes": [{"name": names.VOLUME_FENCE_KEY, "secret": mounted}]},
    )
    uid: str = (await api.get(PODS, "orders-1", namespace="default"))["metadata"]["uid"]
    return uid


def fencing_of(api: KubernetesApi) -> asyncio.Task[FenceOutcome]:
    return asyncio.create_task(KubernetesFencer(api, KEYS).fence(BINDING, 1, ADDRESS, deadline_seconds=20.0))


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


async def _fails(_: object) -> str | None:
    raise ValueError("a port that is none")


@pytest.mark.parametrize("fence", ["absent", "mute", "another root's", "not dead", "the order fails"])
async def test_a_fence_that_proves_nothing_leaves_it_to_the_kubelet(
    api: KubernetesApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fence: str
) -> None:
    uid = await make_pod(api, secret="orders-fence-00000000" if fence == "another root's" else None)
    answers = {"not dead": real_fence(tmp_path, uid, started=None)}.get(fence, lambda _: None)
    if fence == "the order fails":
        monkeypatch.setattr(fencing, "confirmed_kill", _fails)
    async with contextlib.AsyncExitStack() as stack:
        heard = None if fence == "absent" else await stack.enter_async_context(listening(answers))
        fenced = fencing_of(api)
        await eventually(lambda: is_dying(api), what="the pod to be deleted")
        assert not fenced.done()
        await set_status(api, "orders-1", state=TERMINATED)
        outcome = await fenced
        assert outcome.confirmed
        assert "signed" not in outcome.how
        if fence == "another root's":
            assert heard is not None
            assert not heard.heard, "a fence with another key gets no question"


async def test_a_fence_may_still_confirm_when_the_pods_object_is_gone_without_a_report(
    api: KubernetesApi, tmp_path: Path
) -> None:
    """A person deletes the leaving pod by force while its fence wakes."""
    honest, awake = real_fence(tmp_path, await make_pod(api)), asyncio.Event()
    fencer = KubernetesFencer(api, KEYS)
    async with listening(lambda datagram: honest(datagram) if awake.is_set() else None) as fence:
        fencing = asyncio.create_task(fencer.fence(BINDING, 1, ADDRESS, deadline_seconds=60.0))
        await eventually(lambda: fence.heard, what="an order")
        await api.delete(PODS, "orders-1", namespace="default", grace_period_seconds=0)
        with contextlib.suppress(
            NotFoundError
        ):  # it has the finalizer unless it was leaving before: its owner is not there
            await let_go(api)
        with pytest.raises(NotFoundError):
            await api.get(PODS, "orders-1", namespace="default")
        awake.set()
        assert (await fencing).confirmed
    await fencer.close()


async def test_a_forged_replayed_or_other_pods_confirmation_proves_nothing(api: KubernetesApi, tmp_path: Path) -> None:
    """An attacker in the network sees every datagram and may answer first, but has no key."""
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
        fenced = fencing_of(api)
        await eventually(lambda: len(sent) >= 10, what="ten orders")
        assert not fenced.done()
        await set_status(api, "orders-1", state=TERMINATED)
        assert "signed" not in (await fenced).how


async def test_a_pod_at_another_address_gets_no_order(api: KubernetesApi, tmp_path: Path) -> None:
    """Safety rule 8: the pod may be the innocent successor of the silent broker."""
    uid = await make_pod(api)
    async with listening(real_fence(tmp_path, uid)) as fence:
        outcome = await KubernetesFencer(api, KEYS).fence(BINDING, 1, "127.64.1.9:10911", deadline_seconds=5.0)
    assert not outcome.confirmed
    assert not fence.heard


async def test_a_fence_that_was_started_again_is_asked_anew(
    monkeypatch: pytest.MonkeyPatch, api: KubernetesApi, tmp_path: Path
) -> None:
    """A restarted fence has lost its challenge, and would refuse the old order for ever."""
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
