"""One request over HTTP to a server that may refuse, redirect, break off or be slow: its whole answer, or one clear line.

What may pass (no connection, 429, 502, 503, 504, an answer that was cut off) is tried again, a few times. A redirect is followed
on the same host only, so that no credentials go elsewhere, and with the same form: a 301 would otherwise become a question
without words.
"""

import datetime as dt
import email.utils
import http.client
import json
import re
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import IO, Any, Final

from sla_reports.connection import Address, Credentials

_ATTEMPTS: Final = 3
_PAUSE_SECONDS: Final = 0.5
_MOST_PAUSE_SECONDS: Final = 30.0
_TRANSIENT: Final = (429, 502, 503, 504)
_REDIRECTS: Final = (301, 302, 307, 308)
_MOST_REDIRECTS: Final = 5
# Of an answer; a longer one is taken for a range that is too large. And of what is read of an error.
_MOST_BYTES: Final = 1 << 30
_MOST_ERROR_BYTES: Final = 1 << 16
_PIECE_BYTES: Final = 1 << 20
# How many times the time-out a whole answer may take: a server that sends a byte now and then must come to an end.
_MOST_TIMEOUTS: Final = 10
_MOST_SHOWN_CHARACTERS: Final = 300
_TOO_LARGE: Final = re.compile(
    r"too many (samples|points)|too many .{0,40}in memory|exceed\w* .{0,80}limit|exceeded maximum resolution|"
    r"max(Samples|Memory|Points|Unique|Series|Concurrent)\w*Per|not enough memory|err-mimir-max|"
    r"(maximum|max) number of (samples|chunks|points|series|bytes)|larger than max|response (is )?too large",
    re.IGNORECASE,
)
_TIMED_OUT: Final = re.compile(r"timed out|time-?out|deadline exceeded", re.IGNORECASE)
_TITLE: Final = re.compile(r"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL)
_MARKUP: Final = re.compile(r"<[^>]*>")
_NOT_PRINTABLE: Final = re.compile(r"[\x00-\x20\x7f-\x9f]+")


class ServerError(Exception):
    """The server can't be asked or refuses; the message names the server and says why."""


class TooLargeError(ServerError):
    """The server finds what is asked for too large; a smaller range may do."""


class TooSlowError(TooLargeError):
    """The server gave up before it had the answer."""


class _CutOffError(Exception):
    """The connection ended before the answer did."""


class _FinalError(ValueError):
    """A redirect that is not followed, or an answer packed in a way that was not asked for."""


@dataclass(frozen=True, slots=True)
class HttpClient:
    """Asks one server. It goes to Spark's workers, so it holds no connection."""

    address: Address
    credentials: Credentials
    timeout_seconds: float

    def ask(self, path: str, form: Mapping[str, str] | None) -> bytes:
        """Return the body of the answer: of a POST of the form, so that long matchers fit, else of a GET. Raises ServerError."""
        url = f"{self.address.url}/{path}"
        data = None if form is None else urllib.parse.urlencode(form).encode()
        headers = {**dict(self.credentials.headers), "Accept-Encoding": "gzip"}
        request = urllib.request.Request(url, data=data, headers=headers)  # noqa: S310 - Address checked the scheme
        where = f"server {url.partition('?')[0]}"
        for attempt in range(1, _ATTEMPTS + 1):
            pause = _PAUSE_SECONDS * attempt
            try:
                return self._answer(request)
            except urllib.error.HTTPError as error:
                pause = self._refused(error, where, attempt) or pause
            except (OSError, http.client.HTTPException, zlib.error, ValueError, _CutOffError) as error:
                why = self.credentials.hide(_why(error))
                if attempt == _ATTEMPTS or _is_final(error):
                    times = "" if _is_final(error) else f" ({_ATTEMPTS} attempts)"
                    raise ServerError(f"{where}: {why}{times}") from error
            time.sleep(pause)
        raise AssertionError("unreachable")

    def _answer(self, request: urllib.request.Request) -> bytes:
        opener = _opener(self.credentials, self.address.url.startswith("https://"))
        ends = time.monotonic() + self.timeout_seconds * _MOST_TIMEOUTS
        with opener.open(request, timeout=self.timeout_seconds) as response:
            return _unpacked(_body(response, ends, _MOST_BYTES), response.headers.get("Content-Encoding"), _MOST_BYTES)

    def _refused(self, error: urllib.error.HTTPError, where: str, attempt: int) -> float | None:
        """Return how long to wait before the next attempt (None: as usual). Raises ServerError if there is none."""
        with error:
            said = self.credentials.hide(_words(error, time.monotonic() + self.timeout_seconds))
        told = f"{where}: HTTP {error.code}: {said}"
        if error.code in (401, 403):
            # The options that authenticate a request.
            raise ServerError(
                f"{told}; expected --user, --bearer-token-file or --header with what this server asks for"
            )
        if error.code != 429:
            if error.code == 413 or _TOO_LARGE.search(said):
                raise TooLargeError(told)
            if error.code in (408, 422, 503, 504) and _TIMED_OUT.search(said):
                raise TooSlowError(told)
        if error.code not in _TRANSIENT:
            raise ServerError(told)
        asked = _retry_after(error.headers.get("Retry-After"))
        if asked is not None and asked > _MOST_PAUSE_SECONDS:
            raise ServerError(f"{told}; it asks to come back after {asked:.0f} s")
        if attempt == _ATTEMPTS:
            raise ServerError(f"{told} ({_ATTEMPTS} attempts)")
        return asked


class _SameHost(urllib.request.HTTPRedirectHandler):
    """Follows a redirect on the same host, with form and headers; any other is an error that names the place."""

    max_redirections = _MOST_REDIRECTS
    max_repeats = _MOST_REDIRECTS

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str,  # noqa: ARG002
    ) -> urllib.request.Request:  # fmt: skip
        here, there = urllib.parse.urlsplit(req.full_url), urllib.parse.urlsplit(newurl)
        same = (here.scheme, here.netloc) == (there.scheme, there.netloc)
        upgraded = (here.scheme, there.scheme) == ("http", "https") and here.hostname == there.hostname
        if code not in _REDIRECTS or not (same or upgraded) or there.username is not None:
            fp.close()
            place = f"{there.scheme}://{there.netloc.rpartition('@')[2]}{there.path}"
            raise _FinalError(
                f"HTTP {code} to {place}; expected an answer, or a redirect on the same host: give that address"
            )
        return urllib.request.Request(newurl, data=req.data, headers=dict(req.headers))  # noqa: S310 - http or https


