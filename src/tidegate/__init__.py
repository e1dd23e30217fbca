"""Position-driven ETL on Spark."""

import logging

# Nothing is logged to the terminal unless a command asks for it.
logging.getLogger(__name__).addHandler(logging.NullHandler())
