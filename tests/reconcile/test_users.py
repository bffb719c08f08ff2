"""Declared users and policies of ACL 2.0: which requests each member gets, when, and what a person's users are spared."""

from __future__ import annotations

import itertools
import traceback
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from brokergroup_operator.api.acl_fields import MARK, AclSpec
from brokergroup_operator.observe.group_view import BrokerUnreachableError
from brokergroup_operator.reconcile.clusters.users import (
    AGAIN_SECONDS,
    MARK_ENTRY,
    UserKeeper,
    UsersStanding,
    changes_for,
    wanted_users,
)
from brokergroup_operator.records.memory import MemoryRecordStore
from brokergroup_operator.records.store import GroupKey
from rocketmq_remoting import acl_protocol
from rocketmq_remoting.acl_protocol import BrokerAccess, PolicyEntryInfo, UserInfo, read_access
from rocketmq_remoting.errors import BodyError
from tests.reconcile.fake_view import FakeGroupView, with_members
from tests.support.scripted_acl import ScriptedAcl

if TYPE_CHECKING:
    from rocketmq_remoting.acl_protocol import AccessChange

FIRST, SECOND = GroupKey("n", "shop-0"), GroupKey("n", "shop-1")
PASSWORD, ROTATED = "planted-password-1", "planted-password-2"
SHOP = {"name": "shop", "passwordSecretRef": {"name": "shop"}}
ADMIN = {"name": "admin", "passwordSecretRef": {"name": "admin"}, "type": "Super"}
MAY_SEND = {"subject": "User:shop", "resource": "Topic:orders", "actions": ["Pub"]}
OPERATORS_OWN = UserInfo("orders-key", "planted-key", "Super", "enable")


def acl(*users: dict[str, Any], policies: tuple[dict[str, Any], ...] = ()) -> AclSpec:
    return msgspec.convert({"users": list(users), "policies": list(policies)}, AclSpec)


class View(FakeGroupView):
    """Members that do not answer, while they are named; and every look at one."""

    def __init__(self) -> None:
        super().__init__(MemoryRecordStore())
        self.unreachable: set[int] = set()
        self.asked: list[tuple[GroupKey, int]] = []

    async def access(self, key: GroupKey, broker_id: int) -> BrokerAccess:
        self.asked.append((key, broker_id))
        if broker_id in self.unreachable:
            raise BrokerUnreachableError(f"broker {broker_id}: no answer")
        return await super().access(key, broker_id)


class Kept:
    """Two groups of two members, each with the operator's own user, and a clock that a test moves."""

    def __init__(self, *, members: tuple[int, ...] = (1, 2)) -> None:
        self.view = View()
        self.now_seconds = 0.0
        self.keeper = UserKeeper(self.view, lambda: self.now_seconds)
        self.uids = {"shop-0": "u0", "shop-1": "u1"}
        self.counted = {"shop-0", "shop-1"}
        for key in (FIRST, SECOND):
            self.lead(key, members=members)

    def lead(
        self, key: GroupKey, *, members: tuple[int, ...] = (1, 2), live: tuple[int, ...] = (), epoch: int = 1
    ) -> None:
        self.view.snapshots[key] = with_members(key, members, live=live or members, epoch=epoch)
        for one in members:
            self.view.brokers.setdefault((key, one), ScriptedAcl(OPERATORS_OWN))

    async def keep(self, spec: AclSpec, **passwords: str) -> UsersStanding:
        wanted = wanted_users(spec, passwords or {"shop": PASSWORD, "admin": PASSWORD})
        return await self.keeper.keep("n", wanted, self.uids, counted=self.counted, own="orders-key")

    def at(self, broker_id: int, key: GroupKey = FIRST) -> ScriptedAcl:
        return self.view.brokers[key, broker_id]

    @property
    def every(self) -> list[ScriptedAcl]:
        return [self.at(one, key) for key in (FIRST, SECOND) for one in (1, 2)]


async def test_every_member_gets_every_user_with_its_rules_and_then_nothing_is_asked() -> None:
    kept = Kept()
    spec = acl(SHOP, ADMIN, policies=(MAY_SEND,))
    standing = UsersStanding(users=2, ready_users=2, policies=1, ready_policies=1)
    assert await kept.keep(spec) == standing
    for broker in kept.every:
        assert broker.users["shop"] == UserInfo("shop", PASSWORD, "Normal", "enable")
        assert broker.users["admin"] == UserInfo("admin", PASSWORD, "Super", "enable")
        assert set(broker.rules["shop"]) == {("Custom", MARK), ("Custom", "Topic:orders")}
        assert broker.users["orders-key"] == OPERATORS_OWN
    kept.view.asked.clear()
    assert await kept.keep(spec) == standing
    assert kept.view.asked == []


