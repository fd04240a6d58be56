"""Tables of a page show what the files of a target hold, in words."""

from pathlib import Path

from helixfold.report.tables import facts_of, table_of
from helixfold.results.json_object import JsonObject


def test_zeros_and_false_values_are_facts_and_empty_ones_are_not() -> None:
    content = {
        "num_recycles": 0,
        "use_dropout": False,
        "tolerance": 0.0,
        "peak_memory_gib": 1.5,
        "model": None,
        "notes": [],
        "title": "",
        "left_out": 3,
        "steps": {"least": 0, "is_last": True, "nothing": None, "empty": {}},
        "residues": 12345,
    }
    assert facts_of(JsonObject(Path("settings.json"), content), without=("left_out",)) == [
        ("num recycles", "0"),
        ("use dropout", "no"),
        ("tolerance", "0.0"),
        ("peak memory, GiB", "1.5"),
        ("steps: least", "0"),
        ("steps: is last", "yes"),
        ("residues", "12,345"),
    ]
    assert facts_of(JsonObject(Path("settings.json"), {})) == []


def test_a_table_has_the_rows_that_are_named_and_empty_cells_where_a_row_lacks_a_column() -> None:
    rows = {"one": {"seed": 0, "is_relaxed": False}, "two": {"seed": 7, "energy_kcal_per_mol": 0.0}, "three": {"x": 1}}
    columns, cells = table_of(JsonObject(Path("settings.json"), {"predictions": rows}), "predictions", {"one", "two"})
    assert columns == ["seed", "is relaxed", "energy, kcal/mol"]
    assert cells == [("one", ["0", "no", ""]), ("two", ["7", "", "0.0"])]
