"""What a release for one namespace may ask an API server for."""

from __future__ import annotations

import re


def is_outside(path: str, namespace: str) -> bool:
    """Nodes are in no namespace (who may not read them is told so once: chart value rbac.readNodes), and which kinds there are
    is nobody's secret."""
    discovery = re.fullmatch(r"/api(/v1)?|/apis(/[^/]+/[^/]+)?|/version", path) is not None
    return (
        not discovery and f"/namespaces/{namespace}/" not in path and path.split("/")[:4] != ["", "api", "v1", "nodes"]
    )
