"""Takes out of objects and logs what a stranger must not see. Pure. Names are kept, values that could be secrets are not.

Secrets are never read at all; this is for what people put where no secret belongs: environment values, broker configuration,
JVM arguments, annotations, log lines. A register check code is what a broker proves its id with, so it is one too.
"""

from __future__ import annotations

import re
from typing import Any

REDACTED = "(redacted)"
# A field of one of these names is taken out whatever it holds.
SECRET_NAME = re.compile(
    r"passw|secret|token|credential|access[-_.]?key|private[-_.]?key|api[-_.]?key|signature|registerCheckCode|checkCode",
    re.IGNORECASE,
)
# Fields whose names look so, and only name or choose something.
HARMLESS = frozenset({"credentialsSecretName", "secretName", "secretKeyRef", "secretRef", "secret", "imagePullSecrets",
                      "automountServiceAccountToken", "serviceAccountToken", "tokenExpirationSeconds"})  # fmt: skip
DROPPED_METADATA = ("managedFields",)
DROPPED_ANNOTATIONS = ("kubectl.kubernetes.io/last-applied-configuration",)
# key=value, key: value, "key":"value", -Dkey=value in running text.
ASSIGNMENT = re.compile(
    r"""(?P<key>["']?[\w.-]*(?:passw|secret|token|credential|access[-_.]?key|private[-_.]?key|api[-_.]?key|signature|checkCode)[\w.-]*["']?\s*[:=]\s*)"""
    r"""(?P<value>"[^"]*"|'[^']*'|[^\s,;}\]]+)""",
    re.IGNORECASE,
)
BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}")
PEM = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
# user:password@ in an address.
USER_INFO = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*://)[^\s/@:]+:[^\s/@]+@")


def redacted_text(text: str) -> str:
    """A log line, a message, an argument."""
    text = PEM.sub(REDACTED, text)
    text = BEARER.sub(lambda match: f"{match[1]} {REDACTED}", text)
    text = USER_INFO.sub(rf"\g<scheme>{REDACTED}@", text)
    return ASSIGNMENT.sub(lambda match: f"{match['key']}{REDACTED}", text)


def redacted(value: Any, *, name: str = "") -> Any:
    """The same for a whole object."""
    if name and name not in HARMLESS and SECRET_NAME.search(name) and not isinstance(value, bool):
        return REDACTED if value not in (None, "") else value
    if isinstance(value, dict):
        return _redacted_mapping(value)
    if isinstance(value, list):
        return [redacted(item) for item in value]
    return redacted_text(value) if isinstance(value, str) else value


def _redacted_mapping(value: dict[str, Any]) -> dict[str, Any]:
    """An environment entry ({name, value}) is judged by the name it gives to its value."""
    kept = {key: item for key, item in value.items() if key not in DROPPED_METADATA + DROPPED_ANNOTATIONS}
    named = kept.get("name")
    if isinstance(named, str) and "value" in kept and SECRET_NAME.search(named):
        kept["value"] = REDACTED
    return {key: redacted(item, name=key) for key, item in kept.items()}
