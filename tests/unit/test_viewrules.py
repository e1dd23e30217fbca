"""The rules of a Step's transform: what is refused, at which line, and what is let through."""

from __future__ import annotations

import pytest

from tidegate.sql.reading import Finding, ViewCycleError, read_view
from tidegate.sql.rules import doubled_names, step_findings

BLOCK = "FROM stage.orders o WHERE block(o.pos, o.id)"
GROUPS = "SELECT customer_id FROM stage.orders WHERE block(pos, id)"


def _findings(
    text: str, *, keyed: bool = False, sharded: bool = False, **others: str
) -> list[Finding]:
    texts = {"fact": text, **others}
    views = {name: read_view(name, body) for name, body in texts.items()}
    return step_findings(
        "fact", views, base="stage.Orders", pos="pos", id="id", keyed=keyed, sharded=sharded
    )


def _refused(text: str, *, keyed: bool = True, **others: str) -> list[tuple[str, int, str]]:
    """View, line and what is said to stand over a block."""
    return [
        (finding.view, finding.line, finding.message.partition(" over a block: ")[0])
        for finding in _findings(text, keyed=keyed, sharded=False, **others)
        if " over a block: " in finding.message
    ]


class TestReadingThroughBlock:
    def test_a_plain_step_is_right(self) -> None:
        assert (
            _findings(
                "SELECT o.pos, o.id, c.segment, o.amount FROM stage.orders o\n"
                "LEFT JOIN stage.customers c ON c.customer_id = o.customer_id\n"
                "WHERE block(o.pos, o.id)"
            )
            == []
        )

    def test_without_block_the_base_is_named_at_its_line(self) -> None:
        (finding,) = _findings("SELECT o.pos, o.id\nFROM Stage.Orders o WHERE upto(o.pos, o.id)")
        assert (finding.view, finding.line) == ("fact", 2)
        assert "does not read stage.Orders through block()" in finding.message
        assert "whole table" in finding.message

    def test_without_the_base_at_all_it_is_the_first_line(self) -> None:
        (finding,) = _findings("SELECT\npos, id FROM stage.other")
        assert finding.line == 1

    @pytest.mark.parametrize("text", ["SELECT * FROM inner_", "SELECT * FROM INNER_ i"])
    def test_block_may_stand_in_a_view_that_is_read(self, text: str) -> None:
        assert _findings(text, inner_=f"SELECT o.* {BLOCK}") == []

    def test_block_in_a_view_that_is_not_read_does_not_count(self) -> None:
        assert len(_findings("SELECT pos, id FROM stage.orders", other=f"SELECT o.* {BLOCK}")) == 1

    def test_views_in_a_circle_are_an_error(self) -> None:
        with pytest.raises(ViewCycleError):
            _findings("SELECT * FROM a", a="SELECT * FROM fact")


class TestArguments:
    @pytest.mark.parametrize(
        ("call", "words"),
        [
            ("block()", "0 arguments"),
            ("Block(o.pos)", "1 argument"),
            ("block(1, 2, 3, 4)", "4 arguments"),
            ("block(pos => o.pos, id => o.id)", "without names"),
        ],
    )
    def test_wrong_ones(self, call: str, words: str) -> None:
        (finding,) = _findings(f"SELECT o.pos, o.id FROM stage.orders o\nWHERE {call}", keyed=True)
        assert finding.line == 2
        assert finding.message.startswith("block()")
        assert words in finding.message

    def test_they_are_found_in_the_views_that_are_read(self) -> None:
        (finding,) = _findings(
            f"SELECT o.pos, o.id {BLOCK} AND o.k IN (SELECT k FROM inner_)",
            inner_="SELECT k\nFROM stage.orders WHERE upto(pos)",
        )
        assert (finding.view, finding.line) == ("inner_", 2)
        assert finding.message.startswith("upto()")

    def test_three_are_fine(self) -> None:
        text = "SELECT pos, id FROM stage.orders WHERE block(pos, id, typeof(pos))"
        assert _findings(text) == []


