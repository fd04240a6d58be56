"""The tables of files in docs/reference/outputs.md are those of the file table."""

from scripts.outputs_page import PAGE, renewed


def test_the_page_lists_the_files_of_the_table() -> None:
    text = PAGE.read_text()
    assert renewed(text) == text, "run `python scripts/outputs_page.py`"
    assert "| `ranked_<rank>.pdb`, `.cif` |" in text
    assert "| `<target>_relaxed_rank_<rank>_<tag>.pdb` |" in text


def test_other_tables_are_replaced_and_the_rest_of_the_page_stays() -> None:
    text = PAGE.read_text()
    changed = text.replace("| `settings.json` |", "| `setting.json` |").replace("What you get", "What we get")
    assert "setting.json" in changed
    assert renewed(changed) == text.replace("What you get", "What we get")
