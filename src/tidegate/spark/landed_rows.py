"""What rows become as they land: columns of the table, one row a key, a hash to compare them by.

Nothing here writes or reads a table: expressions and plans alone, for classic Spark and Connect.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from tidegate.errors import FlowFailed
from tidegate.ports.outside import Batch
from tidegate.spark.delta_writes import literal, quoted, type_sql

HASH = "_hash"
"""The column by which an upsert tells what has changed."""
UPDATED = "_updated"
"""The column that tells which of two rows with one key is the newer one."""
ENTITY = "_id"
"""The column that names an entity, always by a text."""
_SAME_KEY = "TIDEGATE_SAME_KEY"
_CLASH = re.compile(f"{_SAME_KEY}(.*?){_SAME_KEY}")
_LONGEST_KEY = 200
"""So much of a key is repeated in a message."""
_RANK, _AGREE, _OLD = "__tidegate_rank", "__tidegate_agree", "__tidegate_old_"
_MADE_BY_DELTA = ("delta.generationExpression", "delta.identity.start")
_WIDER = {
    "tinyint": ("smallint", "int", "bigint", "float", "double"),
    "smallint": ("int", "bigint", "float", "double"),
    "int": ("bigint", "double"),
    "float": ("double",),
}
"""The types that hold every value of another."""


class LandedNames(NamedTuple):
    """What the landed position is called in a table."""

    pos: str
    id: str


_PLAIN = LandedNames("pos", "id")
_ASIDE = LandedNames("_pos", "_seq")


def landed_names(table: Sequence[str], rows: Sequence[str]) -> LandedNames:
    """Tell what the position is called, by the columns of the table so far and of the rows."""
    held = [name.lower() for name in table]
    settled = [names for names in (_PLAIN, _ASIDE) if set(names) <= set(held)]
    if settled:
        # A source may have the other pair as columns of its own: the landed one stands first.
        first = min(settled, key=lambda names: held.index(names.pos))
        return LandedNames._make(table[held.index(name)] for name in first)
    taken = {*held, *(name.lower() for name in rows)}
    return _PLAIN if taken.isdisjoint(_PLAIN) else _ASIDE


def fitting(
    batch: Batch, names: LandedNames, rows: StructType, table: StructType | None
) -> list[str]:
    """Give the expressions that turn rows into columns of the table, its own and new ones.

    Raises FlowFailed where a column cannot be landed under its name, or with its type.
    """
    held = {field.name.lower(): field for field in table.fields} if table else {}
    _require_names(batch, names, rows, held)
    misfits = list(_misfits_of_ours(batch, names, held))
    fitted: dict[str, str] = {}
    for field in rows.fields:
        there = held.get(field.name.lower())
        value, given = _given(field, there)
        wanted = _wanted(field.name, given, there.dataType if there else None, misfits)
        if wanted is None or isinstance(given, NullType):
            continue
        # A name is kept as it was first typed.
        name = there.name if there else field.name
        fitted[name.lower()] = f"{_as(value, given, wanted)} AS {quoted(name)}"
    if misfits:
        raise FlowFailed(
            f"the rows do not fit {batch.table}: {'; '.join(misfits)};"
            " cast them to the table's types, or give them another name"
        )
    ours = {names.pos.lower(), names.id.lower(), HASH}
    lacking = [field for name, field in held.items() if name not in ours | fitted.keys()]
    return [*fitted.values(), *(_nulls(lacking) if batch.keys else ())]


def _require_names(
    batch: Batch, names: LandedNames, rows: StructType, held: dict[str, StructField]
) -> None:
    """Refuse rows whose columns clash with one another or with ours, or that lack a key."""
    given = [name.lower() for name in rows.names]
    twice = next((name for name in rows.names if given.count(name.lower()) > 1), None)
    if twice is not None:
        raise FlowFailed(
            f"the rows for {batch.table} have two columns called {twice}, as case does not count;"
            " give one of them another name"
        )
    for ours in (*names, *((HASH,) if batch.keys else ())):
        if ours.lower() in given:
            raise FlowFailed(
                f"the rows for {batch.table} have a column {ours} of their own, and there Tidegate"
                " writes it; give theirs another name"
            )
    for key in batch.keys:
        # A batch of nothing may come without any column.
        if given and key.lower() not in given:
            raise FlowFailed(
                f"the rows for {batch.table} have no column {key}, by which they are to take the"
                " place of older ones; give them one"
            )
        if held and key.lower() not in held:
            raise FlowFailed(
                f"{batch.table} has no column {key}, by which rows are to take the place of older"
                " ones; add it and fill it, or land in a new table"
            )


def _misfits_of_ours(
    batch: Batch, names: LandedNames, held: dict[str, StructField]
) -> Iterator[str]:
    """Hold the columns that we write ourselves against those that somebody else made."""
    for name in (*names, *((HASH,) if batch.keys else ())):
        there = held.get(name.lower())
        if there is not None and not isinstance(there.dataType, LongType):
            yield _misfit(name, there.dataType, LongType())


def _given(field: StructField, there: StructField | None) -> tuple[str, DataType]:
    """Give a column of the rows as it is to be landed where nothing else holds, and its type."""
    value, kind = quoted(field.name), field.dataType
    nested = isinstance(kind, StructType | ArrayType | MapType | VariantType)
    as_text = there is None or isinstance(there.dataType, StringType)
    if field.name.lower() != ENTITY or nested or not as_text:
        return value, kind
    return _as(value, kind, StringType()), StringType()


def _nulls(lacking: Sequence[StructField]) -> Iterator[str]:
    """Give what rows lack as NULL, but leave to Delta what it makes itself."""
    for field in lacking:
        if not any(name in field.metadata for name in _MADE_BY_DELTA):
            yield f"{_null(field.dataType)} AS {quoted(field.name)}"


def _null(kind: DataType) -> str:
    return f"CAST(NULL AS {type_sql(kind)})"


def _wanted(
    path: str, given: DataType, held: DataType | None, misfits: list[str]
) -> DataType | None:
    """Give the type as which something lands; None where it has none so far."""
    match given, held:
        case NullType(), _:
            return held
        case StructType(), StructType() | None:
            fields = _wanted_fields(path, given, held or StructType(), misfits)
            return StructType(fields) if fields else None
        case ArrayType(), ArrayType() | None:
            inner = held.elementType if held else None
            element = _wanted(path, given.elementType, inner, misfits)
            return ArrayType(element) if element is not None else None
        case MapType(), MapType() | None:
            old_key, old_value = (held.keyType, held.valueType) if held else (None, None)
            key = _wanted(f"{path}.key", given.keyType, old_key, misfits)
            value = _wanted(f"{path}.value", given.valueType, old_value, misfits)
            return MapType(key, value) if key is not None and value is not None else None
        case _, None:
            return given
    if held is not None and not _holds(held, given):
        misfits.append(_misfit(path, held, given))
    return held


def _wanted_fields(
    path: str, given: StructType, held: StructType, misfits: list[str]
) -> list[StructField]:
    """Give the fields of a struct as it lands: those of the table, then the new ones."""
    come = {field.name.lower(): field.dataType for field in given.fields}
    known = {field.name.lower() for field in held.fields}
    types: list[tuple[str, DataType, DataType | None]] = [
        *((f.name, come.get(f.name.lower(), NullType()), f.dataType) for f in held.fields),
        *((f.name, f.dataType, None) for f in given.fields if f.name.lower() not in known),
    ]
    wanted = ((n, _wanted(f"{path}.{n}", new, old, misfits)) for n, new, old in types)
    return [StructField(name, kind) for name, kind in wanted if kind is not None]


def _holds(held: DataType, given: DataType) -> bool:
    """Tell whether a type has every value of another."""
    if isinstance(held, DecimalType) and isinstance(given, DecimalType):
        whole = held.precision - held.scale >= given.precision - given.scale
        return whole and held.scale >= given.scale
    if isinstance(held, StringType) and isinstance(given, StringType):
        return True
    return held == given or held.simpleString() in _WIDER.get(given.simpleString(), ())


def _misfit(path: str, held: DataType, given: DataType) -> str:
    return f"{path} is {held.simpleString()} there and comes as {given.simpleString()}"


def _as(value: str, given: DataType, wanted: DataType, depth: int = 0) -> str:
    """Write a value as another type; a CAST would take the fields of a struct by their order."""
    if type_sql(given) == type_sql(wanted):
        return value
    item = f"item{depth}"
    match given, wanted:
        case StructType(), StructType():
            come = {field.name.lower(): field for field in given.fields}
            fields = (
                f"{literal(field.name)}, {_field_as(value, come, field, depth)}"
                for field in wanted.fields
            )
            return f"IF({value} IS NULL, NULL, named_struct({', '.join(fields)}))"
        case ArrayType(), ArrayType():
            element = _as(item, given.elementType, wanted.elementType, depth + 1)
            return f"transform({value}, {item} -> {element})"
        case MapType(), MapType():
            key = _as(f"{item}.key", given.keyType, wanted.keyType, depth + 1)
            mapped = _as(f"{item}.value", given.valueType, wanted.valueType, depth + 1)
            entries = f"transform(map_entries({value}), {item} -> struct({key}, {mapped}))"
            return f"map_from_entries({entries})"
        case _:
            return f"CAST({value} AS {type_sql(wanted)})"


def _field_as(value: str, come: dict[str, StructField], field: StructField, depth: int) -> str:
    """Write a field of a struct, or the NULL of one that does not come."""
    found = come.get(field.name.lower())
    if found is None:
        return _null(field.dataType)
    return _as(f"{value}.{quoted(found.name)}", found.dataType, field.dataType, depth)


def hashed(frame: DataFrame) -> DataFrame:
    """Add the hash of all columns.

    It does not depend on their order, and a NULL counts as a column that is not there: else every
    row of a table would have changed as soon as a column is new.
    """
    fields = sorted(frame.schema.fields, key=lambda field: field.name.lower())
    parts = [part for field in fields for part in _parts(field, "", 0)]
    return frame.selectExpr("*", f"xxhash64({', '.join(parts)}) AS {HASH}")


def _parts(field: StructField, parent: str, depth: int) -> list[str]:
    """Give what of a column is hashed: its name and its value, or two NULLs.

    xxhash64 passes over NULLs. Without the name, values that change places would not be seen.
    """
    value = f"{parent}.{quoted(field.name)}" if parent else quoted(field.name)
    name = f"IF({value} IS NULL, NULL, {literal(value.lower())})"
    return [name, *_values(value, field.dataType, depth)]


def _values(value: str, kind: DataType, depth: int) -> list[str]:
    """Give a value as what can be hashed, NULLs for a NULL: maps and variants cannot be.

    Lists say their length first, or [1, 2], [3] would be the same as [1], [2, 3].
    """
    item = f"item{depth}"
    match kind:
        case StructType():
            fields = sorted(kind.fields, key=lambda field: field.name.lower())
            return [part for field in fields for part in _parts(field, value, depth)]
        case ArrayType():
            inner = [f"{item} IS NULL", *_values(item, kind.elementType, depth + 1)]
            listed = f"transform({value}, {item} -> struct({', '.join(inner)}))"
            return [f"array_size({value})", listed]
        case MapType():
            mapped = f"{value}[{item}]"
            inner = [
                *_values(item, kind.keyType, depth + 1),
                f"{mapped} IS NULL",
                *_values(mapped, kind.valueType, depth + 1),
            ]
            keys = f"map_keys({value})"
            in_order = f"transform(array_sort({keys}), {item} -> struct({', '.join(inner)}))"
            return [f"array_size({keys})", in_order]
        case VariantType():
            return [f"to_json({value})"]
        case _:
            return [value]


def newest_of_each_key(frame: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Keep one of the hashed rows with the same key: the newest, or any where all are the same.

    Where the newest ones differ, the order in which they come would decide, and Spark owes none:
    the write fails.
    """
    columns = [F.col(quoted(key)) for key in keys]
    dated = UPDATED in (name.lower() for name in frame.columns)
    newest_first = F.desc_nulls_last(UPDATED) if dated else F.lit(None)
    of_key = Window.partitionBy(*columns).orderBy(newest_first)
    # Up to the first row reaches, in an ordered window, up to the last of those that are as new.
    agree = F.min(HASH).over(of_key) == F.max(HASH).over(of_key)
    ranked = frame.withColumns({_RANK: F.row_number().over(of_key), _AGREE: agree})
    key = F.to_json(F.struct(*columns), {"ignoreNullFields": "false"})
    clash = F.raise_error(F.concat(F.lit(_SAME_KEY), key, F.lit(_SAME_KEY))).cast("boolean")
    kept = F.when(F.col(_RANK) > 1, False).when(F.col(_AGREE), True).otherwise(clash)
    return ranked.where(kept).drop(_RANK, _AGREE)


def clashing_key(error: BaseException) -> str | None:
    """Find the key of two rows of which neither was the newer, if that made the write fail."""
    found = _CLASH.search(str(error))
    return found[1][:_LONGEST_KEY] if found else None


def changed(frame: DataFrame, old: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Leave out the hashed rows that the table has as they are.

    By a join of its own: a MERGE that makes up its mind as it matches rewrites files for nothing.
    """
    if HASH not in (name.lower() for name in old.columns):
        return frame
    there = old.select(
        *(F.col(quoted(key)).alias(f"{_OLD}{n}") for n, key in enumerate(keys)),
        F.col(HASH).alias(f"{_OLD}hash"),
    )
    same = F.col(HASH) == F.col(f"{_OLD}hash")
    for n, key in enumerate(keys):
        same &= F.col(quoted(key)).eqNullSafe(F.col(f"{_OLD}{n}"))
    return frame.join(there, same, "left_anti")
