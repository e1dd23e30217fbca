"""`tidegate.toml` and TIDEGATE__SECTION__KEY as typed settings; unknown keys are errors."""

from __future__ import annotations

import math
import os
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from tidegate.errors import Problem, ProjectError
from tidegate.model.duration import parse_duration
from tidegate.model.instances import Pace

FILE = "tidegate.toml"
_NOT_IN_A_PATH = frozenset('%#?\\[]{}*`"<>|^')
"""Signs that mean something else in a URL or in a pattern of files."""
_PREFIX = "TIDEGATE__"
_KAFKA = "kafka://"
_BROKER = r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?"
_NOT_FOR_KAFKA = frozenset(
    {
        "bootstrap.servers",
        "metadata.broker.list",
        "group.id",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.idempotence",
        "auto.offset.reset",
        "enable.partition.eof",
        "transactional.id",
    }
)
"""What reading from where one came to, and sending once, rest on."""


def _variable(value: Any) -> Any:
    """Take what a view's `:name` can stand for, and what JSON can keep."""
    plain = isinstance(value, str | bool | int | float)
    if not plain or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError("must be a text, a number, true or false; write a date as a text")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("is too large for a bigint; write it as a text")
    return value


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _milliseconds(value: Any) -> Any:
    """Take `5s`, `500ms`, `1min 30s`, as in the lineage."""
    if not isinstance(value, str):
        raise ValueError('must be a duration, such as "5s" or "500ms"')
    length = parse_duration(value)
    if length <= 0:
        raise ValueError("must be longer than nothing")
    return length


Duration = Annotated[int, BeforeValidator(_milliseconds)]


class StoreSettings(_Section):
    url: str = "sqlite:///.tidegate/store.db"
    keep: Duration = Pace.keep

    @field_validator("url")
    @classmethod
    def _known(cls, url: str) -> str:
        if not url.startswith(("sqlite:///", "postgresql://")):
            raise ValueError("must start with sqlite:/// or postgresql://")
        if url in ("sqlite:///", "sqlite:///:memory:"):
            raise ValueError("must name a file, such as sqlite:///.tidegate/store.db")
        return url


class BusSettings(_Section):
    url: str = "embedded"
    prefix: str = ""
    kafka: dict[str, str] = {}

    @field_validator("url")
    @classmethod
    def _known(cls, url: str) -> str:
        if url != "embedded" and not re.fullmatch(f"{_KAFKA}{_BROKER}(,{_BROKER})*", url):
            raise ValueError("must be embedded, or kafka://host:9092,host2:9092")
        return url

    @field_validator("prefix")
    @classmethod
    def _fits_topics(cls, prefix: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9._-]{0,200}", prefix):
            raise ValueError("may have letters, digits, dots, hyphens and underscores, at most 200")
        return prefix

    @field_validator("kafka", mode="before")
    @classmethod
    def _flat(cls, conf: Any) -> Any:
        """Take `security.protocol = "ssl"`, which TOML reads as a table."""
        if not isinstance(conf, dict):
            return conf
        flat = _dotted(conf)
        taken = sorted(_NOT_FOR_KAFKA & flat.keys())
        if taken:
            raise ValueError(f"{taken[0]} is set by Tidegate itself; leave it out")
        return flat

    @property
    def embedded(self) -> bool:
        return self.url == "embedded"

    @property
    def servers(self) -> str:
        """The brokers, as Kafka's client wants them."""
        return self.url.removeprefix(_KAFKA)


class FilesSettings(_Section):
    url: str = ".tidegate/files"


class S3Settings(_Section):
    endpoint: str = ""
    region: str = ""

    @field_validator("endpoint")
    @classmethod
    def _address(cls, endpoint: str) -> str:
        if endpoint and not re.fullmatch(r"https?://[^@\s]+", endpoint):
            raise ValueError("must start with http:// or https://, and hold no credentials")
        return endpoint


