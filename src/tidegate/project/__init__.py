"""A project folder turned into definitions, each knowing its file and line, and its problems."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tidegate.errors import Problem, ProjectError, WrongUse
from tidegate.model.lineage import Definition, Processor, TopicName
from tidegate.model.viewtext import ViewCycleError, ViewText, reachable
from tidegate.project.entries import Entry, read_entries
from tidegate.project.rules import entry_problems, lineage_problems, log_problems
from tidegate.project.views import read_logs, read_views
from tidegate.settings import FILE, Settings, load_settings


@dataclass(frozen=True)
class Project:
    """Everything that a project folder says."""

    settings: Settings
    definitions: Mapping[str, Definition]
    entries: Mapping[str, Entry]
    """By topic; shards share theirs."""
    views: Mapping[str, ViewText]
    problems: tuple[Problem, ...]
    """All that is wrong, warnings included."""
    configured: bool = True
    """False when the settings do not read; then they are the defaults."""

    @property
    def folder(self) -> Path:
        return self.settings.folder

    def require_sound(self) -> None:
        """Raise ProjectError if anything but a warning was found."""
        wrong = [problem for problem in self.problems if not problem.warning]
        if wrong:
            raise ProjectError(wrong)


def find_project(given: Path | None) -> Path:
    """Find the folder: the given one, TIDEGATE_PROJECT, or the nearest above that is a project."""
    named = given
    if named is None and os.getenv("TIDEGATE_PROJECT"):
        named = Path(os.environ["TIDEGATE_PROJECT"])
    try:
        if named is not None:
            if not (named / FILE).is_file():
                raise WrongUse(
                    f"{named} is not a project: it has no {FILE}; `tidegate init DIR` makes one"
                )
            return named.resolve()
        here = Path.cwd()
        for folder in (here, *here.parents):
            if (folder / FILE).is_file():
                return folder
    except OSError as error:
        raise WrongUse(
            f"{named or 'the current folder'} cannot be read: {error.strerror}"
        ) from None
    raise WrongUse(
        f"no {FILE} in {here} or above; go to a project, name one with -C DIR,"
        " or make one: tidegate init DIR"
    )


def load_project(folder: Path) -> Project:
    """Read a project whole; its problems come with it, all in one go."""
    views, problems = read_views(folder)
    logs, wrong = read_logs(folder)
    problems += wrong
    configured = True
    try:
        settings = load_settings(folder)
    except ProjectError as error:
        problems += error.problems
        settings, configured = Settings.model_construct(folder=folder.resolve()), False
    entries, wrong = _read_lineage(folder)
    problems += wrong
    definitions = _definitions(entries, views.texts, logs, settings)
    problems += log_problems(logs, definitions)
    variables = settings.vars if configured else None
    for topic, entry in entries.items():
        problems += entry_problems(entry, definitions[topic], views, variables)
    problems += lineage_problems(entries, definitions)
    found = tuple(sorted(set(problems)))
    dealt = {shard.topic: shard for one in definitions.values() for shard in one.dealt()}
    owners = {topic: entries[definition.entry] for topic, definition in dealt.items()}
    return Project(settings, dealt, owners, views.texts, found, configured)


def _read_lineage(folder: Path) -> tuple[dict[str, Entry], list[Problem]]:
    entries: dict[str, Entry] = {}
    first: dict[str, Entry] = {}
    problems: list[Problem] = []
    for path in _lineage_files(folder):
        found, wrong = read_entries(path, str(path.relative_to(folder)))
        problems += wrong
        for entry in found:
            # Spark does not tell the case of a table; a tag is ours.
            name = TopicName.parse(entry.topic)
            before = first.setdefault(str(replace(name, table=name.table.lower())), entry)
            if before is entry:
                entries[entry.topic] = entry
            else:
                message = f"{entry.topic} stands already at {before.file}:{before.line}"
                problems.append(entry.problem("table", message))
    return entries, problems


def _lineage_files(folder: Path) -> list[Path]:
    single = [folder / name for name in ("lineage.yaml", "lineage.yml")]
    several = [*(folder / "lineage").glob("*.yaml"), *(folder / "lineage").glob("*.yml")]
    return [*filter(Path.exists, single), *sorted(several)]


def _definitions(
    entries: Mapping[str, Entry],
    views: Mapping[str, ViewText],
    logs: Mapping[str, ViewText],
    settings: Settings,
) -> dict[str, Definition]:
    plain = {topic: _definition(entry, views, settings) for topic, entry in entries.items()}
    for topic, definition in plain.items():
        log = logs.get(definition.table.lower())
        plain[topic] = replace(definition, log=log.text) if log else definition
    tagged = {d.table for d in plain.values() if TopicName.parse(d.topic).tag is not None}
    by_table = {definition.table: definition for definition in plain.values()}
    return {
        topic: _linked(definition, by_table, definition.table in tagged)
        for topic, definition in plain.items()
    }


def _linked(definition: Definition, by_table: Mapping[str, Definition], tagged: bool) -> Definition:
    """Let a topic know what its base calls the position columns, and whether it has siblings."""
    base = by_table.get(definition.base) if definition.depends_on else None
    if base is not None and base.processor is not Processor.RELOAD:
        definition = replace(definition, base_pos=base.pos, base_id=base.id)
    return replace(definition, tagged=tagged)


def _definition(entry: Entry, views: Mapping[str, ViewText], settings: Settings) -> Definition:
    transforms = tuple(name.lower() for name in entry.get("transforms"))
    known = [name for name in transforms if name in views]
    names = _reachable(known, views)
    used = {name for view in names for name in views[view].parameters}
    return Definition(
        topic=entry.topic,
        processor=entry.get("processor"),
        depends_on=entry.get("depends_on"),
        unwaited=entry.get("unwaited"),
        transforms=transforms,
        delay=entry.get("delay"),
        repeat=entry.get("repeat"),
        maxstep=entry.get("maxstep"),
        keys=entry.get("keys"),
        deleted=entry.get("deleted"),
        checks=entry.get("checks"),
        max_failed_rows=entry.get("max_failed_rows"),
        max_failed_share=entry.get("max_failed_share"),
        max_retries_per_entity=entry.get("max_retries_per_entity"),
        partition_by=entry.get("partition_by"),
        cluster_by=entry.get("cluster_by"),
        properties=entry.get("properties"),
        comments=entry.get("columns"),
        before=entry.get("before"),
        after=entry.get("after"),
        comment=entry.get("comment"),
        pos=entry.get("pos") or "pos",
        id=entry.get("id") or "id",
        worker_tags=entry.get("worker_tags"),
        shards=entry.get("shards"),
        shard_by=entry.get("shard_by"),
        views={name: views[name].text for name in names},
        vars={name: value for name, value in settings.vars.items() if name in used},
    )


def _reachable(names: list[str], views: Mapping[str, ViewText]) -> list[str]:
    try:
        return reachable(names, views)
    except ViewCycleError:
        # A circle is reported by its own rule; here it only must not stop the reading.
        return names
