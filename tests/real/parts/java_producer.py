"""The Java client as a producer of numbered messages, and the account of its acknowledgements."""

from __future__ import annotations

import contextlib
import json
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.real.parts import install
from tests.real.parts.java import DEMO_JAVA, QUIET

if TYPE_CHECKING:
    from pathlib import Path

STOP_SECONDS = 20.0


@dataclass(frozen=True)
class JavaProducer:
    """A running producer; its outcomes are lines of JSON in a file that grows."""

    process: subprocess.Popen[bytes]
    outcomes_file: Path
    log: Path

    def outcomes(self) -> list[dict[str, Any]]:
        """Every outcome told so far; a line still being written is left for later."""
        whole, _, _ = self.outcomes_file.read_bytes().rpartition(b"\n")
        return [json.loads(line) for line in whole.splitlines()]

    def acknowledged(self) -> list[dict[str, Any]]:
        return [outcome for outcome in self.outcomes() if outcome["event"] == "ack"]

    def failed(self) -> list[dict[str, Any]]:
        return [outcome for outcome in self.outcomes() if outcome["event"] == "fail"]

    def stop(self) -> None:
        """End its input: what is outstanding is still waited for and told."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def start_producer(
    folder: Path,
    *,
    name_server_address: str,
    topic: str,
    workers: int = 4,
    pause_ms: int = 10,
    retry_for_ms: int = 0,
    route_poll_ms: int = 200,
    flags: tuple[str, ...] = (),
) -> JavaProducer:
    """Start the Java client sending; send timeout 500 ms, a failed send tried again for `retry_for_ms`."""
    folder.mkdir(parents=True, exist_ok=True)
    outcomes, log = folder / "outcomes.jsonl", folder / "producer.log"
    options = {"name-server": name_server_address, "topic": topic, "workers": str(workers), "pause-ms": str(pause_ms)}
    options |= {"retry-for-ms": str(retry_for_ms), "route-poll-ms": str(route_poll_ms)}
    with outcomes.open("wb") as output, log.open("ab") as errors:
        process = subprocess.Popen(
            [
                *("java", "-Xmx256m", "-XX:+UseSerialGC", f"-Duser.home={folder}", QUIET, *flags),
                *("-cp", str(install.rocketmq_home() / "lib" / "*"), str(DEMO_JAVA / "NumberedProducer.java")),
                *(text for name, value in options.items() for text in (f"--{name}", value)),
            ],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=errors,
        )
    return JavaProducer(process, outcomes, log)