class TestPositionColumns:
    @pytest.mark.parametrize(
        "columns",
        [
            "o.pos, o.id",
            "POS, `Id`",
            "o.*",
            "*",
            "o.x, o.* EXCEPT (x)",
            "pos, (o.id)",
            "o.pos AS pos, o.id id",
            "inline(o.rows)",
            "from_json(o.body, :schema).*",
        ],
    )
    def test_given_as_they_are(self, columns: str) -> None:
        assert _findings(f"SELECT {columns} {BLOCK}") == []

    @pytest.mark.parametrize(
        ("columns", "missing"),
        [
            ("o.id", "pos"),
            ("o.pos", "id"),
            ("o.amount", "pos and id"),
            ("o.pos AS p, o.id", "pos"),
            ("o.* EXCEPT (POS)", "pos"),
            ("o.id, count(*)", "pos"),
            ("o.id, posexplode(xs)", "pos"),
            ("struct(o.pos, o.id)", "pos and id"),
        ],
    )
    def test_missing(self, columns: str, missing: str) -> None:
        findings = _findings(f"SELECT\n{columns} {BLOCK}", keyed=True)
        assert findings[0].line == 2
        assert findings[0].message.startswith(f"does not give {missing}:")

    def test_each_branch_of_a_union_gives_them(self) -> None:
        findings = _findings(f"SELECT o.pos, o.id {BLOCK}\nUNION ALL\n(SELECT o.id {BLOCK})")
        assert [(f.line, f.message[:18]) for f in findings] == [(3, "does not give pos:")]

    @pytest.mark.parametrize(
        "columns",
        [
            "o.pos + 1 AS pos, o.id",
            "o.updated AS pos, o.id",
            "c.pos, o.id",
            "CAST(o.pos AS BIGINT), o.id",
            "coalesce(o.pos, 0) AS pos, o.id",
            "0 AS pos, o.id",
        ],
    )
    def test_another_position_than_the_base_rows_own(self, columns: str) -> None:
        (finding,) = _findings(f"SELECT\n{columns} {BLOCK}")
        assert finding.line == 2
        assert finding.message == (
            "pos must be the base row's own position, as given to block(): select o.pos as it is"
        )

    def test_the_id_is_held_to_the_same(self) -> None:
        (finding,) = _findings(f"SELECT o.pos, o.order_id AS id {BLOCK}")
        assert finding.message.startswith("id must be the base row's own position")

    @pytest.mark.parametrize(
        ("pos", "argument"),
        [
            ("ts AS pos", "o.TS"),
            ("o.ts AS pos", "ts"),
            ("o.ts AS pos", "stage.o.ts"),
            ("unix_millis(o.ts) AS pos", "unix_millis(o.TS)"),
            ("(o.ts) AS pos", "o.ts"),
        ],
    )
    def test_the_same_under_another_name(self, pos: str, argument: str) -> None:
        text = f"SELECT {pos}, o.id FROM stage.orders o WHERE block({argument}, o.id)"
        assert _findings(text) == []

    def test_a_table_without_alias(self) -> None:
        text = "SELECT stage.orders.pos, id FROM stage.orders WHERE block(orders.pos, orders.id)"
        assert _findings(text) == []

    def test_an_expression_that_differs_from_blocks(self) -> None:
        text = "SELECT o.ts AS pos, id FROM stage.orders o WHERE block(unix_millis(o.ts), id)"
        (finding,) = _findings(text)
        assert finding.message == "pos must be the base row's own position, as given to block()"

    def test_the_condition_of_a_join_holds_block_too(self) -> None:
        text = (
            "SELECT c.pos, o.id FROM stage.customers c\n"
            "JOIN stage.orders o ON o.k = c.k AND block(o.pos, o.id)"
        )
        (finding,) = _findings(text)
        assert finding.message.startswith("pos must be")

    @pytest.mark.parametrize(
        "text",
        [
            f"SELECT i.pos + 1 AS pos, i.id FROM (SELECT o.* {BLOCK}) i",
            f"WITH i AS (SELECT o.* {BLOCK}) SELECT i.p AS pos, i.id FROM i",
        ],
    )
    def test_further_out_it_is_not_followed(self, text: str) -> None:
        assert _findings(text) == []

    def test_a_keyed_step_may_give_any_position(self) -> None:
        text = f"SELECT o.updated AS pos, o.id + 1 AS id, o.k {BLOCK}"
        assert _findings(text, keyed=True) == []

    def test_a_generator_may_name_them(self) -> None:
        assert _findings(f"SELECT stack(1, o.pos, o.id) AS (pos, id) {BLOCK}", keyed=True) == []

    def test_other_names_of_the_position(self) -> None:
        text = "SELECT o.updated_ms, o.seq FROM stage.orders o WHERE block(o.updated_ms, o.seq)"
        views = {"fact": read_view("fact", text)}
        findings = step_findings(
            "fact", views, base="stage.orders", pos="updated_ms", id="seq", keyed=False
        )
        assert findings == []


