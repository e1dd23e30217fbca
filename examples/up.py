"""`make up`: the demo's shop kept fresh by `tidegate up`, with new data coming until stopped.

    .venv/bin/python examples/up.py [DIR]

Follow it from another terminal with `tidegate -C demo lag --watch`. TIDEGATE_DEMO_ROWS sets the
number of orders that are there at the start, 20,000 by default.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

# A script finds what lies beside it, but not the folder's name: that comes from the repository.
EXAMPLES = Path(__file__).resolve().parent
sys.path.insert(0, str(EXAMPLES.parent))

from examples.demo import copy_project, orders_wanted  # noqa: E402
from examples.landing import TILLS_ARE_LATE, Shop  # noqa: E402
from tidegate.cli.output import complain  # noqa: E402
from tidegate.errors import TidegateError  # noqa: E402
from tidegate.wiring import Parts, open_parts, read_project  # noqa: E402

ORDERS = 20_000
LAND_EVERY_SECONDS = 5


def main() -> int:
    """Land and keep fresh, until ctrl-C; 1 if `up` failed, 2 for wrong use."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else EXAMPLES.parent / "demo"
    try:
        orders = orders_wanted(ORDERS)
        copy_project(folder)
        project = read_project(folder)
        with open_parts(project) as parts, parts.spark() as spark:
            print("The shop opens: Spark starts, and lands what was sold so far …", flush=True)
            shop = Shop(spark.fresh(), parts.tables.path, orders, parts.runtime.now())
            shop.land_products()
            land(shop, parts)
            return keep_fresh(folder, shop, parts)
    except TidegateError as error:
        complain(str(error))
        return error.exit_code


def keep_fresh(folder: Path, shop: Shop, parts: Parts) -> int:
    """Run `tidegate up` beside the landings, and end with it."""
    command = [sys.executable, "-m", "tidegate", "-C", str(folder), "up"]
    # The path of the package, wherever this was started.
    up = subprocess.Popen(command, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    print(f"Follow it from another terminal: tidegate -C {folder} lag --watch", flush=True)
    try:
        while up.poll() is None:
            try:
                up.wait(LAND_EVERY_SECONDS)
            except subprocess.TimeoutExpired:
                land(shop, parts)
    except KeyboardInterrupt:
        # It got the same signal, and ends what it runs first.
        print("The shop closes …", flush=True)
    return up.wait()


def land(shop: Shop, parts: Parts) -> None:
    """Land whatever the shop's systems have by now."""
    now = parts.runtime.now()
    shop.land(shop.customers, now)
    shop.land(shop.orders, shop.newest_customer())
    shop.land(shop.web, now)
    shop.land(shop.store, now - TILLS_ARE_LATE)


if __name__ == "__main__":
    sys.exit(main())
