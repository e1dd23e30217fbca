"""Things counted in words, as `check` and others do."""

from __future__ import annotations

import pytest

from tidegate.cli.output import counted


@pytest.mark.parametrize(
    ("noun", "plural"),
    [
        *(("topic", "topics"), ("pipe", "pipes"), ("job", "jobs"), ("view", "views")),
        *(("topology", "topologies"), ("entry", "entries"), ("key", "keys"), ("day", "days")),
        *(("process", "processes"), ("box", "boxes"), ("batch", "batches"), ("hash", "hashes")),
    ],
)
def test_the_plural_is_the_one_that_people_know(noun: str, plural: str) -> None:
    assert counted(0, noun) == f"no {plural}"
    assert counted(1, noun) == f"1 {noun}"
    assert counted(2_000, noun) == f"2,000 {plural}"
