"""The kubelet's own client of the Kubernetes API.

The operator under test has another one: what judges an operator shares no code with it, so no mistake of the client is hidden by
being made on both sides.
"""

from .client import JsonObject, KubeClient, WatchEvent
from .errors import (
    AlreadyExistsError,
    ApiError,
    ApiUnavailableError,
    ConflictError,
    GoneError,
    NotFoundError,
    OutcomeUnknownError,
)
from .kubeconfig import KubeconfigError
from .reflector import ObjectKey, Reflector, key_of
from .resources import (
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    EVENTS,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    SECRETS,
    SERVICES,
    Resource,
)

__all__ = [
    "CONFIG_MAPS",
    "CUSTOM_RESOURCE_DEFINITIONS",
    "EVENTS",
    "NODES",
    "PERSISTENT_VOLUME_CLAIMS",
    "PODS",
    "SECRETS",
    "SERVICES",
    "AlreadyExistsError",
    "ApiError",
    "ApiUnavailableError",
    "ConflictError",
    "GoneError",
    "JsonObject",
    "KubeClient",
    "KubeconfigError",
    "NotFoundError",
    "ObjectKey",
    "OutcomeUnknownError",
    "Reflector",
    "Resource",
    "WatchEvent",
    "key_of",
]
