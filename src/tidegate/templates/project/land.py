"""Lands some orders and their customers in the lake, as any writer of Delta tables could.

Each call appends a thousand orders of the last seconds, in the order of (pos, id).
"""

import random
import time
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

LAKE = Path(__file__).parent / "lake" / "stage"
ORDERS = 1000
CUSTOMERS = 50


def main() -> None:
    first = 0
    if DeltaTable.is_deltatable(str(LAKE / "orders")):
        first = DeltaTable(LAKE / "orders").count()
    else:
        land_customers()
    now = time.time_ns() // 1_000_000
    orders = {
        "pos": [now - ORDERS + n for n in range(ORDERS)],
        "id": [first + n for n in range(ORDERS)],
        "order_id": [f"o-{first + n}" for n in range(ORDERS)],
        "customer_id": [random.randrange(CUSTOMERS) for _ in range(ORDERS)],
        "amount": [round(random.uniform(1, 200), 2) for _ in range(ORDERS)],
    }
    write_deltalake(LAKE / "orders", pa.table(orders), mode="append")
    print(f"landed {ORDERS} orders; there are {first + ORDERS} now")


def land_customers() -> None:
    customers = {
        "pos": [0] * CUSTOMERS,
        "id": list(range(CUSTOMERS)),
        "customer_id": list(range(CUSTOMERS)),
        "segment": [("home", "office", "school")[n % 3] for n in range(CUSTOMERS)],
    }
    write_deltalake(LAKE / "customers", pa.table(customers), mode="append")


if __name__ == "__main__":
    main()
