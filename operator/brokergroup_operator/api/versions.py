"""The versions of RocketMQ: what a broker of each lacks here, and which change of version a group may make. Pure.

Each fact is written once, with the version in which it begins or ends; `docs/reference/versions.md` has the measured tables. The
CEL rules of the CRD say the same in their own language (`api/rules.py`), and a test compares the two.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

Numbers = tuple[int, int, int]

LONGEST_VERSION = 32
VERSION_PATTERN = r"^[0-9]+\.[0-9]+\.[0-9]+([0-9A-Za-z.-]*[0-9A-Za-z])?$"

# The first with persistent broker ids; earlier brokers register by their address, in another protocol under the same request codes.
FIRST_WITH_IDS: Final[Numbers] = (5, 1, 1)
# The first with ACL 2.0: users and policies that are kept at the brokers.
FIRST_WITH_ACL: Final[Numbers] = (5, 3, 0)
# The last known to ask the controller before its master shrinks the SyncStateSet; 5.5.0 asks afterwards (apache/rocketmq #9897).
LAST_TO_ASK_FIRST: Final[Numbers] = (5, 3, 3)
# The newest whose broker runs in this project's tests. A newer one is taken, with a note.
NEWEST_TESTED: Final[Numbers] = (5, 5, 1)

NO_IDS: Final = "brokers before 5.1.1 have no persistent broker ids and register by their address"
SERVED: Final = "5.1.1 or later, and not 5.1.2"


def numbers(version: str) -> Numbers:
    """Return the first three numbers of a version: 5.3.3 of "5.3.3-custom". Absent ones are 0."""
    found = [int(number) for number in re.findall(r"\d+", version)[:3]]
    first, second, third = (*found, 0, 0, 0)[:3]
    return first, second, third


def is_version(text: str) -> bool:
    """Whether the API server takes this text as a version."""
    return len(text) <= LONGEST_VERSION and re.fullmatch(VERSION_PATTERN, text, re.ASCII) is not None


def why_it_never_runs(version: str) -> str:
    """Why no broker of this version gets a role from this operator; empty if one does.

    Of 5.1.2 only upstream's own is meant (apache/rocketmq #6926): a build with a name of its own may start.
    """
    if numbers(version) < FIRST_WITH_IDS:
        return NO_IDS
    return "a broker of 5.1.2 does not start in controller mode" if re.fullmatch(r"0*5\.0*1\.0*2", version) else ""


def why_not_listed(version: str, listed: Collection[str]) -> str:
    """Why a version that is not among those of the catalogue may not run; `listed` empty: any may."""
    if not listed or version in listed:
        return ""
    return f"this operator is limited to {', '.join(sorted(listed, key=numbers))} (chart: brokers.onlyListedVersions)"


def is_untested(version: str) -> bool:
    """Whether it is newer than any that this project's tests run."""
    return numbers(version) > NEWEST_TESTED


@dataclass(frozen=True, kw_only=True)
class Feature:
    """A key of broker.conf whose brokers keep state that a version without the key neither reads nor heeds."""

    since: Numbers
    lost: str


# By the classes BrokerConfig, MessageStoreConfig and AuthConfig of each release from 5.1.4 to 5.5.0. All are off by default.
FEATURES: Final = {
    "authenticationEnabled": Feature(since=FIRST_WITH_ACL, lost="it checks no user, and lets every client in"),
    "authorizationEnabled": Feature(since=FIRST_WITH_ACL, lost="it checks no policy, and every user may do everything"),
    "popConsumerKVServiceEnable": Feature(
        since=(5, 3, 3), lost="it forgets which messages POP consumers have not acknowledged"
    ),
    "useSingleRocksDBForAllConfigs": Feature(since=(5, 4, 0), lost="it finds no topics, groups and offsets"),
    "timerRocksDBEnable": Feature(since=(5, 4, 0), lost="it delivers no delayed message that was stored before"),
    "transRocksDBEnable": Feature(since=(5, 4, 0), lost="it checks no transaction that was left open"),
}


def features_of(config: Mapping[str, str]) -> frozenset[str]:
    """Return the keys of FEATURES that are on."""
    return frozenset(key for key in FEATURES if config.get(key, "").strip().lower() == "true")


def features_lost(before: str, after: str, keys: Collection[str]) -> list[str]:
    """Return those of the keys that brokers of `before` know, and brokers of `after` do not."""
    return [key for key in FEATURES if key in keys and numbers(after) < FEATURES[key].since <= numbers(before)]


def why_no_downgrade(before: str, after: str, config: Mapping[str, str], ran_with: Collection[str] = ()) -> str:
    """Why brokers of `after` may not take over the disks of those of `before`, with these keys of broker.conf; empty: they may.

    `ran_with`: keys that were on when the brokers were made. Every other downgrade to a version that runs here is done as an
    upgrade is.
    """
    wanted = features_of(config)
    for key in features_lost(before, after, wanted | set(ran_with)):
        where = "which is true in spec.config" if key in wanted else "with which the group's brokers ran"
        return f"a broker of {after} does not know {key}, {where}: {FEATURES[key].lost}"
    return ""
