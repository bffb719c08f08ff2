"""How to reach a server: its address, headers, credentials and TLS files, as the options of a command name them.

`Access` is what the options say; it holds paths, and is written into Spark's options. `Credentials` is what `credentials_of`
reads from those files; it goes to Spark's workers. No error here shows the value of a header, a password or a token.
"""

import base64
import re
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote, urlsplit

_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
# Printable ASCII and tabs: a line feed would begin a header of its own.
_HEADER_VALUE: Final = re.compile(r"[\t\x20-\x7e]+")
# What the client itself says of its request.
_RESERVED: Final = frozenset({
    "accept-encoding", "connection", "content-encoding", "content-length", "content-type", "expect", "te", "trailer",
    "transfer-encoding", "upgrade",
})  # fmt: skip
_SECRET_HEADER: Final = re.compile(r"auth|cookie|key|pass|secret|token", re.IGNORECASE)
_CREDENTIALS_IN_TEXT: Final = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{6,}")
_USER_IN_ADDRESS: Final = re.compile(r"://[^/\s@]*@")
_LEAST_SECRET: Final = 3


class ConnectionOptionError(ValueError):
    """An option of the connection is wrong; names the option and what was expected, never a secret."""


@dataclass(frozen=True, slots=True)
class Access:
    """The options of a connection, beside the address. `headers` are lines `Name: value`."""

    headers: tuple[str, ...] = field(default=(), repr=False)
    header_file: Path | None = None
    user: str = ""
    password_file: Path | None = None
    bearer_token_file: Path | None = None
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    insecure_skip_verify: bool = False

    def given(self) -> list[str]:
        """Return the names of the options that were given."""
        return [
            one.name.replace("_", "-").replace("headers", "header") for one in fields(self) if getattr(self, one.name)
        ]

    def as_options(self) -> dict[str, str]:
        """Return the options of a Spark source, whose values are texts. Raises ConnectionOptionError for a header of two lines."""
        texts = {one.name: str(getattr(self, one.name)) for one in fields(self) if getattr(self, one.name)}
        if self.headers:
            texts["headers"] = "\n".join("{}: {}".format(*_header(line)) for line in self.headers)
        return texts


def access_of(options: Mapping[str, str]) -> Access:
    """Return the options that `Access.as_options` wrote."""
    paths = {
        name: Path(options[name])
        for name in ("header_file", "password_file", "bearer_token_file", "ca_file", "cert_file", "key_file")
        if options.get(name)
    }
    return Access(
        headers=tuple(line for line in options.get("headers", "").split("\n") if line.strip()),
        user=options.get("user", ""),
        insecure_skip_verify=options.get("insecure_skip_verify", "").lower() == "true",
        **paths,
    )


# No credentials, and the machine's own certificates.
NO_OPTIONS: Final = Access()


@dataclass(frozen=True, slots=True)
class Address:
    """A server's address. `url` has neither user nor password nor a slash at its end."""

    url: str
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Credentials:
    """The headers of each request and the files of TLS. No message shows one of the `secrets` (`hide`)."""

    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    insecure_skip_verify: bool = False

    def hide(self, text: str) -> str:
        """Replace the secrets in a text: a server may repeat them in its answer."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return _USER_IN_ADDRESS.sub("://***@", _CREDENTIALS_IN_TEXT.sub(r"\1 ***", text))

    def tls(self) -> ssl.SSLContext:
        """Return the context for https. Raises ConnectionOptionError for a file that holds no certificate or key."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file or None)
        except (OSError, ssl.SSLError) as error:
            raise ConnectionOptionError(
                f"ca-file: {self.ca_file}: {_why(error)}; expected certificates, PEM"
            ) from error
        if self.cert_file:
            try:
                # Without a password function OpenSSL would ask the terminal for one.
                context.load_cert_chain(self.cert_file, self.key_file or None, password=lambda: b"")
            except (OSError, ssl.SSLError) as error:
                told = " and key-file: ".join(filter(None, (self.cert_file, self.key_file)))
                expected = "expected a certificate and its key without a password, PEM"
                raise ConnectionOptionError(f"cert-file: {told}: {_why(error)}; {expected}") from error
        if self.insecure_skip_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def address_of(url: str) -> Address:
    """Parse an address. Raises ConnectionOptionError."""
    expected = "expected http://host:port or https://host:port"
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname
    except ValueError as error:
        raise ConnectionOptionError(f"url: {shown(url)}; {expected}{_unquoted_password(url)}") from error
    if parts.scheme not in {"http", "https"} or not host or re.search(r"[\s\x00-\x1f\x7f]", url):
        raise ConnectionOptionError(f"url: {shown(url)}; {expected}{_unquoted_password(url)}")
    if parts.query or parts.fragment or "@" in parts.path:
        raise ConnectionOptionError(f"url: {shown(url)}; {expected}, without ? and #{_unquoted_password(url)}")
    bare = f"[{host}]" if ":" in host else host
    path = quote(parts.path.rstrip("/"), safe="/%:!$&'()*+,;=~")
    shown_url = f"{parts.scheme}://{bare}{'' if port is None else f':{port}'}{path}"
    return Address(shown_url, unquote(parts.username or ""), unquote(parts.password or ""))


