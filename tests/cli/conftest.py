"""The command as a user calls it, in this process, and a small shop to call it on."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.projects import Folder, orders, store_at
from tidegate.cli.app import main
from tidegate.store import SqlStore

LINEAGE = """\
- table: stage.customers
  processor: source
  delay: 0s
- table: fact.orders
  depends_on: [stage.orders, stage.customers]
  transforms: orders
  repeat: 1min
- table: fact.hours
  depends_on: fact.orders
  transforms: hours
  keys: hour
"""
VIEWS = {
    "views/orders.sql": "SELECT pos, id, amount FROM stage.orders WHERE block(pos, id)",
    "views/hours.sql": """\
SELECT max(struct(pos, id)).pos AS pos, max(struct(pos, id)).id AS id, pos DIV 3600000 AS hour
FROM fact.orders
WHERE upto(pos, id)
  AND pos DIV 3600000 IN (SELECT pos DIV 3600000 FROM fact.orders WHERE block(pos, id))
GROUP BY pos DIV 3600000""",
}


@dataclass(frozen=True)
class Answer:
    """What a command left: its exit code and what it printed."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def sentence(self) -> str:
        """The one line on stderr that a failure gives, and nothing else."""
        assert self.err.startswith("tidegate: "), self
        assert self.err.count("\n") == 1, self.err
        assert "Traceback" not in self.err
        return self.err.removeprefix("tidegate: ").rstrip("\n")


class Shop(Folder):
    """A project with two landed tables and two topics."""

    @contextmanager
    def store(self) -> Iterator[SqlStore]:
        store = store_at(self.path / ".tidegate" / "store.db")
        try:
            yield store
        finally:
            store.close()


class Cli:
    """Calls `tidegate` in the folder where the test stands."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *arguments: str) -> Answer:
        self._monkeypatch.setattr(sys, "argv", ["tidegate", *arguments])
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = self._capsys.readouterr()
        code = ended.value.code
        return Answer(code if isinstance(code, int) else 0, out, err)


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    for name in [name for name in os.environ if name.upper().startswith("TIDEGATE_")]:
        monkeypatch.delenv(name)
    return Cli(monkeypatch, capsys)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    folder = tmp_path / "shop"
    made = Shop(folder)
    made.write({"tidegate.toml": "", "lineage.yaml": LINEAGE, **VIEWS})
    monkeypatch.chdir(folder)
    return made


@pytest.fixture
def landed(shop: Shop) -> Shop:
    shop.land("stage.orders", orders([(1_000, 1), (2_000, 2), (3_000, 3)]))
    shop.land("stage.customers", [{"pos": 500, "id": 1, "segment": "home"}])
    return shop
