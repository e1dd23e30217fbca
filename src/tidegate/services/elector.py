"""Leadership: stand for it when nobody leads, keep it while the lease can be renewed.

1. Ask whether a leader is established; if so, do nothing. 2. Announce candidacy. 3. The
compare-and-set of the term decides. 4. Elected: renew before every turn, abdicate when that fails.
"""

from __future__ import annotations

from tidegate.errors import Deposed
from tidegate.model.leadership import Lease
from tidegate.ports import Leadership


class Elector:
    """One candidate."""

    def __init__(self, leadership: Leadership, me: str, lease: int) -> None:
        self._leadership = leadership
        self._me = me
        self._lease = lease

    def stand(self) -> int | None:
        """Try to become the leader; give the term if that succeeded."""
        # 1. Asked first, so that a candidate in a settled team writes nothing.
        if self._leadership.read().established(self._lease):
            return None
        # 2 and 3.
        return self._leadership.take(self._me, self._lease)

    def renew(self, term: int) -> Lease:
        """4. Keep the lease going; raises Deposed when it is no longer ours."""
        lease = self._leadership.renew(term, self._lease)
        if lease is None:
            raise Deposed(f"the lease of term {term} has run out")
        return lease

    def resign(self, term: int) -> None:
        self._leadership.resign(term)
