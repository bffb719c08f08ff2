"""Users and rules of a broker's ACL 2.0 (RocketMQ 5.3.0 and later): 3001 to 3010.

A broker keeps them in a database of its own disk; a slave copies none of its master's (5.5.0). Bodies have passwords in plain
text, the answer to 3005 too, so no text and no error of this module contains one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from rocketmq_remoting.codes import RequestCode
from rocketmq_remoting.errors import BodyError
from rocketmq_remoting.serialization import JsonPart, dump_json, load_json_as

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ENABLED: Final = "enable"
DISABLED: Final = "disable"
CUSTOM: Final = "Custom"
USER_PREFIX: Final = "User:"


class UserInfo(JsonPart, frozen=True):
    """A user. `user_type` is Super or Normal, `user_status` enable or disable; None in a change leaves what is there."""

    username: str = ""
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None

    def __repr__(self) -> str:
        """Without the password."""
        return f"UserInfo({self.username!r}, {self.user_type}, {self.user_status})"

    __str__ = __repr__


class PolicyEntryInfo(JsonPart, frozen=True):
    """What a subject may do with a resource, such as Topic:orders, Topic:shop-* or *. One entry for each resource."""

    resource: str = ""
    actions: tuple[str, ...] | None = None
    source_ips: tuple[str, ...] | None = None
    decision: str = ""


class PolicyInfo(JsonPart, frozen=True):
    """The entries of a type, Custom or Default; those count only where no Custom one matches."""

    policy_type: str = CUSTOM
    entries: tuple[PolicyEntryInfo, ...] | None = None


class AclInfo(JsonPart, frozen=True):
    """The rules of a subject, such as User:shop."""

    subject: str = ""
    policies: tuple[PolicyInfo, ...] | None = None


@dataclass(frozen=True)
class BrokerAccess:
    """A broker's users, and their rules, by user name."""

    users: Mapping[str, UserInfo] = field(default_factory=dict)
    rules: Mapping[str, tuple[PolicyInfo, ...]] = field(default_factory=dict)


def read_access(users: bytes | None, acls: bytes | None) -> BrokerAccess:
    """Read the bodies of 3005 and 3010; a broker without any sends none. Raise BodyError, which shows nothing of them."""
    try:
        found: tuple[UserInfo, ...] = load_json_as(users, tuple[UserInfo, ...]) if users else ()
        listed: tuple[AclInfo, ...] = load_json_as(acls, tuple[AclInfo, ...]) if acls else ()
    except BodyError:
        raise BodyError("users or rules of a broker: unreadable, expected lists of JSON objects") from None
    rules = {one.subject.removeprefix(USER_PREFIX): one.policies or () for one in listed}
    return BrokerAccess({one.username: one for one in found}, rules)


@dataclass(frozen=True)
class AccessChange:
    """One request that changes a broker's users or rules. Its text has no body, which may be a password."""

    code: RequestCode
    fields: Mapping[str, str]
    body: bytes | None = field(default=None, repr=False)


def create_user(user: UserInfo) -> AccessChange:
    """3001. A broker refuses a user that it has."""
    return AccessChange(RequestCode.AUTH_CREATE_USER, {"username": user.username}, _body_of_user(user))


def update_user(user: UserInfo) -> AccessChange:
    """3002. What is None stays."""
    return AccessChange(RequestCode.AUTH_UPDATE_USER, {"username": user.username}, _body_of_user(user))


def delete_user(username: str) -> AccessChange:
    """3003. The user's rules go with it."""
    return AccessChange(RequestCode.AUTH_DELETE_USER, {"username": username})


def put_rules(username: str, entries: Sequence[PolicyEntryInfo]) -> AccessChange:
    """3007: these entries replace those of their resources; others stay. Where the user has no rules it makes them."""
    subject = f"{USER_PREFIX}{username}"
    # Without a value the list is empty, not absent.
    listed = tuple(replace(one, actions=one.actions or (), source_ips=one.source_ips or ()) for one in entries)
    body = dump_json(AclInfo(subject, (PolicyInfo(CUSTOM, listed),)))
    return AccessChange(RequestCode.AUTH_UPDATE_ACL, {"subject": subject}, body)


def delete_rule(username: str, policy_type: str, resource: str) -> AccessChange:
    """3008: take the entry of a resource away."""
    fields = {"subject": f"{USER_PREFIX}{username}", "policyType": policy_type, "resource": resource}
    return AccessChange(RequestCode.AUTH_DELETE_ACL, fields)


def _body_of_user(user: UserInfo) -> bytes:
    return dump_json({"password": user.password, "userType": user.user_type, "userStatus": user.user_status})
