"""Faults of a server: each ends in a complete answer, or in one bounded line without a secret."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import pytest

from sla_reports.connection import Access, ConnectionOptionError
from sla_reports.readers import http_client
from sla_reports.readers.http_client import ServerError
from sla_reports.readers.prometheus_api import PartialAnswerError, Server
from tests.sla.readers.servers import Asked, OddServer, Reply

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

START_MS = 1_790_812_800_000
DAY_MS = 86_400_000
METRIC = {"__name__": "brokergroup_group_writable"}
WHOLE = {
    "status": "success",
    "data": {"resultType": "matrix", "result": [{"metric": METRIC, "values": [[START_MS / 1000, "1"]]}]},
}
GOOD = Reply(body=json.dumps(WHOLE).encode())


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []
    monkeypatch.setattr("sla_reports.readers.http_client.time.sleep", found.append)
    return found


def once(reply: Reply) -> Callable[[Asked], Reply]:
    replies = [reply]
    return lambda _: replies.pop() if replies else GOOD


def asked_of(server: OddServer, **access: object) -> int:
    read = Server(server.url, 5.0, Access(**access)).samples("{a}", START_MS, START_MS + DAY_MS)  # type: ignore[arg-type]
    return sum(len(batch) for batch in read)


@pytest.mark.parametrize(
    "odd",
    [
        Reply(body=GOOD.body[:50], declared=len(GOOD.body)),
        Reply(body=GOOD.body[:50], is_chunked=True),
        Reply(body=gzip.compress(GOOD.body)[:40], headers={"Content-Encoding": "gzip"}),
        Reply(502, b"bad gateway"),
        Reply(503, b'{"status":"error","error":"starting"}'),
        Reply(429, b"slow down", {"Retry-After": "2"}),
    ],
)
def test_what_may_pass_is_tried_again_and_a_short_answer_is_never_taken(odd: Reply, pauses: list[float]) -> None:
    with OddServer(once(odd)) as server:
        assert asked_of(server) == 1
        assert len(server.asked) == 2
    assert pauses == [2.0 if odd.code == 429 else 0.5]
    with OddServer(lambda _: odd) as server:
        with pytest.raises(ServerError, match=r"^server http://127.0.0.1:\d+/api/v1/query: .*\(3 attempts\)$"):
            asked_of(server)
        assert len(server.asked) == 3


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (Reply(401, b"no org id\n"), "HTTP 401: no org id; expected --user, --bearer-token-file or --header"),
        (Reply(403, b'{"message":"no rights"}'), "HTTP 403: no rights; expected"),
        (Reply(400, b'{"status":"error","errorType":"bad_data","error":"parse error"}'), "HTTP 400: bad_data: parse error$"),
        (Reply(500, b"<html><head><title>500 Oops</title></head>"), "HTTP 500: 500 Oops$"),
        (Reply(500, b"x" * 5000), "HTTP 500: x{300}...$"),
        (Reply(500, b"\x1b[31mred\x00\r\nmore"), r"HTTP 500: \[31mred$"),
        (Reply(500, b""), "HTTP 500: no words$"),
        (Reply(500, gzip.compress(b'{"error":"packed"}'), {"Content-Encoding": "gzip"}), "HTTP 500: packed$"),
        (Reply(500, b"torn", declared=99), "HTTP 500: .*could not be read"),
        (Reply(429, b"quota", {"Retry-After": "3600"}), "HTTP 429: quota; it asks to come back after 3600 s"),
        (Reply(200, b"x", {"Content-Encoding": "br"}), "packed as 'br'; expected gzip or none"),
        (Reply(302, b"", {"Location": "http://u:pass@login.example/x?next=1"}), "HTTP 302 to http://login.example/x; expected"),
        (Reply(303, b"", {"Location": "/elsewhere"}), "HTTP 303 to http://127.0.0.1:\\d+/elsewhere; expected"),
        (Reply(307, b"", {"Location": "/api/v1/query"}), "HTTP 307: redirects to /api/v1/query, more than 5 times or in a circle"),
        (Reply(302, b"", {"Location": "file:///etc/passwd"}), "HTTP 302"),
    ],
)  # fmt: skip
def test_what_will_not_pass_is_told_at_once_in_the_servers_own_words(
    reply: Reply, message: str, pauses: list[float]
) -> None:
    with OddServer(lambda _: reply) as server, pytest.raises(ServerError, match=message) as told:
        asked_of(server)
    assert pauses == []
    assert "\n" not in str(told.value)
    assert len(str(told.value)) < 600
    assert "pass@" not in str(told.value)


@pytest.mark.parametrize("code", [301, 302, 307, 308])
def test_a_redirect_on_the_same_host_keeps_form_and_headers(code: int) -> None:
    def answer(asked: Asked) -> Reply:
        return (
            GOOD
            if asked.path.startswith("/prometheus/")
            else Reply(code, b"", {"Location": f"/prometheus{asked.path}"})
        )

    with OddServer(answer) as server:
        assert asked_of(server, headers=("X-Scope-OrgID: shop",)) == 1
        assert [one.form["query"] for one in server.asked] == [f"{{a}}[{DAY_MS}ms]"] * 2
        assert {one.headers["x-scope-orgid"] for one in server.asked} == {"shop"}


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (422, "query processing would load too many samples into memory in query execution"),
        (400, "exceeded maximum resolution of 11,000 points per timeseries. Try decreasing the query resolution"),
        (413, "request entity too large"),
        (503, "query timed out in query execution"),
        (504, "<html><head><title>504 Gateway Time-out</title></head></html>"),
        (422, "cannot select more than -search.maxSamplesPerQuery=1000 samples"),
        (
            422,
            "the query exceeded the maximum number of chunks (limit: 2000000 chunks) (err-mimir-max-chunks-per-query)",
        ),
        (500, "exceeded series limit: rpc error: limit 10 violated"),
    ],
)
def test_a_range_that_is_too_large_is_asked_for_in_halves(code: int, words: str, pauses: list[float]) -> None:
    def answer(asked: Asked) -> Reply:
        length_ms = int(asked.form["query"].partition("[")[2].removesuffix("ms]"))
        return GOOD if length_ms <= DAY_MS // 4 else Reply(code, words.encode())

    with OddServer(answer) as server:
        asked_of(server)
        assert [one.form["query"] for one in server.asked].count(f"{{a}}[{DAY_MS // 4}ms]") == 4
        assert len(server.asked) == 7
    assert pauses == []
    # Halving ends if the server never succeeds, and sooner if each attempt takes a time-out.
    with OddServer(lambda _: Reply(code, words.encode())) as server:
        with pytest.raises(ServerError, match="expected fewer series"):
            asked_of(server)
        assert len(server.asked) <= (8 if code in (503, 504) else 18)


def test_a_server_that_is_gone_is_asked_again_too(pauses: list[float]) -> None:
    with OddServer(lambda _: GOOD) as server:
        pass
    with pytest.raises(ServerError, match=r"refused.*3 attempts"):
        asked_of(server)
    assert len(pauses) == 2


def test_a_rate_limit_is_no_range_that_is_too_large(pauses: list[float]) -> None:
    with OddServer(once(Reply(429, b"the request rate exceeds the limit of 5 per second"))) as server:
        assert asked_of(server) == 1
        assert len({one.form["query"] for one in server.asked}) == 1
    assert pauses == [0.5]


def test_a_server_that_trickles_comes_to_an_end(monkeypatch: pytest.MonkeyPatch, pauses: list[float]) -> None:
    now = iter(range(0, 1_000_000, 1000))
    monkeypatch.setattr("sla_reports.readers.http_client.time.monotonic", lambda: float(next(now)))
    with OddServer(lambda _: GOOD) as server, pytest.raises(ServerError, match="not whole after 10 times the time-out"):
        asked_of(server)
    assert len(pauses) == 2


def test_an_answer_without_bounds_is_asked_for_in_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "_MOST_BYTES", 1000)
    bomb = Reply(body=gzip.compress(b" " * 100_000), headers={"Content-Encoding": "gzip"})
    with OddServer(lambda _: bomb) as server, pytest.raises(ServerError, match="more than 1000 bytes unpacked"):
        asked_of(server)


def test_both_servers_words_for_whole_answers_are_sent_and_both_marks_are_read() -> None:
    """A partial answer is refused, or marked if it is accepted. Reports: VictoriaMetrics #4721, thanos #622."""
    with OddServer(lambda _: GOOD) as server:
        asked_of(server)
        [asked] = server.asked
        assert (asked.form["deny_partial_response"], asked.form["partial_response"]) == ("1", "false")
        list(Server(server.url, accept_partial=True).samples("{a}", START_MS, START_MS + DAY_MS))
        assert "deny_partial_response" not in server.asked[1].form
        assert server.asked[1].form["partial_response"] == "true"
    values = Reply(body=b'{"status":"success","isPartial":true,"data":["a"]}')
    with OddServer(lambda _: values) as server, pytest.raises(PartialAnswerError, match="isPartial is true"):
        Server(server.url).label_values("a", "{b}", START_MS, START_MS + 1)


