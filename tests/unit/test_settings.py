"""`tidegate.toml`: every key has a default, the environment wins, what is wrong has its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.errors import ProjectError
from tidegate.settings import Settings, load_settings


def _load(folder: Path, text: str | bytes) -> Settings:
    folder.mkdir(exist_ok=True)
    (folder / "tidegate.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_settings(folder)


def _problems(folder: Path, text: str | bytes) -> list[tuple[str, int, str]]:
    with pytest.raises(ProjectError) as refused:
        _load(folder, text)
    assert all(problem.message for problem in refused.value.problems)
    return [(problem.file, problem.line, problem.field) for problem in refused.value.problems]


def test_an_empty_file_is_a_project_with_every_default(tmp_path: Path) -> None:
    settings = _load(tmp_path, "")
    assert settings.store_url == f"sqlite:///{tmp_path}/.tidegate/store.db"
    assert settings.lake_path == f"{tmp_path}/lake"
    assert settings.spark.master == "local[*]"
    assert settings.vars == {}


def test_paths_start_at_the_project_whatever_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    settings = _load(tmp_path / "p", '[lake]\npath = "data/../lake"\n')
    assert settings.lake_path == f"{tmp_path}/p/lake"
    monkeypatch.chdir(tmp_path)
    assert load_settings(Path("p")).lake_path == f"{tmp_path}/p/lake"
    assert load_settings(Path("p")).scratch == tmp_path / "p" / ".tidegate"


def test_addresses_and_absolute_paths_stay_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    assert _load(tmp_path, '[lake]\npath = "s3://bucket/lake"').lake_path == "s3://bucket/lake"
    assert _load(tmp_path, '[lake]\npath = "/data/lake"').lake_path == "/data/lake"
    assert _load(tmp_path, '[lake]\npath = "~/lake"').lake_path == "/home/somebody/lake"
    url = "postgresql://somebody@host/db"
    assert _load(tmp_path, f'[store]\nurl = "{url}"').store_url == url
    assert _load(tmp_path, '[store]\nurl = "sqlite:////x/s.db"').store_url == "sqlite:////x/s.db"


def test_spark_settings_may_be_quoted_nested_or_a_section_of_their_own(tmp_path: Path) -> None:
    wanted = {"spark.driver.memory": "4g", "spark.ui.enabled": "false", "spark.x": "3"}
    for text in (
        '[spark]\nconf = {"spark.driver.memory" = "4g", "spark.ui.enabled" = false, "spark.x" = 3}',
        '[spark.conf]\nspark.driver.memory = "4g"\nspark.ui.enabled = false\nspark.x = 3',
    ):
        assert _load(tmp_path, text).spark.conf == wanted


def test_a_bus_is_embedded_or_on_kafka_with_any_setting_of_its_client(tmp_path: Path) -> None:
    assert _load(tmp_path, "").bus.embedded
    bus = _load(
        tmp_path,
        '[bus]\nurl = "kafka://a.b:9092,c,[::1]:1"\nprefix = "dev."\n'
        '[bus.kafka]\nsecurity.protocol = "ssl"\n"linger.ms" = 5\nssl.endpoint = {x = true}\n',
    ).bus
    assert (bus.embedded, bus.servers, bus.prefix) == (False, "a.b:9092,c,[::1]:1", "dev.")
    assert bus.kafka == {"security.protocol": "ssl", "linger.ms": "5", "ssl.endpoint.x": "true"}


def test_a_secret_of_the_bus_may_come_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEGATE__BUS__KAFKA", '{"sasl.password": "s3cret"}')
    bus = _load(tmp_path, '[bus.kafka]\nsasl.username = "ann"\n').bus
    assert bus.kafka == {"sasl.username": "ann", "sasl.password": "s3cret"}


def test_variables_keep_their_type(tmp_path: Path) -> None:
    settings = _load(tmp_path, '[vars]\na = 1\nb = 1.5\nc = true\nd = "1"\n')
    assert settings.vars == {"a": 1, "b": 1.5, "c": True, "d": "1"}
    assert [type(value) for value in settings.vars.values()] == [int, float, bool, str]


class TestProblems:
    def test_unknown_sections_and_keys_come_with_their_line_all_at_once(
        self, tmp_path: Path
    ) -> None:
        text = (
            '[store]\nurl = "sqlite:///x"\nurll = 1\n\n[lake]\npaht = "x"\n'
            "[bogus]\nx = 1\n[spark]\nmaster = 5\n"
        )
        assert _problems(tmp_path, text) == [
            ("tidegate.toml", 3, "store.urll"),
            ("tidegate.toml", 6, "lake.paht"),
            ("tidegate.toml", 7, "bogus"),
            ("tidegate.toml", 10, "spark.master"),
        ]

    def test_an_unknown_key_is_told_those_there_are(self, tmp_path: Path) -> None:
        with pytest.raises(ProjectError, match=r"\[lake\] may have: path, catalog"):
            _load(tmp_path, "[lake]\npaht = 1")

    @pytest.mark.parametrize(
        ("text", "line"),
        [
            ("[store", 1),
            ("[store]\nurl = ", 2),
            ("[store]\nurl = 'x'\nurl = 'y'", 3),
            ("a = 1\na = 2\n", 2),
            ("[store]\n[store]\n", 2),
            ("\nx = {", 2),
            ("\n\n= 3\n", 3),
            ("x = 1 2", 1),
            ("x = '''open\n\n", 2),
        ],
    )
    def test_bad_toml_has_its_line(self, tmp_path: Path, text: str, line: int) -> None:
        assert _problems(tmp_path, text) == [("tidegate.toml", line, "")]

    @pytest.mark.parametrize(
        "text", [b"\xff\xfe", b"[store]\nurl = '\xe4'", b"x = " + b"[" * 99999]
    )
    def test_what_is_no_text_or_too_deep_is_refused(self, tmp_path: Path, text: bytes) -> None:
        assert _problems(tmp_path, text) == [("tidegate.toml", 0, "")]

    @pytest.mark.parametrize(
        ("text", "field", "line"),
        [
            ("store = 5", "store", 1),
            ("[store]\nurl = 'mysql://x'", "store.url", 2),
            ("[store]\nurl = 'sqlite:///:memory:'", "store.url", 2),
            ("[store]\nurl = 'sqlite:///'", "store.url", 2),
            ("[lake]\npath = ''", "lake.path", 2),
            ("[lake]\ncatalog = 'hive'", "lake.catalog", 2),
            ("[bus]\nurl = 'nats://x'", "bus.url", 2),
            ("[bus]\nurl = 'kafka://'", "bus.url", 2),
            ("[bus]\nurl = 'kafka://a:9092/topic'", "bus.url", 2),
            ("[bus]\nurl = 'kafka://a:9092,'", "bus.url", 2),
            ("[bus]\nurl = 'kafka://a:port'", "bus.url", 2),
            ("[bus]\nprefix = 'my topics'", "bus.prefix", 2),
            ("[bus]\nkafka = 5", "bus.kafka", 2),
            ("[bus.kafka]\nx = [1]", "bus.kafka", 1),
            ("[bus.kafka]\ngroup.id = 'mine'", "bus.kafka", 1),
            ("[bus.kafka]\nbootstrap.servers = 'a'", "bus.kafka", 1),
            ("[spark]\n\nconf = 5", "spark.conf", 3),
            ("[spark]\nconf = {a = [1]}", "spark.conf", 2),
            ("[vars]\nx = 2026-01-01", "vars.x", 2),
            ("[vars]\nx = nan", "vars.x", 2),
            ("[vars]\nx = [1]", "vars.x", 2),
            ("[vars]\n[vars.x]\ny = 1", "vars.x", 2),
            ("[vars]\nx = 9223372036854775808", "vars.x", 2),
            ("folder = '/'", "folder", 1),
            ("store.urll = 1", "store.urll", 1),
        ],
    )
    def test_a_wrong_value_is_one_problem_at_its_field(
        self, tmp_path: Path, text: str, field: str, line: int
    ) -> None:
        assert _problems(tmp_path, text) == [("tidegate.toml", line, field)]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ('[lake]\npath = "s3a://b/x"', "must start with s3://, for Spark too"),
            ('[lake]\npath = "s3://"', "must be s3://bucket or s3://bucket/prefix"),
            ('[lake]\npath = "s3://who:secret@b/x"', "must be s3://bucket or s3://bucket/prefix"),
            ('[lake.s3]\nendpoint = "host:9000"', "must start with http:// or https://"),
            ('[lake.s3]\nendpoint = "http://who:secret@host"', "hold no credentials"),
            ('[lake.s3]\nsecret = "x"', "unknown key"),
        ],
    )
    def test_an_address_of_s3_is_judged_and_its_secrets_are_not_repeated(
        self, tmp_path: Path, text: str, message: str
    ) -> None:
        with pytest.raises(ProjectError) as refused:
            _load(tmp_path, text)
        (problem,) = refused.value.problems
        assert problem.line == 2
        assert message in problem.message
        assert "secret" not in problem.message

    def test_a_folder_in_place_of_the_file_is_a_problem(self, tmp_path: Path) -> None:
        (tmp_path / "tidegate.toml").mkdir()
        with pytest.raises(ProjectError, match="cannot be read: Is a directory"):
            load_settings(tmp_path)


class TestEnvironment:
    def test_a_variable_wins_over_the_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TIDEGATE__LAKE__PATH", "other")
        monkeypatch.setenv("TIDEGATE__VARS__LEAST", "7")
        settings = _load(tmp_path, '[lake]\npath = "lake"\n[vars]\nleast = 1\nmost = 2\n')
        assert settings.lake_path == f"{tmp_path}/other"
        assert settings.vars == {"least": "7", "most": 2}

    def test_spark_settings_come_as_json_and_join_those_of_the_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TIDEGATE__SPARK__CONF", '{"spark.a": "8g", "spark.b": true}')
        settings = _load(tmp_path, '[spark.conf]\nspark.a = "1g"\nspark.c = 1\n')
        assert settings.spark.conf == {"spark.a": "8g", "spark.b": "true", "spark.c": "1"}

    @pytest.mark.parametrize(
        ("name", "value", "field"),
        [
            ("TIDEGATE__BOGUS", "1", "TIDEGATE__BOGUS"),
            ("TIDEGATE__FOLDER", "/", "TIDEGATE__FOLDER"),
            ("TIDEGATE__STORE__URLL", "x", "TIDEGATE__STORE__URLL"),
            ("TIDEGATE__STORE__URL", "mysql://x", "TIDEGATE__STORE__URL"),
            ("TIDEGATE__LAKE__PATH", "", "TIDEGATE__LAKE__PATH"),
            ("TIDEGATE__STORE", "{not json", "TIDEGATE__STORE"),
            ("TIDEGATE__SPARK__CONF", "{not json", "TIDEGATE__SPARK"),
            ("TIDEGATE__SPARK__CONF", "5", "TIDEGATE__SPARK__CONF"),
        ],
    )
    def test_a_wrong_variable_is_blamed_by_its_name(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, field: str
    ) -> None:
        monkeypatch.setenv(name, value)
        assert _problems(tmp_path, "") == [("environment", 0, field)]

    def test_the_project_and_the_cache_are_no_settings(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TIDEGATE_PROJECT", "/x")
        monkeypatch.setenv("TIDEGATE_CACHE", "/y")
        assert _load(tmp_path, "").folder == tmp_path


@pytest.mark.parametrize("name", ["a%20b", "#1", "q?x", "[x]", "a*b", "ba`ck", "a\\b", "a\tb"])
def test_a_folder_that_readers_of_delta_would_take_differently_is_refused(
    tmp_path: Path, name: str
) -> None:
    folder = tmp_path / name
    folder.mkdir()
    (folder / "tidegate.toml").write_text("")
    with pytest.raises(ProjectError) as refused:
        load_settings(folder)
    assert refused.value.problems[0].field == "lake.path"
    elsewhere = tmp_path / "it's a lake, ü & (more)"
    (folder / "tidegate.toml").write_text(f'[lake]\npath = "{elsewhere}"\n')
    assert load_settings(folder).lake_path == str(elsewhere)
