"""TLS on the port of the plain frames: which peers are served, what a renewed certificate changes, what half a handshake costs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import socket
import ssl
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

from rocketmq_remoting.client import RemotingClient
from rocketmq_remoting.codec import FrameLimits, encode
from rocketmq_remoting.command import request
from rocketmq_remoting.errors import RemotingConnectError, RemotingError
from rocketmq_remoting.server import RemotingServer
from rocketmq_remoting.tls import (
    ClientCertificates,
    ClientTls,
    ReloadedContext,
    TlsConfigurationError,
    TlsFiles,
    TlsMode,
    TlsServerSettings,
    client_context,
)
from rocketmq_remoting.tls_front import FrontTransport
from tests.security.certificates import Authority, make_authority
from tests.support.remoting_rig import ECHO, HOST, Handler, serving
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = make_authority(tmp_path_factory.mktemp("authority"))
    made.issue("server", alternative_names="DNS:controller.example,IP:127.0.0.1")
    made.issue("client", alternative_names="DNS:group-a.namespace-a,DNS:client")
    return made


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """An authority that no peer trusts."""
    made = make_authority(tmp_path_factory.mktemp("stranger"), "stranger")
    made.issue("client")
    return made


def files_of(authority: Authority, name: str) -> TlsFiles:
    return TlsFiles(
        certificate=authority.folder / f"{name}.crt", key=authority.folder / f"{name}.key", ca=authority.certificate
    )


def settings_of(authority: Authority, mode: TlsMode = TlsMode.ENFORCING, **more: Any) -> TlsServerSettings:
    """What a server with the authority's certificate for ``server`` is started with."""
    return TlsServerSettings(mode=mode, files=files_of(authority, "server"), **more)


async def ask(server: RemotingServer, tls: TlsFiles | None, body: bytes = b"x") -> bytes | None:
    """What comes back; None where there was no connection or it was closed instead of an answer."""
    client = RemotingClient(tls=ClientTls(tls) if tls is not None else None, connect_timeout_seconds=5)
    try:
        return (await client.invoke(server.address, request(ECHO, body=body), timeout_seconds=5)).body
    except RemotingError:
        return None
    finally:
        await client.close()


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize(
    ("mode", "plain_served", "tls_served"),
    [(TlsMode.DISABLED, True, False), (TlsMode.PERMISSIVE, True, True), (TlsMode.ENFORCING, False, True)],
)
def test_what_a_mode_serves(
    authority: Authority, mode: TlsMode, plain_served: bool, tls_served: bool,
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:  # fmt: skip
    settings = settings_of(authority, mode)
    long_body = bytes(range(256)) * 4096

    async def scenario() -> None:
        async with serving(tls=settings) as (server, handler):
            assert await ask(server, None, long_body) == (long_body if plain_served else None)
            trusting, checking = TlsFiles(), TlsFiles(ca=authority.certificate)
            for files in (trusting, checking):
                assert await ask(server, files, long_body) == (long_body if tls_served else None)
            served = [connection.tls_version for connection in handler.asked_over]
            assert served == [""] * plain_served + ["TLSv1.3"] * 2 * tls_served

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(scenario())


@pytest.mark.parametrize(
    ("wanted", "shown", "served", "names"),
    [
        (ClientCertificates.NONE, None, True, ()),
        (ClientCertificates.NONE, "stranger", True, ()),
        (ClientCertificates.OPTIONAL, None, True, ()),
        (ClientCertificates.OPTIONAL, "stranger", False, ()),
        (ClientCertificates.OPTIONAL, "ours", True, ("client", "group-a.namespace-a")),
        (ClientCertificates.REQUIRED, None, False, ()),
        (ClientCertificates.REQUIRED, "stranger", False, ()),
        (ClientCertificates.REQUIRED, "ours", True, ("client", "group-a.namespace-a")),
    ],
)
async def test_a_client_certificate_is_asked_for_checked_and_named(
    authority: Authority, stranger: Authority, wanted: ClientCertificates, shown: str | None, served: bool,
    names: tuple[str, ...],
) -> None:  # fmt: skip
    settings = settings_of(authority, client_certificates=wanted)
    shows = {None: TlsFiles(), "ours": files_of(authority, "client"), "stranger": files_of(stranger, "client")}[shown]
    async with serving(tls=settings) as (server, handler):
        answer = await ask(server, replace(shows, ca=authority.certificate))
        assert answer == (b"x" if served else None)
        assert [connection.certificate_names for connection in handler.asked_over] == [names] * served
        assert all(connection.is_known == bool(names) for connection in handler.asked_over)


async def test_a_client_does_not_speak_to_a_server_it_cannot_check(authority: Authority, stranger: Authority) -> None:
    settings = settings_of(authority)
    async with serving(tls=settings) as (server, handler):
        client = RemotingClient(tls=ClientTls(TlsFiles(ca=stranger.certificate)))
        with pytest.raises(RemotingConnectError, match="TLS handshake failed") as raised:
            await client.invoke(server.address, request(ECHO), timeout_seconds=5)
        assert not raised.value.refused
        assert not handler.asked_over
        await client.close()


async def test_a_tls_client_gives_up_on_a_server_that_never_answers_its_hello() -> None:
    held: list[asyncio.StreamWriter] = []

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.append(writer)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, HOST, 0)
    client = RemotingClient(tls=ClientTls(TlsFiles()), connect_timeout_seconds=0.2)
    with pytest.raises(RemotingConnectError, match="not connected within"):
        await client.invoke(f"{HOST}:{server.sockets[0].getsockname()[1]}", request(ECHO), timeout_seconds=5)
    await client.close()
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_1], ids=lambda version: version.name)
async def test_nothing_older_than_tls_1_2_is_spoken(authority: Authority, version: ssl.TLSVersion) -> None:
    settings = settings_of(authority, TlsMode.PERMISSIVE)
    context = ssl.create_default_context(cafile=str(authority.certificate))
    context.check_hostname = False
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    with (
        pytest.warns(DeprecationWarning, match="deprecated")
        if version < ssl.TLSVersion.TLSv1_2
        else contextlib.nullcontext()
    ):
        context.minimum_version = context.maximum_version = version
    async with serving(tls=settings) as (server, _):
        if version < ssl.TLSVersion.TLSv1_2:
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await asyncio.open_connection(HOST, server.port, ssl=context)
            return
        _, writer = await asyncio.open_connection(HOST, server.port, ssl=context)
        assert writer.get_extra_info("ssl_object").version() == "TLSv1.2"
        writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()


