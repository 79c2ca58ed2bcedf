"""What a row looks like, told from the model's own schema: for `/schema`, and as examples that work in `/docs`."""

from __future__ import annotations

from typing import Any

from tabmoco.serve.live import Generation
from tabmoco.tables.families import family_of, is_whole_number
from tabmoco.tables.schema import Column

FORMS = {
    "number": "a number, or text that spells one",
    "category": "text or a number; a value never seen in training counts as unknown",
    "boolean": "true or false",
    "timestamp": "text: a date or time in ISO 8601",
    "text": "text",
}


def example_row(generation: Generation, *, with_id: bool = True) -> dict[str, Any]:
    """A row in JSON, of values that are common or in the middle."""
    data = generation.model.config.data
    name = {data.id_column: 1 if _has_whole_ids(generation) else "a-1"} if with_id and data.id_column else {}
    return name | {column.name: example_cell(column) for column in generation.model.schema.used}


def example_cell(column: Column) -> Any:
    """A cell in JSON that the column takes."""
    family = family_of(column.arrow_type)
    if family != "time" and column.kind == "category" and column.frequent:
        return column.frequent[0][0]
    if column.kind == "timestamp" or family == "instant":
        return column.earliest or "2024-01-31T12:00:00"
    if family == "time":
        return "12:00:00"
    if family == "duration":
        return 60.0
    if column.kind == "number":
        mean = column.mean or 0.0
        return round(mean) if is_whole_number(column.arrow_type) else float(f"{mean:.4g}")
    if family == "boolean":
        return True
    return column.frequent[0][0] if column.frequent else "some text"


def describe_rows(generation: Generation) -> dict[str, Any]:
    """What `/schema` answers."""
    model, reference = generation.model, generation.model.reference
    return {
        "model": generation.fingerprint,
        "schema": generation.schema_version,
        "id_column": model.config.data.id_column,
        "d_embedding": model.d_embedding,
        "n_reference_rows": None if reference is None else len(reference),
        "columns": [
            {
                "name": column.name,
                "kind": column.kind,
                "type": column.arrow_type,
                "form": _form(column),
                "example": example_cell(column),
            }
            for column in model.schema.used
        ],
    }


def _form(column: Column) -> str:
    family = family_of(column.arrow_type)
    return {"duration": "a number of seconds", "time": "text: a time of day, such as 17:30:00"}.get(
        family, FORMS["timestamp" if family == "instant" else column.kind]
    )


def _has_whole_ids(generation: Generation) -> bool:
    reference = generation.model.reference
    return reference is not None and reference.ids is not None and is_whole_number(str(reference.ids.type))
