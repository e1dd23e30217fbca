"""The lease on leadership: one holder, one term, an end that the store's clock decides."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Lease:
    """The one row of `leadership`, read together with the store's clock."""

    term: int
    holder: str
    """Empty before the first election and after an abdication."""
    expires_at: int
    elected_at: int
    now: int
    """The store's time at the reading; no other clock is compared with `expires_at`."""

    def established(self, length: int) -> bool:
        """Tell whether somebody leads.

        A lease that ends further ahead than one length was written under another clock.
        """
        return bool(self.holder) and self.now < self.expires_at <= self.now + length
