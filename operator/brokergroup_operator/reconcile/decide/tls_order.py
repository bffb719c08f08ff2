"""With which mode of spec.tls pods are made now: one step from every pod that is there (api/tls_fields.py). Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from brokergroup_operator.api.tls_fields import mode_of, next_tls
from brokergroup_operator.kube.pods import is_over

if TYPE_CHECKING:
    from brokergroup_operator.api.brokergroup import BrokerGroup
    from brokergroup_operator.reconcile.see.observed import Observed
    from brokergroup_operator.reconcile.settings import ReconcileSettings


def with_next_mode(seen: Observed, settings: ReconcileSettings) -> BrokerGroup:
    """Return the group as its pods are made.

    While the operator serves no TLS none changes to it, and a group on its way goes back: a broker with TLS would not be heard.
    """
    group, pods = seen.group, [pod for pod in seen.pods.values() if not is_over(pod)]
    has_it_whole = bool(pods) and all(map(mode_of, pods))
    now = next_tls(group.spec.tls if settings.controller_tls or has_it_whole else None, pods)
    return group if now == group.spec.tls else replace(group, spec=replace(group.spec, tls=now))