async def test_a_new_user_can_sign_in_only_once_it_has_its_rules() -> None:
    """Wherever the operator is killed: what is there is disabled, or whole; and the next look makes it whole."""
    for fails_at in range(4):
        kept = Kept()
        broker = kept.at(1)
        broker.fails_at = fails_at
        await kept.keep(acl(SHOP, policies=(MAY_SEND,)))
        user = broker.users.get("shop")
        has_rules = len(broker.rules.get("shop", {})) == 2
        assert user is None or user.user_status == "disable" or has_rules
        broker.fails_at = None
        kept.keeper = UserKeeper(kept.view, lambda: 0.0)
        assert (await kept.keep(acl(SHOP, policies=(MAY_SEND,)))).ready_users == 1, fails_at


async def test_a_rotated_password_reaches_every_member() -> None:
    kept = Kept()
    await kept.keep(acl(SHOP))
    await kept.keep(acl(SHOP), shop=ROTATED)
    assert {broker.users["shop"].password for broker in kept.every} == {ROTATED}
    assert kept.at(2).taken[-1] == ("AUTH_UPDATE_USER", "shop")


async def test_what_is_declared_no_more_goes_and_what_a_person_made_stays() -> None:
    kept = Kept()
    await kept.keep(acl(SHOP, ADMIN, policies=(MAY_SEND,)))
    for broker in kept.every:
        broker.users["person"] = UserInfo("person", "p", "Normal", "enable")
        broker.rules["person"] = {("Custom", "Topic:mine"): PolicyEntryInfo("Topic:mine", ("Sub",), None, "Allow")}
    assert await kept.keep(acl(ADMIN)) == UsersStanding(users=1, ready_users=1)
    for broker in kept.every:
        assert set(broker.users) == {"admin", "orders-key", "person"}
        assert set(broker.rules) == {"admin", "person"}


async def test_a_user_of_an_earlier_cluster_of_the_name_is_known_by_its_mark() -> None:
    """The claims stay when a cluster is deleted, and the operator may be another one."""
    kept = Kept()
    await kept.keep(acl(SHOP))
    kept.keeper = UserKeeper(kept.view, lambda: 0.0)
    kept.uids = {"shop-0": "another", "shop-1": "another too"}
    assert await kept.keep(acl()) == UsersStanding()
    assert [set(broker.users) for broker in kept.every] == [{"orders-key"}] * 4


async def test_a_user_that_a_person_made_is_left_and_reported() -> None:
    kept = Kept()
    before = UserInfo("shop", "theirs", "Normal", "enable")
    kept.at(2).users["shop"] = before
    standing = await kept.keep(acl(SHOP, ADMIN))
    assert (standing.users, standing.ready_users) == (2, 1)
    assert standing.differing == ("group shop-0, broker 2: user shop is there, and the operator did not make it",)
    assert kept.at(2).users["shop"] == before
    assert kept.at(2).users["admin"].user_type == "Super", "the others are made"


@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize("is_marked", [True, False])
async def test_the_user_by_whose_key_brokers_and_operator_sign_is_never_changed(
    is_marked: bool, is_there: bool
) -> None:
    """An administrator of the ACL may put the mark on it: a change or deletion would lock the operator out."""
    kept = Kept()
    for broker in kept.every:
        if is_marked:
            broker.rules["orders-key"] = {("Custom", MARK): MARK_ENTRY}
        if not is_there:
            del broker.users["orders-key"]
    before = [(dict(broker.users), dict(broker.rules)) for broker in kept.every]
    own = {"name": "orders-key", "passwordSecretRef": {"name": "shop"}}
    standing = await kept.keep(acl(own), **{"orders-key": PASSWORD})
    assert (standing.users, standing.ready_users) == (1, 0)
    assert "broker 2: user orders-key has the access key by which brokers and operator sign" in standing.differing[1]
    assert [(broker.users, broker.rules) for broker in kept.every] == before
    kept.keeper = UserKeeper(kept.view, lambda: 0.0)
    standing = await kept.keep(acl())
    assert [(broker.users, broker.rules) for broker in kept.every] == before
    if is_marked and is_there:
        assert f"user orders-key has the operator's mark {MARK}" in standing.differing[0]
    else:
        assert standing == UsersStanding()


