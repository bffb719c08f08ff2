"""Takes out of objects and logs what a stranger must not see. Pure. Names are kept, values that could be secrets are not.

Secrets are never read at all; this is for what people put where no secret belongs: environment values, broker configuration,
JVM arguments, annotations, log lines. A register check code is what a broker proves its id with, so it is one too.
"""

from __future__ import annotations

import re
from typing import Any

from brokergroup_operator.api.meaning.secret_names import SECRET_NAME, WORDS

REDACTED = "(redacted)"
# Fields whose names look so, and only name or choose something.
HARMLESS = frozenset({"secretKeyRef", "secretRef", "secret", "imagePullSecrets", "automountServiceAccountToken",
                      "serviceAccountToken", "tokenExpirationSeconds"})  # fmt: skip
HARMLESS_TEXTS = frozenset({"credentialsSecretName", "certificateSecretName", "secretName"})
DROPPED_METADATA = ("managedFields",)
DROPPED_ANNOTATIONS = ("kubectl.kubernetes.io/last-applied-configuration",)
# key=value, key: value, "key":"value", -Dkey=value in running text, also where a text in JSON holds JSON: \"key\":\"value\".
# What precedes the word need not be found, for it is kept; and nothing is looked for without a bound: a log is a stranger's,
# and one line of 100 KB must not take minutes.
ASSIGNMENT = re.compile(
    rf"""(?P<key>(?:{WORDS})[\w.-]{{0,64}}\\{{0,8}}["']?\s{{0,8}}[:=]>?\s{{0,8}})"""
    r"""(?P<value>(?P<quote>\\{0,8}["']).{0,4096}?(?<!\\)(?P=quote)|\{[^{}]{0,4096}\}"""
    # A comma or bracket belongs to it unless what follows shows that it does not.
    r"""|(?:[^\s,;}\]]|[,;}\]](?=[^\s"'{}\[\],;\\]))+)""",
    re.IGNORECASE,
)
# --password value
OPTION = re.compile(
    rf"(?P<key>(?<![\w-])--?(?:[\w.-]{{0,64}}?)(?:{WORDS})[\w.-]{{0,64}}\s{{1,8}})(?P<value>[^\s-]\S*)", re.IGNORECASE
)
OPTION_ALONE = re.compile(rf"--?[\w.-]{{0,64}}?(?:{WORDS})[\w.-]{{0,64}}", re.IGNORECASE)
BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}")
PEM = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
# user:password@ in an address; the user may be missing.
USER_INFO = re.compile(r"(?P<scheme>\b[a-z][a-z0-9+.-]{0,31}://)[^\s/@:]{0,256}:[^\s/]{1,1024}@")


def redacted_text(text: str) -> str:
    """A log line, a message, an argument."""
    text = PEM.sub(REDACTED, text)
    text = BEARER.sub(lambda match: f"{match[1]} {REDACTED}", text)
    text = USER_INFO.sub(rf"\g<scheme>{REDACTED}@", text)
    for found in (ASSIGNMENT, OPTION):
        text = found.sub(lambda match: f"{match['key']}{REDACTED}", text)
    return text


def redacted(value: Any, *, name: str = "") -> Any:
    """The same for a whole object."""
    harmless = HARMLESS_TEXTS if isinstance(value, str) else HARMLESS
    if name and name not in harmless and SECRET_NAME.search(name) and not isinstance(value, bool):
        return REDACTED if value not in (None, "") else value
    if isinstance(value, dict):
        return _redacted_mapping(value)
    if isinstance(value, list):
        return [
            REDACTED if isinstance(item, str) and _is_option(before) else redacted(item)
            for before, item in zip([None, *value], value, strict=False)
        ]
    return redacted_text(value) if isinstance(value, str) else value


def _is_option(argument: Any) -> bool:
    """One whose value is the next argument."""
    return isinstance(argument, str) and OPTION_ALONE.fullmatch(argument) is not None


def _redacted_mapping(value: dict[str, Any]) -> dict[str, Any]:
    """An environment entry ({name, value}) is judged by the name it gives to its value."""
    kept = {key: item for key, item in value.items() if key not in DROPPED_METADATA + DROPPED_ANNOTATIONS}
    named = kept.get("name")
    if isinstance(named, str) and "value" in kept and SECRET_NAME.search(named):
        kept["value"] = REDACTED
    return {key: redacted(item, name=key) for key, item in kept.items()}
