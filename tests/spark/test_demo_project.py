"""The demo's shop: what waits for late customers comes with them, and every row is in once."""

from __future__ import annotations

import shutil
import time

import pytest

from examples.demo import CUSTOMERS_ARE_LATE, EXAMPLES, verify
from examples.landing import TILLS_ARE_LATE
from examples.landing import Shop as Landing
from tests.spark.conftest import Shop
from tidegate.wiring import open_parts, read_project

ORDERS = 2_000


@pytest.mark.long
def test_the_demo_shop_waits_for_late_customers_and_ends_with_every_row_once(shop: Shop) -> None:
    shutil.copytree(EXAMPLES / "shop", shop.path, dirs_exist_ok=True)
    session = shop.spark.fresh()
    now = time.time_ns() // 1_000_000
    landing = Landing(session, lambda table: str(shop.table(table)), ORDERS, now)
    landing.land_products()
    landing.land(landing.customers, now - CUSTOMERS_ARE_LATE)
    landing.land(landing.orders, now)
    landing.land(landing.web, now)
    landing.land(landing.store, now - TILLS_ARE_LATE)

    first = shop.run()

    assert not first.failed
    assert "held back by stage.customers" in first.not_due["fact.orders"]

    landing.land(landing.customers, now + landing.customers.every)
    second = shop.run()

    assert not second.failed
    with open_parts(read_project(shop.path)) as parts:
        rows = verify(session, parts, landing)
    assert rows["fact.orders"] == ORDERS
