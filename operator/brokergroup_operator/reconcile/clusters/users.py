"""Declared users and policies of ACL 2.0, at each member of each group: a slave copies none of its master's (Java 5.5.0).

They are looked at after each change of a group's members or master, after a changed password, and every five minutes. A user that
the operator made is known by its mark, a rule on the broker's disk: it outlives the operator, the cluster and a lost status. A user
without it stays as it is (tests/reconcile/test_users.py::test_a_user_that_a_person_made_is_left_and_reported); so does the user of
the access key by which brokers and operator sign, marked or not. No log, status or Event has a password.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import structlog

from brokergroup_operator.api.acl_fields import MARK, Decision, UserType
from brokergroup_operator.observe.group_view import GroupViewError
from brokergroup_operator.records.store import GroupKey
from rocketmq_remoting import acl_protocol as acl
from rocketmq_remoting.acl_protocol import PolicyEntryInfo, UserInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from brokergroup_operator.api.acl_fields import AclPolicy, AclSpec
    from brokergroup_operator.observe.group_view import GroupView
    from rocketmq_remoting.acl_protocol import AccessChange, BrokerAccess

# How long a member is not looked at again after a look that succeeded.
AGAIN_SECONDS: Final = 300.0
MARK_ENTRY: Final = PolicyEntryInfo(resource=MARK, actions=("Get",), decision="Deny")

_OWN_IS_DECLARED: Final = "user {} has the access key by which brokers and operator sign; declare another name"
_OWN_IS_MARKED: Final = (
    f"user {{}} has the operator's mark {MARK}, and the access key by which brokers and operator sign; take the mark from it"
    " (mqadmin deleteAcl)"
)

log = structlog.get_logger(__name__)


class UserDiffersError(Exception):
    """A user is there that the operator must leave as it is; a person has to decide."""


@dataclass(frozen=True)
class WantedUser:
    """A declared user with its policies. Without a password, where its Secret can't be used, it only loses rights."""

    name: str
    type: UserType
    policies: tuple[AclPolicy, ...]
    password: str | None = field(repr=False)


def wanted_users(spec: AclSpec, passwords: Mapping[str, str]) -> tuple[WantedUser, ...]:
    """The declared users; `passwords` by name."""
    return tuple(
        WantedUser(
            name=user.name,
            type=user.type,
            policies=tuple(one for one in spec.policies if one.subject == f"{acl.USER_PREFIX}{user.name}"),
            password=passwords.get(user.name),
        )
        for user in spec.users
    )


@dataclass(frozen=True)
class UsersStanding:
    """How many users and policies are declared, how many every member has so, what is waited for, and what needs a person.

    Groups beyond count and hibernated ones are left out.
    """

    users: int = 0
    ready_users: int = 0
    policies: int = 0
    ready_policies: int = 0
    pending: tuple[str, ...] = ()
    differing: tuple[str, ...] = ()


def changes_for(wanted: WantedUser, found: BrokerAccess) -> list[AccessChange]:
    """Return the requests that give a broker this user, in their order. Raises UserDiffersError.

    A new user is disabled until it has its mark and its rules: an operator that dies in between leaves a user that can't sign
    in, and that the next look completes.
    """
    user = found.users.get(wanted.name)
    entries = _entries(found, wanted.name)
    is_half_made = user is not None and user.user_status == acl.DISABLED and not entries
    if user is not None and not is_half_made and not is_marked(found, wanted.name):
        raise UserDiffersError(f"user {wanted.name} is there, and the operator did not make it")
    if wanted.password is None and (user is None or is_half_made):
        return []
    new = UserInfo(wanted.name, wanted.password, wanted.type.value, acl.DISABLED)
    changes = [acl.create_user(new)] if user is None else []
    changes += _rule_changes(wanted, entries)
    as_wanted = UserInfo(wanted.name, wanted.password, wanted.type.value, acl.ENABLED)
    if wanted.password is not None and user != as_wanted:
        changes.append(acl.update_user(as_wanted))
    elif wanted.password is None and wanted.type is UserType.NORMAL and user and user.user_type != wanted.type.value:
        changes.append(acl.update_user(UserInfo(wanted.name, user_type=wanted.type.value)))
    return changes