# As listed by Spark 4.2's own registry of functions.
SPARK_AGGREGATES = (
    "any any_value approx_count_distinct approx_percentile approx_top_k approx_top_k_accumulate "
    "approx_top_k_combine array_agg avg bit_and bit_or bit_xor bitmap_and_agg "
    "bitmap_construct_agg bitmap_or_agg bool_and bool_or collect_list collect_set corr count "
    "count_if count_min_sketch covar_pop covar_samp every first first_value grouping grouping_id "
    "histogram_numeric hll_sketch_agg hll_union_agg kll_merge_agg_bigint kll_merge_agg_double "
    "kll_merge_agg_float kll_sketch_agg_bigint kll_sketch_agg_double kll_sketch_agg_float kurtosis "
    "last last_value listagg max max_by mean measure median min min_by mode percentile "
    "percentile_approx percentile_cont percentile_disc regr_avgx regr_avgy regr_count "
    "regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy schema_of_variant_agg skewness "
    "some std stddev stddev_pop stddev_samp string_agg sum theta_intersection_agg theta_sketch_agg "
    "theta_union_agg try_avg try_sum tuple_intersection_agg_double tuple_intersection_agg_integer "
    "tuple_sketch_agg_double tuple_sketch_agg_integer tuple_union_agg_double "
    "tuple_union_agg_integer var_pop var_samp variance"
)
TWO_ARGUMENTS = ("corr", "covar_", "max_by", "min_by", "regr_", "percentile", "approx_percentile")
# sqlglot keeps one name for each pair of synonyms, and not where it stood.
SYNONYMS = {"approx_percentile": "percentile_approx", "string_agg": "listagg"}


class TestNames:
    @pytest.mark.parametrize(
        ("text", "name"),
        [
            ("SELECT o.pos, o.id, o.amount,\no.net AS Amount", "amount"),
            ("SELECT o.pos, o.id, o.amount,\nCAST(o.amount AS INT)", "amount"),
            ("SELECT o.*, o.pos, o.id,\no.ID", "id"),
        ],
    )
    def test_no_column_is_given_twice(self, text: str, name: str) -> None:
        (finding,) = doubled_names(read_view("fact", f"{text} {BLOCK}"))
        assert finding.line == 2
        assert finding.message.startswith(f"gives the column {name} twice")

    @pytest.mark.parametrize(
        "text",
        [
            f"SELECT o.*, p.* {BLOCK}",
            f"SELECT o.pos, o.id, o.a + 1, o.a + 2 {BLOCK}",
            f"SELECT o.pos, o.id, o.a {BLOCK} UNION ALL SELECT o.pos, o.id, o.id {BLOCK}",
        ],
    )
    def test_names_that_do_not_meet_are_let_through(self, text: str) -> None:
        assert list(doubled_names(read_view("fact", text))) == []


