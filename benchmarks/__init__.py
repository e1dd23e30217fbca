"""Figures of this machine: bare Spark and Tidegate, in the same run of the same warm session."""
