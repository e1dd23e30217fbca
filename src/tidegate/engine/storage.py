"""A lake on S3: one path, s3://bucket/prefix, for Spark's reader of it and for the log's.

Both take the credentials from the environment, AWS_ACCESS_KEY_ID and the like, or from the machine.
"""

from __future__ import annotations

from urllib.parse import urlsplit


def is_s3(path: str) -> bool:
    return path.startswith("s3://")


def spark_settings(endpoint: str, region: str) -> dict[str, str]:
    """Give what Spark is told; its own name for the scheme would be s3a."""
    settings = {"spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem"}
    if endpoint:
        settings["spark.hadoop.fs.s3a.endpoint"] = endpoint
        # Others than Amazon's rarely have a host name a bucket.
        settings["spark.hadoop.fs.s3a.path.style.access"] = "true"
        settings["spark.hadoop.fs.s3a.connection.ssl.enabled"] = str(
            not _is_plain(endpoint)
        ).lower()
    if region:
        settings["spark.hadoop.fs.s3a.endpoint.region"] = region
    return settings


def log_options(endpoint: str, region: str) -> dict[str, str]:
    """Give what the reader of Delta's logs is told."""
    options = {}
    if endpoint:
        options["AWS_ENDPOINT_URL"] = endpoint
        options["AWS_ALLOW_HTTP"] = str(_is_plain(endpoint)).lower()
    if region:
        options["AWS_REGION"] = region
    return options


def _is_plain(endpoint: str) -> bool:
    return urlsplit(endpoint).scheme == "http"
