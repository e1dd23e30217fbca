"""Lands the data of the demo's shop, as its order system, tills and web pages would.

Every table is a steady stream: row n comes `every` so many milliseconds. So the same rows come
however they are cut into landings, and a landing is simply "all that came before this moment".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

HOUR = 3_600_000
OPEN = 50 * HOUR
"""How long the shop has been open when the demo starts, in milliseconds."""

TILLS_ARE_LATE = 120_000
"""How late a receipt may come; lineage.yaml says so too."""

_PRODUCTS = 500
_ROWS_A_FILE = 50_000
_SIGN_UP_EVERY = 10_000


@dataclass(frozen=True)
class Stream:
    """A landed table: its row n has the position (start + n * every, n)."""

    table: str
    start: int
    every: int
    columns: tuple[str, ...]
    """SQL over `id`, the row's number, and `pos`."""
    shuffled: bool = False
    """The rows come in any order."""

    def before(self, moment: int) -> int:
        """Count the rows that come before a moment."""
        return max(0, -(-(moment - self.start) // self.every))

    def rows(self, session: SparkSession, first: int, end: int) -> DataFrame:
        """Give the rows `first` to `end`, in files of a size that several blocks can share."""
        files = -(-(end - first) // _ROWS_A_FILE)
        numbers = session.range(first, end, 1, files)
        rows = numbers.selectExpr(f"{self.start} + id * {self.every} AS pos", "id")
        return (rows.repartition(files, "id") if self.shuffled else rows).selectExpr(*self.columns)


class Shop:
    """What the shop's systems have landed so far."""

    def __init__(self, session: SparkSession, path: Callable[[str], str], orders: int, now: int):
        self._session = session
        self._path = path
        every = max(1, OPEN // orders)
        opened = now - orders * every
        self.customers = Stream("stage.customers", opened - OPEN, _SIGN_UP_EVERY, _CUSTOMERS)
        self.orders = Stream("stage.orders", opened, every, _assignments(self.customers))
        self.web = Stream("stage.web", opened, 10 * every, _WEB)
        self.store = Stream("stage.store", opened, 20 * every, _STORE, shuffled=True)
        self.landed: dict[str, int] = {}
        """Rows by table."""

    def land(self, stream: Stream, before: int) -> int:
        """Append what came since the last landing, and tell how many rows that are."""
        first = self.landed.get(stream.table, 0)
        end = stream.before(before)
        if end <= first:
            return 0
        self._append(stream.table, stream.rows(self._session, first, end))
        self.landed[stream.table] = end
        return end - first

    def land_products(self) -> int:
        """Land the price list: a small table without any position."""
        products = self._session.range(0, _PRODUCTS, 1, 1)
        cost = f"CAST({_cost('id')} AS DECIMAL(10, 2)) AS cost"
        self._append("stage.products", products.selectExpr("id AS product_id", cost))
        self.landed["stage.products"] = _PRODUCTS
        return _PRODUCTS

    def newest_customer(self) -> int:
        """Give the time of the last sign-up that has landed."""
        last = self.landed[self.customers.table] - 1
        return self.customers.start + last * self.customers.every

    def _append(self, table: str, rows: DataFrame) -> None:
        rows.write.format("delta").mode("append").save(self._path(table))


def _pick(salt: str, choices: int | str) -> str:
    """Choose by hash and not by chance, so that every demo makes the same shop."""
    return f"pmod(xxhash64(id, '{salt}'), {choices})"


def _cost(product: str) -> str:
    """Give what a product costs the shop, in EUR."""
    return f"(2 + {product} % 40)"


_PRODUCT = _pick("product", _PRODUCTS)

_CUSTOMERS = (
    "pos",
    "id",
    "id AS customer_id",
    f"element_at(array('home', 'office', 'school'), CAST(1 + {_pick('segment', 3)} AS INT))"
    " AS segment",
)

_WEB = (
    "pos",
    "id",
    f"{_PRODUCT} AS product_id",
    f"499 + {_pick('cents', 9000)} AS cents",
    f"element_at(array('DE', 'FR', 'PL', 'SE'), CAST(1 + {_pick('country', 4)} AS INT)) AS country",
)

_STORE = (
    "pos AS sold_ms",
    "id AS receipt",
    f"{_PRODUCT} AS product_id",
    f"CAST(1 + {_pick('amount', 6000)} / 100 AS DECIMAL(12, 2)) AS amount",
    f"concat('till ', 1 + {_pick('till', 12)}) AS till",
)


def _assignments(customers: Stream) -> tuple[str, ...]:
    """Let every fourth order be that of the customer who signed up last, the others anybody's."""
    newest = f"(pos - {customers.start}) DIV {customers.every}"
    quantity = f"(1 + {_pick('quantity', 3)})"
    percent = f"(120 + {_pick('price', 80)})"
    return (
        "pos",
        "id",
        f"CASE WHEN id % 4 = 0 THEN {newest} ELSE {_pick('customer', newest)} END AS customer_id",
        f"{_PRODUCT} AS product_id",
        f"CAST({quantity} AS INT) AS quantity",
        f"CAST({quantity} * {_cost(_PRODUCT)} * {percent} / 100 AS DECIMAL(12, 2)) AS amount",
    )