def test_ways_to_say_who_asks(tmp_path: Path) -> None:
    """Basic authentication, a token, headers as X-Scope-OrgID. Reports: pyrra #1289, #326, mimir #4738."""
    (tmp_path / "password").write_text("s3cret w\u00f6rd\n")
    (tmp_path / "token").write_text("t0ken-of-ours\n")
    (tmp_path / "headers").write_text("X-Scope-OrgID: shop\n\nX-Api-Key: k3y-of-ours\n")
    with OddServer(lambda _: GOOD) as server:
        asked_of(server, user="reader", password_file=tmp_path / "password")
        asked_of(server, bearer_token_file=tmp_path / "token")
        asked_of(server, header_file=tmp_path / "headers", headers=("X-More: 1",))
        list(Server(f"http://reader:p%40ss@{server.place}/").samples("{a}", START_MS, START_MS + 1))
        told = [one.headers for one in server.asked]
    assert [one.get("authorization") for one in told] == [
        "Basic cmVhZGVyOnMzY3JldCB3w7ZyZA==", "Bearer t0ken-of-ours", None, "Basic cmVhZGVyOnBAc3M=",
    ]  # fmt: skip
    assert [told[2][name] for name in ("x-scope-orgid", "x-api-key", "x-more")] == ["shop", "k3y-of-ours", "1"]


