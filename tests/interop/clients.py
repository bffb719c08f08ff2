"""The unmodified Java clients as processes: compiled once per version, one line of JSON per outcome in a file that grows."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.interop.accounts import Acknowledged, Seen
from tests.real.parts import install
from tests.real.parts.java import QUIET

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SOURCE = Path(__file__).parent / "java" / "InteropClient.java"
STOP_SECONDS = 60.0


class ClientError(Exception):
    """A client ended before its input did, or did not end after it; the message has the end of its log."""


def compile_client(folder: Path, version: str) -> list[str]:
    """Compile the client against the jars of this version; hand back the class path that runs it."""
    jars = str(install.rocketmq_home(version) / "lib" / "*")
    command = ["javac", "-nowarn", "-proc:none", "-d", str(folder), "-cp", jars, str(SOURCE)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    return ["-cp", f"{folder}:{jars}", "InteropClient"]


@dataclass
class JavaClient:
    """One client that runs until its input ends."""

    name: str
    process: subprocess.Popen[bytes]
    output: Path
    _position: int = 0
    _lines: list[dict[str, Any]] = field(default_factory=list)

    def tell(self, line: str) -> None:
        """One line for its input."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()

    def stop(self) -> None:
        """End its input; the client finishes what is outstanding first.

        :raises ClientError: it still runs after `STOP_SECONDS`, and is killed.
        """
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise ClientError(f"{self.name} ran {STOP_SECONDS} s after its input had ended:\n{self._tail()}") from None

    def outcomes(self) -> list[dict[str, Any]]:
        """Every outcome told so far; a line still being written is left for later.

        :raises ClientError: the client ended by itself, and not well.
        """
        if self.process.poll() not in (None, 0):
            raise ClientError(f"{self.name} ended with {self.process.returncode}:\n{self._tail()}")
        with self.output.open("rb") as output:
            output.seek(self._position)
            whole, newline, _ = output.read().rpartition(b"\n")
        self._position += len(whole) + len(newline)
        self._lines += [json.loads(line) for line in whole.splitlines()]
        return self._lines

    def _tail(self) -> str:
        return self.output.with_suffix(".log").read_text(errors="replace")[-2000:]

    def acknowledged(self) -> list[Acknowledged]:
        """Return a producer's acknowledged messages."""
        return [
            Acknowledged(each["key"], each["crc"], each["queue"], each["offset"], each["copies"])
            for each in self.outcomes()
        ]

    def seen(self) -> list[Seen]:
        """Return a consumer's messages in order."""
        return [Seen(each["key"], each["crc"], each["queue"], each["offset"]) for each in self.outcomes()]


def start_client(folder: Path, name: str, class_path: list[str], role: str, **options: str | int) -> JavaClient:
    """Start one client in a role of `InteropClient.java`."""
    return start_client_by(("java",), folder, name, class_path, role, options)


def start_client_by(
    java: Iterable[str], folder: Path, name: str, class_path: list[str], role: str, options: Mapping[str, str | int]
) -> JavaClient:
    """Start one by this command, as `nsenter … java -Dtls.enable=true`."""
    folder.mkdir(parents=True, exist_ok=True)
    output = folder / f"{name}.jsonl"
    flags = ["-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Duser.home={folder}", QUIET]
    words = [word for key, value in options.items() for word in (f"--{key.replace('_', '-')}", str(value))]
    with output.open("wb") as out, output.with_suffix(".log").open("wb") as errors:
        process = subprocess.Popen(
            [*java, *flags, *class_path, role, *words], stdin=subprocess.PIPE, stdout=out, stderr=errors
        )
    return JavaClient(name, process, output)
