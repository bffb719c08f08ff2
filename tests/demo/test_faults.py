import subprocess
import sys

from brokergroup_operator.demo.processes import hold


def test_a_thaw_reaches_only_the_process_that_was_frozen() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    try:
        with hold(process.pid) as held:
            held.freeze()
            assert held.thaw() is True
            held.kill()
            assert process.wait(timeout=10) == -9
            assert held.thaw() is False
    finally:
        process.kill()
        process.wait()
