"""The remoting frames of the recording, byte for byte."""

from __future__ import annotations

import gzip
import json
import struct
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class RecordedFrame:
    line: int
    request_code: int
    is_answer: bool
    header: dict[str, Any]
    header_bytes: bytes
    body: bytes
    frame: bytes


@cache
def recorded_frames() -> tuple[RecordedFrame, ...]:
    path = Path(__file__).parent / "recordings" / "lifecycle.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        entries = [(number, json.loads(line)) for number, line in enumerate(lines, start=1)]
    return tuple(_frame(number, entry) for number, entry in entries if "hraw" in entry or "hhex" in entry)


def _frame(line: int, entry: dict[str, Any]) -> RecordedFrame:
    header = entry["hraw"].encode() if "hraw" in entry else bytes.fromhex(entry["hhex"])
    body = entry["body"].encode() if "body" in entry else bytes.fromhex(entry.get("body_hex", ""))
    assert len(body) == entry["blen"], f"line {line}: body of {len(body)} bytes, recorded {entry['blen']}"
    frame = struct.pack(">iI", 4 + len(header) + len(body), entry["stype"] << 24 | len(header)) + header + body
    return RecordedFrame(
        line=line, request_code=entry.get("req", entry["code"]), is_answer="req" in entry, header=entry["header"],
        header_bytes=header, body=body, frame=frame,
    )  # fmt: skip
