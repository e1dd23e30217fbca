"""How Alembic reaches the store: over the connection, in the transaction, that it is handed."""

from alembic import context

from tidegate.store.schema import VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    version_table=VERSION_TABLE,
)
context.run_migrations()
