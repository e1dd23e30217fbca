"""`make demo`: lands a shop's data, builds its tables block by block, and shows what happened.

    .venv/bin/python examples/demo.py [DIR]

DIR (by default demo/ in the repository) gets a fresh copy of examples/shop each time, and stays
there to be looked at. TIDEGATE_DEMO_ROWS sets the number of orders, a million by default.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession
from rich.console import Console

from tidegate.cli import app as cli
from tidegate.cli.output import complain, print_table
from tidegate.cli.project import apply_changes, changes_of
from tidegate.cli.running import watcher
from tidegate.errors import TidegateError, WrongUse
from tidegate.model.duration import format_duration
from tidegate.model.execution import ExecutionState
from tidegate.spark.session import SparkHost
from tidegate.tables.definition import Processor
from tidegate.tables.plan import Plan
from tidegate.wiring import Parts, open_parts, read_project

# A script finds what lies beside it, but not the folder's name: that comes from the repository.
EXAMPLES = Path(__file__).resolve().parent
sys.path.insert(0, str(EXAMPLES.parent))

from examples.landing import TILLS_ARE_LATE, Shop  # noqa: E402

MARK = ".made-by-demo"
"""A folder with this file may be deleted by the next demo; any other is left alone."""

CUSTOMERS_ARE_LATE = 20 * 60_000


class DemoFailed(TidegateError):
    """The demo did not build what it should have."""


def main() -> int:
    """Run the demo; 1 if a table is not what it should be, 2 for wrong use, 130 if interrupted."""
    try:
        folder = Path(sys.argv[1]) if len(sys.argv) > 1 else EXAMPLES.parent / "demo"
        orders = orders_wanted(1_000_000)
        copy_project(folder)
    except TidegateError as error:
        complain(str(error))
        return error.exit_code
    try:
        demonstrate(folder, orders)
    except TidegateError as error:
        complain(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        complain(f"interrupted; what is built stays, and this goes on: {_command(folder)} run")
        return 130
    return 0


def orders_wanted(otherwise: int) -> int:
    """Read how many orders the shop is to have."""
    text = os.environ.get("TIDEGATE_DEMO_ROWS", "").replace("_", "") or str(otherwise)
    if not text.isdigit() or not 0 < int(text) <= 100_000_000:
        raise WrongUse(f"TIDEGATE_DEMO_ROWS: {text!r} is not a number of orders, 1 to 100000000")
    return int(text)


def copy_project(folder: Path) -> None:
    """Put a clean copy of the shop there, in place of the last demo's, and of nothing else."""
    if (folder / MARK).exists():
        shutil.rmtree(folder)
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise WrongUse(f"{folder} was not made by the demo; name a new or empty folder")
    leave = shutil.ignore_patterns(".tidegate", "lake")
    shutil.copytree(EXAMPLES / "shop", folder, ignore=leave, dirs_exist_ok=True)
    (folder / MARK).touch()


def demonstrate(folder: Path, orders: int) -> None:
    """Land, build, ask why, land what was late, build the rest, and hold it against the sources."""
    project = read_project(folder)
    project.require_sound()
    console = Console(highlight=False, soft_wrap=True)
    with open_parts(project) as parts, parts.spark() as spark:
        apply_changes(parts, changes_of(parts))
        show = Show(console, parts, spark)
        with show.doing(f"Spark starts; its own log is {_short(folder)}/.tidegate/spark.log"):
            session = spark.fresh()
        started = parts.runtime.now()
        shop = Shop(session, parts.tables.path, orders, started)

        show.headline("The shop's systems land their data; the customers are twenty minutes late")
        show.land("stage.products", shop.land_products)
        late = started - CUSTOMERS_ARE_LATE
        show.land("stage.customers", lambda: shop.land(shop.customers, late))
        show.land("stage.orders", lambda: shop.land(shop.orders, started))
        show.land("stage.web", lambda: shop.land(shop.web, started))
        show.land("stage.store", lambda: shop.land(shop.store, started - TILLS_ARE_LATE))

        show.headline("Tidegate builds what may be built")
        show.run()

        show.headline("The newest orders are not in. Why?", f"{_command(folder)} why fact.orders")
        cli.app(args=["-C", str(folder), "why", "fact.orders"], standalone_mode=False)

        show.headline("The late customers come, and whatever the shop sold meanwhile")
        now = parts.runtime.now()
        show.land("stage.customers", lambda: shop.land(shop.customers, now))
        newest = shop.newest_customer()
        show.land("stage.orders", lambda: shop.land(shop.orders, newest))
        show.land("stage.web", lambda: shop.land(shop.web, now))
        show.land("stage.store", lambda: shop.land(shop.store, now - TILLS_ARE_LATE))

        show.headline("Now the rest may be built, and only that is")
        show.run()

        show.headline("What was built")
        plan = parts.planner().plan(eager=False)
        with show.doing("holding the tables against what was landed"):
            rows = verify(session, parts, shop)
        print_built(parts, plan, rows)
        taken, sales = rows["fact.orders"], rows["fact.sales#web"] + rows["fact.sales#store"]
        print(
            f"\nChecked: fact.orders and fact.margins hold each of the {taken:,} landed orders"
            f" once,\nfact.sales each of the {sales:,} sales, and fact.hours and"
            " mart.segments add up to the same."
        )
    show.headline(f"Next: read {_short(folder)}/lineage.yaml, then try")
    print_next(folder)