def _rule_changes(wanted: WantedUser, entries: Mapping[tuple[str, str], PolicyEntryInfo]) -> list[AccessChange]:
    """New rules before old ones go, and of those each Allow before a Deny: no step allows what neither the old nor the new do.

    (tests/reconcile/test_users.py::test_no_step_of_a_change_allows_what_neither_the_old_nor_the_new_rules_allow)
    """
    rules = {entry.resource: entry for entry in (MARK_ENTRY, *map(_entry, wanted.policies))}
    differing = [rule for rule in rules.values() if not _same(entries.get((acl.CUSTOM, rule.resource)), rule)]
    old = [place for place in entries if place[0] != acl.CUSTOM or place[1] not in rules]
    old.sort(key=lambda place: (entries[place].decision != Decision.ALLOW.value, place))
    changes = [acl.put_rules(wanted.name, differing)] if differing else []
    return changes + [acl.delete_rule(wanted.name, policy_type, resource) for policy_type, resource in old]


def removals(declared: Iterable[str], found: BrokerAccess) -> list[AccessChange]:
    """The users that the operator made and that are declared no more; no others."""
    gone = sorted(name for name in found.users.keys() - set(declared) if is_marked(found, name))
    return [acl.delete_user(name) for name in gone]


def is_marked(found: BrokerAccess, username: str) -> bool:
    return (acl.CUSTOM, MARK) in _entries(found, username)


def _entries(found: BrokerAccess, username: str) -> dict[tuple[str, str], PolicyEntryInfo]:
    policies = found.rules.get(username, ())
    return {(policy.policy_type, entry.resource): entry for policy in policies for entry in policy.entries or ()}


def _entry(policy: AclPolicy) -> PolicyEntryInfo:
    return PolicyEntryInfo(
        resource=policy.resource,
        actions=tuple(one.value for one in policy.actions),
        source_ips=tuple(policy.source_ips),
        decision=policy.decision.value,
    )


def _same(one: PolicyEntryInfo | None, other: PolicyEntryInfo) -> bool:
    """Order does not count, nor whether no addresses are none or an empty list."""
    if one is None or one.decision != other.decision:
        return False
    same_actions = set(one.actions or ()) == set(other.actions or ())
    return same_actions and set(one.source_ips or ()) == set(other.source_ips or ())


@dataclass(frozen=True)
class _Wanted:
    """The declared users, and the access key by which brokers and operator sign."""

    users: tuple[WantedUser, ...]
    own: str


def _changes_at(wanted: _Wanted, found: BrokerAccess) -> tuple[list[AccessChange], dict[str, str]]:
    """The requests for one member; and by name why a user is left as it is."""
    declared = {user.name for user in wanted.users}
    changes, differing = removals({*declared, wanted.own}, found), {}
    for user in wanted.users:
        if user.name == wanted.own:
            differing[user.name] = _OWN_IS_DECLARED.format(user.name)
            continue
        try:
            changes += changes_for(user, found)
        except UserDiffersError as error:
            differing[user.name] = str(error)
    if wanted.own not in declared and wanted.own in found.users and is_marked(found, wanted.own):
        differing[wanted.own] = _OWN_IS_MARKED.format(wanted.own)
    return changes, differing


@dataclass(frozen=True)
class _Held:
    """The last look at a member that succeeded: what was declared, its address and the master epoch then, and the time."""

    uid: str
    address: str
    epoch: int
    wanted: _Wanted
    at_seconds: float
    differing: Mapping[str, str]


