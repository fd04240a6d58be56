"""The page of the command line has the options that the commands have."""

from scripts.command_page import PAGE, renewed


def test_the_page_lists_the_options_of_the_commands() -> None:
    text = PAGE.read_text()
    assert renewed(text) == text, "run `python scripts/command_page.py`"
    assert "### `helixfold design binder`" in text
    assert text.count("`-q, --quiet`") == 1


def test_other_spellings_are_listed() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `--")]
    (row,) = [row for row in rows if row.startswith("| `--min-plddt NUMBER`")]
    assert row.endswith("Other spellings: `--least-plddt`. | `70` |")
    assert any("`--num-recycle` (ColabFold)" in row for row in rows if row.startswith("| `--num-recycles N`"))
    assert any("`--output_dir` (AlphaFold)" in line for line in PAGE.read_text().splitlines())
    assert not any("--pdb-hit-file" in row for row in rows)


def test_a_changed_table_is_replaced_and_the_rest_of_the_page_stays() -> None:
    text = PAGE.read_text()
    changed = text.replace("`--num-recycles N`", "`--recycles N`").replace("Every command has", "All commands have")
    assert renewed(changed) == text.replace("Every command has", "All commands have")
