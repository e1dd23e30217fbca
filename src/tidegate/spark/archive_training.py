"""What a Spark does once so that its classes are in the archive: the writes and reads of flows.

Run in a process of its own, since a process has one Spark: `archive` starts it.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from pyspark.sql import Observation, SparkSession, Window
from pyspark.sql import functions as F

from tidegate.errors import SetupError
from tidegate.spark.java import find_java
from tidegate.spark.session import SparkHost

_LONGEST = 900.0
"""Seconds that a JVM may take to end, as it writes the archive then."""


def train(archive: Path) -> None:
    """Let a Spark do once what executions do, and write down its classes as it ends."""
    conf = {
        "spark.driver.extraJavaOptions": f'"-XX:ArchiveClassesAtExit={archive}"',
        "spark.sql.shuffle.partitions": "2",
    }
    spark = SparkHost("local[2]", conf, archive.parent, quick=True, last_seconds=_LONGEST)
    try:
        _work(spark, archive.parent)
        class_path = _class_path(spark.fresh())
    finally:
        spark.stop()
    proven = subprocess.run(
        [
            *(find_java(), "-Xshare:on", "-XX:+VerifySharedSpaces"),
            *(f"-XX:SharedArchiveFile={archive}", "-cp", class_path, "-version"),
        ],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if proven.returncode != 0:
        raise SetupError(f"Java does not take its own archive; see {proven.stdout.strip()}")


def _class_path(session: SparkSession) -> str:
    asked = "java_method('java.lang.System', 'getProperty', 'java.class.path')"
    (answer,) = session.sql(f"SELECT {asked}").collect()
    return str(answer[0])


def _work(spark: SparkHost, folder: Path) -> None:
    """Create, append, merge, overwrite, read, compact: the writes and reads of flows."""
    session = spark.fresh("training")
    session.addTag("training")
    base, keyed, whole = (f"{folder}/{name}" for name in ("base", "keyed", "whole"))
    session.sql("CREATE SCHEMA IF NOT EXISTS etl")
    for name, path in (("base", base), ("keyed", keyed), ("whole", whole)):
        session.sql(f"DROP TABLE IF EXISTS etl.{name}")
        session.sql(
            f"CREATE OR REPLACE TABLE etl.{name} (at TIMESTAMP COMMENT 'when', id BIGINT,"
            " name STRING, cents DECIMAL(18,2), part DOUBLE, day DATE, number INT)"
            f" USING DELTA COMMENT 'made to learn from' LOCATION '{path}'"
            " TBLPROPERTIES ('delta.checkpointInterval' = '2')"
        )
    for seq in (1, 2, 3):
        _block(spark.fresh("training"), seq, base, keyed, whole)
    session.sql(f"ALTER TABLE delta.`{whole}` ADD COLUMNS (more STRING)")
    session.sql(f"DESCRIBE DETAIL delta.`{whole}`").collect()
    session.sql(f"OPTIMIZE delta.`{base}`")
    rows = session.read.format("delta").option("versionAsOf", 1).load(base).limit(5)
    rows.collect()
    with redirect_stdout(StringIO()):
        rows.explain(mode="formatted")
    spark.forget("training")


def _block(session: SparkSession, seq: int, base: str, keyed: str, whole: str) -> None:
    """Land rows, then build two tables from them, with what comes along in a block."""
    options = {"txnAppId": "training", "txnVersion": str(seq), "userMetadata": "{}"}
    landed = session.range(1000 * seq, 1000 * seq + 1000).selectExpr(
        *("timestamp_millis(id) AS at", "id", "concat('name ', id % 7) AS name"),
        *("CAST(id / 100 AS DECIMAL(18,2)) AS cents", "CAST(rand() AS DOUBLE) AS part"),
        *("CAST(timestamp_millis(id) AS DATE) AS day", "CAST(id % 100 AS INT) AS number"),
    )
    landed.write.format("delta").mode("append").options(**options).save(base)
    session.sql(
        "CREATE OR REPLACE TEMPORARY FUNCTION block(pos TIMESTAMP, id BIGINT, kind STRING)"
        " RETURNS BOOLEAN RETURN (CASE WHEN kind = 'timestamp' THEN true"
        " ELSE raise_error(concat('not ', kind)) END)"
        f" AND pos >= timestamp_millis({1000 * seq}L) AND pos < timestamp_millis({2000 * seq}L)"
        f" AND (pos > timestamp_millis({1000 * seq}L) OR id > 0L) AND id IS NOT NULL"
    )
    session.sql(
        "WITH few AS (SELECT number, CAST(sum(cents) AS DECIMAL(18,2)) AS cents, count(*) AS seen"
        " FROM etl.base GROUP BY number HAVING seen > :least)"
        " SELECT base.at, base.id, upper(base.name) AS name, few.cents, base.part, base.day,"
        " row_number() OVER (PARTITION BY base.name ORDER BY base.id DESC) AS number"
        " FROM etl.base AS base LEFT JOIN few ON few.number = base.number"
        " WHERE block(base.at, base.id, typeof(base.at)) AND base.day >= DATE '1970-01-01'",
        args={"least": 0},
    ).createOrReplaceTempView("fresh")
    guarded = session.table("fresh").where(
        "CASE WHEN NOT (block(at, id, typeof(at))) THEN raise_error('outside')"
        " ELSE monotonically_increasing_id() >= 0 END"
    )
    guarded.write.format("delta").mode("overwrite").options(**options).save(whole)
    observation = Observation(f"training-{seq}")
    newest = Window.partitionBy("number").orderBy(F.desc("at"), F.desc("id"))
    seen = session.table("fresh").observe(
        observation,
        F.count(F.lit(1)).alias("rows"),
        F.max("id").alias("max_id"),
        F.min(F.unix_millis("at")).alias("min_ts"),
    )
    ranked = seen.withColumn("rank", F.row_number().over(newest)).where("rank = 1").drop("rank")
    ranked.createOrReplaceTempView("newest")
    session.conf.set("spark.databricks.delta.write.txnAppId", "training")
    session.conf.set("spark.databricks.delta.write.txnVersion", str(seq))
    session.sql(
        f"MERGE INTO delta.`{keyed}` AS old USING newest AS new ON old.number <=> new.number"
        " WHEN MATCHED AND (new.at > old.at OR (new.at = old.at AND new.id >= old.id))"
        " THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    _ = observation.get


if __name__ == "__main__":
    train(Path(sys.argv[1]))