async def test_a_renewed_certificate_serves_new_connections_and_leaves_old_ones_alone(tmp_path: Path) -> None:
    authority = make_authority(tmp_path)
    files = authority.issue("server")
    settings = TlsServerSettings(mode=TlsMode.ENFORCING, files=files, check_files_seconds=0.01)
    async with serving(tls=settings) as (server, _):

        async def serial() -> str:
            context = client_context(TlsFiles(ca=authority.certificate))
            _, writer = await asyncio.open_connection(HOST, server.port, ssl=context)
            shown: dict[str, Any] = writer.get_extra_info("peercert")
            writer.transport.abort()
            return str(shown["serialNumber"])

        before = await serial()
        old = RemotingClient(tls=ClientTls(TlsFiles(ca=authority.certificate)))
        assert (await old.invoke(server.address, request(ECHO, body=b"1"), timeout_seconds=5)).body == b"1"
        authority.issue("server")
        async with asyncio.timeout(10):
            while await serial() == before:  # noqa: ASYNC110 - it changes in a file
                await asyncio.sleep(0.01)
        assert (await old.invoke(server.address, request(ECHO, body=b"2"), timeout_seconds=5)).body == b"2"
        await old.close()


async def test_a_broken_new_certificate_is_reported_and_not_used_until_it_is_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = make_authority(tmp_path)
    files = authority.issue("server")
    assert files.certificate is not None
    kept = shutil.copy(files.certificate, tmp_path / "kept")
    settings = TlsServerSettings(mode=TlsMode.ENFORCING, files=files, check_files_seconds=0.01)
    caplog.set_level(logging.INFO, logger="rocketmq_remoting.tls")

    def logged(level: int) -> list[str]:
        return [record.getMessage() for record in caplog.records if record.levelno == level]

    async with serving(tls=settings) as (server, _):
        files.certificate.write_text("-----BEGIN CERTIFICATE-----\nhalf of it", encoding="utf-8")
        await eventually(lambda: bool(logged(logging.ERROR)))
        assert await ask(server, TlsFiles(ca=authority.certificate)) == b"x"
        files.certificate.unlink()
        await eventually(lambda: len(logged(logging.ERROR)) == 2)
        assert await ask(server, TlsFiles(ca=authority.certificate)) == b"x"
        shutil.move(kept, files.certificate)
        await eventually(lambda: bool(logged(logging.INFO)))
        assert await ask(server, TlsFiles(ca=authority.certificate)) == b"x"
    assert "cannot be used, the old ones stay in force" in logged(logging.ERROR)[0]
    assert str(files.certificate) in logged(logging.ERROR)[0]


