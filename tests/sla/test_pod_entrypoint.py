"""The image's entry point: the processes for Spark's two words, our own one, and any other command."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sla_reports.pod_entrypoint import SPARK_HOME, EntryPointError, application_file, command_of, exit_codes, is_apart

EXECUTOR = {
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@10.0.0.1:7078", "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "2", "SPARK_EXECUTOR_MEMORY": "1g", "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.3", "SPARK_EXECUTOR_POD_NAME": "report-exec-3", "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_CONF_DIR": "/opt/spark/conf", "SPARK_JAVA_OPT_0": "-Dfirst", "SPARK_JAVA_OPT_10": "-Dlast",
    "SPARK_JAVA_OPT_2": "-Dsecond=with a space",
}  # fmt: skip
ROOT = Path(__file__).resolve().parents[2]
# As Spark 4.3 writes it.
ENDED = """26/11/22 12:00:00 INFO LoggingPodStatusWatcherImpl: State changed, new state:
\t exit code: 7
26/11/22 12:00:01 INFO LoggingPodStatusWatcherImpl: Container final statuses:

\t container name: report
\t container state: terminated
\t exit code: {}
\t termination reason: Error
"""


@pytest.mark.real("java")
def test_an_executor_is_told_all_that_spark_said() -> None:
    program, *rest = command_of(["executor"], EXECUTOR)
    assert Path(program).name == "java"
    assert rest[:5] == ["-Dfirst", "-Dsecond=with a space", "-Dlast", "-Xms1g", "-Xmx1g"]
    conf, first, *others = rest[rest.index("-cp") + 1].split(":")
    assert (conf, others) == (f"{SPARK_HOME}/conf", [f"{SPARK_HOME}/jars/*", "/opt/spark/conf"])
    assert Path(first).is_file()
    said = rest[rest.index("-cp") + 3 :]
    options = dict(zip(said[::2], said[1::2], strict=True))
    assert options == {
        "--driver-url": "spark://CoarseGrainedScheduler@10.0.0.1:7078",
        "--executor-id": "3",
        "--cores": "2",
        "--app-id": "spark-1",
        "--hostname": "10.0.0.3",
        "--resourceProfileId": "0",
        "--podName": "report-exec-3",
    }


@pytest.mark.real("java")
def test_an_executors_class_path_begins_as_spark_submits() -> None:
    """spark-submit creates the class archive, which fits only the same beginning of the class path."""
    command = [*command_of(["submit"], {}), "--version"]
    environment = {**os.environ, "SPARK_PRINT_LAUNCH_COMMAND": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250, check=True)
    [submits] = set(re.findall(r"^Spark Command: .* -cp (\S+) ", done.stderr, re.MULTILINE))
    executor = command_of(["executor"], EXECUTOR)
    assert executor[executor.index("-cp") + 1].startswith(submits)


def test_a_driver_is_spark_submit_in_its_own_pod() -> None:
    words = ["driver", "--properties-file", "/opt/spark/conf/spark.properties", "local:///a.py", "report"]
    command = command_of(words, {"SPARK_DRIVER_BIND_ADDRESS": "10.0.0.1"})
    assert Path(command[0]).is_file()
    assert command[1:5] == ["--deploy-mode", "client", "--conf", "spark.driver.bindAddress=10.0.0.1"]
    assert command[5:] == words[1:]


def test_our_word_submits_the_application_of_the_image() -> None:
    command = command_of(["submit", "--master", "k8s://https://kubernetes", "{application}", "report"], {})
    assert command[0].endswith("/bin/spark-submit")
    assert command[1:] == ["--master", "k8s://https://kubernetes", application_file(), "report"]
    assert Path(application_file().removeprefix("local://")).is_file()


@pytest.mark.parametrize("words", [["sla", "report"], ["--help"], []])
def test_all_else_is_a_command_of_ours(words: list[str]) -> None:
    assert command_of(words, {}) == ["brokergroup", *words]


@pytest.mark.parametrize(
    ("words", "variable"), [(["driver"], "SPARK_DRIVER_BIND_ADDRESS"), (["executor"], "SPARK_EXECUTOR_MEMORY")]
)
def test_a_pod_that_spark_told_nothing_says_what_is_missing(words: list[str], variable: str) -> None:
    with pytest.raises(EntryPointError, match=f"{variable}: missing"):
        command_of(words, {})


def _wait_for(program: str) -> subprocess.Popen[str]:
    """Run the wrapper around a shell in place of spark-submit."""
    wait = f"submission.wait_for_driver(['sh', '-c', {program!r}], dict(os.environ))"
    words = f"import os, sys; from sla_reports import pod_entrypoint as submission; sys.exit({wait})"
    return subprocess.Popen(
        [sys.executable, "-c", words], env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=ROOT,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("says", "ends", "code"),
    [
        (ENDED.format(0), 0, 0),
        (ENDED.format(2), 0, 2),
        (ENDED.format(137), 0, 137),
        # The submission itself failed.
        ("", 1, 1),
        # The driver continues without a waiting process: there is no report yet.
        ("26/11/22 12:00:00 INFO Client: Deployed Spark application\n", 0, 1),
    ],
)
def test_it_ends_as_the_driver_did(says: str, ends: int, code: int) -> None:
    process = _wait_for(f"printf %s {shlex.quote(says)} >&2; exit {ends}")
    _, said = process.communicate(timeout=60)
    assert process.returncode == code
    assert said.startswith(says)
    assert ("did not report how the driver ended" in said) is (code == 1 and ends == 0)


def test_a_pod_that_is_told_to_go_tells_spark_submit() -> None:
    process = _wait_for("trap 'echo went >&2; exit 143' TERM; echo here >&2; while :; do sleep 0.05; done")
    assert process.stderr is not None
    assert process.stderr.readline() == "here\n"
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (143, "went\n")


def test_only_the_final_states_count() -> None:
    assert exit_codes(ENDED.format(3).splitlines()) == [3]
    assert exit_codes(["\t exit code: 3\n"]) == []


@pytest.mark.parametrize(
    ("words", "apart"),
    [
        (["spark-submit", "--deploy-mode=cluster"], True),
        (["spark-submit", "--deploy-mode", "cluster"], True),
        (["spark-submit", "--deploy-mode", "client", "cluster"], False),
        (["spark-submit"], False),
    ],
)
def test_a_driver_here_becomes_the_process_itself(words: list[str], apart: bool) -> None:
    assert is_apart(words) is apart
