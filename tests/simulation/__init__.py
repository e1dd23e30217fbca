"""The real control plane on one seeded queue of events, with virtual time and every kind of fault.

    heap       virtual time: who goes on when
    process    a process: its greenlets, its clock, its death
    database   the real store's SQL on SQLite in memory, failing before and after a commit
    network    a bus that loses, doubles, reorders and delays
    sea        a lake whose writes may land late
    landing    rows of another kind than tables, landed there
    crew       managers, workers and a foreign worker, put together as the commands do
    faults     what goes wrong, and when
    witness    the invariants, looked at after every event
    ledger     those of a flow that counts: a kind that is no table, of `tests/kinds`
    play       one seed: trouble, calm, verdict
    guards     what must not be taken away

`make simulate SEEDS=N START=M` plays seeds; a failing one prints its story and can be run alone.
Then it takes the guards away, one by one, and searches a seed that fails for the lack of each.
"""