def test_a_certificate_and_the_key_of_another_do_not_load(tmp_path: Path) -> None:
    authority = make_authority(tmp_path)
    one, other = authority.issue("one"), authority.issue("other")
    with pytest.raises(TlsConfigurationError, match="belong together"):
        RemotingServer(Handler(), tls=TlsServerSettings(mode=TlsMode.PERMISSIVE, files=replace(one, key=other.key)))


def test_a_key_with_a_password_is_refused_without_a_prompt(tmp_path: Path) -> None:
    authority = make_authority(tmp_path)
    files = authority.issue("server")
    locked = tmp_path / "locked.key"
    subprocess.run(
        ["openssl", "pkcs8", "-topk8", "-in", str(files.key), "-out", str(locked), "-passout", "pass:secret"],
        check=True,
    )
    with pytest.raises(TlsConfigurationError):
        ReloadedContext(replace(files, key=locked), client_context, check_seconds=1)


def test_settings_that_cannot_work_say_which(tmp_path: Path) -> None:
    with pytest.raises(TlsConfigurationError, match="mode is enforcing: expected a certificate"):
        TlsServerSettings(mode=TlsMode.ENFORCING, files=TlsFiles())
    with pytest.raises(TlsConfigurationError, match="both files or neither"):
        TlsFiles(certificate=tmp_path / "x")
    authority = make_authority(tmp_path)
    with pytest.raises(TlsConfigurationError, match="client_certificates is required: expected a ca file"):
        TlsServerSettings(
            mode=TlsMode.ENFORCING,
            files=replace(authority.issue("server"), ca=None),
            client_certificates=ClientCertificates.REQUIRED,
        )


# ------------------------------------------------------------------------------------------------------- hostile peers


def hello_of() -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    talker = client_context(TlsFiles()).wrap_bio(incoming, outgoing)
    with contextlib.suppress(ssl.SSLWantReadError):
        talker.do_handshake()
    return outgoing.read()


@pytest.mark.parametrize("sent", [0, 1, 40, -1], ids=["nothing", "first-byte", "half", "whole-hello"])
async def test_half_a_handshake_is_closed_in_time(authority: Authority, sent: int) -> None:
    settings = settings_of(authority, handshake_timeout_seconds=0.1)
    hello = hello_of()
    async with serving(tls=settings) as (server, handler):
        reader, writer = await asyncio.open_connection(HOST, server.port)
        writer.write(hello if sent < 0 else hello[:sent])
        async with asyncio.timeout(10):
            with contextlib.suppress(ConnectionResetError):
                await reader.read()
        await eventually(lambda: len(handler.closed) == 1)
        writer.transport.abort()


async def test_a_plain_peer_that_says_nothing_is_not_hurried(authority: Authority) -> None:
    """Java brokers connect to look whether a controller is there, long before they ask."""
    settings = settings_of(authority, TlsMode.PERMISSIVE, handshake_timeout_seconds=0.02)
    async with serving(tls=settings) as (server, _):
        reader, writer = await asyncio.open_connection(HOST, server.port)
        await asyncio.sleep(0.1)
        writer.write(encode(request(ECHO)))
        assert await reader.readexactly(4)
        writer.transport.abort()


async def test_handshakes_under_way_are_bounded_and_their_places_come_back(authority: Authority) -> None:
    settings = settings_of(authority, TlsMode.PERMISSIVE, max_handshakes=3, handshake_timeout_seconds=0.5)
    async with serving(tls=settings) as (server, handler):
        writers = []
        for _ in range(5):
            _, writer = await asyncio.open_connection(HOST, server.port)
            writer.write(hello_of()[:50])
            writers.append(writer)
        await eventually(lambda: len(handler.closed) == 2)
        assert await ask(server, None) == b"x"  # plain ones are not handshakes
        await eventually(lambda: len(handler.closed) == 6)
        assert await ask(server, TlsFiles()) == b"x"
        for writer in writers:
            writer.transport.abort()


