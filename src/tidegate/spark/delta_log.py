"""Delta logs without a JVM: kept open and read on from where they ended, commit by commit.

A lake on S3 is one path, s3://bucket/prefix, for Spark's reader and for the log's. Both take the
credentials from the environment, AWS_ACCESS_KEY_ID and the like, or from the machine.
"""

from __future__ import annotations

import json
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from deltalake import DeltaTable

from tidegate.model.instances import Writers

_Identity = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The newest entry of a log in a folder, and the one that will follow it."""

    newest: str
    identity: _Identity
    """What tells it from one of the same name, in a table that was put in its place."""
    next: str

    @classmethod
    def of(cls, path: str, version: int) -> LogEnd | None:
        """Find the end of the log of a table that was read at a version; None when it is gone."""
        newest, next = (f"{path}/_delta_log/{version + n:020d}.json" for n in (0, 1))
        identity = _identity(newest)
        return None if identity is None else cls(newest, identity, next)

    @property
    def stands(self) -> bool:
        """Whether what was read is still there: neither cut nor replaced."""
        return _identity(self.newest) == self.identity

    @property
    def has_grown(self) -> bool:
        # Not by pathlib: a manager asks this of every landed table, again and again.
        return os.access(self.next, os.F_OK)


def _identity(entry: str) -> _Identity | None:
    try:
        found = os.stat(entry)
    except OSError:
        # Gone, or hidden: it has to be read anew, and whoever reads it says what is wrong.
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


MOST_KEPT = 32
"""Tables that a thread keeps open; of ten thousand files, each takes some megabytes."""


@dataclass(frozen=True)
class _Kept:
    table: DeltaTable
    end: LogEnd


class Handles:
    """What each thread has open: a handle that is read on must not change under another's eyes."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)
        self._threads = threading.local()

    def open(self, path: str) -> DeltaTable:
        """Open a table at its newest version; raises what deltalake raises."""
        if "://" in path:
            # There is no cheap look at a single entry: all of it is asked for.
            return DeltaTable(path, storage_options=self._options)
        mine = self._mine()
        # Out of there while it is looked at: what fails to be read on is not kept.
        kept = mine.pop(path, None)
        if kept is None or not kept.end.stands:
            table = DeltaTable(path, storage_options=self._options)
        elif kept.end.has_grown:
            table = kept.table
            table.update_incremental()
        else:
            mine[path] = kept
            return kept.table
        self._keep(path, table)
        return table

    def _keep(self, path: str, table: DeltaTable) -> None:
        end = LogEnd.of(path, table.version())
        if end is None:
            return
        mine = self._mine()
        mine[path] = _Kept(table, end)
        if len(mine) > MOST_KEPT:
            mine.popitem(last=False)

    def _mine(self) -> OrderedDict[str, _Kept]:
        if not hasattr(self._threads, "kept"):
            self._threads.kept = OrderedDict[str, _Kept]()
        kept: OrderedDict[str, _Kept] = self._threads.kept
        return kept


_BOOKKEEPING = frozenset(
    {"OPTIMIZE", "VACUUM START", "VACUUM END", "SET TBLPROPERTIES", "UNSET TBLPROPERTIES"}
    | {"CREATE TABLE", "ADD CONSTRAINT", "DROP CONSTRAINT", "CHANGE COLUMN", "ADD COLUMNS"}
    | {"COMPUTE STATS", "CLUSTER BY", "REORG", "UPGRADE PROTOCOL", "FSCK", "ADD FEATURE"}
)
"""Operations that leave a table's rows as they were."""
_RECENT = 20


def commits(found: DeltaTable) -> Iterator[Mapping[str, Any]]:
    """Go through a table's commits, the newest first; most who ask want one of the last few."""
    recent = found.history(_RECENT)
    yield from recent
    if len(recent) == _RECENT:
        yield from found.history()[_RECENT:]


def data_version_of(found: DeltaTable) -> int:
    """Give the newest version that changed the rows of a table."""
    for commit in commits(found):
        if commit.get("operation") not in _BOOKKEEPING and _rows_changed(commit):
            return int(commit["version"])
    # Everything else was trimmed from the log: other data cannot be ruled out before this.
    return 0


def _rows_changed(commit: Mapping[str, Any]) -> bool:
    figures = commit.get("operationMetrics") or {}
    match commit.get("operation"):
        case "WRITE" if (commit.get("operationParameters") or {}).get("mode") == "Append":
            return figures.get("numOutputRows") != "0"
        case "MERGE":
            names = ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted")
            return any(figures.get(name) != "0" for name in names)
        case _:
            return True


def our_metadata(commit: Mapping[str, Any]) -> Mapping[str, Any]:
    """Read what a block wrote beside its rows; empty where somebody else wrote."""
    try:
        written = json.loads(commit.get("userMetadata") or "{}")
    except ValueError:
        return {}
    return written if isinstance(written, dict) else {}


def rows_written(commit: Mapping[str, Any]) -> int | None:
    """Count the rows that a commit brought, as far as it says."""
    figures = commit.get("operationMetrics") or {}
    value = figures.get("numSourceRows", figures.get("numOutputRows"))
    return None if value is None else int(value)


def is_s3(path: str) -> bool:
    return path.startswith("s3://")


_ONE_COMMIT_WINS = ("hdfs", "viewfs", "abfs", "abfss", "adl", "wasb", "wasbs", "gs")
_SEES_TO_IT = ("S3DynamoDBLogStore",)
"""Log stores of Delta's that let one commit win on storage that does not."""


def writers_of(path: str, conf: Mapping[str, str]) -> Writers:
    """Tell who may write to a lake at the same time, by its path and the log store that is set."""
    scheme, is_url, _ = path.partition("://")
    if not is_url or scheme == "file":
        return Writers.ONE_HOST
    log_store = conf.get(f"spark.delta.logStore.{scheme}.impl", "").rpartition(".")[2]
    if scheme in _ONE_COMMIT_WINS or log_store in _SEES_TO_IT:
        return Writers.ALL
    return Writers.ONE_PROCESS


def spark_settings(endpoint: str, region: str) -> dict[str, str]:
    """Give what Spark is told; its own name for the scheme would be s3a."""
    settings = {"spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem"}
    if endpoint:
        settings["spark.hadoop.fs.s3a.endpoint"] = endpoint
        # Others than Amazon's rarely have a host name a bucket.
        settings["spark.hadoop.fs.s3a.path.style.access"] = "true"
        settings["spark.hadoop.fs.s3a.connection.ssl.enabled"] = str(
            not _is_plain(endpoint)
        ).lower()
    if region:
        settings["spark.hadoop.fs.s3a.endpoint.region"] = region
    return settings


def log_options(endpoint: str, region: str) -> dict[str, str]:
    """Give what the reader of Delta's logs is told."""
    options = {}
    if endpoint:
        options["AWS_ENDPOINT_URL"] = endpoint
        options["AWS_ALLOW_HTTP"] = str(_is_plain(endpoint)).lower()
    if region:
        options["AWS_REGION"] = region
    return options


def _is_plain(endpoint: str) -> bool:
    return urlsplit(endpoint).scheme == "http"