class LakeSettings(_Section):
    path: str = Field(default="lake", min_length=1)
    catalog: Literal["tidegate", "spark"] = "tidegate"
    compact_files: int = Field(default=100, ge=0)
    vacuum_after: str = "7d"
    s3: S3Settings = S3Settings()

    @field_validator("vacuum_after")
    @classmethod
    def _duration(cls, text: str) -> str:
        parse_duration(text)
        return text

    @field_validator("path")
    @classmethod
    def _one_scheme(cls, path: str) -> str:
        if path.startswith(("s3a://", "s3n://")):
            raise ValueError("must start with s3://, for Spark too")
        if path.startswith("s3://") and not re.fullmatch(r"s3://[^/@]+(/[^?#]*)?", path):
            raise ValueError("must be s3://bucket or s3://bucket/prefix")
        return path


class SparkSettings(_Section):
    master: str = "local[*]"
    conf: dict[str, str] = {}

    @field_validator("conf", mode="before")
    @classmethod
    def _flat(cls, conf: Any) -> Any:
        """Take `conf = {spark.driver.memory = "4g"}`, which TOML reads as nested tables."""
        return _dotted(conf) if isinstance(conf, dict) else conf


_PACE = Pace()


class ControlSettings(_Section):
    """How the manager and its workers keep time."""

    heartbeat: Duration = _PACE.heartbeat
    dead_after: Duration = _PACE.dead_after
    lease: Duration = _PACE.lease
    loop: Duration = _PACE.loop
    accept_within: Duration = _PACE.accept_within
    drain: Duration = _PACE.drain
    max_parallel: int | None = Field(default=None, ge=1)
    pause_after: int = Field(default=_PACE.pause_after, ge=1)

    @model_validator(mode="after")
    def _fit_together(self) -> ControlSettings:
        if self.dead_after < 2 * self.heartbeat:
            raise ValueError("dead_after must be at least twice the heartbeat, else all seem dead")
        if self.lease < 2 * self.loop:
            raise ValueError("lease must be at least twice the loop, else nobody can keep it")
        return self

    @property
    def pace(self) -> Pace:
        return Pace(**self.model_dump())


