"""The store: the truth about topics, executions and their logs, on SQLite or PostgreSQL.

    others ──closures──▶ Writer ──one transaction for all that wait──▶ database
    others ◀──rows────── Reader ◀──one statement, fetched at once───── database

Locks are taken in one order: a lane, then `offsets`, then `etl_executions`, then `datasets`.
"""

from tidegate.store.sql import SqlStore, open_store

__all__ = ["SqlStore", "open_store"]
