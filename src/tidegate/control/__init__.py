"""The path of one block, from the plan to the ripple.

    1 plan ──▶ 2 assign ──▶ 3 claim, declare ──▶ 4 read ──▶ 5 load ──▶ 6 commit ──▶ 7 report
      ▲                                                                                 │
      └───────────────────────────────── 8 ripple ──────────────────────────────────────┘

Who moves what: the planner gathers facts and plans (1); a run in the foreground, or the leader,
assigns (2) and plans again (8); the executor owns the claim (3) and the commit (6), and has the
reporter tell of them (7); a Runner reads and loads (4, 5). A crash at any point leaves the store
and the table in a state that the next execution goes on from:

    before the declaration      nothing happened
    after it                    the same block again, by the same definition
    after the write             the write is skipped, for the table records it
    after the commit            nothing is left to do

Leadership, after which all of this goes on without anybody's hand:

    candidate ──lease expired: term + 1──▶ leader ──lease not renewed, or resigned──▶ candidate

    elector    moves the lease                    manager   stands, and leads while elected
    leader     hears, rescues, plans, assigns     message_handler  what messages change
    rescuer    takes work from the dead           worker     slots, heartbeats, what they are told
    own_host   frees what the dead of this host held, which nobody sees from afar

Every write of a leader carries its term, every claim names its worker, every commit its execution:
whoever was stopped and goes on too late finds that no row fits, and walks away.

All of it is blocking code over `ports`: time, life and randomness come from `ports.Runtime`.
"""
