"""Makes small projects for tests, lands rows in them as any writer could, and reads tables back."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from tidegate import wiring
from tidegate.store import SqlStore, open_store

SPARK_CONF = {
    # Rows by the dozen are not worth compiling a query for, nor a class twice.
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "2",
}

KINDS = {
    "bigint": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}


@dataclass(frozen=True)
class Folder:
    """A project on disk."""

    path: Path

    def write(self, files: Mapping[str, str]) -> None:
        """Write files of the project; `tidegate.toml` gets the test's JVM unless it is given."""
        for name, text in files.items():
            target = self.path / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        toml = self.path / "tidegate.toml"
        if not toml.exists():
            settings = ", ".join(f'"{name}" = "{value}"' for name, value in SPARK_CONF.items())
            toml.write_text(f"[spark]\nconf = {{{settings}}}\n")

    def table(self, name: str) -> Path:
        return self.path / "lake" / Path(*name.split("."))

    def land(self, name: str, rows: Sequence[Mapping[str, Any]], kind: str = "bigint") -> None:
        """Append rows to a landed table; pos is in milliseconds, or microseconds for times."""
        columns = {key: [row[key] for row in rows] for key in rows[0]}
        arrays = {
            key: pa.array(values, KINDS[kind] if key == "pos" else None)
            for key, values in columns.items()
        }
        write_deltalake(self.table(name), pa.table(arrays), mode="append")

    def rows(self, name: str, *columns: str) -> list[tuple[Any, ...]]:
        """Read a table as sorted tuples; [] when there is none."""
        if not DeltaTable.is_deltatable(str(self.table(name))):
            return []
        table = DeltaTable(self.table(name)).to_pyarrow_table(columns=list(columns))
        return sorted(zip(*(table.column(c).to_pylist() for c in columns), strict=True), key=repr)

    def tidegate(
        self, *arguments: str, env: Mapping[str, str] | None = None, group: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Run the command as a user would; in a process group of its own, to be killed with it."""
        return subprocess.run(
            [sys.executable, "-m", "tidegate", "-C", str(self.path), *arguments],
            capture_output=True,
            text=True,
            env=dict(env) if env else None,
            start_new_session=group,
            check=False,
        )

    def json(self, *arguments: str) -> Any:
        """Run a command that prints a JSON document."""
        done = self.tidegate(*arguments, "--json")
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    def json_lines(self, *arguments: str) -> list[Any]:
        """Run a command that prints a JSON document a line."""
        return [
            json.loads(line) for line in self.tidegate(*arguments, "--json").stdout.splitlines()
        ]


def store_at(path: Path) -> SqlStore:
    """Open the SQLite store of a file, which reads back all kinds of definitions."""
    readers = {kind: one.read for kind, one in wiring.KINDS.items()}
    return open_store(f"sqlite:///{path}", readers)


def entries(*tables: Mapping[str, Any]) -> str:
    """Write a lineage; JSON is YAML too."""
    return json.dumps(list(tables), indent=1)


def orders(positions: Iterable[tuple[int, int]], **columns: Any) -> list[dict[str, Any]]:
    """Make rows at positions, with a key that repeats and an amount."""
    return [
        {"pos": pos, "id": id, "k": id % 5, "amount": float(n), **columns}
        for n, (pos, id) in enumerate(positions)
    ]
