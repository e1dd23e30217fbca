"""Tables: a kind of flow that fills a table of the lake from other tables, block by block.

    reading ─▶ definition ─▶ checks, lake_checks     graph: who builds and reads what
                   │
         ┌─────────┘
         ▼
    planner ──plan──▶ [assign, claim] ──▶ runner ──▶ [commit]        (1; 2 and 3; 3b, 4, 5; 6)
                                            │
             block_finder (3b) ◀────────────┼──▶ views (4) ──▶ failing_rows ──▶ writes (5)
                                            ├──▶ rebuild: a table built beside, then published
                                            └──▶ care: compaction and VACUUM

Steps in brackets are everybody's (control, store).
"""
