"""The rules of the domain as pure functions and frozen dataclasses: no I/O, no Spark, no SQL."""
