"""A broker's users and rules as AdminBrokerProcessor and the metadata managers of Java 5.5.0 change them, without the broker."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from msgspec.structs import replace

from brokergroup_operator.observe.group_view import BrokerUnreachableError
from rocketmq_remoting.acl_protocol import CUSTOM, ENABLED, BrokerAccess, PolicyEntryInfo, PolicyInfo, UserInfo
from rocketmq_remoting.codes import RequestCode

if TYPE_CHECKING:
    from rocketmq_remoting.acl_protocol import AccessChange


class ScriptedAcl:
    """`taken` has every request it did, in order. `fails_at`: the number of the request at which it stops answering."""

    def __init__(self, *users: UserInfo) -> None:
        self.users = {one.username: one for one in users}
        self.rules: dict[str, dict[tuple[str, str], PolicyEntryInfo]] = {}
        self.taken: list[tuple[str, str]] = []
        self.fails_at: int | None = None

    def access(self) -> BrokerAccess:
        rules = {
            name: tuple(PolicyInfo(kind, (entry,)) for (kind, _), entry in entries.items())
            for name, entries in self.rules.items()
        }
        return BrokerAccess(dict(self.users), rules)

    def take(self, change: AccessChange) -> None:
        """Raises BrokerUnreachableError where the broker would refuse, or is to fail."""
        if self.fails_at is not None and len(self.taken) >= self.fails_at:
            raise BrokerUnreachableError("no answer")
        name = change.fields.get("username") or change.fields["subject"].removeprefix("User:")
        body = json.loads(change.body) if change.body else {}
        match change.code:
            case RequestCode.AUTH_CREATE_USER:
                self._must(name not in self.users, "The user is existed")
                self.users[name] = _user(UserInfo(name), body)
            case RequestCode.AUTH_UPDATE_USER:
                self._must(name in self.users, "The user is not exist")
                self.users[name] = _user(self.users[name], body)
            case RequestCode.AUTH_DELETE_USER:
                self.users.pop(name, None)
                self.rules.pop(name, None)
            case RequestCode.AUTH_UPDATE_ACL:
                self._must(name in self.users, "The subject is not exist")
                for policy in body["policies"]:
                    for entry in policy["entries"]:
                        self.rules.setdefault(name, {})[policy["policyType"], entry["resource"]] = _entry(entry)
            case RequestCode.AUTH_DELETE_ACL:
                self._must(name in self.rules, "The acl is not exist")
                self.rules[name].pop((change.fields["policyType"], change.fields["resource"]), None)
            case _:
                raise AssertionError(change)
        self.taken.append((change.code.name, name))

    def may(self, name: str, resource: str) -> bool:
        """As AuthorizationProvider of 5.5.0: a Custom rule before a Default one, then the longest beginning; none denies."""
        user = self.users.get(name)
        if user is None or user.user_status != ENABLED:
            return False
        if user.user_type == "Super":
            return True
        matching = [
            (kind == CUSTOM, not rule.endswith("*"), len(rule), entry.decision)
            for (kind, rule), entry in self.rules.get(name, {}).items()
            if rule == resource or (rule.endswith("*") and resource.startswith(rule[:-1]))
        ]
        return bool(matching) and max(matching)[-1] == "Allow"

    @staticmethod
    def _must(holds: bool, remark: str) -> None:
        if not holds:
            raise BrokerUnreachableError(remark)


def _user(before: UserInfo, body: dict[str, str]) -> UserInfo:
    return replace(
        before,
        password=body.get("password", before.password),
        user_type=body.get("userType", before.user_type),
        user_status=body.get("userStatus", before.user_status),
    )


def _entry(body: dict[str, object]) -> PolicyEntryInfo:
    """As Java lists it: no addresses are no list."""
    actions, addresses = body["actions"], body["sourceIps"]
    assert isinstance(actions, list)
    assert isinstance(addresses, list)
    return PolicyEntryInfo(str(body["resource"]), tuple(actions), tuple(addresses) or None, str(body["decision"]))
