"""The path of one block, from the plan to the ripple.

    1 plan ──▶ 2 assign ──▶ 3 claim, declare ──▶ 4 read ──▶ 5 load ──▶ 6 commit ──▶ 7 report
      ▲                                                                                 │
      └───────────────────────────────── 8 ripple ──────────────────────────────────────┘

Who moves what: the lookout gathers facts and plans (1); the foreground run assigns (2), reports (7)
and plans again (8); the executor owns the claim (3) and the commit (6); a Runner reads and loads
(4, 5). A crash at any point leaves the store and the table in a state that the next execution goes
on from:

    before the declaration      nothing happened
    after it                    the same block again, by the same definition
    after the write             the write is skipped, for the table records it
    after the commit            nothing is left to do

All of it is blocking code over `ports`: time, life and randomness come from `ports.Runtime`.
"""
