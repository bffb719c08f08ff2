"""The entry point of the image: `driver` and `executor` are Spark's words for its pods, `submit` is ours, all others are commands.

Spark starts a pod's container with one of its two words and passes the rest in environment variables. Spark's own images have a
shell script for that; pip's pyspark, which we install, has none.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import IO, Final

import pyspark

from sla_reports import pod_application
from sla_reports.class_archive import NoJavaError, java_program

SPARK_HOME = Path(pyspark.__file__).parent
_EXECUTOR = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
# Options of the executor's program, and the variables in which Spark passes their values.
_EXECUTOR_OPTIONS = {
    "--driver-url": "SPARK_DRIVER_URL", "--executor-id": "SPARK_EXECUTOR_ID", "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID", "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID", "--podName": "SPARK_EXECUTOR_POD_NAME",
}  # fmt: skip
_NOT_TOLD: Final = 1
# Of the container statuses that LoggingPodStatusWatcher writes when the driver's pod has ended.
_ENDED: Final = re.compile(r"^\s*exit code: (\d+)\s*$")
_FINAL: Final = "Container final statuses:"


class EntryPointError(Exception):
    """A pod was started without what it needs; names the variable."""


def command_of(words: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Return the command that replaces this process. Raises EntryPointError, NoJavaError."""
    match words:
        case ["executor", *_]:
            return _executor(environment)
        case ["driver", *rest]:
            address = _told(environment, "SPARK_DRIVER_BIND_ADDRESS")
            return _submit("--deploy-mode", "client", "--conf", f"spark.driver.bindAddress={address}", *rest)
        case ["submit", *rest]:
            return _submit(*rest)
        case _:
            return ["brokergroup", *words]


def application_file() -> str:
    """Return the application as spark-submit takes it: a file of the image, not one to be uploaded."""
    return f"local://{pod_application.__file__}"


def _submit(*words: str) -> list[str]:
    return [
        str(SPARK_HOME / "bin" / "spark-submit"),
        *(application_file() if word == "{application}" else word for word in words),
    ]


def _executor(environment: Mapping[str, str]) -> list[str]:
    memory = _told(environment, "SPARK_EXECUTOR_MEMORY")
    # Spark numbers them; a later one overrides an earlier one.
    prefix = "SPARK_JAVA_OPT_"
    java_options = {int(name[len(prefix) :]): one for name, one in environment.items() if name.startswith(prefix)}
    # As spark-submit starts a JVM, one jar first: the class archive fits no other class path, only longer ones.
    jars = SPARK_HOME / "jars"
    class_path = [
        str(SPARK_HOME / "conf"), *map(str, jars.glob("slf4j-api-*.jar")), f"{jars}/*",
        environment.get("SPARK_CONF_DIR", ""), environment.get("SPARK_EXTRA_CLASSPATH", ""),
    ]  # fmt: skip
    options = [word for name, variable in _EXECUTOR_OPTIONS.items() for word in (name, _told(environment, variable))]
    return [
        str(java_program()), *(value for _, value in sorted(java_options.items())), f"-Xms{memory}", f"-Xmx{memory}",
        "-cp", ":".join(filter(None, class_path)), _EXECUTOR, *options,
    ]  # fmt: skip


def _told(environment: Mapping[str, str], variable: str) -> str:
    value = environment.get(variable)
    if value is None:
        raise EntryPointError(f"{variable}: missing; expected what Spark passes to its pods")
    return value


def main(words: list[str]) -> None:
    # Workers of an executor are this interpreter, which has our packages, and not the first python3 of the path.
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment.get('PATH', os.defpath)}"
    try:
        command = command_of(words, environment)
    except (EntryPointError, NoJavaError) as error:
        sys.exit(f"entry point: {error}")
    if words[:1] == ["submit"] and is_apart(command):
        sys.exit(wait_for_driver(command, environment))
    os.execve(shutil.which(command[0], path=environment["PATH"]) or command[0], command, environment)  # noqa: S606 - no shell


def is_apart(words: Sequence[str]) -> bool:
    """Whether these words make spark-submit run the driver in a pod of its own."""
    return "--deploy-mode=cluster" in words or ("--deploy-mode", "cluster") in pairwise(words)


def wait_for_driver(command: Sequence[str], environment: dict[str, str]) -> int:
    """Run spark-submit; return its exit code, or the driver's if its own is 0.

    In deploy mode `cluster` spark-submit waits for the driver's pod and ends with 0, however that pod ended: a breached report or
    a killed driver would be a Job that succeeded. But it writes how the containers ended. If it does not, the run has failed.
    """
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, errors="replace") as submit:  # noqa: S603 - our own words
        # The first process of a container has no default action for signals, and spark-submit would outlive it elsewhere.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda told, _: submit.send_signal(told))
        assert submit.stderr is not None
        ended = exit_codes(_passed_on(submit.stderr, sys.stderr))
    if submit.returncode != 0:
        # A signal's number is negative here, and 128 more everywhere else.
        return submit.returncode if submit.returncode > 0 else 128 - submit.returncode
    if not ended:
        sys.stderr.write(
            "entry point: spark-submit did not report how the driver ended; expected"
            " spark.kubernetes.submission.waitAppCompletion to be true\n"
        )
        return _NOT_TOLD
    return max(ended)


def exit_codes(lines: Iterable[str]) -> list[int]:
    """Return the exit codes of the driver pod's containers, from the output of spark-submit."""
    found: list[int] = []
    is_final = False
    for line in lines:
        is_final = is_final or line.rstrip().endswith(_FINAL)
        told = _ENDED.match(line) if is_final else None
        if told is not None:
            found.append(int(told[1]))
    return found


def _passed_on(lines: IO[str], to: IO[str]) -> Iterable[str]:
    for line in lines:
        to.write(line)
        to.flush()
        yield line


if __name__ == "__main__":
    main(sys.argv[1:])
