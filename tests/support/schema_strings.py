"""The string fields of a kind's schema, each with objects that have a given text there: for tests of allowed texts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from brokergroup_operator.api import names
from brokergroup_operator.api.definitions.generate import custom_resource_definition

if TYPE_CHECKING:
    from collections.abc import Iterator

    from brokergroup_operator.api.definitions.generate import Kind

KEY: Final = "{key}"
GOOD: Final = (
    "a",
    "a:1",
    "1Gi",
    "5.5.0",
    "99.9",
    "-Da=b",
    "2026-11-27T00:00:00Z",
    "/a",
    "a/b",
    "10.0.0.0/8",
    "User:a",
    "Topic:a",
    "02:00",
)


def texts(longest: int) -> Iterator[str]:
    """Return texts that some fields allow and others refuse: forms first, then lengths up to one above the longest allowed."""
    yield from (
        "", "a", "A", "1", "a1", "1a", "1st", "a-b", "a_b", "a.b", "a.b.c", "aB", "-a", "a-", "_a", "a_",
        ".a", "a.", "-", "_", ".", "a..b", "a.-b", "a-.b", "a._b", "a__b", "a--b", "a b", " a", "a ", "a\tb",
        "a\nb", "a\r", "a\u2028b", "a\x85b", "a\x00b", "a/b", "/a", "a/", "a/b/c", "-a/b", "a./b", "a..b/c",
        "A/b", "A.b/c", "a/-b", "a/b-", "a.b/c", "a.b/C_d", "hugepages-2Mi", "cpu", "memory",
        "ephemeral-storage", "nvidia.com/gpu", "kubernetes.io/hostname", "brokergroup.dev/tenant",
        "app.kubernetes.io/name", "ä", "ä:1", "😀", "a=b", "a,b", "a:b", "a:1", "a:0", "a:65535", "1", "0",
        "1Gi", "0.5", "1.", "1e3", "99.9", "-1", "1.5.5", "99999999999999999999", "5.5.0", "5.5.0-", "5.5.0.",
        "5.5.0-SNAPSHOT", "broker", "fence", "store", "config", "-Xmx1m", "-Da=;b", "-Da=b|c", "-Da=(b)",
        "-Da=*", "-Da=~", "-Da=#b", "-Da=&b", "-Da=>b", "-Da={b,c}", "-Da=!b", "2026-11-27T00:00:00Z",
        "10.0.0.0/8", "10.0.0.0/33", "10.0.0.256/24", "fd00::/8", "::/129", "User:a", "User:a@b.c", "User:-a", "Topic:a",
        "Topic:*", "Topic:a*", "Group:%RETRY%a", "Topic:a*b", "Disk:a", "*", "10.0.0.1",
        "DefaultCluster", "DefaultCluster_REPLY_TOPIC", "case-0", "TBW102", "UTC", "Etc/GMT+5", "02:00", "24:00",
    )  # fmt: skip
    for length in (15, 16, 41, 42, 49, 50, 52, 53, 63, 64, 128, 253, 254, 317, longest, longest + 1):
        yield "a" * length
        yield "a/" + "b" * (length - 2)
        yield "b" * (length - 2) + "/a"
        yield "-" + "D" * (length - 1)
        yield "1." * (length // 2 - 1) + "1"


@dataclass(frozen=True)
class Place:
    """A string field: its path from the root (`[]` for an item, `{key}` and `{}` for a map's), and its own schema."""

    kind: str
    path: tuple[str, ...]
    schema: dict[str, Any]
    root: dict[str, Any]

    def __str__(self) -> str:
        return ".".join((self.kind, *self.path))

    def candidates(self) -> Iterator[str]:
        """Return the texts that this node's own schema allows; the API server checks its rules and those above it."""
        longest = self.schema.get("maxLength", 300)
        for text in dict.fromkeys(texts(longest)):
            if self.schema.get("minLength", 0) <= len(text) <= longest and _fits(self.schema, text):
                yield text

    def object_with(self, text: str) -> dict[str, Any]:
        """Return a small object of the kind with the text at this place."""
        made: dict[str, Any] = _made(self.root, self.path, text)
        made |= {"apiVersion": names.API_VERSION, "kind": self.kind}
        made["metadata"] = {"name": "case", **made.get("metadata", {}), "namespace": "default"}
        return made


def places_of(kind: Kind, *, but: tuple[str, ...] = ()) -> list[Place]:
    """Return every string that a user may write, of metadata only the name, without those below a path in `but`."""
    root = custom_resource_definition(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    name = kind.type.__name__
    found = [
        Place(name, path, schema, root)
        for path, schema in _strings(root, ())
        if path[0] in {"metadata", "spec"} and not ".".join(path).startswith(but or ("?",))
    ]
    assert found
    return found


def _strings(schema: dict[str, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    if schema.get("type") == "string" and "enum" not in schema:
        yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from _strings(child, (*path, name))
    if isinstance(schema.get("items"), dict):
        yield from _strings(schema["items"], (*path, "[]"))
    if isinstance(schema.get("additionalProperties"), dict):
        yield (*path, KEY), {"type": "string"}
        yield from _strings(schema["additionalProperties"], (*path, "{}"))


def _made(schema: dict[str, Any], path: tuple[str, ...], text: str) -> Any:
    if not path:
        return text
    step, rest = path[0], path[1:]
    if step == "[]":
        return [_made(schema["items"], rest, text)]
    if step == KEY:
        return {text: _good(schema["additionalProperties"])}
    if step == "{}":
        return {"memory": _made(schema["additionalProperties"], rest, text)}
    needed = {name: _good(child) for name, child in schema["properties"].items() if name in schema.get("required", ())}
    return needed | {step: _made(schema["properties"][step], rest, text)}


def _good(schema: dict[str, Any]) -> Any:
    """Return a value that the schema allows."""
    if "default" in schema:
        return schema["default"]
    match schema["type"]:
        case "string":
            return schema["enum"][0] if "enum" in schema else next(one for one in GOOD if _fits(schema, one))
        case "integer":
            return schema.get("minimum", 1)
        case "boolean":
            return False
        case "array":
            return []
    needed = schema.get("required", ())
    return {name: _good(child) for name, child in schema.get("properties", {}).items() if name in needed}


def _fits(schema: dict[str, Any], text: str) -> bool:
    is_time = schema.get("format") == "date-time"
    pattern = r"^\d{4}-\d\d-\d\dT[0-9:]+Z$" if is_time else schema.get("pattern", "")
    return re.search(pattern, text) is not None