class TestAggregates:
    @pytest.mark.parametrize("name", SPARK_AGGREGATES.split())
    @pytest.mark.parametrize("quote", ["", "`"])
    def test_every_aggregate_of_spark_is_known(self, name: str, quote: str) -> None:
        arguments = "a, b" if name.startswith(TWO_ARGUMENTS) else "a"
        ((view, line, found),) = _refused(
            f"SELECT o.pos, o.id,\n{quote}{name}{quote}({arguments}) {BLOCK}"
        )
        assert (view, line, found) == ("fact", 2, f"{SYNONYMS.get(name, name)}()")

    @pytest.mark.parametrize(
        ("columns", "found"),
        [
            ("COUNT(*)", "count()"),
            ("count(DISTINCT o.x)", "count()"),
            ("1 + max(o.x) / min(o.x)", "max() and min()"),
            ("sum(o.x) FILTER (WHERE o.y > 1)", "sum()"),
            ("percentile_cont(0.5) WITHIN GROUP (ORDER BY o.x)", "percentile_cont()"),
            ("first(o.x) IGNORE NULLS", "first()"),
            ("row_number() OVER (ORDER BY o.x)", "window function row_number()"),
            ("sum(o.x) OVER (PARTITION BY o.y)", "window function sum()"),
            ("sum(o.x) FILTER (WHERE o.y) OVER w", "window function sum()"),
            ("lag(o.x) IGNORE NULLS OVER (ORDER BY o.y)", "window function lag()"),
            ("CASE WHEN any(o.x) THEN some(o.y) END", "any() and some()"),
        ],
    )
    def test_what_was_found_is_named(self, columns: str, found: str) -> None:
        ((_, _, named),) = _refused(f"SELECT o.pos, o.id, {columns} {BLOCK} WINDOW w AS ()")
        assert sorted(named.split(" and ")) == sorted(found.split(" and "))

    @pytest.mark.parametrize(
        "columns",
        [
            "aggregate(xs, 0, (a, x) -> a + x), reduce(xs, 0, (a, x) -> a + x)",
            "array_max(xs), array_min(xs), greatest(a, b), least(a, b), cardinality(xs)",
            "transform(xs, x -> x + 1), exists(xs, x -> x > 1), forall(xs, x -> x > 1)",
            "a LIKE ANY ('x%', 'y%'), a NOT LIKE SOME ('x'), a ILIKE ALL ('y')",
            "max, o.count, o.first AS last, 'sum(x)' -- sum(x)\n",
            "hll_sketch_estimate(s), bitmap_count(b), explode(xs)",
        ],
    )
    def test_what_only_looks_like_an_aggregate(self, columns: str) -> None:
        assert _findings(f"SELECT o.pos, o.id, {columns} {BLOCK}") == []