async def test_a_secret_that_is_missing_keeps_no_right_that_was_taken_away() -> None:
    kept = Kept()
    old = {**MAY_SEND, "resource": "Topic:old"}
    await kept.keep(acl({**SHOP, "type": "Super"}, policies=(MAY_SEND, old)))
    await kept.keep(acl(SHOP, policies=({**MAY_SEND, "decision": "Deny"},)), other=PASSWORD)
    for broker in kept.every:
        assert broker.users["shop"] == UserInfo("shop", PASSWORD, "Normal", "enable")
        assert set(broker.rules["shop"]) == {("Custom", MARK), ("Custom", "Topic:orders")}
        assert broker.rules["shop"]["Custom", "Topic:orders"].decision == "Deny"
    await kept.keep(acl({**SHOP, "type": "Super"}), other=PASSWORD)
    assert {broker.users["shop"].user_type for broker in kept.every} == {"Normal"}, "no right is added"


RESOURCES = ("Topic:a", "Topic:a*", "Topic:*")
ASKED = ("Topic:a", "Topic:ab", "Topic:b")


def with_decisions(decisions: tuple[str, ...], user_type: str = "Normal") -> AclSpec:
    policies = tuple(
        {**MAY_SEND, "resource": resource, "decision": decision}
        for resource, decision in zip(RESOURCES, decisions, strict=True)
        if decision
    )
    return acl({**SHOP, "type": user_type}, policies=policies)


@pytest.mark.parametrize("types", [("Normal", "Normal"), ("Super", "Normal"), ("Normal", "Super")])
def test_no_step_of_a_change_allows_what_neither_the_old_nor_the_new_rules_allow(types: tuple[str, str]) -> None:
    """Every change between any two sets of rules, and every point at which the operator may be killed."""
    sets = list(itertools.product(("", "Allow", "Deny"), repeat=len(RESOURCES)))
    for before, after in itertools.product(sets, sets):
        broker = ScriptedAcl()
        apply(with_decisions(before, types[0]), broker)
        allowed = {one for one in ASKED if broker.may("shop", one)}
        steps = [allowed]
        for change in changes_of(with_decisions(after, types[1]), broker):
            broker.take(change)
            steps.append({one for one in ASKED if broker.may("shop", one)})
        assert all(step <= allowed | steps[-1] for step in steps), (before, after, steps)
        assert not changes_of(with_decisions(after, types[1]), broker)


def changes_of(spec: AclSpec, broker: ScriptedAcl) -> list[AccessChange]:
    [wanted] = wanted_users(spec, {"shop": PASSWORD})
    return changes_for(wanted, broker.access())


def apply(spec: AclSpec, broker: ScriptedAcl) -> None:
    for change in changes_of(spec, broker):
        broker.take(change)


async def test_groups_that_are_not_counted_are_changed_and_hold_up_nothing() -> None:
    """A group beyond count, or a hibernated one: the latter has no member that answers, for as long as it sleeps."""
    kept = Kept()
    await kept.keep(acl(SHOP))
    kept.counted = {"shop-0"}
    assert await kept.keep(acl(ADMIN)) == UsersStanding(users=1, ready_users=1)
    assert "shop" not in kept.at(1, SECOND).users
    kept.lead(SECOND, members=(1, 2), live=())
    kept.view.snapshots[SECOND] = replace(kept.view.snapshots[SECOND], live={})
    assert await kept.keep(acl(SHOP)) == UsersStanding(users=1, ready_users=1)
    kept.counted = {"shop-0", "shop-1"}
    assert (await kept.keep(acl(SHOP))).ready_users == 0


async def test_rules_that_are_declared_no_more_go_and_changed_ones_change() -> None:
    kept = Kept()
    await kept.keep(acl(SHOP, policies=(MAY_SEND, {**MAY_SEND, "resource": "Topic:old", "actions": ["Sub"]})))
    default = PolicyEntryInfo("Topic:all", ("All",), None, "Allow")
    kept.at(1).rules["shop"]["Default", "Topic:all"] = default
    wanted = {**MAY_SEND, "actions": ["Sub", "Pub"], "sourceIps": ["10.0.0.0/8"], "decision": "Deny"}
    await kept.keep(acl(SHOP, policies=(wanted,)))
    for broker in kept.every:
        assert set(broker.rules["shop"]) == {("Custom", MARK), ("Custom", "Topic:orders")}
        entry = broker.rules["shop"]["Custom", "Topic:orders"]
        assert set(entry.actions or ()) == {"Pub", "Sub"}
        assert (entry.source_ips, entry.decision) == (("10.0.0.0/8",), "Deny")


async def test_a_user_that_a_person_changed_or_deleted_comes_back_after_a_while() -> None:
    kept = Kept()
    await kept.keep(acl(SHOP, policies=(MAY_SEND,)))
    broker = kept.at(2)
    broker.users["shop"] = UserInfo("shop", "changed", "Super", "enable")
    del kept.at(1).users["shop"]
    kept.now_seconds = AGAIN_SECONDS - 1
    await kept.keep(acl(SHOP, policies=(MAY_SEND,)))
    assert broker.users["shop"].password == "changed"
    kept.now_seconds = AGAIN_SECONDS
    await kept.keep(acl(SHOP, policies=(MAY_SEND,)))
    for each in kept.every:
        assert each.users["shop"] == UserInfo("shop", PASSWORD, "Normal", "enable")


