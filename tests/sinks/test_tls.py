"""A server that speaks TLS with a certificate of an authority of our own."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from streamrunner.sinks.errors import LogUnreachable, SinkError
from streamrunner.sinks.keys import JobKeys
from streamrunner.sinks.log import JobLog
from streamrunner.sinks.server import ExternalServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

EXTENSIONS = "subjectAltName=DNS:localhost"


def openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


def make_certificate(folder: Path) -> Path:
    """An authority and a certificate of it for `localhost`; returns the authority's own."""
    authority, key = str(folder / "ca.pem"), str(folder / "ca.key")
    new = ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    openssl(*new, "-x509", "-days", "2", "-subj", "/CN=test authority", "-keyout", key, "-out", authority)
    openssl(*new, "-subj", "/CN=localhost", "-keyout", str(folder / "key.pem"), "-out", str(folder / "request.pem"))
    (folder / "extensions").write_text(EXTENSIONS)
    sign = ["x509", "-req", "-days", "2", "-in", str(folder / "request.pem"), "-CA", authority, "-CAkey", key]
    openssl(*sign, "-CAcreateserial", "-extfile", str(folder / "extensions"), "-out", str(folder / "cert.pem"))
    return folder / "ca.pem"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    made = tmp_path_factory.mktemp("tls")
    make_certificate(made)
    return made


@pytest.fixture(scope="module")
def port(redis_binary: str, folder: Path) -> Iterator[int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = int(free.getsockname()[1])
    files = {"cert": "cert.pem", "key": "key.pem", "ca-cert": "ca.pem"}
    options = [part for name, file in files.items() for part in (f"--tls-{name}-file", str(folder / file))]
    options += ["--tls-port", str(number), "--port", "0", "--tls-auth-clients", "no", "--dir", str(folder)]
    process = subprocess.Popen([redis_binary, *options, "--requirepass", "s3cret"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if "Ready to accept connections" in line:
            break
    else:
        pytest.skip("this redis-server was built without TLS")
    yield number
    process.kill()
    process.communicate()


@pytest.mark.redis
def test_a_verified_server_is_used_like_any_other(port: int, folder: Path) -> None:
    url = f"rediss://:s3cret@localhost:{port}/0?ssl_ca_certs={folder}/ca.pem"
    with ExternalServer(url) as server:
        assert not any("TLS" in notice for notice in server.notices())
        assert "s3cret" not in server.address
        assert JobLog(server, JobKeys("job_tls"), "t").submit({}, 1, [{"first": 0, "count": 1}])
        assert asyncio.run(_ping(server))


async def _ping(server: ExternalServer) -> bool:
    client = server.async_client()
    try:
        return bool(await client.ping())
    finally:
        await client.aclose()


@pytest.mark.redis
def test_an_unknown_authority_is_refused_at_once_with_the_remedy(port: int) -> None:
    begin = time.monotonic()
    with pytest.raises(SinkError, match="ssl_ca_certs") as caught:
        ExternalServer(f"rediss://:s3cret@localhost:{port}/0")
    assert caught.value.code == "log_tls"
    assert "s3cret" not in caught.value.message
    assert time.monotonic() - begin < 3


@pytest.mark.redis
def test_another_authority_is_refused(port: int, tmp_path: Path) -> None:
    other = make_certificate(tmp_path)
    with pytest.raises(SinkError, match="cannot be verified") as caught:
        ExternalServer(f"rediss://:s3cret@localhost:{port}/0?ssl_ca_certs={other}")
    assert caught.value.code == "log_tls"


@pytest.mark.redis
def test_a_certificate_for_another_host_is_refused(port: int, folder: Path) -> None:
    with pytest.raises(SinkError, match=r"(?i)mismatch") as caught:
        ExternalServer(f"rediss://:s3cret@127.0.0.1:{port}/0?ssl_ca_certs={folder}/ca.pem")
    assert caught.value.code == "log_tls"


@pytest.mark.redis
def test_verification_switched_off_is_never_silent(port: int) -> None:
    with ExternalServer(f"rediss://:s3cret@localhost:{port}/0?ssl_cert_reqs=none&ssl_check_hostname=false") as server:
        assert any("not verified" in notice for notice in server.notices())


@pytest.mark.redis
def test_plain_redis_on_a_tls_port_and_tls_on_a_plain_one_are_told(port: int, redis_binary: str) -> None:
    with pytest.raises(LogUnreachable):
        ExternalServer(f"redis://:s3cret@localhost:{port}/0")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        plain = int(free.getsockname()[1])
    process = subprocess.Popen([redis_binary, "--port", str(plain), "--save", ""], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    next(line for line in process.stdout if "Ready to accept" in line)
    try:
        with pytest.raises(SinkError, match=r"does not speak TLS|does that port speak TLS"):
            ExternalServer(f"rediss://localhost:{plain}")
    finally:
        process.kill()
        process.communicate()
