"""What the operator's flags say to the reconcile plane."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Self

from brokergroup_operator.api import names, versions
from rocketmq_remoting.address import Address

if TYPE_CHECKING:
    from pathlib import Path

    from brokergroup_operator.api.pod_fence import FenceKeys

DEFAULT_ROCKETMQ_VERSION: Final = "5.5.0"


@dataclass(frozen=True, kw_only=True)
class LeaderElectionSettings:
    """The Lease that picks the one reconcile plane among several operator pods. It guards reconciling only, never an election."""

    namespace: str
    identity: str
    # Each release in one namespace needs its own: those that share one are one operator, and one pod of all of them reconciles.
    name: str = names.DEFAULT_LEASE
    # A candidate takes the Lease when it has not changed for so long.
    lease_duration_seconds: int = 3
    # The holder stops so long after it began its last renewal that was answered.
    renew_deadline_seconds: float = 2.0
    retry_period_seconds: float = 0.5
    request_timeout_seconds: float = 1.0

    @classmethod
    def lasting(cls, lease_seconds: int, *, namespace: str, identity: str, name: str = names.DEFAULT_LEASE) -> Self:
        """All times in the proportions of the defaults: an API server that answers slowly needs longer ones."""
        return cls(
            namespace=namespace,
            identity=identity,
            name=name,
            lease_duration_seconds=lease_seconds,
            renew_deadline_seconds=lease_seconds * 2 / 3,
            retry_period_seconds=lease_seconds / 6,
            request_timeout_seconds=lease_seconds / 3,
        )

    def __post_init__(self) -> None:
        """Refuse what would let two planes lead at once, or one lose the Lease over a single late answer."""
        if self.renew_deadline_seconds >= self.lease_duration_seconds:
            raise ValueError(
                f"renew_deadline_seconds is {self.renew_deadline_seconds}, expected less than lease_duration_seconds"
                f" ({self.lease_duration_seconds}): the holder must stop before another may begin"
            )
        if self.retry_period_seconds + self.request_timeout_seconds >= self.renew_deadline_seconds:
            raise ValueError(
                f"retry_period_seconds + request_timeout_seconds is"
                f" {self.retry_period_seconds + self.request_timeout_seconds}, expected less than renew_deadline_seconds"
                f" ({self.renew_deadline_seconds}): there must be time for a second attempt"
            )

    @property
    def operator(self) -> str:
        """What is written on a group that this operator reconciles."""
        return f"{self.namespace}/{self.name}"

    @property
    def takeover_seconds(self) -> float:
        """The longest time without a holder of the Lease after one died: seen at the next look, then its whole duration."""
        return self.retry_period_seconds + self.request_timeout_seconds + self.lease_duration_seconds


@dataclass(frozen=True, kw_only=True)
class VersionCatalogue:
    """The image of each version. Those that `images` does not list have the tag of their name, unless `only_listed`."""

    repository: str = "apache/rocketmq"
    images: tuple[tuple[str, str], ...] = ()
    only_listed: bool = False

    def image(self, version: str) -> str:
        """Return the image, also of a version that may not be chosen any more: its brokers may still run."""
        return dict(self.images).get(version, f"{self.repository}:{version}")

    @property
    def choice(self) -> frozenset[str]:
        """The versions that a group may choose; empty: any."""
        return frozenset(version for version, _ in self.images) if self.only_listed else frozenset()

    def __post_init__(self) -> None:
        """Refuse a list that says two things of one version, and a limit to nothing."""
        listed = [version for version, _ in self.images]
        if twice := sorted({version for version in listed if listed.count(version) > 1}):
            raise ValueError(f"images lists {', '.join(twice)} twice, expected each version once")
        if self.only_listed and not listed:
            raise ValueError("only_listed is true and images is empty, expected at least one version that may run")


def checked_version(version: str, catalogue: VersionCatalogue) -> None:
    """Raise ValueError if no group could run this default version."""
    if not versions.is_version(version):
        raise ValueError(f"rocketmq_version is {version!r}, expected a version like 5.5.0")
    if why := versions.why_it_never_runs(version) or versions.why_not_listed(version, catalogue.choice):
        raise ValueError(f"rocketmq_version is {version!r}, expected another: {why}")


@dataclass(frozen=True, kw_only=True)
class ReconcileSettings:
    """One value per flag; `namespace=None` serves all namespaces."""

    controller_addresses: tuple[str, ...]
    namespace: str | None = None
    catalogue: VersionCatalogue = field(default_factory=VersionCatalogue)
    rocketmq_version: str = DEFAULT_ROCKETMQ_VERSION
    replica_image: str = "brokergroup-operator:0.1.0"
    resync_seconds: float = 30.0
    pass_timeout_seconds: float = 30.0
    api_timeout_seconds: float = 10.0
    backoff_initial_seconds: float = 0.2
    backoff_maximum_seconds: float = 15.0
    # An event cuts a longer pause down to this: something may have broken that can be repaired meanwhile.
    backoff_after_event_seconds: float = 1.0
    concurrent_passes: int = 8
    # Groups in a rolling update at one time; 0 sets no limit.
    max_groups_rolling: int = 1
    leader_election: LeaderElectionSettings | None = None
    # How the fences in the pods speak to controllers and to their brokers. The authority is PEM; None: any certificate is accepted.
    controller_tls: bool = False
    controller_authority: str | None = None
    # The file of it, which may change while the operator runs; None: it trusts any certificate.
    authority_file: Path | None = None
    broker_tls: bool = False
    # The keys that sign the orders to pods' fences; None: no orders.
    fence_keys: FenceKeys | None = None
    # Whether controllers refuse connections without a client certificate.
    client_certificates_required: bool = False
    instance: str = field(default="brokergroup-operator")

    @property
    def operator(self) -> str | None:
        """Which operator this is; None without a Lease: then it takes no group, and leaves those that another has taken alone."""
        return self.leader_election.operator if self.leader_election is not None else None

    def refreshed(self) -> Self:
        """With the authority that its file has now; the same object where it has not changed, or is no text that can be read."""
        if self.authority_file is None:
            return self
        try:
            text = self.authority_file.read_text(encoding="utf-8")
        except (OSError, ValueError):
            return self
        return self if not text or text == self.controller_authority else replace(self, controller_authority=text)

    def __post_init__(self) -> None:
        """Refuse what would render a configuration that no broker can use."""
        if not self.controller_addresses:
            raise ValueError("controller_addresses is empty, expected at least one host:port that brokers can dial")
        for address in self.controller_addresses:
            Address.parse(address, "controller_addresses")
        checked_version(self.rocketmq_version, self.catalogue)
        if self.max_groups_rolling < 0:
            raise ValueError(f"max_groups_rolling is {self.max_groups_rolling}, expected 0 (no limit) or more")
