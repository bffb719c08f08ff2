"""A broker whose client certificate was renewed: when it is restarted, in which order, and what is never a reason to."""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from brokergroup_operator.kube.resources import EVENTS, PODS
from brokergroup_operator.kubectl.explain import explanation
from brokergroup_operator.observe.timeline import Cause
from brokergroup_operator.reconcile.decide import renewed_certificate
from brokergroup_operator.reconcile.decide.rollout import restart_reason
from brokergroup_operator.reconcile.see import certificates, observed
from brokergroup_operator.reconcile.see.certificates import LEAST_SECONDS
from brokergroup_operator.reconcile.see.served_certificates import (
    ASKED_AGAIN_SECONDS,
    CertificatesAside,
    VerifiedHandshake,
)
from rocketmq_remoting.tls import Validity
from tests.reconcile import builders as b
from tests.reconcile import cases as c
from tests.reconcile import world as w
from tests.reconcile.test_tls import JAVA, SERVED, seen_with, tls
from tests.reconcile.trust_bundles import server, slow_loris
from tests.security.certificates import make_authority

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from brokergroup_operator.reconcile.see.observed import Observed
    from kube_sandbox.api_server.server import SandboxApiServer
    from tests.reconcile.world import World

DAY, MINUTE = 86_400.0, 60.0
NOW = observed.seconds_of(b.NOW)
OLD, NEW = Validity(NOW - 61 * DAY, NOW + 29 * DAY), Validity(NOW - DAY, NOW + 89 * DAY)
EACH = ("orders-1", "orders-2", "orders-3")
RENEWED = dict.fromkeys(EACH, "CertificateRenewed")


# ---- the decision


def near_its_end(
    shown: Validity | None = OLD,
    served: Validity | None = NEW,
    *,
    started: float | None = NOW - 60 * DAY,
    created: float | None = None,
    **spec: Any,
) -> Observed:
    """Three Java brokers that show this to controllers, and serve that. `created`: when their pods were made."""
    wanted = tls("Enforcing")
    seen = seen_with(wanted, [wanted] * 3) if not spec else c.settled(**spec)

    def start(pod: dict[str, Any]) -> None:
        running = {} if started is None else {"startedAt": at(started)}
        pod["status"]["containerStatuses"] = [{"name": "broker", "state": {"running": running}}]
        if created is not None:
            pod["metadata"]["creationTimestamp"] = at(created)

    seen = c.with_pods(replace(seen, now=b.NOW), start, *EACH)
    seen = c.seeing(seen, certificates={} if shown is None else dict.fromkeys((1, 2, 3), shown))
    return replace(seen, served={} if served is None else dict.fromkeys(EACH, served))


