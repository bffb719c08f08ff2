"""The entry point of the image: `driver` and `executor` are Spark's words for its pods, `submit` is ours, all others are commands.

Spark starts a pod's container with one of its two words and tells the rest by environment variables. Spark's own images have
a shell script for that; pip's pyspark, which we install, has none.
"""

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyspark

from sla_reports.class_archive import NoJavaError, java_program
from sla_reports.on_kubernetes import application, submission

SPARK_HOME = Path(pyspark.__file__).parent
_EXECUTOR = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
# Options of the executor's program, and the variables in which Spark tells their values.
_EXECUTOR_OPTIONS = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}


class EntryPointError(Exception):
    """A pod was started without what it needs; names the variable."""


def command_of(words: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """What to become. Raises EntryPointError, NoJavaError."""
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
    """The application as spark-submit is told of it: a file of the image, and not one to be uploaded."""
    return f"local://{application.__file__}"


def _submit(*words: str) -> list[str]:
    return [
        str(SPARK_HOME / "bin" / "spark-submit"),
        *(application_file() if word == "{application}" else word for word in words),
    ]


def _executor(environment: Mapping[str, str]) -> list[str]:
    memory = _told(environment, "SPARK_EXECUTOR_MEMORY")
    # As spark-submit starts a JVM, one jar first: the class archive fits no other class path, only longer ones.
    jars = SPARK_HOME / "jars"
    class_path = [
        str(SPARK_HOME / "conf"),
        *map(str, jars.glob("slf4j-api-*.jar")),
        f"{jars}/*",
        environment.get("SPARK_CONF_DIR", ""),
        environment.get("SPARK_EXTRA_CLASSPATH", ""),
    ]
    options = [word for name, variable in _EXECUTOR_OPTIONS.items() for word in (name, _told(environment, variable))]
    return [
        str(java_program()),
        *_java_options(environment),
        f"-Xms{memory}",
        f"-Xmx{memory}",
        "-cp",
        ":".join(filter(None, class_path)),
        _EXECUTOR,
        *options,
    ]


def _java_options(environment: Mapping[str, str]) -> list[str]:
    """Spark numbers them; a later one overrides an earlier one."""
    prefix = "SPARK_JAVA_OPT_"
    found = {int(name.removeprefix(prefix)): value for name, value in environment.items() if name.startswith(prefix)}
    return [found[number] for number in sorted(found)]


def _told(environment: Mapping[str, str], variable: str) -> str:
    value = environment.get(variable)
    if value is None:
        raise EntryPointError(f"{variable}: missing; expected what Spark tells its pods")
    return value


def main(words: list[str]) -> None:
    # Workers of an executor are this interpreter, which has our packages, and not the first python3 of the path.
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment.get('PATH', os.defpath)}"
    try:
        command = command_of(words, environment)
    except (EntryPointError, NoJavaError) as error:
        sys.exit(f"entry point: {error}")
    if words[:1] == ["submit"] and submission.is_apart(command):
        sys.exit(submission.wait_for_driver(command, environment))
    os.execve(shutil.which(command[0], path=environment["PATH"]) or command[0], command, environment)  # noqa: S606 - no shell


if __name__ == "__main__":
    main(sys.argv[1:])
