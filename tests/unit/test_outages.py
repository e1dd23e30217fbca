"""Faults of what the work stands on, told from faults of a definition or of rows."""

from __future__ import annotations

import errno
import shutil
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.errors import PythonException
from pyspark.errors.exceptions.connect import SparkConnectGrpcException

from tidegate.errors import FlowFailed, LakeAway, LakeError, Outage, SetupError
from tidegate.spark.looks import Tables
from tidegate.spark.session import blames_a_row, failed, is_outage, lake_error

NOW = 1_700_000_000_000
STACK = "\n\nJVM stacktrace:\norg.apache.spark.SparkException\n"


def at(lake: object, options: dict[str, str] | None = None) -> Tables:
    return Tables(str(lake), lambda: NOW, options)


def land(tables: Tables, table: str = "stage.s") -> Path:
    write_deltalake(tables.path(table), pa.table({"pos": [1], "id": [1]}), mode="append")
    return Path(tables.path(table))


def test_a_log_that_storage_does_not_give_is_an_outage(tmp_path: Path) -> None:
    log = land(at(tmp_path)) / "_delta_log"
    log.rename(tmp_path / "log")
    log.write_text("a file where the log should be")
    with pytest.raises(LakeAway, match=r"cannot be read: .*Not a directory") as caught:
        at(tmp_path).open("stage.s")
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_a_log_that_makes_no_sense_is_none(tmp_path: Path) -> None:
    log = land(at(tmp_path)) / "_delta_log"
    (log / "00000000000000000001.json").write_text("{nonsense")
    with pytest.raises(LakeError) as caught:
        at(tmp_path).open("stage.s")
    assert not isinstance(caught.value, Outage)


class Refusing(BaseHTTPRequestHandler):
    """A bucket that lets nobody in."""

    def do_GET(self) -> None:
        self.send_response(403)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_PUT = do_HEAD = do_GET

    def log_message(self, *_: object) -> None: ...


def reached(port: int) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_REGION": "us-east-1",
        "max_retries": "0",
    }


def test_a_bucket_that_is_away_or_refuses_is_an_outage() -> None:
    with pytest.raises(LakeAway):
        at("s3://bucket", reached(9)).open("stage.s")
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            with pytest.raises(LakeAway, match="privileges"):
                at("s3://bucket", reached(server.server_port)).recorded("stage.s", "fact.x")
        finally:
            server.shutdown()


def test_a_lake_that_is_not_to_be_seen_is_an_outage(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    tables = at(lake)
    folder = land(tables)
    shutil.rmtree(folder)
    # Its database is still there: somebody has deleted the table.
    tables.require_there()
    shutil.rmtree(folder.parent)
    with pytest.raises(LakeAway, match=r"is empty: is what it lies on mounted\?"):
        tables.require_there()
    lake.rmdir()
    with pytest.raises(LakeAway, match="No such file"):
        tables.require_there()
    at("s3://bucket").require_there()


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        PermissionError("no"),
        ConnectionRefusedError("no"),
        TimeoutError("no"),
        SetupError("no Java"),
        PythonException("Traceback …\nOSError: [Errno 28] No space left on device"),
        SparkConnectGrpcException("status = StatusCode.UNAVAILABLE details = failed to connect"),
        SparkConnectGrpcException(f"it failed{STACK}Caused by: java.io.IOException: No space left"),
        SparkConnectGrpcException(f"it failed{STACK}Caused by: java.net.ConnectException: refused"),
        SparkConnectGrpcException(
            f"it failed{STACK}Caused by: java.io.FileNotFoundException: /x (Read-only file system)"
        ),
    ],
)
def test_what_is_an_outage(error: Exception) -> None:
    assert is_outage(error)
    assert not blames_a_row(error)
    assert type(failed(error, "why")) is Outage
    assert isinstance(lake_error(error, "why"), LakeAway)


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError("part-0.parquet"),
        PythonException("Traceback …\nValueError: no space left"),
        ValueError("java.net.ConnectException: Connection refused"),
        SparkConnectGrpcException(
            "[CAST_INVALID_INPUT] The value 'StatusCode UNAVAILABLE\nCaused by:"
            " java.net.ConnectException: x' cannot be cast SQLSTATE: 22018"
        ),
        SparkConnectGrpcException(
            f"it failed{STACK}Caused by: java.io.FileNotFoundException: part-0 does not exist"
        ),
    ],
)
def test_what_is_none(error: Exception) -> None:
    assert not is_outage(error)
    assert type(failed(error, "why")) is FlowFailed
    assert type(lake_error(error, "why")) is LakeError
