"""The rules over random data: positions, blocks, the plan, and a whole lake without Spark."""