def print_next(folder: Path) -> None:
    """Name the commands to try, as they are typed here."""
    hints = {
        f"{_command(folder)} lag": "how fresh every table is, and why not fresher",
        f"{_command(folder)} etl-log fact.orders": "what each block measured of its own rows",
        f"{_command(folder)} why mart.segments": "the chain down to the source",
    }
    width = max(map(len, hints))
    for command, what in hints.items():
        print(f"  {command:<{width}}   # {what}")


@dataclass
class Show:
    """Says on the terminal what goes on."""

    console: Console
    parts: Parts
    spark: SparkHost

    def headline(self, text: str, command: str = "") -> None:
        self.console.print(f"\n[bold]{text}[/bold]")
        if command:
            print(f"$ {command}")

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Turn a spinner meanwhile, where there is a terminal; elsewhere a line has to do."""
        if self.console.is_terminal:
            with self.console.status(what):
                yield
        else:
            print(f"{what} …", flush=True)
            yield

    def land(self, table: str, landing: Callable[[], int]) -> None:
        start = time.monotonic()
        with self.console.status(f"landing {table}"):
            rows = landing()
        print(f"{table}: {rows:,} rows landed in {time.monotonic() - start:.1f} s", flush=True)

    def run(self) -> None:
        """Do as `tidegate run` does, on the Spark that is there already."""
        topics = _topics(self.parts)
        with watcher(quiet=False) as watching:
            report = self.parts.foreground(self.spark, watching).run(topics)
        for execution in report.executions:
            if execution.state is not ExecutionState.FINISHED:
                raise DemoFailed(f"{execution.topic}: {execution.comment}")


def verify(session: SparkSession, parts: Parts, shop: Shop) -> dict[str, int]:
    """Hold every table against what was landed; give the rows that each topic has in its table."""

    def ask(table: str, figures: list[str]) -> list[int]:
        frame = session.read.format("delta").load(parts.tables.path(table))
        (row,) = frame.selectExpr(*figures).collect()
        return [int(value or 0) for value in row]

    def require(table: str, expected: dict[str, int]) -> None:
        found = ask(table, list(expected))
        for (figure, wanted), value in zip(expected.items(), found, strict=True):
            if value != wanted:
                raise DemoFailed(
                    f"{figure} of {table} is {value}, and by what was landed it should be {wanted}"
                )

    orders, web, store = (shop.landed[f"stage.{name}"] for name in ("orders", "web", "store"))
    cents, order_mark, hours = ask(
        "stage.orders", [_cents("amount"), _mark("pos", "id", "amount"), f"count(DISTINCT {_HOUR})"]
    )
    (web_mark,) = ask("stage.web", [_mark("pos", "id", "CAST(cents / 100 AS DECIMAL(12, 2))")])
    (store_mark,) = ask("stage.store", [_mark("sold_ms", "receipt", "amount")])
    each_once = {"count(*)": orders, _mark("pos", "id", "amount"): order_mark}
    require("stage.orders", each_once)
    require("fact.orders", each_once)
    require("fact.margins", each_once)
    summed = {"sum(orders)": orders, _cents("revenue"): cents}
    require("fact.hours", {"count(*)": hours, **summed})
    require("mart.segments", summed)
    require(
        "fact.sales",
        {
            "count_if(_topic = 'fact.sales#web')": web,
            "count_if(_topic = 'fact.sales#store')": store,
            _mark("pos", "id", "amount"): web_mark ^ store_mark,
        },
    )
    return {
        "fact.orders": orders,
        "fact.margins": orders,
        "fact.hours": hours,
        "fact.sales#web": web,
        "fact.sales#store": store,
        "mart.segments": ask("mart.segments", ["count(*)"])[0],
    }


_HOUR = "pos DIV 3600000"


def _mark(*columns: str) -> str:
    """Give one number for a set of rows: a row that is missing, doubled or changed changes it."""
    return f"bit_xor(xxhash64({', '.join(columns)}))"


def _cents(amount: str) -> str:
    """Sum amounts in whole cents, so that equal is equal."""
    return f"CAST(sum({amount}) * 100 AS BIGINT)"


def print_built(parts: Parts, plan: Plan, rows: dict[str, int]) -> None:
    """Print a line for each topic."""
    built = []
    for topic in _topics(parts):
        blocks = parts.store.journal.blocks(topic)
        read = sum(row.block.rows for row in blocks) or None
        seconds = sum(
            ((execution.finished_at or 0) - (execution.started_at or 0)) / 1000
            for execution in parts.store.executions.list(flow=topic)
        )
        speed = round(read / seconds) if read and seconds else None
        lag = format_duration(plan.now - plan.verdicts[topic].complete_to)
        built.append((topic, rows[topic], len(blocks), read, speed, lag))
    columns = ("table", "rows", "blocks", "rows read", "read/s", "lag")
    print_table(columns, built, empty="Nothing was built.")


def _topics(parts: Parts) -> list[str]:
    definitions = parts.topics.values()
    return [d.topic for d in definitions if d.processor is not Processor.SOURCE]


def _command(folder: Path) -> str:
    """Write the command as one types it here."""
    tidegate = Path(sys.executable).parent / "tidegate"
    return f"{shlex.quote(_short(tidegate))} -C {shlex.quote(_short(folder))}"


def _short(path: Path) -> str:
    """Write a path from the working directory on, where it lies below it."""
    absolute, here = Path(os.path.abspath(path)), Path.cwd()
    return str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute)


if __name__ == "__main__":
    sys.exit(main())