def _asked_over(
    port: int, context: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> tuple[ssl.SSLSession | None, bool | None, str]:
    """The session of one question and its answer, whether it was an earlier one, and which certificate was shown."""
    with (
        socket.create_connection((HOST, port), timeout=10) as plain,
        context.wrap_socket(plain, session=session) as secured,
    ):
        secured.sendall(encode(request(ECHO, body=b"x")))
        assert secured.recv(65536)  # in TLS 1.3 a ticket would come before the answer
        shown = secured.getpeercert()
        return secured.session, secured.session_reused, str(shown and shown["serialNumber"])


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=lambda version: version.name)
async def test_no_session_outlives_the_files_it_was_made_under(tmp_path: Path, version: ssl.TLSVersion) -> None:
    """Else a peer of an authority that is no longer trusted would be served again. (OpenSSL resumes TLS 1.2 by number.)"""
    authority = make_authority(tmp_path)
    settings = TlsServerSettings(mode=TlsMode.ENFORCING, files=authority.issue("server"), check_files_seconds=0.01)
    context = client_context(TlsFiles(ca=authority.certificate))
    context.minimum_version = context.maximum_version = version
    async with serving(tls=settings) as (server, _):
        session, _, before = await asyncio.to_thread(_asked_over, server.port, context)
        _, resumed, _ = await asyncio.to_thread(_asked_over, server.port, context, session)
        assert resumed is (version is ssl.TLSVersion.TLSv1_2)
        authority.issue("server")
        async with asyncio.timeout(10):
            while (await asyncio.to_thread(_asked_over, server.port, context))[2] == before:  # noqa: ASYNC110 - it changes in a file
                await asyncio.sleep(0.01)
        _, resumed, _ = await asyncio.to_thread(_asked_over, server.port, context, session)
        assert not resumed


async def test_renegotiation_is_refused(authority: Authority) -> None:
    """TLS 1.2 knows it: a peer that asks for a new handshake on a standing connection costs our processor time, not its own."""
    settings = settings_of(authority)
    async with serving(tls=settings) as (server, handler):
        program = await asyncio.create_subprocess_exec(
            *("openssl", "s_client", "-connect", f"{HOST}:{server.port}", "-tls1_2"),
            *("-CAfile", str(authority.certificate)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        assert program.stdin is not None
        assert program.stdout is not None
        async with asyncio.timeout(20):
            while b"Verify return code" not in await program.stdout.readline():
                pass
            program.stdin.write(b"R\n")
            said = await program.stdout.read()
            await program.wait()
        assert b"no renegotiation" in said.lower() or b"no_renegotiation" in said.lower()
        assert not handler.asked_over


async def test_plain_bytes_inside_an_established_connection_close_it(authority: Authority) -> None:
    settings = settings_of(authority, TlsMode.PERMISSIVE)
    async with serving(tls=settings) as (server, handler):
        client = RemotingClient(tls=ClientTls(TlsFiles()))
        await client.invoke(server.address, request(ECHO), timeout_seconds=5)
        [connection] = server.connections
        transport = next(iter(client._connections.values()))._transport
        assert isinstance(transport, FrontTransport)
        transport.raw.write(encode(request(ECHO)))
        await eventually(lambda: not connection.is_open)
        assert len(handler.asked_over) == 1
        await client.close()


async def test_tls_changes_nothing_of_the_frame_limits(authority: Authority) -> None:
    settings = settings_of(authority, client_certificates=ClientCertificates.OPTIONAL)
    limits = FrameLimits(max_frame_bytes=100_000, max_frame_bytes_until_known=1000)
    async with serving(tls=settings, limits=limits) as (server, _):
        assert await ask(server, TlsFiles(), bytes(2000)) is None
        assert await ask(server, files_of(authority, "client"), bytes(2000)) == bytes(2000)
        assert await ask(server, files_of(authority, "client"), bytes(200_000)) is None


async def test_unknown_peers_take_places_from_each_other_only(authority: Authority) -> None:
    settings = settings_of(authority, TlsMode.PERMISSIVE, client_certificates=ClientCertificates.OPTIONAL)
    known = RemotingClient(tls=ClientTls(files_of(authority, "client")))
    async with serving(tls=settings, max_unknown_connections=3, max_unknown_connections_per_host=3) as (
        server,
        handler,
    ):
        address = f"{HOST}:{server.port}"
        await known.invoke(address, request(ECHO), timeout_seconds=5)
        crowd = [await asyncio.open_connection(HOST, server.port) for _ in range(6)]
        await eventually(lambda: len(handler.closed) == 3)
        assert (await known.invoke(address, request(ECHO, body=b"still"), timeout_seconds=5)).body == b"still"
        for _, writer in crowd:
            writer.transport.abort()
        await eventually(lambda: len(handler.closed) == 6)
        assert await ask(server, None) == b"x"
        await known.close()