def shown(url: str | None) -> str:
    """Return an address for a message, without the text before an @: it may hold a password."""
    if url is None:
        return "missing"
    _, at, rest = url.rpartition("@")
    return repr(f"...@{rest}" if at else url)


def credentials_of(access: Access, address: Address) -> Credentials:
    """Read the files. Raises ConnectionOptionError for a missing file, two ways to authenticate, a header of two lines."""
    headers = [_header(line) for line in access.headers]
    if access.header_file:
        lines = _read(access.header_file, "header-file").splitlines()
        headers += [_header(line, f"header-file: {access.header_file}") for line in lines if line.strip()]
    named = {name.lower() for name, _ in headers}
    if len(named) != len(headers):
        twice = next(name for name in named if sum(one.lower() == name for one, _ in headers) > 1)
        raise ConnectionOptionError(f"header: {twice!r} stands twice; expected each name once")
    authorization = list(_authorization(access, address))
    if len(authorization) + ("authorization" in named) > 1:
        raise ConnectionOptionError(
            "user: more than one way to authenticate; expected one of --user, --bearer-token-file, user:password@ in"
            " the address and a header Authorization"
        )
    secrets = [address.password, *(value for name, value in headers if _SECRET_HEADER.search(name))]
    for value, *more in authorization:
        headers.append(("Authorization", value))
        secrets += [value.partition(" ")[2], *more]
    _check_tls(access, address)
    # The longest first: one may be part of another.
    told = sorted({one for one in secrets if len(one) >= _LEAST_SECRET}, key=len, reverse=True)
    ca_file, cert_file, key_file = (
        "" if path is None else str(path.absolute()) for path in (access.ca_file, access.cert_file, access.key_file)
    )
    return Credentials(tuple(headers), tuple(told), ca_file, cert_file, key_file, access.insecure_skip_verify)


def _authorization(access: Access, address: Address) -> Iterator[tuple[str, ...]]:
    """Each value of the header Authorization that the options ask for, and the secret in it."""
    if access.password_file and not access.user:
        raise ConnectionOptionError("password-file: given without a user; expected --user beside it")
    if access.user:
        if access.password_file is None:
            raise ConnectionOptionError("password-file: missing; expected the file with the password of --user")
        password = _one_line(access.password_file, "password-file")
        yield _basic(access.user, password), password
    if address.user or address.password:
        yield _basic(address.user, address.password), address.password
    if access.bearer_token_file:
        token = _one_line(access.bearer_token_file, "bearer-token-file").strip()
        if not _HEADER_VALUE.fullmatch(token):
            raise ConnectionOptionError(
                f"bearer-token-file: {access.bearer_token_file}; expected a token of printable ASCII"
            )
        yield f"Bearer {token}", token


def _basic(user: str, password: str) -> str:
    if ":" in user:
        raise ConnectionOptionError("user: holds a colon, which basic authentication cannot carry; expected none")
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


def _header(line: str, where: str = "header") -> tuple[str, str]:
    name, colon, value = line.partition(":")
    name, value = name.strip(" \t"), value.strip(" \t")
    # A value may be a secret: it is not shown.
    if not colon or not _HEADER_NAME.fullmatch(name):
        raise ConnectionOptionError(
            f"{where}: no name before a colon; expected 'Name: value', as 'X-Scope-OrgID: shop'"
        )
    if not _HEADER_VALUE.fullmatch(value):
        raise ConnectionOptionError(f"{where}: value of {name!r}; expected one line of printable ASCII, not empty")
    if name.lower() in _RESERVED:
        raise ConnectionOptionError(f"{where}: {name!r}; expected none that the request itself sets")
    return name, value


def _check_tls(access: Access, address: Address) -> None:
    if access.key_file and not access.cert_file:
        raise ConnectionOptionError("key-file: given without a certificate; expected --cert-file beside it")
    used = [name for name in ("ca-file", "cert-file", "insecure-skip-verify") if name in access.given()]
    if used and not address.url.startswith("https://"):
        raise ConnectionOptionError(f"{used[0]}: given with {address.url}; expected an https:// address")
    for path, name in ((access.ca_file, "ca-file"), (access.cert_file, "cert-file"), (access.key_file, "key-file")):
        if path is not None:
            _read(path, name)


def _one_line(path: Path, option: str) -> str:
    content = _read(path, option).rstrip("\r\n")
    if not content.strip() or not content.isprintable():
        raise ConnectionOptionError(
            f"{option}: {path} holds {'more' if content.strip() else 'less'} than one line; expected one"
        )
    return content


def _read(path: Path, option: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConnectionOptionError(
            f"{option}: {path}: {_why(error)}; expected a text file that can be read"
        ) from error


def _why(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "is no UTF-8"
    return getattr(error, "strerror", None) or str(error)


def _unquoted_password(url: str) -> str:
    """Return advice for an address with an @ in its path or query; empty without an @."""
    return "; write a password's / ? # @ as %2F %3F %23 %40, or use --user and --password-file" if "@" in url else ""
