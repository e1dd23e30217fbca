"""Spark and the Delta tables of the lake, shared by the kinds of flow."""
