"""A broker for the tests that need one, and a project to run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.brokers import Broker
from tests.projects import SPARK_CONF, Folder, entries, orders

from .processes import QUICK, Crew

VIEW = "SELECT o.pos, o.id, o.k, o.amount FROM stage.orders o WHERE block(o.pos, o.id)"
DOUBLED = "SELECT d.pos, d.id, d.amount * 2 AS twice FROM fact.orders d WHERE block(d.pos, d.id)"


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("kafka"))
    broker.start()
    yield broker
    broker.stop()


def settings(**sections: str) -> str:
    conf = ", ".join(f'"{name}" = "{value}"' for name, value in SPARK_CONF.items())
    given = "\n".join(f"[{name}]\n{text}" for name, text in sections.items())
    return f"[spark]\nconf = {{{conf}}}\n{QUICK}\n{given}\n"


@pytest.fixture
def shop(tmp_path: Path) -> Folder:
    return make_shop(tmp_path)


def make_shop(path: Path) -> Folder:
    """Make two tables in a chain and an hourly one, with rows landed for them."""
    folder = Folder(path)
    folder.write(
        {
            "tidegate.toml": settings(),
            "lineage.yaml": entries(
                {
                    "table": "fact.orders",
                    "depends_on": ["stage.orders"],
                    "transforms": ["orders"],
                    "repeat": "1s",
                },
                {
                    "table": "fact.doubled",
                    "depends_on": ["fact.orders"],
                    "transforms": ["doubled"],
                    "repeat": "1s",
                },
                {
                    "table": "fact.hourly",
                    "depends_on": ["stage.orders"],
                    "transforms": ["orders"],
                    "repeat": "1h",
                },
            ),
            "views/orders.sql": VIEW,
            "views/doubled.sql": DOUBLED,
        }
    )
    folder.land("stage.orders", orders((n, n) for n in range(1, 21)))
    return folder


@pytest.fixture
def crew(shop: Folder) -> Iterator[Crew]:
    with Crew(shop) as crew:
        yield crew
