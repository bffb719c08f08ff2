"""What `/healthz` answers: the troubles of this process that only its restart would end.

Each part of the operator adds one question, which answers None, or says what is wrong. The kubelet restarts a pod whose `/healthz`
fails for a minute, and that costs every group its heartbeats for a moment: so an outage of the Kubernetes API, which a restart
does not end, is no trouble here (tests/reconcile/test_watch.py).
"""

from __future__ import annotations

from collections.abc import Callable

Question = Callable[[], str | None]


class Health:
    """The questions that `/healthz` asks each time."""

    def __init__(self) -> None:
        self._questions: list[Question] = []

    def ask(self, question: Question) -> None:
        """From now on `/healthz` asks this too; the question answers at once, from memory."""
        self._questions.append(question)

    def troubles(self) -> list[str]:
        """What is wrong now; empty while the process is healthy."""
        answers = (question() for question in self._questions)
        return [answer for answer in answers if answer is not None]