class TestOverABlock:
    @pytest.mark.parametrize(
        ("tail", "found", "line"),
        [
            ("GROUP BY o.x", "GROUP BY", 2),
            ("GROUP BY 1", "GROUP BY", 2),
            ("GROUP BY ALL", "GROUP BY", 2),
            ("HAVING o.x > 1", "HAVING", 2),
            ("LIMIT 10", "LIMIT", 2),
            ("ORDER BY o.x\nLIMIT 10", "LIMIT", 3),
            ("LIMIT 10\nOFFSET 5", "LIMIT and OFFSET", 2),
            ("AND o.k IN (SELECT k FROM d)\nLIMIT :n", "LIMIT", 3),
            ("QUALIFY rank() OVER (ORDER BY o.x) = 1", "window function rank()", 2),
            ("ORDER BY\nmax(o.x)", "max()", 3),
        ],
    )
    def test_a_clause_of_the_select_that_holds_block(
        self, tail: str, found: str, line: int
    ) -> None:
        assert _refused(f"SELECT o.pos, o.id {BLOCK}\n{tail}") == [("fact", line, found)]

    @pytest.mark.parametrize(
        "tail",
        ["ORDER BY o.x", "SORT BY o.x", "DISTRIBUTE BY o.x", "CLUSTER BY o.x", "LIMIT ALL"],
    )
    def test_a_clause_that_needs_one_row_at_a_time(self, tail: str) -> None:
        assert _findings(f"SELECT o.pos, o.id {BLOCK} {tail}") == []

    def test_distinct(self) -> None:
        assert _refused(f"SELECT DISTINCT\no.pos, o.id {BLOCK}") == [("fact", 2, "DISTINCT")]

    def test_all_that_one_select_does_is_one_finding(self) -> None:
        text = f"SELECT max(o.pos) pos, max(o.id) id,\ncount(*) {BLOCK}\nGROUP BY 1 LIMIT 3"
        assert _refused(text) == [("fact", 1, "max(), count(), GROUP BY and LIMIT")]

    def test_the_message_shows_the_right_way(self) -> None:
        (finding,) = _findings(f"SELECT DISTINCT o.pos, o.id {BLOCK}", keyed=True)
        for words in ("IN (SELECT … WHERE block(…))", "upto(…)", "`keys`", "max of (pos, id)"):
            assert words in finding.message

    @pytest.mark.parametrize(
        "text",
        [
            f"SELECT max(pos) pos, max(id) id FROM (SELECT o.* {BLOCK}) x",
            f"SELECT max(pos) pos, max(id) id FROM (SELECT * FROM ((SELECT o.* {BLOCK})))",
            f"WITH b AS (SELECT o.* {BLOCK}) SELECT max(pos) pos, max(id) id FROM b",
            f"WITH b AS (SELECT o.* {BLOCK}), c AS (SELECT * FROM B) "
            "SELECT max(pos) pos, max(id) id FROM stage.x JOIN c USING (k)",
            f"SELECT max(pos) pos, max(id) id FROM stage.x, LATERAL (SELECT o.* {BLOCK}) b",
            f"SELECT max(pos) pos, max(id) id FROM (stage.x x JOIN (SELECT o.* {BLOCK}) b ON true)",
            f"SELECT max(pos) pos, max(id) id FROM (SELECT o.* {BLOCK} UNION ALL SELECT * FROM x)",
            "SELECT max(pos) pos, max(id) id FROM inner_",
            "SELECT max(pos) pos, max(id) id FROM stage.x x LEFT JOIN outer_ o ON o.k = x.k",
            "WITH inner_ AS (SELECT * FROM inner_) SELECT max(pos) pos, max(id) id FROM inner_",
            "SELECT max(pos) pos, max(id) id FROM stage.x c JOIN stage.orders o ON block(o.p, o.i)",
            "SELECT max(pos) pos, max(id) id FROM (x JOIN stage.orders o ON block(o.p, o.i))",
            "SELECT max(pos) pos, max(id) id FROM stage.orders HAVING block(max(pos), max(id))",
            "SELECT max(pos) pos, max(id) FILTER (WHERE block(pos, id)) id FROM stage.orders",
        ],
    )
    def test_rows_are_followed_from_select_to_select(self, text: str) -> None:
        inner, outer = f"SELECT o.* {BLOCK}", "SELECT * FROM (SELECT * FROM inner_)"
        ((_, _, found),) = _refused(text, inner_=inner, outer_=outer)
        assert "max()" in found

    def test_a_finding_stands_in_the_view_that_is_at_fault(self) -> None:
        refused = _refused(
            "SELECT * FROM outer_",
            outer_="SELECT * FROM\ninner_\nLIMIT 3",
            inner_=f"SELECT DISTINCT o.* {BLOCK}",
        )
        assert sorted(refused) == [("inner_", 1, "DISTINCT"), ("outer_", 3, "LIMIT")]

    def test_a_view_read_twice_is_reported_once(self) -> None:
        text = "SELECT * FROM inner_ UNION ALL SELECT * FROM inner_"
        refused = _refused(text, inner_=f"SELECT DISTINCT o.* {BLOCK}")
        assert refused == [("inner_", 1, "DISTINCT")]

    @pytest.mark.parametrize(
        ("operator", "found"),
        [
            ("UNION", "UNION without ALL"),
            ("UNION DISTINCT", "UNION without ALL"),
            ("INTERSECT", "INTERSECT"),
            ("EXCEPT ALL", "EXCEPT"),
            ("MINUS", "EXCEPT"),
        ],
    )
    def test_set_operations(self, operator: str, found: str) -> None:
        text = f"SELECT o.pos, o.id {BLOCK}\n{operator}\nSELECT pos, id FROM stage.old"
        assert _refused(text) == [("fact", 2, found)]

    def test_union_all_is_free(self) -> None:
        text = f"SELECT o.pos, o.id {BLOCK}"
        assert _findings(f"{text} UNION ALL {text} UNION ALL ({text}) ORDER BY pos") == []

    @pytest.mark.parametrize("around", ["({})\nLIMIT 3", "{0} UNION ALL {0}\nLIMIT 3"])
    def test_a_limit_around_whole_queries(self, around: str) -> None:
        assert _refused(around.format(f"SELECT o.pos, o.id {BLOCK}")) == [("fact", 2, "LIMIT")]

    def test_a_scalar_subquery_over_a_block(self) -> None:
        text = f"SELECT o.pos, o.id,\n(SELECT max(x) {BLOCK}) m {BLOCK}"
        assert _refused(text) == [("fact", 2, "max()")]

    def test_a_scalar_subquery_in_the_condition_of_a_join(self) -> None:
        text = f"SELECT o.* FROM stage.orders o\nJOIN x ON x.k = (SELECT max(k) {BLOCK})"
        assert _refused(text) == [("fact", 2, "max()")]

    def test_pivot(self) -> None:
        pivot = "PIVOT (sum(a) FOR\nb IN (1, 2))"
        assert _refused(f"SELECT * FROM (SELECT o.* {BLOCK}) {pivot}") == [("fact", 1, "PIVOT")]
        assert _refused(f"SELECT * FROM stage.orders {pivot} WHERE block(pos, id)") == [
            ("fact", 1, "PIVOT")
        ]

    @pytest.mark.parametrize(
        "text",
        [
            "SELECT o.* FROM stage.orders o JOIN stage.x PIVOT (sum(a) FOR b IN (1)) p ON true "
            "WHERE block(o.pos, o.id)",
            f"SELECT * FROM (SELECT o.* {BLOCK}) UNPIVOT (v FOR k IN (a, b))",
        ],
    )
    def test_pivots_of_other_tables_and_unpivot_are_free(self, text: str) -> None:
        assert _findings(text) == []


