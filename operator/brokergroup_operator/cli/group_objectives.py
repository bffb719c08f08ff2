"""The objectives of single groups for a report: those of files, and the groups' own `spec.slo` from the API server.

A file that can't be used is an error. A cluster that can't be read is a note in the report, which a scheduled job still makes, by
the objective of all groups.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sla_reports.measures.objectives import Objective
    from sla_reports.states.spans import Window

# Longer than on the failover path: an API server that is being replaced is back within these.
TIMEOUT_SECONDS: Final = 30.0
PAUSES_SECONDS: Sequence[float] = (2.0, 10.0)
_KIND: Final = "brokergroups.brokergroup.dev"
_NOT_READ: Final = "spec.slo of the groups was not read"


@dataclass(frozen=True, slots=True)
class ClusterObjectives:
    """The groups' own objectives, and a note for the report's reader on each that could not be read."""

    objectives: "tuple[Objective, ...]" = ()
    notes: tuple[str, ...] = ()


def read_own_objectives(
    files: Sequence[Path] | None, cluster: ClusterObjectives, window: "Window | None", until_ms: int | None
) -> "tuple[Sequence[Objective], Window | None]":
    """Return the objectives of single groups, and the window that the longest needs. Raises ObjectiveError.

    Without any, Spark is not imported.
    """
    if not files and not cluster.objectives:
        return (), window
    from sla_reports.measures.objectives import merged_objectives, read_objectives, reading_window

    own = merged_objectives([*(read_objectives(files) if files else ()), *cluster.objectives])
    return own, None if window is None else reading_window(window, own, until_ms=until_ms)


def objectives_of_cluster(namespace: str | None, kubeconfig: Path | None, *, asked: bool = True) -> ClusterObjectives:
    """Read one namespace's BrokerGroups, or all; without a kubeconfig as the pod's service account. Nothing if not `asked`.

    Raises ObjectiveError for an option that can't be used.
    """
    from brokergroup_operator.kube.errors import ApiError
    from brokergroup_operator.kube.settings import KubeconfigError

    if not asked:
        for option, value in (("objectives-namespace", namespace), ("kubeconfig", kubeconfig)):
            if value is not None:
                raise _objective_error(f"--{option} {value}: expected none without --objectives-from-cluster")
        return ClusterObjectives()
    try:
        groups = asyncio.run(_listed(namespace, kubeconfig))
    except KubeconfigError as error:
        if kubeconfig is not None:
            raise _objective_error(f"--kubeconfig {error}") from error
        return _not_read(f"there is no cluster to ask: {error}; expected to run in a pod, or --kubeconfig")
    except OSError as error:
        return _not_read(
            f"the files of the pod's service account: {error}; expected a pod with automountServiceAccountToken: true"
        )
    except ApiError as error:
        return _not_read(_why(error, namespace))
    return _objectives_of(groups)


def _objective_error(message: str) -> Exception:
    from sla_reports.measures.objectives import ObjectiveError

    return ObjectiveError(message)


def _not_read(why: str) -> ClusterObjectives:
    return ClusterObjectives(notes=(f"{_NOT_READ}: {why}; every group without a file's is judged by one objective",))


def _why(error: Exception, namespace: str | None) -> str:
    place = f"in namespace {namespace}" if namespace else "in all namespaces"
    needed = f"a Role in {namespace}" if namespace else "a ClusterRole"
    match getattr(error, "status", None):
        case 401:
            return f"the API server does not accept the credentials ({error}); expected a token that it takes"
        case 403:
            return f"the right to list {_KIND} {place} is missing ({error}); expected {needed} that gives it, bound to this user"
        case 404:
            return f"this cluster has no kind {_KIND} ({error}); expected the operator's CRDs"
    return f"the API server can't be asked ({error})"


async def _listed(namespace: str | None, kubeconfig: Path | None) -> list[dict[str, Any]]:
    """List the groups; retry while the API server can't be reached."""
    from brokergroup_operator.kube.client import KubernetesApi
    from brokergroup_operator.kube.errors import ApiUnavailableError
    from brokergroup_operator.kube.resources import BROKER_GROUPS

    pauses_seconds = iter(PAUSES_SECONDS)
    async with KubernetesApi.from_kubeconfig(kubeconfig) if kubeconfig else KubernetesApi.in_cluster() as api:
        while True:
            try:
                return (await api.list(BROKER_GROUPS, namespace=namespace, timeout_seconds=TIMEOUT_SECONDS)).items
            except ApiUnavailableError:
                if (pause_seconds := next(pauses_seconds, None)) is None:
                    raise
                await asyncio.sleep(pause_seconds)


def _objectives_of(groups: Sequence[dict[str, Any]]) -> ClusterObjectives:
    """Return each group's objective; one that can't be used is a note, since the kind's schema does not know every time zone."""
    from sla_reports.measures.objectives import ObjectiveError, objective_of_document

    found, notes = [], []
    for group in groups:
        metadata = group.get("metadata", {})
        where = f"BrokerGroup {metadata.get('namespace')}/{metadata.get('name')}"
        try:
            own = objective_of_document(group, where)
        except ObjectiveError as error:
            notes.append(f"{error}; the group is judged by the objective of all others")
            continue
        if own is not None:
            found.append(own)
    return ClusterObjectives(tuple(found), tuple(notes))
