"""What is read out of a view's text, and that edits leave all the rest of it as it was."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.sql.editing import Shard, pinned, redirected, sharded, typed
from tidegate.sql.reading import (
    ViewCycleError,
    ViewSyntaxError,
    ViewText,
    reachable,
    read_view,
    tables_read,
)


def _views(**texts: str) -> dict[str, ViewText]:
    return {name: read_view(name, text) for name, text in texts.items()}


class TestTablesAndViews:
    @pytest.mark.parametrize(
        ("text", "tables", "views"),
        [
            ("SELECT 1", {}, {}),
            ("SELECT a FROM stage.orders", {"stage.orders": 1}, {}),
            ("SELECT a FROM Stage.ORDERS o", {"stage.orders": 1}, {}),
            ("SELECT a\nFROM lake.stage.orders", {"lake.stage.orders": 2}, {}),
            ("SELECT a FROM c.n.s.t", {"c.n.s.t": 1}, {}),
            ("SELECT a FROM `my-db`.`t`x", {"my-db.t": 1}, {}),
            ("SELECT a FROM `my-db`.`t 1` AS `x.y`", {"my-db.t 1": 1}, {}),
            ("SELECT a FROM db.`t``x`", {"db.t`x": 1}, {}),
            ("SELECT a FROM db . /* x */ t", {"db.t": 1}, {}),
            ("SELECT a FROM db.2024_orders", {"db.2024_orders": 1}, {}),
            ("SELECT a FROM orders_enriched", {}, {"orders_enriched": 1}),
            ("SELECT a FROM `Orders`", {}, {"orders": 1}),
            ("SELECT a\r\nFROM a.b\r\nJOIN c\r\nJOIN a.b x", {"a.b": 2}, {"c": 3}),
            ("SELECT a FROM delta.`/lake/x`, parquet.`s3://b/x`, csv.`a.csv`", {}, {}),
            ("SELECT a FROM range(10) r, explode(array(1)), VALUES (1) AS t(a)", {}, {}),
            ("SELECT a FROM db.t VERSION AS OF 3 x", {"db.t": 1}, {}),
            ("SELECT a FROM db.t TIMESTAMP AS OF '2020-01-01'", {"db.t": 1}, {}),
            ("SELECT a FROM (db.t) x JOIN (db.u JOIN v ON true)", {"db.t": 1, "db.u": 1}, {"v": 1}),
            ("SELECT /*+ BROADCAST(c), MERGE(db.x) */ a FROM db.t c", {"db.t": 1}, {}),
            ("SELECT db.t.pos FROM db.t WHERE db.x.y = 1", {"db.t": 1}, {}),
            (
                "SELECT (SELECT max(a) FROM db.s)\nFROM db.t\n"
                "WHERE a IN (SELECT a FROM db.i) AND EXISTS (SELECT 1 FROM db.e)",
                {"db.s": 1, "db.t": 2, "db.i": 3, "db.e": 3},
                {},
            ),
            ("SELECT a FROM db.t, LATERAL (SELECT b FROM db.u) x", {"db.t": 1, "db.u": 1}, {}),
            ("SELECT a FROM db.t UNION ALL (SELECT a FROM db.u)", {"db.t": 1, "db.u": 1}, {}),
            ("SELECT a FROM f(TABLE(SELECT a FROM db.t))", {"db.t": 1}, {}),
            ("SELECT '\nFROM db.no' FROM db.t -- , db.no", {"db.t": 2}, {}),
            ("SELECT 'ж😀' AS ß FROM `дб`.`Т😀`, db.t", {"дб.т😀": 1, "db.t": 1}, {}),
        ],
    )
    def test_names_are_found_with_their_first_line(
        self, text: str, tables: dict[str, int], views: dict[str, int]
    ) -> None:
        view = read_view("v", text)
        assert (view.tables, view.views) == (tables, views)

    @pytest.mark.parametrize(
        ("text", "views"),
        [
            ("WITH c AS (SELECT 1) SELECT * FROM c", set()),
            ("WITH c AS (SELECT 1) SELECT * FROM C JOIN `c`", set()),
            ("WITH c AS (SELECT * FROM c) SELECT * FROM c", {"c"}),
            ("WITH a AS (SELECT * FROM b), b AS (SELECT 1) SELECT * FROM a, b", {"b"}),
            ("WITH a AS (SELECT 1), b AS (SELECT * FROM a) SELECT * FROM b", set()),
            ("SELECT * FROM (WITH c AS (SELECT 1) SELECT * FROM c) JOIN c", {"c"}),
            ("WITH c AS (SELECT 1) SELECT * FROM (SELECT * FROM (SELECT * FROM c))", set()),
            ("WITH c AS (SELECT 1) SELECT 1 WHERE 1 IN (SELECT * FROM c)", set()),
            ("WITH c AS (SELECT 1) SELECT * FROM c UNION ALL SELECT * FROM c", set()),
            ("WITH RECURSIVE r AS (SELECT 1 n UNION ALL SELECT n FROM r) SELECT * FROM r", set()),
            ("WITH block(a, b) AS (SELECT 1, 2) SELECT * FROM block", set()),
        ],
    )
    def test_a_cte_in_scope_is_no_view(self, text: str, views: set[str]) -> None:
        assert set(read_view("v", text).views) == views

    def test_a_qualified_name_is_never_a_cte(self) -> None:
        view = read_view("v", "WITH t AS (SELECT 1) SELECT * FROM db.t, t")
        assert (view.tables, view.views) == ({"db.t": 1}, {})


class TestOtherFacts:
    @pytest.mark.parametrize(
        ("text", "parameters"),
        [
            ("SELECT a FROM t", set()),
            ("SELECT :day, a::int, m['x'] FROM t WHERE a > :Low", {"day", "Low"}),
            ("SELECT a FROM t WHERE b IN (:p, :`q`) LIMIT :n", {"p", "q", "n"}),
            ("SELECT ':no' AS a, CAST(s AS STRUCT<x: INT>) FROM t -- :no", set()),
            ("SELECT v:field FROM t", set()),
        ],
    )
    def test_parameters(self, text: str, parameters: set[str]) -> None:
        assert read_view("v", text).parameters == parameters

    @pytest.mark.parametrize(
        ("text", "calls"),
        [
            ("SELECT a FROM t WHERE block(a, b)", {"block"}),
            ("SELECT a FROM t WHERE `Block` (a, b) AND UPTO\n(a, b)", {"block", "upto"}),
            ("SELECT 'block(a, b)', block, upto FROM t -- upto(a, b)", set()),
            ("SELECT db.block(a, b) FROM block(1, 2), x AS upto(a, b)", set()),
            ("SELECT /*+ block(a, b) */ a FROM t /* block(a, b) */", set()),
        ],
    )
    def test_calls(self, text: str, calls: set[str]) -> None:
        assert read_view("v", text).calls == calls

    @pytest.mark.parametrize(
        ("text", "names"),
        [
            ("SELECT a, rand, uuid, o.current_date, 'now()' FROM t o -- rand()", set()),
            ("SELECT rand(), RANDOM(1), randn(), uuid(), shuffle(a) FROM t", None),
            ("SELECT now(), current_date, current_timestamp(), `uuid`() FROM t", None),
            ("SELECT unix_timestamp() FROM t", {"current_timestamp"}),
            ("SELECT unix_timestamp(a) FROM t", set()),
            ("SELECT monotonically_increasing_id(), spark_partition_id() FROM t", None),
            ("SELECT date 'Today', TIMESTAMP'now', 'tomorrow' FROM t", {"today", "now"}),
            ("SELECT a FROM t TABLESAMPLE (10 PERCENT)", {"tablesample"}),
            ("SELECT a FROM t TABLESAMPLE (10 PERCENT) REPEATABLE (3)", set()),
        ],
    )
    def test_nondeterministic(self, text: str, names: set[str] | None) -> None:
        found = read_view("v", text).nondeterministic
        if names is None:
            listed = text.removeprefix("SELECT ").removesuffix(" FROM t").lower().split(", ")
            names = {call.partition("(")[0].strip("`") for call in listed}
        assert found == names

    def test_the_text_is_kept_as_it_is(self) -> None:
        text = "\r\n SELECT  a -- x\r\n"
        view = read_view("Orders", text)
        assert (view.name, view.text) == ("Orders", text)

    @pytest.mark.parametrize(
        "text",
        [
            "SELECT transform(xs, x -> x + 1), filter(xs, (x, i) -> x > i) FROM t",
            "SELECT aggregate(xs, 0, (a, x) -> a + x), exists(xs, x -> x > 1) FROM t",
            "SELECT * FROM t LATERAL VIEW OUTER explode(xs) e AS x LATERAL VIEW posexplode(y) f",
            "SELECT struct(a, b), named_struct('a', 1).a, INTERVAL 3 DAYS, CASE WHEN a THEN b END",
            "SELECT stack(2, 'a', x, 'b', y) AS (k, v), a::date, a <=> b, a RLIKE 'x' FROM t",
            "SELECT * FROM t PIVOT (sum(a) AS s FOR b IN ('x' AS x, 'y' AS y))",
            "SELECT * FROM t UNPIVOT INCLUDE NULLS ((v, w) FOR k IN ((a, b) AS `x`)) u",
            "SELECT a FROM t QUALIFY row_number() OVER (PARTITION BY a ORDER BY b DESC) = 1",
            "SELECT sum(a) FILTER (WHERE b > 1), date_trunc('HOUR', x) FROM t GROUP BY CUBE (a, b)",
            "SELECT a FROM t TABLESAMPLE (5 ROWS) ORDER BY a NULLS LAST",
            "SELECT r'C:\\', 'it''s', 'a\\'b', \"dq ' x\", 'C:\\\\' FROM t",
            "SELECT 1L, 1.5D, 10BD, X'1F', date'2020-01-01', TIMESTAMP_NTZ '2020-01-01' FROM t",
            "SELECT a /* x /* nested */ y */ FROM t DISTRIBUTE BY a SORT BY b",
            "SELECT a LIKE ANY ('x%', 'y%'), * EXCEPT (b), o.* FROM t o LEFT SEMI JOIN u USING (a)",
            "FROM t SELECT a",
            "(SELECT a FROM t) UNION ALL (SELECT b FROM u) LIMIT 3",
            "SELECT a FROM t INTERSECT ALL SELECT b FROM u MINUS SELECT c FROM w",
            "SELECT a FROM t;\n-- done",
            "SELECT a FROM t ;;",
        ],
    )
    def test_sparks_own_syntax_is_taken(self, text: str) -> None:
        assert read_view("v", text).text == text


class TestRefusedTexts:
    @pytest.mark.parametrize(
        ("text", "line", "words"),
        [
            ("", 1, "empty"),
            (" \n ; ", 1, "empty"),
            ("-- only a comment\n", 1, "empty"),
            ("SELECT a FROM t;\n\nSELECT b FROM t", 3, "second statement"),
            ("SELECT a FROM t; DROP TABLE t", 1, "second statement"),
            ("\nINSERT INTO a SELECT 1", 2, "this is INSERT"),
            ("WITH c AS (SELECT 1) INSERT INTO a SELECT 1", 1, "this is INSERT"),
            ("CREATE VIEW a AS SELECT 1", 1, "this is CREATE"),
            ("SHOW TABLES", 1, "this is SHOW"),
            ("VALUES (1)", 1, "this is VALUES"),
            ("(VALUES (1))", 1, "this is VALUES"),
            ("TABLE t", 1, "this is TABLE"),
            ("SELECT a\nFROM (SELECT b", 2, "`)` is missing"),
            ("SELECT a\n\nFRUM t x", 3, "does not understand"),
            ("SELECT a FROM t\r\nWHERE a = = 3", 2, "at `=`"),
            ("SELECT count(\nFROM", 2, "does not understand"),
            ("SELECT map(1)", 1, "lacks arguments"),
            ("SELECT /*+ BROADCAST('c) */ a FROM t", 1, "malformed hint"),
            ("SELECT a,\n 'abc\n\n", 2, "does not end"),
            ("SELECT a\nFROM `abc", 2, "does not end"),
            ("SELECT a\nFROM t\n/* abc", 3, "does not end"),
            ("SELECT a FROM t\n|> WHERE a = 1", 2, "pipes"),
            ("SELECT a FROM\n IDENTIFIER(:name)", 2, "IDENTIFIER(…)"),
            ("SELECT a FROM f(\nTABLE(db.t))", 2, "TABLE(…)"),
            ("SELECT " + "(" * 5000 + "1" + ")" * 5000, 1, "nested too deeply"),
        ],
    )
    def test_it_says_what_is_wrong_and_where(self, text: str, line: int, words: str) -> None:
        with pytest.raises(ViewSyntaxError) as caught:
            read_view("v", text)
        assert caught.value.line == line
        assert words in caught.value.message
        assert str(caught.value) == f"line {line}: {caught.value.message}"

    @pytest.mark.parametrize(
        "text", ["SELECT a FROM (SELECT b", "SELECT sum() FROM t", "SELECT a FROM (((", "SELECT 'a"]
    )
    def test_the_message_is_one_clean_sentence(self, text: str) -> None:
        with pytest.raises(ViewSyntaxError) as caught:
            read_view("v", text)
        assert not any(mark in caught.value.message for mark in ("\n", "\x1b", "<class", "Token"))

    def test_sqlglot_prints_nothing(
        self, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
    ) -> None:
        with pytest.raises(ViewSyntaxError):
            read_view("v", "SHOW TABLES")
        out, err = capfd.readouterr()
        assert (out, err, caplog.records) == ("", "", [])


class TestTyped:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("SELECT block(a, b)", "SELECT block(a, b, typeof(a))"),
            ("SELECT UpTo( o.pos , o.id )", "SELECT UpTo( o.pos , o.id, typeof(o.pos) )"),
            ("SELECT `block`(a,b)", "SELECT `block`(a,b, typeof(a))"),
            (
                "SELECT block (\r\n  a, -- pos, really )\r\n  b -- id\r\n)",
                "SELECT block (\r\n  a, -- pos, really )\r\n  b, typeof(a) -- id\r\n)",
            ),
            (
                "SELECT block /* (x, y) */ (/* , */ a /* ) */, b /* , c */)",
                "SELECT block /* (x, y) */ (/* , */ a /* ) */, b, typeof(a) /* , c */)",
            ),
            (
                "SELECT block(coalesce(a, b), c[d, 1])",
                "SELECT block(coalesce(a, b), c[d, 1], typeof(coalesce(a, b)))",
            ),
            (
                "SELECT block(nvl(a, ',)'), `x,)y`)",
                "SELECT block(nvl(a, ',)'), `x,)y`, typeof(nvl(a, ',)')))",
            ),
            (
                "SELECT block(a -- one\n + 1, b)",
                "SELECT block(a -- one\n + 1, b, typeof(a -- one\n + 1))",
            ),
            (
                "SELECT block(if(upto(a, b), c, d), e)",
                "SELECT block(if(upto(a, b, typeof(a)), c, d), e, "
                "typeof(if(upto(a, b, typeof(a)), c, d)))",
            ),
            (
                "SELECT a FROM t WHERE block(x.a, x.b) AND 'ж😀' = y OR upto(é, ß)",
                "SELECT a FROM t WHERE block(x.a, x.b, typeof(x.a)) AND 'ж😀' = y "
                "OR upto(é, ß, typeof(é))",
            ),
            (
                "SELECT a FROM t WHERE a IN (SELECT b FROM u WHERE block(b, c))",
                "SELECT a FROM t WHERE a IN (SELECT b FROM u WHERE block(b, c, typeof(b)))",
            ),
        ],
    )
    def test_a_call_gets_the_type_of_its_position(self, text: str, expected: str) -> None:
        assert typed(text) == expected
        assert typed(expected) == expected

    @pytest.mark.parametrize(
        "text",
        [
            "SELECT block(a, b, typeof(a))",
            "SELECT block(a), upto(), block(a, b, c, d)",
            "SELECT block(pos => a, id => b)",
            "SELECT 'block(a, b)', \"upto(a, b)\", `block(a, b)` FROM t",
            "SELECT a FROM t -- block(a, b)\n/* upto(a, b) /* block(a, b) */ */",
            "SELECT r'\\', a, 'block(a, b)', 'it''s block(a, b)', 'x\\'block(a, b)' FROM t",
            "SELECT db.block(a, b), blocks(a, b), block FROM t",
            "WITH block(a, b) AS (SELECT 1, 2) SELECT * FROM block",
            "SELECT * FROM t AS block(a, b)",
        ],
    )
    def test_everything_else_is_left_alone(self, text: str) -> None:
        assert typed(text) == text


VERSIONS = {"stage.orders": 7, "my-db.t": 3, "c.s.t": 1}


class TestPinned:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("SELECT a FROM stage.orders", "SELECT a FROM stage.orders VERSION AS OF 7"),
            (
                "SELECT a FROM STAGE . Orders/**/AS o",
                "SELECT a FROM STAGE . Orders VERSION AS OF 7/**/AS o",
            ),
            ("SELECT a FROM `my-db`.`t`x", "SELECT a FROM `my-db`.`t` VERSION AS OF 3 x"),
            ("SELECT a FROM `my-db`.`t``x`", "SELECT a FROM `my-db`.`t``x`"),
            ("SELECT a FROM (stage.orders)", "SELECT a FROM (stage.orders VERSION AS OF 7)"),
            ("SELECT a FROM c.s.t, s.t", "SELECT a FROM c.s.t VERSION AS OF 1, s.t"),
            (
                "SELECT stage.orders.pos FROM stage.orders\r\nWHERE stage.orders.id > 1",
                "SELECT stage.orders.pos FROM stage.orders VERSION AS OF 7\r\n"
                "WHERE stage.orders.id > 1",
            ),
            (
                "SELECT /*+ MERGE(stage.orders) */ a FROM stage.orders -- stage.orders",
                "SELECT /*+ MERGE(stage.orders) */ a FROM stage.orders VERSION AS OF 7 "
                "-- stage.orders",
            ),
            (
                "SELECT a FROM stage.orders TABLESAMPLE (10 PERCENT) o",
                "SELECT a FROM stage.orders VERSION AS OF 7 TABLESAMPLE (10 PERCENT) o",
            ),
            (
                "SELECT 'ж😀' FROM stage.orders a JOIN stage.orders b",
                "SELECT 'ж😀' FROM stage.orders VERSION AS OF 7 a "
                "JOIN stage.orders VERSION AS OF 7 b",
            ),
            (
                "WITH x AS (SELECT 1 FROM stage.orders) SELECT (SELECT 1 FROM stage.orders) "
                "FROM x WHERE 1 IN (SELECT 1 FROM stage.orders)",
                "WITH x AS (SELECT 1 FROM stage.orders VERSION AS OF 7) SELECT (SELECT 1 FROM "
                "stage.orders VERSION AS OF 7) FROM x WHERE 1 IN (SELECT 1 FROM "
                "stage.orders VERSION AS OF 7)",
            ),
        ],
    )
    def test_the_version_follows_the_tables_name(self, text: str, expected: str) -> None:
        assert pinned(text, VERSIONS) == expected
        assert pinned(expected, VERSIONS) == expected

    @pytest.mark.parametrize(
        "text",
        [
            "SELECT a FROM stage.orders VERSION AS OF 2 o",
            "SELECT a FROM stage.orders FOR VERSION AS OF 2 o",
            "SELECT a FROM stage.orders TIMESTAMP AS OF '2020-01-01'",
            "SELECT 'FROM stage.orders', stage.orders.a FROM x.y /* stage.orders */",
            "SELECT a FROM `stage.orders`.x, delta.`/stage.orders`",
        ],
    )
    def test_everything_else_is_left_alone(self, text: str) -> None:
        assert pinned(text, VERSIONS) == text

    def test_a_cte_has_no_version(self) -> None:
        text = "WITH t AS (SELECT 1) SELECT * FROM t"
        assert pinned(text, {"t": 1}) == text


GAPS = st.lists(
    st.sampled_from(
        [
            " ",
            "\t",
            "\n",
            "\r\n",
            "/**/",
            "/* block(a, b) ' */",
            '-- upto(a, b) " ` (\n',
            "/*é😀,*/",
        ]
    ),
    max_size=3,
).map("".join)
SPACES = GAPS.map(lambda gap: f" {gap}")


def _any_case(word: str) -> st.SearchStrategy[str]:
    return st.lists(st.booleans(), min_size=len(word), max_size=len(word)).map(
        lambda uppers: "".join(
            letter.upper() if upper else letter for letter, upper in zip(word, uppers, strict=True)
        )
    )


ARGUMENTS = st.sampled_from(
    ["a", "o.pos", "`o`.`p,)s`", "coalesce(a, b)", "f(',)', \"(\")", "x[y[1], 2]", "-(a + 1)", ":p"]
)


class TestEditsOfRandomTexts:
    @given(
        name=st.one_of(_any_case("block"), _any_case("upto")),
        pos=ARGUMENTS,
        id_=ARGUMENTS,
        gaps=st.tuples(SPACES, GAPS, GAPS, GAPS, GAPS, GAPS),
        alias=st.sampled_from(["", " o", " AS `a b`", " AS block"]),
    )
    def test_typed_puts_in_the_type_and_nothing_else(
        self, name: str, pos: str, id_: str, gaps: tuple[str, ...], alias: str
    ) -> None:
        before = f"SELECT 'block(a, b)'{gaps[0]}FROM db.t{alias}{gaps[0]}WHERE {name}{gaps[1]}("
        call = f"{gaps[2]}{pos}{gaps[3]},{gaps[4]}{id_}"
        after = f"{gaps[5]}){gaps[0]}AND {name} = 1"
        assert typed(before + call + after) == f"{before}{call}, typeof({pos}){after}"

    @given(
        db=st.one_of(_any_case("stage"), st.just("`stage`")),
        table=st.one_of(_any_case("orders"), st.just("`orders`")),
        gaps=st.tuples(SPACES, GAPS, GAPS, GAPS),
        alias=st.sampled_from(["", " o", " AS `a b`", " AS o(a, b)", " JOIN u", " LIMIT 3"]),
        version=st.integers(min_value=0, max_value=10**12),
    )
    def test_pinned_puts_in_the_version_and_nothing_else(
        self, db: str, table: str, gaps: tuple[str, ...], alias: str, version: int
    ) -> None:
        before = f"SELECT stage.orders.a{gaps[0]}FROM{gaps[0]}{db}{gaps[1]}.{gaps[2]}{table}"
        after = f"{gaps[3]}{alias}{gaps[3]}"
        expected = f"{before} VERSION AS OF {version}{after}"
        assert pinned(before + after, {"stage.orders": version}) == expected

    @given(gap=GAPS, version=st.integers(min_value=0))
    def test_the_edits_do_not_disturb_each_other(self, gap: str, version: int) -> None:
        text = f"SELECT o.a {gap}FROM s.o {gap}o WHERE {gap}block(o.pos,{gap}o.id)"
        versions = {"s.o": version}
        assert pinned(typed(text), versions) == typed(pinned(text, versions))


class TestReachable:
    def test_dependencies_come_first(self) -> None:
        views = _views(
            top="SELECT * FROM left_ JOIN right_",
            left_="SELECT * FROM bottom",
            right_="SELECT * FROM bottom JOIN unknown",
            bottom="SELECT 1",
            other="SELECT 1",
        )
        assert reachable(["top"], views) == ["bottom", "left_", "right_", "top"]
        assert reachable(["bottom", "top", "nobody"], views)[0] == "bottom"
        assert reachable([], views) == []

    def test_names_are_compared_without_case(self) -> None:
        views = _views(Top="SELECT * FROM BOTTOM", Bottom="SELECT 1")
        assert reachable(["TOP"], views) == ["Bottom", "Top"]

    @pytest.mark.parametrize(
        ("texts", "cycle"),
        [
            ({"a": "SELECT * FROM a"}, ("a", "a")),
            ({"a": "SELECT * FROM b", "b": "SELECT * FROM a"}, ("a", "b", "a")),
            (
                {"a": "SELECT * FROM b", "b": "SELECT * FROM c", "c": "SELECT * FROM b"},
                ("b", "c", "b"),
            ),
        ],
    )
    def test_a_circle_is_named(self, texts: dict[str, str], cycle: tuple[str, ...]) -> None:
        with pytest.raises(ViewCycleError, match=" → ".join(cycle)) as caught:
            reachable(["a"], _views(**texts))
        assert caught.value.cycle == cycle

    def test_a_cte_of_the_views_own_name_is_no_circle(self) -> None:
        views = _views(a="WITH a AS (SELECT 1) SELECT * FROM a")
        assert reachable(["a"], views) == ["a"]


def test_tables_read_names_view_and_line_of_the_first_mention() -> None:
    views = _views(
        top="SELECT *\nFROM stage.orders JOIN bottom\nJOIN stage.x",
        bottom="SELECT * FROM Stage.X",
        other="SELECT * FROM stage.y",
    )
    assert tables_read(["top"], views) == {
        "stage.x": ("bottom", 1),
        "stage.orders": ("top", 2),
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT 1 FROM fact.o", "SELECT 1 FROM `v` AS `o` "),
        ("SELECT x.a FROM Fact.`O` x, fact.o", "SELECT x.a FROM `v`  x, `v` AS `o` "),
        ("SELECT 1 FROM stage.o -- fact.o", "SELECT 1 FROM stage.o -- fact.o"),
    ],
)
def test_a_table_is_read_through_a_view_instead(text: str, expected: str) -> None:
    assert redirected(text, "fact.o", "v") == expected


class TestShards:
    @pytest.mark.parametrize(
        ("call", "qualifier", "rest"),
        [
            ("block(o.pos, o.id)", "o.", ""),
            ("Block (\n  pos -- the time\n, id)", "", " AND amount > (1)"),
            ("`block`(`o`.`pos`, o.id, typeof(o.pos))", "`o`.", " OR upto(o.pos, o.id)"),
            ("block(stage . orders . pos, id)", "stage . orders . ", ""),
        ],
    )
    def test_block_is_true_for_the_rows_of_one_shard(
        self, call: str, qualifier: str, rest: str
    ) -> None:
        head = "SELECT o.pos, o.id -- block(x, y)\nFROM stage.orders o WHERE NOT "
        condition = f"pmod(xxhash64({qualifier}`customer id`), 4) = 3"
        assert sharded(f"{head}{call}{rest}", Shard("customer id", 3, 4)) == (
            f"{head}({call} AND {condition}){rest}"
        )

    def test_each_call_is_dealt_and_then_typed_and_pinned(self) -> None:
        text = "SELECT pos, id FROM a.b WHERE block(pos, id) UNION ALL SELECT pos, id FROM a.b x "
        text += "WHERE block(x.pos, x.id)"
        edited = typed(pinned(sharded(text, Shard("k", 0, 2)), {"a.b": 7}))
        assert edited == (
            "SELECT pos, id FROM a.b VERSION AS OF 7 WHERE"
            " (block(pos, id, typeof(pos)) AND pmod(xxhash64(`k`), 2) = 0)"
            " UNION ALL SELECT pos, id FROM a.b VERSION AS OF 7 x WHERE"
            " (block(x.pos, x.id, typeof(x.pos)) AND pmod(xxhash64(x.`k`), 2) = 0)"
        )