class TestFreeAggregates:
    @pytest.mark.parametrize(
        "condition",
        [
            f"customer_id IN ({GROUPS})",
            "customer_id IN (SELECT DISTINCT customer_id FROM (" + GROUPS + "))",
            "(customer_id, 1) IN (SELECT customer_id, count(*) FROM groups GROUP BY 1 LIMIT 3)",
            "EXISTS (SELECT max(g.x) FROM groups g WHERE g.customer_id = o.customer_id)",
            "NOT EXISTS ((SELECT 1 FROM (SELECT DISTINCT * FROM groups)))",
            "o.x NOT IN (SELECT (SELECT max(y) FROM groups) FROM stage.y)",
        ],
    )
    def test_groups_picked_by_a_subquery(self, condition: str) -> None:
        text = (
            "SELECT customer_id, max(pos) AS pos, max_by(id, struct(pos, id)) AS id, count(*)\n"
            f"FROM stage.orders o WHERE {condition} AND upto(o.pos, o.id)\n"
            "GROUP BY customer_id HAVING count(*) > 1"
        )
        assert _findings(text, keyed=True, groups=f"{GROUPS} GROUP BY 1") == []

    def test_groups_picked_by_a_cte(self) -> None:
        text = (
            f"WITH g AS ({GROUPS} GROUP BY 1) SELECT customer_id, max(pos) pos, max(id) id "
            "FROM stage.orders WHERE customer_id IN (SELECT customer_id FROM g) GROUP BY 1"
        )
        assert _findings(text, keyed=True) == []

    @pytest.mark.parametrize("join", ["LEFT SEMI JOIN", "SEMI JOIN", "LEFT ANTI JOIN"])
    def test_groups_picked_by_a_semi_join(self, join: str) -> None:
        text = (
            "SELECT o.customer_id, max(o.pos) pos, max(o.id) id FROM stage.orders o\n"
            f"{join} (SELECT DISTINCT * FROM ({GROUPS})) g ON g.customer_id = o.customer_id\n"
            "WHERE upto(o.pos, o.id) GROUP BY 1"
        )
        assert _findings(text, keyed=True) == []

    def test_but_not_if_block_stands_in_its_condition(self) -> None:
        text = (
            "SELECT max(o.pos) pos, max(o.id) id FROM stage.orders o\n"
            "LEFT SEMI JOIN stage.x x ON x.k = o.k AND block(o.pos, o.id)"
        )
        assert _refused(text) == [("fact", 1, "max()")]

    def test_a_cte_read_in_from_as_well_is_not_free(self) -> None:
        text = (
            f"WITH g AS ({GROUPS}\nGROUP BY 1) SELECT 1 pos, 2 id FROM g "
            "WHERE customer_id IN (SELECT customer_id FROM g)"
        )
        assert _refused(text) == [("fact", 2, "GROUP BY")]

    @pytest.mark.parametrize(
        "other",
        [
            "(SELECT customer_id, count(*) n FROM stage.x GROUP BY 1)",
            "(SELECT DISTINCT customer_id, 1 n FROM stage.x LIMIT 3)",
            f"(SELECT customer_id, sum(x) n FROM stage.x WHERE k IN ({GROUPS}) GROUP BY 1)",
            "counts",
            "LATERAL (SELECT max(x) n FROM stage.x x WHERE x.k = o.k)",
            "(SELECT 1 n FROM stage.x UNION SELECT 2 n FROM stage.y LIMIT 3)",
        ],
    )
    def test_what_is_joined_to_a_block_may_aggregate_other_rows(self, other: str) -> None:
        text = f"SELECT o.pos, o.id, c.n FROM stage.orders o JOIN {other} c WHERE block(pos, id)"
        assert _findings(text, counts="SELECT customer_id, count(*) n FROM x GROUP BY 1") == []

    def test_a_scalar_subquery_over_other_rows(self) -> None:
        text = f"SELECT o.pos, o.id, (SELECT max(x) FROM stage.x x WHERE x.k = o.k) {BLOCK}"
        assert _findings(text) == []

    def test_a_cte_that_nobody_reads(self) -> None:
        text = f"WITH unread AS (SELECT DISTINCT o.* {BLOCK}) SELECT o.pos, o.id {BLOCK}"
        assert _findings(text) == []

    def test_a_name_that_a_cte_hides_is_not_the_view(self) -> None:
        text = (
            f"WITH inner_ AS (SELECT * FROM stage.x) SELECT o.pos, o.id {BLOCK} "
            "AND o.k = (SELECT max(k) FROM inner_)"
        )
        assert _findings(text, inner_=f"SELECT o.* {BLOCK}") == []

    def test_a_recursive_cte_meets_itself(self) -> None:
        text = (
            f"WITH RECURSIVE r AS (SELECT o.pos, o.id {BLOCK} UNION ALL SELECT * FROM r) "
            "SELECT max(pos) pos, max(id) id FROM r"
        )
        assert _refused(text) == [("fact", 1, "max()")]