class Settings(BaseSettings):
    """All settings of a project; every one has a default."""

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True
    )

    store: StoreSettings = StoreSettings()
    bus: BusSettings = BusSettings()
    files: FilesSettings = FilesSettings()
    lake: LakeSettings = LakeSettings()
    spark: SparkSettings = SparkSettings()
    control: ControlSettings = ControlSettings()
    vars: dict[str, Annotated[str | int | float | bool, BeforeValidator(_variable)]] = {}
    folder: Path = Path()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003  (pydantic's signature)
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Let the environment win over the file."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)

    def resolve(self, path: str) -> str:
        """Give a path from the project's folder on; an address with a scheme stays as it is."""
        return path if "://" in path else str((self.folder / Path(path).expanduser()).resolve())

    @property
    def lake_path(self) -> str:
        return self.resolve(self.lake.path)

    @property
    def store_url(self) -> str:
        scheme, _, path = self.store.url.partition(":///")
        if scheme != "sqlite":
            return self.store.url
        return f"sqlite:///{self.resolve(path)}"

    @property
    def scratch(self) -> Path:
        """Where embedded parts and logs live; never committed."""
        return self.folder / ".tidegate"


def load_settings(folder: Path) -> Settings:
    """Read a project's settings; raises ProjectError with file, line and field."""
    path = folder / FILE
    text = _read(path)
    unknown = [*_unknown_sections(_parsed(text), text), *_unknown_variables()]

    class Bound(Settings):
        model_config = SettingsConfigDict(toml_file=path)

    try:
        settings = Bound(folder=folder.resolve())
    except ValidationError as error:
        found = [_problem(dict(item), text) for item in error.errors()]
        raise ProjectError(sorted({*unknown, *found})) from None
    except SettingsError as error:
        # A variable of the environment that is not the JSON that its field wants.
        found = [_not_json(error)]
        raise ProjectError([*unknown, *found]) from None
    wrong = [*unknown, *_unreadable_lake(settings, text)]
    if wrong:
        raise ProjectError(wrong)
    return settings


def _unreadable_lake(settings: Settings, text: str) -> list[Problem]:
    """Refuse a folder whose name the two readers of Delta tables would take differently."""
    path = settings.lake_path
    odd = sorted({sign for sign in path if sign in _NOT_IN_A_PATH or not sign.isprintable()})
    if "://" in path or not odd:
        return []
    signs = " ".join(odd)
    message = f"{path} holds {signs}, which cannot stand in the path of a Delta table; rename it"
    return [Problem(FILE, _line_of(["lake", "path"], text), "lake.path", message)]


def _parsed(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"\(at line (\d+)", str(error))
        line = int(at[1]) if at else max(1, len(text.splitlines()))
        message = f"is not valid TOML: {str(error).partition(' (at')[0]}"
    except RecursionError:
        line, message = 0, "is not valid TOML: its values stand too deep within each other"
    raise ProjectError([Problem(FILE, line, "", message)])


def _sections() -> list[str]:
    return [name for name in Settings.model_fields if name != "folder"]


def _unknown_sections(values: dict[str, Any], text: str) -> list[Problem]:
    """Look for what pydantic leaves out: it knows the folder, which no file may set."""
    message = f"unknown key; there are the sections {', '.join(_sections())}"
    return [
        Problem(FILE, _line_of([name], text), name, message) for name in values if name == "folder"
    ]


def _unknown_variables() -> list[Problem]:
    """Look for variables that no section would ever read."""
    message = f"unknown setting; there are the sections {', '.join(_sections())}"
    return [
        Problem("environment", 0, name, message)
        for name in sorted(os.environ)
        if name.upper().startswith(_PREFIX)
        and name.upper().removeprefix(_PREFIX).partition("__")[0].lower() not in _sections()
    ]


def _not_json(error: SettingsError) -> Problem:
    named = re.search(r'field "(\w+)"', str(error))
    section = named[1].upper() if named else "…"
    message = "is not JSON; give one key as TIDEGATE__SECTION__KEY, or all of them as JSON"
    return Problem("environment", 0, f"{_PREFIX}{section}", message)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ProjectError([Problem(FILE, 0, "", "is not UTF-8 text")]) from None
    except OSError as error:
        raise ProjectError([Problem(FILE, 0, "", f"cannot be read: {error.strerror}")]) from None


def _problem(error: dict[str, Any], text: str) -> Problem:
    where = [str(part) for part in error["loc"]]
    message = str(error["msg"]).removeprefix("Value error, ")
    match error["type"]:
        case "extra_forbidden" if len(where) == 1:
            message = f"unknown key; there are the sections {', '.join(_sections())}"
        case "extra_forbidden":
            message = f"unknown key; [{where[0]}] may have: {', '.join(_keys(where[0]))}"
        case "model_type" | "dict_type":
            message = f"must be a section, [{'.'.join(where)}], or a table, {{ key = value }}"
    variable = _variable_of(where)
    if variable is not None:
        return Problem("environment", 0, variable, message)
    return Problem(FILE, _line_of(where, text), ".".join(where), message)


def _keys(section: str) -> list[str]:
    kind = Settings.model_fields[section].annotation
    return list(kind.model_fields) if isinstance(kind, type) and issubclass(kind, BaseModel) else []


def _variable_of(where: list[str]) -> str | None:
    """Name the variable of the environment that gave a value; it wins over the file."""
    for count in range(len(where), 0, -1):
        name = _PREFIX + "__".join(where[:count]).upper()
        for variable in os.environ:
            if variable.upper() == name:
                return variable
    return None


def _line_of(where: list[str], text: str) -> int:
    """Find the line of a key: first its section, then the key below it."""
    section: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if stripped.startswith("["):
            section = _path(stripped.partition("#")[0].strip("[] "))
            if section[: len(where)] == where:
                return number
            continue
        path = [*section, *_path(stripped.partition("=")[0])]
        if "=" in stripped and path[: len(where)] == where[: len(path)]:
            return number
    return 0


def _path(key: str) -> list[str]:
    return [part.strip().strip("\"'") for part in key.split(".")]


def _dotted(conf: dict[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in conf.items():
        match value:
            case dict():
                flat |= _dotted(value, f"{prefix}{key}.")
            case bool():
                flat[prefix + key] = str(value).lower()
            case str() | int() | float():
                flat[prefix + key] = str(value)
            case _:
                raise ValueError(f"{prefix}{key} must be a text, a number, true or false")
    return flat