def at(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds, tz=dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def heard_is_only(broker_id: int) -> Observed:
    return c.seeing(near_its_end(), certificates={broker_id: OLD})


WITH_ANOTHER_SECRET: dict[str, Any] = {
    **JAVA,
    "tls": tls("Enforcing"),
    "security": {"certificateSecretRef": {"name": "orders-certificate"}},
}
WITHOUT_TLS: dict[str, Any] = {**JAVA, "security": {"certificateSecretRef": {"name": "orders-certificate"}}}
OWN_FILES: dict[str, Any] = {**WITHOUT_TLS, "jvm": {"extraArguments": ["-Dtls.client.certPath=/image/tls.crt"]}}
PYTHON: dict[str, Any] = {
    "implementation": "Python",
    "security": {"certificateSecretRef": {"name": "orders-certificate"}},
}
CASES: list[tuple[str, Observed, dict[str, str]]] = [
    ("renewed", near_its_end(), RENEWED),
    ("renewed, without spec.tls", near_its_end(**WITHOUT_TLS), RENEWED),
    ("its time is over, and its connection goes on", near_its_end(Validity(NOW - 91 * DAY, NOW - DAY)), RENEWED),
    ("started before a later turn", near_its_end(Validity(NOW - 80 * DAY, NOW + 10 * DAY), started=NOW - 6 * DAY), RENEWED),
    ("one alone is heard by this plane", heard_is_only(2), {"orders-2": "CertificateRenewed"}),
    ("not renewed", near_its_end(served=OLD), {}),
    ("what it serves is not known", near_its_end(served=None), {}),
    ("controllers ask for none", near_its_end(None), {}),
    ("more than a third of its life is left", near_its_end(Validity(NOW - 59 * DAY, NOW + 31 * DAY)), {}),
    ("restarted since, and it shows the same", near_its_end(started=NOW - DAY / 2), {}),
    ("when it was started is not known", near_its_end(started=None), {}),
    ("made anew since, on a node whose clock is far behind", near_its_end(started=NOW - 900 * DAY, created=NOW - DAY / 2), {}),
    ("made before, on a node whose clock is far behind", near_its_end(started=NOW - 900 * DAY, created=NOW - 2 * DAY), RENEWED),
    ("made before, on a node whose clock is ahead", near_its_end(started=NOW + DAY, created=NOW - 2 * DAY), RENEWED),
    ("made before, and its container started since", near_its_end(started=NOW - DAY / 2, created=NOW - 2 * DAY), {}),
    ("the renewed one nears its end too", near_its_end(served=Validity(NOW - 60 * DAY, NOW + 30 * DAY)), {}),
    ("the renewed one ends before", near_its_end(served=Validity(NOW - DAY, NOW + 28 * DAY)), {}),
    ("both live for an hour", near_its_end(Validity(NOW - 3000, NOW + 600), Validity(NOW - 100, NOW + 3500)), {}),
    ("it serves another Secret", near_its_end(**WITH_ANOTHER_SECRET), {}),
    ("it shows files of its own", near_its_end(**OWN_FILES), {}),
    ("a Python replica, which reads its files again", near_its_end(**PYTHON), {}),
]  # fmt: skip


@pytest.mark.parametrize(("seen", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_which_brokers_are_restarted_for_a_renewed_certificate(seen: Observed, expected: dict[str, str]) -> None:
    settings = b.SETTINGS if seen.group.spec.tls is None or seen.group.spec.security.certificate_secret_ref else SERVED
    found = {
        name: why
        for name in EACH
        if (why := restart_reason(seen, b.member(int(name[-1])), seen.pods[name], settings)) is not None
    }
    assert {name: str(why) for name, why in found.items()} == expected


def test_a_process_that_goes_on_to_show_the_same_is_restarted_a_few_times_and_ever_later() -> None:
    """A broker of an image with files of its own, say: it serves a renewed certificate, and never shows that."""
    life, started = Validity(0.0, 90 * DAY), 0.0
    restarts: list[float] = []
    for number in range(int(90 * DAY / (10 * MINUTE))):
        now = number * 10 * MINUTE
        turn = certificates.last_turn(life, now)
        if turn is not None and started < turn:
            started = now
            restarts.append(now)
    assert restarts[0] == 60 * DAY
    assert len(restarts) == 10
    pauses = [after - before for before, after in itertools.pairwise(restarts)]
    assert min(pauses) >= LEAST_SECONDS
    assert pauses == sorted(pauses, reverse=True)


@pytest.mark.parametrize(
    ("before", "after"),
    [(0.0, 90 * DAY), (0.0, 3 * 3600.0), (0.0, 3600.0), (0.0, 60.0), (60 * DAY - 30.0, 30 * DAY), (89 * DAY, DAY)],
)
def test_a_secret_that_changes_each_minute_restarts_a_broker_once_an_hour_at_most(before: float, after: float) -> None:
    """`before`, `after`: how long each of its certificates holds already, and still."""
    started, shown = 0.0, Validity(-before, after)
    restarts: list[float] = []
    for minute in range(48 * 60):
        now = minute * MINUTE
        turn, served = certificates.last_turn(shown, now), Validity(now - before, now + after)
        if turn is not None and started < turn and certificates.lasts_longer(served, shown, now):
            shown, started = served, now
            restarts.append(now)
    assert len(restarts) <= 48
    assert all(then - former >= LEAST_SECONDS for former, then in itertools.pairwise(restarts))


# ---- what is told of it


def told(seen: Observed) -> tuple[str, str]:
    found = renewed_certificate.ending(seen)
    return ("", "") if found is None else (str(found.reason), found.message)


FAR_WINDOW = {
    "days": [("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")[(dt.datetime.fromtimestamp(NOW, tz=dt.UTC).weekday() + 3) % 7]],
    "start": "02:00",
    "durationMinutes": 60,
}  # fmt: skip
ENDING = Validity(NOW - 76 * DAY, NOW + 14 * DAY)


def test_a_certificate_that_nears_its_end_is_told_with_its_brokers_and_what_to_do() -> None:
    reason, message = told(near_its_end(ENDING, ENDING))
    assert reason == "CertificateNotRenewed"
    assert f"broker 1 until {at(ENDING.not_after)}, broker 2 until" in message
    assert "kubectl brokergroup restart orders 1 2 3 -n shop" in message
    reason, message = told(near_its_end(ENDING, **WITH_ANOTHER_SECRET))
    assert reason == "CertificateNotSeen"
    assert "renew it, then restart the broker: kubectl brokergroup restart orders 1 2 3 -n shop" in message


@pytest.mark.parametrize(
    "seen",
    [near_its_end(ENDING), near_its_end(OLD, OLD), near_its_end(None, **WITH_ANOTHER_SECRET), near_its_end(ENDING, **PYTHON)],
    ids=["a restart is due", "a third of its life is left", "controllers ask for none", "Python"],
)  # fmt: skip
def test_nothing_is_told_where_no_person_is_needed(seen: Observed) -> None:
    assert told(seen) == ("", "")


@pytest.mark.parametrize(
    ("spec", "reason", "why"),
    [
        ({"updateStrategy": {"type": "OnDelete"}}, "WaitingForPerson", "updateStrategy.type is OnDelete"),
        ({"maintenance": {"paused": True}}, "WaitingForPerson", "spec.maintenance.paused is true"),
        ({"updateStrategy": {"windows": [FAR_WINDOW]}}, "OutsideWindow", "restart orders does not wait"),
    ],
)
def test_a_restart_that_waits_for_a_person_or_a_window_is_told_before_the_certificate_ends(
    spec: dict[str, Any], reason: str, why: str
) -> None:
    """By then it may be too late: the broker's next connection is refused."""
    seen = near_its_end(ENDING, **WITHOUT_TLS, **spec)
    found = c.conditions(seen).get("ClientCertificateEnding", {"reason": "", "message": ""})
    assert found["reason"] == reason
    assert f"broker 1 until {at(ENDING.not_after)}" in found["message"]
    assert why in found["message"]
    assert "ClientCertificateEnding" not in c.conditions(near_its_end(OLD, **WITHOUT_TLS, **spec)), "a third is left"
    assert "ClientCertificateEnding" not in c.conditions(near_its_end(ENDING, **WITHOUT_TLS)), "it is under way"


# ---- a group


@dataclass
class Serving:
    """Each broker serves this, or nothing is known of it."""

    validity: Validity | None
    asked: list[str] = field(default_factory=list)

    def served(self, address: str) -> Validity | None:
        self.asked.append(address)
        return self.validity


@dataclass
class Renewal:
    """A running group. The processes of its first pods show `old`, those that are started later `new`."""

    world: World
    old: Validity
    new: Validity
    first: dict[str, str]
    masters: list[int] = field(default_factory=list)
    # The uids of all its pods, by name.
    seen: dict[str, set[str]] = field(default_factory=dict)

    @property
    def serving(self) -> Serving:
        assert isinstance(self.world.served, Serving)
        return self.world.served

    async def shown(self) -> None:
        """Each broker's connection shows what its process has read at its start."""
        for pod in await self.world.items(PODS):
            name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
            self.seen.setdefault(name, set()).add(uid)
            shown = self.old if self.first.get(name) == uid else self.new
            self.world.view.certificates[int(name.rpartition("-")[2])] = shown
        await self.world.run_brokers()

    async def run(self) -> None:
        """Passes until one writes nothing; a killed operator is started again."""
        for _ in range(80):
            before = len(self.world.writes)
            await self.shown()
            stored = await self.world.view.store.read(self.world.key)
            assert stored is not None
            self.masters.append(stored.record.master_broker_id or 0)
            pods = [pod for pod in await self.world.items(PODS) if not pod["metadata"].get("deletionTimestamp")]
            assert len(pods) >= 2, "one pod at a time"
            try:
                await self.world.run_pass()
            except w.KilledError:
                self.world.was_killed = True
                self.world.planned_kill = None
                self.world.begin()
                continue
            await self.world.run_kubelet()
            if len(self.world.writes) == before and not await self.world.run_brokers():
                return
        raise AssertionError(f"no rest after 80 passes, last writes: {self.world.writes[-10:]}")

    async def uids(self) -> dict[str, str]:
        return await w.uids_of(self.world, PODS)

    def deleted(self) -> list[str]:
        return [one.rpartition("/")[2] for one in self.world.writes if one.startswith("DELETE") and "/pods/" in one]


@pytest.fixture
async def renewal(sandbox: SandboxApiServer, sandbox_world: World) -> Renewal:
    """Its certificate was renewed yesterday, and its brokers run since its issue."""
    world, now = sandbox_world, time.time()
    world.settings = replace(w.SETTINGS, controller_tls=True)
    world.served = Serving(Validity(now - DAY, now + 89 * DAY))
    sandbox.store.clock = lambda: time.time() - 60 * DAY
    await world.bring_up(sandbox, **JAVA, tls=tls("Enforcing"))
    sandbox.store.clock = time.time
    for pod in await world.items(PODS):
        pod["status"]["containerStatuses"][0]["state"] = {"running": {"startedAt": at(now - 60 * DAY)}}
        await world.patch(PODS, pod["metadata"]["name"], {"status": pod["status"]}, subresource="status")
    old, new = Validity(now - 61 * DAY, now + 29 * DAY), Validity(now - DAY, now + 89 * DAY)
    found = Renewal(world, old, new, await w.uids_of(world, PODS))
    assert len(found.first) == 3
    world.begin()
    return found


async def test_brokers_are_restarted_one_by_one_and_the_master_hands_over_first(renewal: Renewal) -> None:
    await renewal.run()
    master = renewal.masters[0]
    slaves = sorted(name for name in renewal.first if name != f"{renewal.world.key.name}-{master}")
    assert renewal.deleted() == [*slaves, f"{renewal.world.key.name}-{master}"]
    assert renewal.world.view.causes == [Cause.ROLLING_UPGRADE]
    assert {len(uids) for uids in renewal.seen.values()} == {2}, "each once"
    stopping = [one["message"] for one in await renewal.world.items(EVENTS) if one["reason"] == "PodStopping"]
    assert sum("CertificateRenewed" in message for message in stopping) == 3
    assert (await renewal.world.conditions())["UpToDate"]["status"] == "True"
    asked = len(renewal.serving.asked)
    await renewal.run()
    assert len(renewal.serving.asked) == asked, "what shows a certificate that is new is not asked"


@pytest.mark.parametrize("write", [1, 2, 4, 7, 11])
async def test_an_operator_that_is_restarted_meanwhile_restarts_no_broker_twice(renewal: Renewal, write: int) -> None:
    renewal.world.planned_kill = write
    renewal.world.begin()
    await renewal.run()
    assert renewal.world.was_killed
    assert {len(uids) for uids in renewal.seen.values()} == {2}
    assert all(uid != renewal.first[name] for name, uid in (await renewal.uids()).items())


def not_renewed(renewal: Renewal) -> None:
    renewal.serving.validity = renewal.old


def unknown(renewal: Renewal) -> None:
    renewal.serving.validity = None


@pytest.mark.parametrize("change", [not_renewed, unknown])
async def test_without_a_renewed_certificate_no_broker_is_restarted(
    renewal: Renewal, change: Callable[[Renewal], None]
) -> None:
    change(renewal)
    await renewal.run()
    assert await renewal.uids() == renewal.first
    assert renewal.serving.asked


async def test_a_group_whose_controllers_ask_for_no_certificate_has_no_broker_asked(renewal: Renewal) -> None:
    await renewal.world.settle()
    assert await renewal.uids() == renewal.first
    assert renewal.serving.asked == []


async def test_a_paused_group_is_restarted_when_the_pause_is_over(renewal: Renewal) -> None:
    await renewal.world.patch_group({"spec": {"maintenance": {"paused": True}}})
    await renewal.run()
    assert await renewal.uids() == renewal.first
    found = (await renewal.world.conditions())["UpToDate"]
    assert (found["reason"], "CertificateRenewed" in found["message"]) == ("WaitingForPerson", True)
    await renewal.world.patch_group({"spec": {"maintenance": {"paused": False}}})
    await renewal.run()
    assert renewal.first.items().isdisjoint((await renewal.uids()).items())


async def test_outside_its_window_a_group_is_not_restarted_for_a_certificate(renewal: Renewal) -> None:
    day = (dt.datetime.now(dt.UTC).weekday() + 3) % 7
    window = {"days": [("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")[day]], "start": "02:00", "durationMinutes": 60}
    await renewal.world.patch_group({"spec": {"updateStrategy": {"windows": [window]}}})
    await renewal.run()
    assert await renewal.uids() == renewal.first
    found = (await renewal.world.conditions())["UpToDate"]
    assert (found["reason"], "CertificateRenewed" in found["message"]) == ("OutsideWindow", True)
    await renewal.world.patch_group({"spec": {"updateStrategy": {"windows": []}}})
    await renewal.run()
    assert renewal.first.items().isdisjoint((await renewal.uids()).items())


async def test_a_group_says_when_its_certificate_ends_and_until_then_no_broker_is_touched(renewal: Renewal) -> None:
    now = time.time()
    renewal.old = Validity(now - 76 * DAY, now + 14 * DAY)
    not_renewed(renewal)
    await renewal.run()
    assert await renewal.uids() == renewal.first
    found = (await renewal.world.conditions())["ClientCertificateEnding"]
    assert (found["status"], found["reason"]) == ("True", "CertificateNotRenewed")
    assert any("CertificateNotRenewed" in line for line in explanation(await renewal.world.group()))
    assert "ClientCertificateEnding" in {one["reason"] for one in await renewal.world.items(EVENTS)}


# ---- how brokers are asked


async def test_what_a_broker_serves_counts_if_the_controllers_authorities_verify_it(tmp_path: Path) -> None:
    ours, theirs = (make_authority(tmp_path / name, name) for name in ("ours", "theirs"))
    handshake = VerifiedHandshake(ours.certificate, handshake_seconds=5.0)
    async with slow_loris() as slow, server(None) as plain, server(theirs.issue("b")) as bad:
        assert await VerifiedHandshake(ours.certificate, handshake_seconds=0.1)(slow) is None
        assert [await handshake(one) for one in (plain, bad, "no address")] == [None] * 3
    async with server(ours.issue("a", days=30)) as good:
        found = await handshake(good)
        assert found is not None
        assert found.not_after - found.not_before == 30 * DAY
        assert await VerifiedHandshake(None)(good) is None
        assert await VerifiedHandshake(tmp_path / "missing")(good) is None
    assert await handshake(good) is None, "it is gone"


async def test_passes_wait_for_no_broker_and_each_is_asked_once_in_five_minutes() -> None:
    now, answer = [0.0], asyncio.Event()
    asked: list[str] = []

    async def handshake(address: str) -> Validity | None:
        asked.append(address)
        await answer.wait()
        return NEW

    aside = CertificatesAside(handshake, clock=lambda: now[0])
    for _ in range(3):
        assert aside.served("a:1") is None
        await asyncio.sleep(0)
    answer.set()
    await w.until("an answer", lambda: aside.served("a:1") == NEW)
    assert asked == ["a:1"]
    now[0] += ASKED_AGAIN_SECONDS - 1
    assert aside.served("a:1") == NEW
    assert asked == ["a:1"]
    now[0] += 2
    answer.clear()
    for _ in range(3):
        assert aside.served("a:1") == NEW, "the former answer counts until the next one is there"
        await asyncio.sleep(0)
    assert asked == ["a:1", "a:1"]
    now[0] += ASKED_AGAIN_SECONDS
    assert aside.served("a:1") is None, "and not for ever"
    await aside.stop()