class TestShards:
    @pytest.mark.parametrize(
        "text",
        [
            f"SELECT o.pos, o.id {BLOCK}",
            "SELECT pos, id FROM STAGE.orders WHERE block(pos, id)",
            "SELECT pos, id FROM stage.orders WHERE block(orders.pos, stage.orders.id)",
            "SELECT o.pos, o.id FROM stage.x JOIN stage.orders o ON block(o.pos, o.id)",
            "WITH o AS (SELECT * FROM stage.orders WHERE block(pos, id)) SELECT pos, id FROM o",
        ],
    )
    def test_block_on_the_base_itself_can_be_dealt(self, text: str) -> None:
        assert _findings(text, sharded=True) == []

    @pytest.mark.parametrize(
        "text",
        [
            "SELECT pos, id\nFROM (SELECT * FROM stage.orders) o WHERE block(pos, id)",
            "WITH o AS (SELECT * FROM stage.orders)\nSELECT pos, id FROM o WHERE block(pos, id)",
            "SELECT o.pos, o.id FROM stage.orders o\nJOIN stage.x x ON block(x.pos, o.id)",
            "SELECT pos + 0 AS pos, id FROM stage.orders\nWHERE block(pos + 0, id)",
        ],
    )
    def test_block_on_anything_else_cannot(self, text: str) -> None:
        messages = {finding.message: finding.line for finding in _findings(text, sharded=True)}
        (message,) = (message for message in messages if message.startswith("with shards"))
        assert messages[message] == 2
        assert not any("with shards" in finding.message for finding in _findings(text))
