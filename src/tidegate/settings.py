"""`tidegate.toml` and TIDEGATE__SECTION__KEY as typed settings; unknown keys are errors."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from tidegate.errors import Problem, ProjectError

FILE = "tidegate.toml"


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class StoreSettings(_Section):
    url: str = "sqlite:///.tidegate/store.db"

    @field_validator("url")
    @classmethod
    def _known(cls, url: str) -> str:
        if not url.startswith(("sqlite:///", "postgresql://")):
            raise ValueError("must start with sqlite:/// or postgresql://")
        return url


class BusSettings(_Section):
    url: Literal["embedded"] = "embedded"


class FilesSettings(_Section):
    url: str = ".tidegate/files"


class LakeSettings(_Section):
    path: str = "lake"
    catalog: Literal["tidegate", "spark"] = "tidegate"


class SparkSettings(_Section):
    master: str = "local[*]"
    conf: dict[str, str] = {}

    @field_validator("conf", mode="before")
    @classmethod
    def _flat(cls, conf: Any) -> Any:
        """Take `conf = {spark.driver.memory = "4g"}`, which TOML reads as nested tables."""
        return _dotted(conf) if isinstance(conf, dict) else conf


class Settings(BaseSettings):
    """All settings of a project; every one has a default."""

    model_config = SettingsConfigDict(
        env_prefix="TIDEGATE__", env_nested_delimiter="__", extra="forbid", frozen=True
    )

    store: StoreSettings = StoreSettings()
    bus: BusSettings = BusSettings()
    files: FilesSettings = FilesSettings()
    lake: LakeSettings = LakeSettings()
    spark: SparkSettings = SparkSettings()
    vars: dict[str, str | int | float | bool] = {}
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
        return path if "://" in path else str((self.folder / path).resolve())

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
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = int(str(error).rpartition("line ")[2].split(",")[0].strip(") ") or 0)
        message = f"is not valid TOML: {str(error).partition(' (at')[0]}"
        raise ProjectError([Problem(FILE, line, "", message)]) from None

    class Bound(Settings):
        model_config = SettingsConfigDict(toml_file=path)

    try:
        return Bound(folder=folder.resolve())
    except ValidationError as error:
        raise ProjectError([_problem(dict(item), text) for item in error.errors()]) from None
    except SettingsError as error:
        # A variable of the environment that is not what its field wants.
        raise ProjectError([Problem("environment", 0, "TIDEGATE__…", str(error))]) from None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ProjectError([Problem(FILE, 0, "", "is not UTF-8 text")]) from None
    except OSError as error:
        raise ProjectError([Problem(FILE, 0, "", f"cannot be read: {error.strerror}")]) from None


def _problem(error: dict[str, Any], text: str) -> Problem:
    where = [str(part) for part in error["loc"]]
    field = ".".join(where)
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        message = "unknown key; see the reference of tidegate.toml for those there are"
    line = _line_of(where, text)
    return Problem(FILE if line else f"{FILE} or environment", line, field, message)


def _line_of(where: list[str], text: str) -> int:
    """Find the line of a key: first its section, then the key below it."""
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if stripped.startswith("["):
            section = stripped.strip("[] ").partition("#")[0].strip("[] ")
            if where == [section]:
                return number
            continue
        key = stripped.partition("=")[0].strip().strip('"')
        path = [*filter(None, section.split(".")), *key.split(".")]
        if stripped and path[: len(where)] == where[: len(path)]:
            return number
    return 0


def _dotted(conf: dict[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in conf.items():
        if isinstance(value, dict):
            flat |= _dotted(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = str(value).lower() if isinstance(value, bool) else str(value)
    return flat
