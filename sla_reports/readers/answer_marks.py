"""What an answer of Prometheus's HTTP API says of itself: whether it is whole, and the server's own words where it is not.

VictoriaMetrics marks an answer that lacks the data of a storage node by `isPartial`, Thanos and Mimir by `warnings`. Prometheus 3's
`infos` are remarks about a query and say nothing of the data. Without pyarrow and Spark, so that `sla export` needs neither.
"""

import json
import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

MOST_SHOWN_CHARACTERS: Final = 300
_IS_PARTIAL: Final = "isPartial is true: a storage node did not answer"
_TITLE: Final = re.compile(r"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL)
_MARKUP: Final = re.compile(r"<[^>]*>")
_NOT_PRINTABLE: Final = re.compile(r"[\x00-\x20\x7f-\x9f]+")


class Marks(msgspec.Struct):
    """The members of an answer beside its data."""

    status: str | None = None
    errorType: Any = None  # noqa: N815 - Prometheus's name
    error: Any = None
    warnings: list[str] | None = None
    isPartial: bool | None = None  # noqa: N815 - VictoriaMetrics's name


def lacks(marks: Marks) -> list[str]:
    """Why an answer is not whole, in the server's words; empty where it is."""
    return [*(one_line(one) for one in marks.warnings or ()), *([_IS_PARTIAL] if marks.isPartial else [])]


def partial_words(missing: Sequence[str]) -> str:
    """What a message says of an answer that is not whole."""
    return f"the server warns: {one_line('; '.join(missing))}; expected all samples"


def refusal(marks: Marks) -> str | None:
    """What the server says instead of an answer; None where the status is success."""
    if marks.status == "success":
        return None
    if marks.status is None:
        return 'has no member status; expected an answer of the query API, as {"status": "success", "data": ...}'
    told = " ".join(one_line(str(one)) for one in (marks.errorType, marks.error) if one)
    return f"status is {marks.status!r}: {told or 'no words'}; expected 'success'"


def words_of(body: bytes) -> str:
    """The server's explanation in the body of an error: the member of a JSON answer, a page's title, or the first line."""
    text = body.decode(errors="replace").strip()
    try:
        told = json.loads(text)
    except ValueError:
        told = None
    if isinstance(told, dict):
        for name in ("error", "message", "detail", "msg"):
            if isinstance(told.get(name), str) and told[name].strip():
                kind = told.get("errorType")
                return one_line(f"{kind}: {told[name]}" if isinstance(kind, str) and kind else told[name])
    if text.startswith("<"):
        title = _TITLE.search(text)
        text = title[1] if title else _MARKUP.sub(" ", text)
    return next((one_line(line) for line in text.splitlines() if line.strip()), "no words")


def one_line(text: str) -> str:
    """A server's text as a message can carry it."""
    text = _NOT_PRINTABLE.sub(" ", text).strip()
    return text if len(text) <= MOST_SHOWN_CHARACTERS else f"{text[:MOST_SHOWN_CHARACTERS]}..."
