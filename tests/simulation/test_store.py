"""The store of the plays keeps the same promises as the real ones: the same tests, once more."""

from __future__ import annotations

import time
from random import Random

import pytest

from tests.contract.scenes import KINDS
from tests.contract.test_claims import *  # noqa: F403
from tests.contract.test_ends import *  # noqa: F403
from tests.contract.test_failures import *  # noqa: F403
from tests.contract.test_fleet import *  # noqa: F403
from tests.contract.test_leading import *  # noqa: F403
from tests.contract.test_offsets import *  # noqa: F403
from tests.contract.test_rebuilds import *  # noqa: F403
from tests.contract.test_records import *  # noqa: F403
from tidegate.store import SqlStore

from .database import Database, calm_store


@pytest.fixture
def database() -> Database:
    return Database(lambda: time.time() * 1000, Random(0))


@pytest.fixture
def store(database: Database) -> SqlStore:
    return calm_store(database, KINDS)


# Races of several connections: in a play one closure runs at a time.
del (
    test_of_racing_claims_exactly_one_wins,  # noqa: F821
    test_of_racing_claims_in_one_lane_exactly_one_wins,  # noqa: F821
    test_of_racing_heirs_of_a_dead_holder_exactly_one_wins,  # noqa: F821
    test_of_many_that_stand_at_once_one_is_elected,  # noqa: F821
    test_a_fresh_lease_is_renewed_while_others_write,  # noqa: F821
    test_racing_looks_never_take_a_table_back,  # noqa: F821
    test_projects_applied_at_once_get_versions_of_their_own,  # noqa: F821
    test_locations_never_collide,  # noqa: F821
)
