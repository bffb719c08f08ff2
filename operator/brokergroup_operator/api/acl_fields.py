"""RocketMQCluster.spec.acl: users and rules of RocketMQ's ACL 2.0, in its own terms."""

from enum import StrEnum
from typing import Annotated, ClassVar, Final

from msgspec import Meta, Struct

from brokergroup_operator.api import bounds
from brokergroup_operator.api.rules import Rule

MAX_USERS = 64
MAX_POLICIES = 256
# The operator denies this resource to each user that it makes, and knows the user by that rule, which is on the broker's disk.
MARK: Final = "Group:BROKERGROUP_OPERATOR"
_USER_NAME: Final = "[A-Za-z0-9][A-Za-z0-9._@-]*"
LONGEST_USER_NAME = 63
_NAME: Final = "[A-Za-z0-9_%|-]"


class UserType(StrEnum):
    """As RocketMQ has it."""

    NORMAL = "Normal"
    SUPER = "Super"


class PasswordSecret(Struct, frozen=True, rename="camel", kw_only=True):
    """The Secret that holds a password."""

    name: Annotated[bounds.ObjectName, Meta(description="Name of a Secret in the same namespace.")]
    key: Annotated[
        str,
        bounds.judged_by_the_api("^[-._a-zA-Z0-9]+$", 253, 1),
        Meta(description="Key of its data."),
    ] = "password"


class AclUser(Struct, frozen=True, rename="camel", kw_only=True):
    """A user of every broker of the cluster. A client signs with the name as access key and the password as secret key."""

    name: Annotated[
        str,
        bounds.judged_by_the_api(f"^{_USER_NAME}$", LONGEST_USER_NAME, 1),
        Meta(
            description="Name of the user: the access key of its clients. The operator changes no user of that name that it did"
            " not make, nor the user whose name is the access key of credentialsSecretRef; condition Stalled names it. But it"
            " takes over a disabled user without rules."
        ),
    ]
    password_secret_ref: Annotated[
        PasswordSecret,
        Meta(
            description="Where its password is: 1 to 512 printable ASCII characters without quotes, backslashes and dollar"
            " signs. A changed password reaches the brokers without a restart. The operator needs the right to"
            " get the Secret (chart: security.groupSecretNames)."
        ),
    ]
    type: Annotated[
        UserType, Meta(description="Normal: the policies decide what it may do. Super: it may do everything.")
    ] = UserType.NORMAL


class AclAction(StrEnum):
    """As RocketMQ has it."""

    ALL = "All"
    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"


class Decision(StrEnum):
    """As RocketMQ has it."""

    ALLOW = "Allow"
    DENY = "Deny"


class AclPolicy(Struct, frozen=True, rename="camel", kw_only=True):
    """What one user may do with one resource; what no policy allows is denied. One policy for each subject and resource."""

    subject: Annotated[
        str,
        bounds.judged_by_the_api(f"^User:{_USER_NAME}$", len("User:") + LONGEST_USER_NAME, len("User:") + 1),
        Meta(description="User: and the name of a user in users."),
    ]
    resource: Annotated[
        str,
        bounds.judged_by_the_api(rf"^([*]|(Cluster|Namespace|Topic|Group):([*]|{_NAME}+[*]?))$", 270, 1),
        Meta(
            description="Topic:NAME, Group:NAME, Namespace:NAME or Cluster:NAME; with * at its end all names that begin so;"
            " Topic:* all topics, * everything. Of several that match the one named in full wins, then the longest"
            " beginning."
        ),
    ]
    actions: Annotated[
        list[AclAction],
        Meta(
            min_length=1,
            max_length=8,
            description="What is allowed or denied: Pub and Sub of a topic, Sub of a group, the others for administration.",
            extra_json_schema=bounds.SET_LIST,
        ),
    ]
    source_ips: Annotated[
        list[Annotated[str, bounds.judged_by_the_api(bounds.ADDRESS_OR_CIDR_PATTERN, 49, 2)]],
        Meta(
            max_length=16,
            description="Addresses or ranges from which the policy holds. Empty: from every address.",
            extra_json_schema=bounds.SET_LIST,
        ),
    ] = []
    decision: Annotated[Decision, Meta(description="Allow or Deny.")] = Decision.ALLOW

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(f"self.resource != '{MARK}'", f"resource {MARK} is the operator's own mark", field_path=".resource"),
    )


class AclSpec(Struct, frozen=True, rename="camel", kw_only=True):
    """Users and policies of every broker. Given, also empty, it turns authentication and authorization on."""

    users: Annotated[
        list[AclUser],
        Meta(
            max_length=MAX_USERS,
            description="The users. One that is taken from the list is deleted at every broker, with its policies; users"
            " that the operator did not make stay.",
            extra_json_schema=bounds.map_list("name"),
        ),
    ] = []
    policies: Annotated[
        list[AclPolicy],
        Meta(
            max_length=MAX_POLICIES,
            description="The policies of these users, which have no others.",
            extra_json_schema=bounds.map_list("subject", "resource"),
        ),
    ] = []

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.policies.all(policy, self.users.exists(user, policy.subject == 'User:' + user.name))",
            "policies: a subject must be User: and the name of one of users",
            field_path=".policies",
        ),
    )