class UserKeeper:
    """Keeps the users of all clusters. What it remembers only spares requests."""

    def __init__(self, view: GroupView, clock: Callable[[], float]) -> None:
        self._view = view
        self._clock = clock
        self._held: dict[GroupKey, dict[int, _Held]] = {}

    async def keep(
        self,
        namespace: str,
        users: tuple[WantedUser, ...],
        groups: Mapping[str, str],
        *,
        counted: Collection[str],
        own: str,
    ) -> UsersStanding:
        """Change every member that differs. `groups`: the uids of the BrokerGroups that exist, by name.

        `counted`: the groups that the result is about, whether or not they exist yet. `own`: the access key of the brokers.
        """
        wanted, keys = _Wanted(users, own), {GroupKey(namespace, name): uid for name, uid in groups.items()}
        kept = await asyncio.gather(*(self._keep_group(key, wanted, uid) for key, uid in keys.items()))
        waits = [one for key, one in zip(keys, kept, strict=True) if key.name in counted]
        held = {
            (key, one): each for key in keys if key.name in counted for one, each in self._held.get(key, {}).items()
        }
        differing = {name for each in held.values() for name in each.differing}
        is_everywhere = set(counted) <= groups.keys() and not any(missing for _, missing in waits)
        ready = [user for user in users if user.password is not None and user.name not in differing and is_everywhere]
        return UsersStanding(
            users=len(users),
            ready_users=len(ready),
            policies=sum(len(user.policies) for user in users),
            ready_policies=sum(len(user.policies) for user in ready),
            pending=tuple(text for texts, _ in waits for text in texts),
            differing=tuple(
                f"group {key.name}, broker {broker_id}: {text}"
                for (key, broker_id), each in sorted(held.items(), key=lambda item: (item[0][0].name, item[0][1]))
                for text in each.differing.values()
            ),
        )

    def forget(self, namespace: str, groups: Iterable[str]) -> None:
        for name in groups:
            self._held.pop(GroupKey(namespace, name), None)

    async def _keep_group(self, key: GroupKey, wanted: _Wanted, uid: str) -> tuple[list[str], bool]:
        """Returns what is waited for, and whether a member was never seen to have what is declared."""
        snapshot = self._view.snapshot(key)
        record = snapshot.record if snapshot is not None else None
        members = {one: each.address for one, each in record.replicas.items() if each.registered} if record else {}
        known = {
            one: held
            for one, held in self._held.get(key, {}).items()
            if one in members and (held.uid, held.wanted) == (uid, wanted)
        }
        self._held[key] = known
        if snapshot is None or record is None or not members:
            return [f"group {key.name} has no member yet"], True
        epoch, texts = record.master_epoch, []
        for broker_id, address in sorted(members.items()):
            if self._is_fresh(known.get(broker_id), address or "", epoch):
                continue
            # A member that had it, and is away for a moment, still has it on its disk.
            silent = broker_id not in snapshot.live or snapshot.is_changing
            problem = (
                "it is not heard, or the master changes" if silent else await self._bring_on(key, broker_id, wanted)
            )
            if isinstance(problem, str):
                texts += [] if broker_id in known else [f"group {key.name}, broker {broker_id}: {problem}"]
                continue
            known[broker_id] = _Held(uid, address or "", epoch, wanted, self._clock(), problem)
        return texts, len(known) < len(members)

    def _is_fresh(self, held: _Held | None, address: str, epoch: int) -> bool:
        if held is None or (held.address, held.epoch) != (address, epoch):
            return False
        return self._clock() - held.at_seconds < AGAIN_SECONDS

    async def _bring_on(self, key: GroupKey, broker_id: int, wanted: _Wanted) -> Mapping[str, str] | str:
        """Change a member's users. Returns by name why a user is left as it is; or one text if the member can't be changed."""
        try:
            found = await self._view.access(key, broker_id)
            changes, differing = _changes_at(wanted, found)
            if changes:
                await self._view.change_access(key, broker_id, changes)
        except GroupViewError as error:
            log.info("cluster.users_pending", group=str(key), broker_id=broker_id, error=str(error))
            return str(error)
        if changes:
            log.info("cluster.users", group=str(key), broker_id=broker_id, changes=[str(one) for one in changes])
        return differing
