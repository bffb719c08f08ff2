"""A thin asyncio client of the Kubernetes API, for the paths where a deadline on every request matters.

Neither kopf nor the official client gives what a consensus write needs: a deadline on every request, no silent retry of a
write, and an error for a write *that may or may not have happened*, instead of guessing (ADR 16):

* ``resources``: which kinds there are and where they live;
* ``settings``: address and credentials (kubeconfig, in-cluster, plain URL);
* ``client``: one method per verb, plain dictionaries in and out;
* ``answers``: what an answer means, also one that is no API server's;
* ``errors``: one exception type per caller's policy;
* ``server_side_apply``: child objects, through the official client, under the same deadlines and errors;
* ``reflector``: a level-triggered local copy of a kind, by list and watch.
"""

from .client import JsonObject, KubernetesApi, ObjectList, PatchType, WatchEvent
from .errors import (
    AlreadyExistsError,
    ApiError,
    ApiUnavailableError,
    ConflictError,
    GoneError,
    InvalidError,
    NotFoundError,
    NotLeadingError,
    OutcomeUnknownError,
    WebhookAwayError,
)
from .reflector import Reflector
from .resources import Resource

__all__ = [
    "AlreadyExistsError",
    "ApiError",
    "ApiUnavailableError",
    "ConflictError",
    "GoneError",
    "InvalidError",
    "JsonObject",
    "KubernetesApi",
    "NotFoundError",
    "NotLeadingError",
    "ObjectList",
    "OutcomeUnknownError",
    "PatchType",
    "Reflector",
    "Resource",
    "WatchEvent",
    "WebhookAwayError",
]