async def test_a_new_member_and_a_new_master_are_looked_at_again() -> None:
    kept = Kept()
    await kept.keep(acl(SHOP))
    kept.lead(FIRST, members=(1, 2, 3))
    kept.view.asked.clear()
    assert (await kept.keep(acl(SHOP))).ready_users == 1
    assert kept.view.asked == [(FIRST, 3)]
    assert "shop" in kept.at(3).users
    kept.lead(FIRST, members=(1, 2, 3), epoch=2)
    kept.view.asked.clear()
    await kept.keep(acl(SHOP))
    assert kept.view.asked == [(FIRST, 1), (FIRST, 2), (FIRST, 3)]


async def test_a_member_that_is_away_is_waited_for_unless_it_had_them() -> None:
    kept = Kept()
    kept.lead(FIRST, live=(1,))
    standing = await kept.keep(acl(SHOP))
    assert standing.ready_users == 0
    assert standing.pending == ("group shop-0, broker 2: it is not heard, or the master changes",)
    kept.lead(FIRST)
    assert (await kept.keep(acl(SHOP))).ready_users == 1
    kept.lead(FIRST, live=(1,), epoch=2)
    assert await kept.keep(acl(SHOP)) == UsersStanding(users=1, ready_users=1), "a failover takes no user away"
    standing = await kept.keep(acl(ADMIN), admin=PASSWORD)
    assert standing.pending, "its user is not deleted yet"
    assert "shop" in kept.at(2).users


async def test_nothing_is_asked_while_the_master_changes() -> None:
    kept = Kept()
    kept.view.snapshots[FIRST] = replace(kept.view.snapshots[FIRST], is_changing=True)
    await kept.keep(acl(SHOP))
    assert kept.view.asked == [(SECOND, 1), (SECOND, 2)]


async def test_a_member_that_does_not_answer_holds_up_no_other() -> None:
    kept = Kept()
    kept.view.unreachable = {1}
    standing = await kept.keep(acl(SHOP))
    assert standing.pending == tuple(f"group {name}, broker 1: broker 1: no answer" for name in ("shop-0", "shop-1"))
    assert "shop" in kept.at(2).users
    kept.view.unreachable = set()
    assert (await kept.keep(acl(SHOP))).ready_users == 1


async def test_a_user_whose_secret_cannot_be_used_keeps_its_password_and_its_declared_rules() -> None:
    kept = Kept()
    await kept.keep(acl(SHOP, policies=(MAY_SEND,)))
    standing = await kept.keep(acl(SHOP, ADMIN, policies=(MAY_SEND,)), admin=PASSWORD)
    assert (standing.users, standing.ready_users) == (2, 1)
    assert kept.at(1).users["shop"].password == PASSWORD
    assert ("Custom", "Topic:orders") in kept.at(1).rules["shop"]


def test_no_text_of_a_user_shows_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    (wanted,) = wanted_users(acl(SHOP), {"shop": PASSWORD})
    assert PASSWORD not in f"{wanted!r} {wanted} {UserInfo('shop', PASSWORD)!r} {UserInfo('shop', PASSWORD)}"
    body = f'[{{"username":"shop","password":["{PASSWORD}"]}}]'.encode()
    with pytest.raises(BodyError) as raised:
        read_access(body, None)
    assert PASSWORD not in str(raised.value)

    def decoded(data: bytes, _: Any) -> None:
        raise BodyError(f"unreadable: {data.decode()}")

    monkeypatch.setattr(acl_protocol, "load_json_as", decoded)
    with pytest.raises(BodyError) as raised:
        read_access(body, None)
    assert PASSWORD not in "".join(traceback.format_exception(raised.value))


def test_what_a_java_broker_answers_is_read() -> None:
    """Recorded from 5.5.0; one without users or rules sends no body."""
    users = b'[{"password":"p","userStatus":"enable","userType":"Normal","username":"shop"}]'
    acls = (
        b'[{"policies":[{"entries":[{"actions":["Pub"],"decision":"Allow","resource":"Topic:orders"}],"policyType":"Custom"}],'
        b'"subject":"User:shop"}]'
    )
    found = read_access(users, acls)
    assert found.users == {"shop": UserInfo("shop", "p", "Normal", "enable")}
    (policy,) = found.rules["shop"]
    assert policy.entries == (PolicyEntryInfo("Topic:orders", ("Pub",), None, "Allow"),)
    assert read_access(None, None) == BrokerAccess()