@lru_cache(maxsize=8)
def _opener(credentials: Credentials, is_tls: bool) -> urllib.request.OpenerDirector:
    # An address of http may be redirected to https: then with the machine's own certificates.
    context = credentials.tls() if is_tls else ssl.create_default_context()
    return urllib.request.build_opener(_SameHost(), urllib.request.HTTPSHandler(context=context))


def _body(response: Any, ends: float, most: int) -> bytes:
    """Return all of the body. `read` with a size does not notice an end that comes too early, so it is looked for here."""
    pieces: list[bytes] = []
    size, told = 0, response.headers.get("Content-Length", "")
    expected = int(told) if told.isdigit() and not response.chunked else None
    while size != expected and (piece := response.read1(_PIECE_BYTES)):
        pieces.append(piece)
        size += len(piece)
        if size > most:
            raise TooLargeError(f"the answer has more than {most} bytes")
        if time.monotonic() > ends:
            raise TimeoutError(f"the answer was not whole after {_MOST_TIMEOUTS} times the time-out")
    if expected is not None and size < expected:
        raise _CutOffError(f"the connection ended after {size} of {expected} bytes of the answer")
    return b"".join(pieces)


def _unpacked(body: bytes, encoding: str | None, most: int) -> bytes:
    kind = (encoding or "identity").strip().lower()
    if kind == "identity":
        return body
    if kind not in {"gzip", "x-gzip"}:
        raise _FinalError(f"the answer is packed as {kind[:40]!r}; expected gzip or none")
    content = b""
    # More than one packed part may stand one after another.
    while body:
        unpacking = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        content += unpacking.decompress(body, most + 1 - len(content))
        if len(content) > most:
            raise TooLargeError(f"the answer has more than {most} bytes unpacked")
        if not unpacking.eof:
            raise _CutOffError("the packed answer ends too early")
        body = unpacking.unused_data
    return content


def _words(error: urllib.error.HTTPError, ends: float) -> str:
    if 300 <= error.code < 400:
        return f"redirects to {error.headers.get('Location', 'nowhere')[:200]}, more than {_MOST_REDIRECTS} times or in a circle"
    try:
        body = _body(error.fp, ends, _MOST_ERROR_BYTES)
        return words_of(_unpacked(body, error.headers.get("Content-Encoding"), _MOST_ERROR_BYTES))
    except (OSError, http.client.HTTPException, zlib.error, ValueError, ServerError, _CutOffError):
        return f"{error.reason} (its words could not be read)"


def words_of(body: bytes) -> str:
    """Return the server's explanation in an error's body: the member of a JSON answer, a page's title, or the first line."""
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
    """Return a server's text as a message can carry it."""
    text = _NOT_PRINTABLE.sub(" ", text).strip()
    return text if len(text) <= _MOST_SHOWN_CHARACTERS else f"{text[:_MOST_SHOWN_CHARACTERS]}..."


def _retry_after(value: str | None) -> float | None:
    """Return seconds, from a number or a date."""
    if value is None:
        return None
    if value.strip().isdigit():
        return float(value)
    try:
        moment = email.utils.parsedate_to_datetime(value)
    except ValueError:
        return None
    now = dt.datetime.now(dt.UTC)
    return max(0.0, ((moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)) - now).total_seconds())


def _why(error: Exception) -> str:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, ssl.SSLCertVerificationError):
        return f"{reason.verify_message or reason}: expected a certificate that --ca-file or this machine knows"
    if isinstance(reason, http.client.IncompleteRead):
        return f"the connection ended in the middle of the answer ({reason})"
    if isinstance(reason, TimeoutError) and not str(reason).startswith("the answer"):
        return "no answer within the time-out"
    return str(reason) or type(reason).__name__


def _is_final(error: Exception) -> bool:
    """Whether another attempt would end the same."""
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    return isinstance(reason, ssl.SSLError | ValueError)
