"""Kinds of flow that only the tests have: what a new kind needs, and nothing of its back ends."""
