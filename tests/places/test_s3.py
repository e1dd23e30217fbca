"""A lake on S3: the same project, with its tables in a bucket."""

from __future__ import annotations

import os
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.places.test_places import free_port, started
from tests.projects import SPARK_CONF, Folder, entries

KEYS = {"AWS_ACCESS_KEY_ID": "who", "AWS_SECRET_ACCESS_KEY": "a-secret-of-this-test"}
STEP = {"table": "fact.a", "depends_on": "stage.a", "transforms": "v", "maxstep": 60}
RELOAD = {"table": "mart.a", "depends_on": "fact.a", "transforms": "m", "processor": "reload"}
VIEWS = {
    "views/v.sql": "SELECT pos, id, k FROM stage.a WHERE block(pos, id)",
    "views/m.sql": "SELECT k, count(*) AS n FROM fact.a GROUP BY k",
}


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[str]:
    port = free_port()
    server = (sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port))
    with started(tmp_path, "s3", "Running on", *server):
        address = f"http://127.0.0.1:{port}"
        urllib.request.urlopen(urllib.request.Request(f"{address}/lake", method="PUT"))
        yield address


@pytest.mark.long
def test_a_lake_in_a_bucket_is_built_exactly_once(tmp_path: Path, endpoint: str) -> None:
    options = {"AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"}

    def table(name: str) -> DeltaTable:
        return DeltaTable(f"s3://lake/shop/{name}", storage_options={**options, **KEYS})

    def land(first: int, end: int) -> None:
        numbers = list(range(first, end))
        rows = pa.table({"pos": numbers, "id": numbers, "k": [n % 3 for n in numbers]})
        path, keys = "s3://lake/shop/stage/a", {**options, **KEYS}
        write_deltalake(path, rows, mode="append", storage_options=keys)

    conf = ", ".join(f'"{name}" = "{value}"' for name, value in SPARK_CONF.items())
    shop = Folder(tmp_path / "shop")
    shop.write(
        {
            "tidegate.toml": '[lake]\npath = "s3://lake/shop"\n[lake.s3]\n'
            f'endpoint = "{endpoint}"\nregion = "us-east-1"\n[spark]\nconf = {{{conf}}}\n',
            "lineage.yaml": entries(STEP, RELOAD),
            **VIEWS,
        }
    )
    environment = {**os.environ, **KEYS}
    for first, end in ((0, 100), (100, 130)):
        land(first, end)
        done = shop.tidegate("run", env=environment)
        assert done.returncode == 0, done.stderr
        assert table("fact/a").to_pyarrow_table().sort_by("id")["id"].to_pylist() == [*range(end)]
    counts = table("mart/a").to_pyarrow_table().sort_by("k").to_pylist()
    assert counts == [{"k": 0, "n": 44}, {"k": 1, "n": 43}, {"k": 2, "n": 43}]
    assert "Nothing was due" in shop.tidegate("run", env=environment).stdout
    rebuilt = shop.tidegate("rebuild", "fact.a+", env=environment)
    assert rebuilt.returncode == 0, rebuilt.stderr
    assert table("fact/a").to_pyarrow_table().sort_by("id")["id"].to_pylist() == [*range(end)]
    assert table("mart/a").to_pyarrow_table().sort_by("k").to_pylist() == counts
    beside = [one for one in shop.json("executions") if "__rebuild_" in one["flow_id"]]
    assert not DeltaTable.is_deltatable(
        f"s3://lake/shop/{beside[0]['flow_id'].replace('.', '/')}",
        storage_options={**options, **KEYS},
    )
    kept = [path for path in (tmp_path / "shop").rglob("*") if path.is_file()]
    assert not [
        path for path in kept if KEYS["AWS_SECRET_ACCESS_KEY"].encode() in path.read_bytes()
    ]
