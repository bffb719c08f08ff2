"""Which lane of the proofs runs a real test: decided by the parts that the test names, so each has exactly one."""

from __future__ import annotations

from dataclasses import dataclass

from tests.real.parts.install import PARTS, everything_needed

API = ("kube-apiserver", "etcd", "helm")
JAVA = ("java", "rocketmq", "newest-rocketmq", "older-rocketmq", "older-java-controller", "netns", "nft")


@dataclass(frozen=True)
class RealLane:
    """`chosen_by`: a test that names one of these parts belongs here. `parts`: what the lane installs."""

    name: str
    chosen_by: frozenset[str]
    parts: tuple[str, ...]


# The first that fits; the last takes every other test.
REAL_LANES = (
    RealLane(
        "brokers", frozenset({"rocketmq", "newest-rocketmq", "older-java-controller"}), (*JAVA, *API, "prometheus")
    ),
    RealLane(
        "api", frozenset({"kube-apiserver", "etcd", "netns", "nft"}), (*API, "java", "prometheus", "netns", "nft")
    ),
    RealLane("spark", frozenset({"java"}), ("java", "prometheus")),
    RealLane("charts", frozenset(PARTS), ("helm", "prometheus", "actionlint", "package-index")),
)


def lane_of(parts: set[str]) -> str:
    """The lane of a test with these parts. ValueError if none is named, if one is unknown, or if the lane does not install one."""
    if not parts or parts - PARTS.keys():
        raise ValueError(f"marker real({', '.join(sorted(parts))}): expected one or more of {', '.join(PARTS)}")
    lane = next(lane for lane in REAL_LANES if parts & lane.chosen_by)
    if without := parts.difference(*(everything_needed(part) for part in lane.parts)):
        raise ValueError(
            f"the lane {lane.name} does not install {', '.join(sorted(without))} (tests/support/real_lanes.py)"
        )
    return lane.name