def test_no_secret_stands_in_a_message_or_in_a_plan_of_the_client(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("hunter22\n")
    (tmp_path / "token").write_text("t0ken-of-ours\n")

    def echo(asked: Asked) -> Reply:
        return Reply(400, json.dumps({"error": f"who is {asked.headers} http://u:hunter22@h?"}).encode())

    ways: list[dict[str, object]] = [
        {"user": "reader", "password_file": tmp_path / "password"},
        {"bearer_token_file": tmp_path / "token"},
        {"headers": ("X-Api-Key: hunter22",)},
        {"headers": ("Authorization: Custom hunter22",)},
    ]
    for way in ways:
        with OddServer(echo) as server:
            asking = Server(server.url, 5.0, Access(**way))  # type: ignore[arg-type]
            with pytest.raises(ServerError, match="who is") as told:
                list(asking.answers("{a}", START_MS, START_MS + 1))
            shown = f"{told.value} {vars(asking)} {Access(**way)}"  # type: ignore[arg-type]
            for secret in ("hunter22", "t0ken-of-ours", "cmVhZGVy"):
                assert secret not in shown, way


@pytest.mark.parametrize(
    ("url", "access", "message"),
    [
        ("http://h", {"headers": ("X-A: 1\r\nX-B: 2",)}, "header: value of 'X-A'; expected one line of printable ASCII"),
        ("http://h", {"headers": ("X-A: ü",)}, "header: value of 'X-A'"),
        ("http://h", {"headers": ("Bearer hunter22",)}, "header: no name before a colon; expected 'Name: value'"),
        ("http://h", {"headers": ("X A: 1",)}, "header: no name before a colon"),
        ("http://h", {"headers": ("Content-Length: 1",)}, "header: 'Content-Length'; expected none"),
        ("http://h", {"headers": ("X-A: 1", "x-a: 2")}, "header: 'x-a' stands twice"),
        ("http://h", {"user": "reader"}, "password-file: missing"),
        ("http://h", {"password_file": "password"}, "password-file: given without a user"),
        ("http://h", {"user": "reader", "password_file": "none"}, "password-file: none: No such file"),
        ("http://h", {"user": "reader", "password_file": "empty"}, "password-file: empty holds less than one line"),
        ("http://h", {"bearer_token_file": "two"}, "bearer-token-file: two holds more than one line"),
        ("http://h", {"user": "a:b", "password_file": "password"}, "user: holds a colon"),
        ("http://u:hunter22@h", {"user": "a", "password_file": "password"}, "user: more than one way to authenticate"),
        ("http://h", {"bearer_token_file": "password", "headers": ("authorization: x",)}, "more than one way"),
        ("http://h", {"ca_file": "password"}, "ca-file: given with http://h; expected an https:// address"),
        ("https://h", {"key_file": "password"}, "key-file: given without a certificate"),
        ("https://h", {"ca_file": "none"}, "ca-file: none: No such file"),
        ("http://u:hunter22#x@h", {}, "url: '...@h'; expected http://host:port .*write a password's"),
        ("http://u:hunter22@h:port", {}, "url: '...@h:port'; expected"),
        ("http://u:hunter22@", {}, "url: '...@'; expected"),
        ("http://h/?query=up", {}, "url: 'http://h/.query=up'; expected .*without"),
        ("http://h/a b", {}, "url: "),
        ("h:9090", {}, "url: 'h:9090'; expected"),
    ],
)  # fmt: skip
def test_an_option_that_cannot_work_is_named_and_its_secret_is_not(
    url: str, access: dict[str, object], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content in (("password", "hunter22"), ("empty", "\n"), ("two", "hunter22\nX-B: 1\n")):
        (tmp_path / name).write_text(content)
    paths = {
        name: tmp_path.__class__(str(value)) if name.endswith("_file") else value for name, value in access.items()
    }
    with pytest.raises(ConnectionOptionError, match=message) as told:
        Server(url, access=Access(**paths))  # type: ignore[arg-type]
    assert "hunter22" not in str(told.value)
