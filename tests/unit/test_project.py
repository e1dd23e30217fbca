"""A project folder read whole: found as git finds its repository, and judged in one go."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tidegate.errors import ProjectError, WrongUse
from tidegate.model.duration import HOUR
from tidegate.project.folder import Project, find_project
from tidegate.sql.editing import Shard
from tidegate.tables.definition import Processor, TableDefinition, tables_in
from tidegate.wiring import read_project

VIEW = "SELECT o.pos, o.id, o.amount FROM stage.orders o WHERE block(o.pos, o.id)"
ENTRY = "- table: fact.orders\n  depends_on: stage.orders\n  transforms: orders\n"


def _load(folder: Path, lineage: str | bytes = "", **views: str | bytes) -> Project:
    _write(folder / "tidegate.toml", "")
    _write(folder / "lineage.yaml", lineage)
    for name, text in views.items():
        _write(folder / "views" / f"{name}.sql", text)
    return read_project(folder)


def _write(path: Path, text: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())


def _told(project: Project) -> list[tuple[str, int, str, str]]:
    return [(p.file, p.line, p.field, p.message) for p in project.problems]


def _only(project: Project) -> tuple[str, int, str, str]:
    told = _told(project)
    assert len(told) == 1, told
    return told[0]


def _definition(folder: Path, fields: str) -> TableDefinition:
    project = _load(folder, f"- table: fact.orders\n{fields}", orders=VIEW, shop=VIEW)
    assert project.problems == ()
    return tables_in(project.definitions)["fact.orders"]


class TestFields:
    def test_lists_and_texts_with_commas_mean_the_same(self, tmp_path: Path) -> None:
        listed = _definition(
            tmp_path,
            "  depends_on: [stage.orders, stage.customers]\n  transforms: [orders, shop]\n"
            "  keys: [id, amount]\n  unwaited: [stage.x]\n  partition_by: [id]\n",
        )
        texts = _definition(
            tmp_path,
            "  depends_on: 'stage.orders, stage.customers'\n  transforms: orders,shop\n"
            "  keys: id , amount,\n  unwaited: stage.x\n  partition_by: id\n",
        )
        assert listed == texts
        assert listed.depends_on == ("stage.orders", "stage.customers")
        assert listed.transforms == ("orders", "shop")

    def test_empty_fields_are_the_defaults(self, tmp_path: Path) -> None:
        given = _definition(
            tmp_path,
            "  depends_on: stage.orders\n  transforms: orders\n  delay: ''\n  repeat:\n"
            "  maxstep: ''\n  processor: ''\n  before: ''\n  after:\n  comment:\n  keys: []\n"
            "  checks:\n  pos: ''\n  id:\n",
        )
        left_out = _definition(tmp_path, "  depends_on: stage.orders\n  transforms: orders\n")
        assert given == left_out
        assert given.delay is None
        assert given.repeat is None
        assert given.repeat_or_default == HOUR
        assert given.maxstep == 1_000_000
        assert given.processor is Processor.STEP

    def test_every_field_is_read(self, tmp_path: Path) -> None:
        found = _definition(
            tmp_path,
            "  processor: Step\n  depends_on: stage.orders\n  transforms: ORDERS\n"
            "  delay: 11s+22min\n  repeat: 1h 30m\n  maxstep: 2_000\n  keys: amount\n"
            "  deleted: amount < 0\n  checks: {amount: amount >= 0}\n  cluster_by: amount\n"
            "  properties: {delta.appendOnly: true}\n  columns: {amount: {comment: EUR}, b: x}\n"
            "  before: SELECT 1; SELECT 2\n  after: SELECT 3\n  comment: text\n",
        )
        assert (found.delay, found.repeat, found.maxstep) == (1_331_000, 5_400_000, 2000)
        assert (found.keys, found.deleted) == (("amount",), "amount < 0")
        assert found.checks == {"amount": "amount >= 0"}
        assert found.properties == {"delta.appendOnly": "true"}
        assert found.comments == {"amount": "EUR", "b": "x"}
        assert (found.before, found.after) == ("SELECT 1; SELECT 2", "SELECT 3")
        assert found.views == {"orders": VIEW}

    @pytest.mark.parametrize(
        ("field", "message"),
        [
            ("tabel: x", "unknown key; an entry may have: table, depends_on"),
            ("shards: 4", "needs shard_by: the column of the base table"),
            ("shard_by: k", "needs shards: how many topics"),
            (
                "shards: 0\n  shard_by: k",
                "is not a number of shards; write a whole one from 1 to 64",
            ),
            ("shards: 65\n  shard_by: k", "is not a number of shards"),
            ("shards: many\n  shard_by: k", "is not a number of shards"),
            ("shard_by: 'a`b'\n  shards: 4", "is not a column's name"),
            ("shards: 4\n  shard_by: k\n  keys: k", "does not go with keys"),
            (
                "after: SELECT 1 FROM fact.orders WHERE block(pos, id)\n  shards: 4\n  shard_by: k",
                "calls block(), which does not go with shards",
            ),
            ("history: true", "is reserved for a later version"),
            ("user: me", "is kept by Tidegate"),
            ("updated_at: now", "is kept by Tidegate"),
            ("processor: stepp", "unknown processor 'stepp'; there are: step, reload, source"),
            ("processor: [step]", "must be a text"),
            ("delay: 5 parsecs", "is not a duration"),
            ("repeat: '30'", "is not a duration"),
            ("maxstep: 0", "is not a number of rows"),
            ("maxstep: -5", "is not a number of rows"),
            ("maxstep: 1.5", "is not a number of rows"),
            ("maxstep: ²", "is not a number of rows"),
            ("maxstep: 99999999999999999999", "is not a number of rows"),
            ("keys: [a, A]", "names A twice"),
            ("keys: ['a`b']", "is not a column's name"),
            ("unwaited: [orders]", "is not a table's name, db.table"),
            ("unwaited: ['x.y; DROP TABLE z']", "is not a table's name"),
            ("unwaited: ['stage.x#web']", "depend on the table, stage.x"),
            ("unwaited: stage.orders", "stage.orders is in depends_on too"),
            ("unwaited: {a: b}", "must be a text"),
            ("checks: [a]", "must be a mapping"),
            ("checks: {a: ''}", "a has no condition"),
            ("checks: {a b: x > 0}", "is not a name for a check"),
            ("checks: {a: x > 0, a: y > 0}", "has the key a twice"),
            ("checks: {a: 'x >'}", "does not read as one condition"),
            ("checks: {a: 'x > 0; DROP TABLE y'}", "does not read as one condition"),
            ("checks: {a: 'x > 0 -- why'}", "does not read as one condition"),
            ("checks: {a: 'x > 0) OR (true'}", "does not read as one condition"),
            ("checks: {a: 'SELECT 1'}", "does not read as one condition"),
            ("checks: {a: 'DROP TABLE x'}", "does not read as one condition"),
            ("checks: {deleted: 'x >'}", "deleted: 'x >' does not read as one condition"),
            ("deleted: x = 1", "needs keys"),
            ("columns: {a: {type: int}}", "unknown key 'type'; a column may have: comment"),
            ("before: SELECT 'open", "does not read as SQL"),
            ("comment: [a]", "must be a text"),
        ],
    )
    def test_a_wrong_field_is_a_problem_at_its_line(
        self, tmp_path: Path, field: str, message: str
    ) -> None:
        views = "SELECT o.pos, o.id, 1 AS x, 2 AS k FROM stage.orders o WHERE block(o.pos, o.id)"
        entry = f"# first\n{ENTRY}  {field}\n"
        found = [p for p in _load(tmp_path, entry, orders=views).problems if p.file[0] == "l"]
        assert [p.line for p in found] == [5]
        assert message in found[0].message

    def test_a_position_needs_two_columns(self, tmp_path: Path) -> None:
        source = "- {table: stage.orders, processor: source, pos: ID}\n"
        _, line, field, message = _only(_load(tmp_path, source))
        assert (line, field) == (1, "id")
        assert "a position needs two columns" in message

    def test_each_of_many_problems_is_told_in_one_go(self, tmp_path: Path) -> None:
        project = _load(
            tmp_path,
            "- table: fact.a\n  depends_on: fact.b\n  transforms: gone\n  delay: soon\n"
            "  colour: x\n"
            "- table: fact.b\n  depends_on: fact.a\n  transforms: bad\n  processor: stepp\n"
            "- table: fact.b\n  depends_on: stage.x\n  transforms: orders\n"
            "- just a text\n"
            "- depends_on: stage.x\n",
            orders=VIEW,
            bad="SELEKT 1",
        )
        assert [(p.file, p.line, p.field) for p in project.problems] == [
            ("lineage.yaml", 2, "depends_on"),
            ("lineage.yaml", 3, "transforms"),
            ("lineage.yaml", 4, "delay"),
            ("lineage.yaml", 5, "colour"),
            ("lineage.yaml", 9, "processor"),
            ("lineage.yaml", 10, "table"),
            ("lineage.yaml", 13, ""),
            ("lineage.yaml", 14, "table"),
            ("views/bad.sql", 1, ""),
        ]

    def test_a_field_that_does_not_read_is_not_also_missing(self, tmp_path: Path) -> None:
        entry = "- table: fact.a\n  depends_on: nonsense\n  transforms: [[a]]\n"
        assert [p.field for p in _load(tmp_path, entry).problems] == ["depends_on", "transforms"]

    def test_settings_that_do_not_read_hide_no_other_problem(self, tmp_path: Path) -> None:
        view = VIEW + " AND o.amount > :least"
        _load(tmp_path, ENTRY + "  delay: soon\n", orders=view)
        (tmp_path / "tidegate.toml").write_text("[vars]\nleast = 1\n[bogus]\n")
        project = read_project(tmp_path)
        assert [(p.file, p.field) for p in project.problems] == [
            ("lineage.yaml", "delay"),
            ("tidegate.toml", "bogus"),
        ]
        assert not project.configured
        with pytest.raises(ProjectError):
            project.require_sound()


class TestNames:
    def test_a_tag_makes_several_topics_of_one_table(self, tmp_path: Path) -> None:
        entry = "- {table: 'fact.orders#%s', depends_on: stage.orders, transforms: orders}\n"
        project = _load(tmp_path, entry % "web" + entry % "shop", orders=VIEW)
        assert project.problems == ()
        assert {d.table for d in tables_in(project.definitions).values()} == {"fact.orders"}
        assert all(d.tagged for d in tables_in(project.definitions).values())

    def test_a_shard_is_refused_in_words(self, tmp_path: Path) -> None:
        _, line, field, message = _only(
            _load(tmp_path, ENTRY.replace("fact.orders", "fact.orders:3"), orders=VIEW)
        )
        assert (line, field) == (1, "table")
        assert "write fact.orders once, with shards: and shard_by:" in message

    def test_shards_make_topics_that_share_an_entry(self, tmp_path: Path) -> None:
        entry = ENTRY.replace("fact.orders", "'fact.orders#web'")
        project = _load(tmp_path, f"{entry}  shards: 3\n  shard_by: k\n", orders=VIEW)
        assert project.problems == ()
        topics = [f"fact.orders#web:{number}" for number in range(3)]
        assert list(project.definitions) == list(project.entries) == topics
        definitions = tables_in(project.definitions).values()
        shards = [definition.shard for definition in definitions]
        assert shards == [Shard("k", number, 3) for number in range(3)]
        assert all(definition.tagged for definition in definitions)

    @pytest.mark.parametrize("processor", ["reload", "source"])
    def test_only_a_step_has_shards(self, tmp_path: Path, processor: str) -> None:
        lineage = f"{ENTRY}  processor: {processor}\n  shards: 2\n  shard_by: k\n"
        told = _told(_load(tmp_path, lineage, orders="SELECT k FROM stage.orders"))
        message = f"does not go with processor: {processor}"
        assert ("lineage.yaml", 5, "shards") in {
            (file, line, field) for file, line, field, what in told if message in what
        }

    @pytest.mark.parametrize(
        "name",
        ["orders", "a.b.c", "fact.orders; DROP TABLE x", "../../etc.passwd", "fact.`x`", "''"],
    )
    def test_what_is_no_name_is_refused(self, tmp_path: Path, name: str) -> None:
        _, line, field, message = _only(
            _load(tmp_path, ENTRY.replace("fact.orders", name), orders=VIEW)
        )
        assert (line, field) == (1, "table")
        assert "is not a topic" in message

    @pytest.mark.parametrize("again", ["fact.orders", "Fact.Orders"])
    def test_two_topics_of_one_name_are_refused_whatever_their_case(
        self, tmp_path: Path, again: str
    ) -> None:
        entries = ENTRY + ENTRY.replace("fact.orders", again)
        told = _only(_load(tmp_path, entries, orders=VIEW))
        assert told == (
            *("lineage.yaml", 4, "table"),
            f"{again} stands already at lineage.yaml:1",
        )

    def test_two_topics_of_one_name_are_found_over_files(self, tmp_path: Path) -> None:
        _write(tmp_path / "lineage" / "a.yaml", ENTRY)
        _write(tmp_path / "lineage" / "b.yml", "\n" + ENTRY)
        file, line, _, message = _only(_load(tmp_path, "", orders=VIEW))
        assert (file, line) == ("lineage/b.yml", 2)
        assert "stands already at lineage/a.yaml:1" in message

    def test_a_table_is_spelled_in_one_way_but_a_view_may_use_another(self, tmp_path: Path) -> None:
        view = VIEW.replace("stage.orders", "STAGE.Orders")
        assert _load(tmp_path, ENTRY, orders=view).problems == ()
        source = "- {table: stage.orders, processor: source}\n"
        entries = source + ENTRY.replace("stage.orders", "Stage.Orders")
        _, line, field, message = _only(_load(tmp_path, entries, orders=view))
        assert (line, field) == (3, "depends_on")
        assert message.startswith("Stage.Orders is spelled stage.orders elsewhere")


class TestFiles:
    def test_a_project_without_a_lineage_has_no_topics(self, tmp_path: Path) -> None:
        (tmp_path / "tidegate.toml").touch()
        project = read_project(tmp_path)
        assert (project.problems, project.definitions) == ((), {})

    @pytest.mark.parametrize("text", ["", "# nothing yet\n", "---\n", "[]", "~"])
    def test_an_empty_file_is_an_empty_lineage(self, tmp_path: Path, text: str) -> None:
        project = _load(tmp_path, text)
        assert (project.problems, project.definitions) == ((), {})

    def test_several_files_make_one_lineage(self, tmp_path: Path) -> None:
        _write(tmp_path / "lineage" / "a.yaml", ENTRY)
        _write(tmp_path / "lineage" / "b.yml", ENTRY.replace("fact.orders", "fact.more"))
        project = _load(tmp_path, ENTRY.replace("fact.orders", "fact.main"), orders=VIEW)
        assert project.problems == ()
        assert set(project.definitions) == {"fact.main", "fact.orders", "fact.more"}

    @pytest.mark.parametrize(
        ("text", "line", "message"),
        [
            ("table: fact.orders", 1, "must be a list of entries"),
            ("# a\njust words", 2, "must be a list of entries"),
            ("- table: a.b\n\tdelay: 1s", 2, "is not valid YAML: found"),
            ("- table: a.b\n  x: [1", 3, "is not valid YAML"),
            ("- *nobody", 1, "is not valid YAML: found undefined alias"),
            ("- a\n---\n- b", 2, "is not valid YAML: but found another document"),
            ("- 5", 1, "an entry must be a mapping"),
            ("- [table, a.b]", 1, "an entry must be a mapping"),
            ("- ? [a]\n  : b\n  table: a.b", 1, "a key must be a text"),
            (b"- table: \xff", 0, "is not UTF-8 text"),
            (b"- table: a.b\x00", 0, "is not valid YAML"),
            ("[" * 100_000, 1, "more than 30 lists or mappings stand within each other"),
            ("- " * 100_000, 1, "more than 30 lists or mappings stand within each other"),
            ("# " + "x" * 3_000_000, 0, "is larger than 2 MB"),
        ],
    )
    def test_what_is_no_lineage_is_one_problem(
        self, tmp_path: Path, text: str | bytes, line: int, message: str
    ) -> None:
        told = _told(_load(tmp_path, text))
        assert told[0][:2] == ("lineage.yaml", line)
        assert message in told[0][3]

    def test_a_folder_in_place_of_the_file_is_a_problem(self, tmp_path: Path) -> None:
        (tmp_path / "tidegate.toml").touch()
        (tmp_path / "lineage.yaml").mkdir()
        assert "cannot be read: Is a directory" in _only(read_project(tmp_path))[3]

    def test_a_key_given_twice_is_a_problem_at_the_second(self, tmp_path: Path) -> None:
        entry = f"{ENTRY}  delay: 1s\n  delay: 2s\n"
        assert _only(_load(tmp_path, entry, orders=VIEW)) == (
            *("lineage.yaml", 5, "delay"),
            "is given twice",
        )

    def test_an_alias_saves_typing(self, tmp_path: Path) -> None:
        entry = (
            "- {table: fact.a, depends_on: &base [stage.orders], transforms: orders}\n"
            "- {table: fact.b, depends_on: *base, transforms: orders}\n"
        )
        project = _load(tmp_path, entry, orders=VIEW)
        assert project.problems == ()
        assert tables_in(project.definitions)["fact.b"].depends_on == ("stage.orders",)

    def test_an_alias_of_itself_does_not_go_on_for_ever(self, tmp_path: Path) -> None:
        entry = f"{ENTRY}  keys: &a [*a]\n"
        assert _only(_load(tmp_path, entry, orders=VIEW))[2:] == (
            "keys",
            "contains itself, by an alias",
        )

    @pytest.mark.parametrize("where", ["in a field", "as entries"])
    def test_a_billion_laughs_end_soon(self, tmp_path: Path, where: str) -> None:
        laughs = "- &l0 [lol, lol, lol, lol, lol, lol, lol, lol, lol, lol]\n"
        for n in range(9):
            laughs += f"- &l{n + 1} [{', '.join([f'*l{n}'] * 10)}]\n"
        if where == "in a field":
            laughs += "- table: fact.a\n  keys: *l9\n"
        began = time.process_time()
        told = _told(_load(tmp_path, laughs))
        assert time.process_time() - began < 10
        assert told[-1][3] == "is too large once its aliases are followed"

    def test_a_large_lineage_is_read(self, tmp_path: Path) -> None:
        entries = "".join(
            f"- {{table: fact.t{n}, depends_on: stage.orders, transforms: orders}}\n"
            for n in range(300)
        )
        project = _load(tmp_path, entries, orders=VIEW)
        assert project.problems == ()
        assert len(project.definitions) == 300


class TestFinding:
    def test_the_given_folder_wins_then_the_variable_then_where_one_stands(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("given", "named", "here/below"):
            (tmp_path / name).mkdir(parents=True)
            (tmp_path / name / "tidegate.toml").touch()
        (tmp_path / "here" / "below" / "deep" / "er").mkdir(parents=True)
        monkeypatch.chdir(tmp_path / "here" / "below" / "deep" / "er")
        assert find_project(None) == tmp_path / "here" / "below"
        monkeypatch.setenv("TIDEGATE_PROJECT", str(tmp_path / "named"))
        assert find_project(None) == tmp_path / "named"
        assert find_project(tmp_path / "given") == tmp_path / "given"
        monkeypatch.setenv("TIDEGATE_PROJECT", "")
        assert find_project(None) == tmp_path / "here" / "below"

    def test_a_relative_folder_is_taken_from_where_one_stands(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "tidegate.toml").touch()
        monkeypatch.chdir(tmp_path)
        assert find_project(Path()) == tmp_path

    @pytest.mark.parametrize("folder", ["nothing", "tidegate.toml", "x" * 5000, "empty"])
    def test_what_is_no_project_is_refused_in_a_sentence(self, tmp_path: Path, folder: str) -> None:
        (tmp_path / "tidegate.toml").touch()
        (tmp_path / "empty").mkdir()
        with pytest.raises(WrongUse, match=r"is not a project|cannot be read"):
            find_project(tmp_path / folder)

    def test_nowhere_above_is_refused_with_what_to_do(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("TIDEGATE_PROJECT", raising=False)
        monkeypatch.chdir("/")
        with pytest.raises(WrongUse, match=r"no tidegate\.toml in / or above.*-C DIR.*init DIR"):
            find_project(None)

    def test_a_folder_that_was_deleted_is_refused_in_a_sentence(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gone = tmp_path / "gone"
        gone.mkdir()
        monkeypatch.chdir(gone)
        gone.rmdir()
        with pytest.raises(WrongUse, match="the current folder cannot be read"):
            find_project(None)


class TestLogs:
    def test_a_log_query_belongs_to_the_topics_of_its_table(self, tmp_path: Path) -> None:
        _write(tmp_path / "logs" / "fact.t.sql", "SELECT count(*) AS n FROM fact.t")
        project = _load(
            tmp_path,
            "- {table: fact.t, depends_on: [stage.s], transforms: [v]}",
            v="SELECT pos, id FROM stage.s WHERE block(pos, id)",
        )
        assert _told(project) == []
        assert tables_in(project.definitions)["fact.t"].log == "SELECT count(*) AS n FROM fact.t"

    @pytest.mark.parametrize(
        ("name", "text", "words"),
        [
            ("fact.u", "SELECT count(*) FROM fact.u", "nothing builds a table fact.u"),
            ("fact.t", "SELECT count(*) FROM stage.s", "does not read fact.t"),
            ("fact.t", "SELECT :x FROM fact.t", "parameters do not go"),
            ("fact.t", "DELETE FROM fact.t", "SELECT"),
        ],
    )
    def test_one_that_does_not_fit_is_a_problem(
        self, tmp_path: Path, name: str, text: str, words: str
    ) -> None:
        _write(tmp_path / "logs" / f"{name}.sql", text)
        project = _load(
            tmp_path,
            "- {table: fact.t, depends_on: [stage.s], transforms: [v]}",
            v="SELECT pos, id FROM stage.s WHERE block(pos, id)",
        )
        file, _, _, message = _only(project)
        assert file == f"logs/{name}.sql"
        assert words in message
