"""Position-driven ETL on Spark."""
