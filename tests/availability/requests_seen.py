"""The requests that a release for one namespace may send to an API server."""

from __future__ import annotations

import re


def is_outside(path: str, namespace: str) -> bool:
    """Whether a request leaves the namespace. Nodes have none (an operator without the right gets one refusal: chart value
    rbac.readNodes), and discovery of kinds is public."""
    discovery = re.fullmatch(r"/api(/v1)?|/apis(/[^/]+/[^/]+)?|/version", path) is not None
    return (
        not discovery and f"/namespaces/{namespace}/" not in path and path.split("/")[:4] != ["", "api", "v1", "nodes"]
    )
