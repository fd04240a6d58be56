"""The list of what the small model learnt from is whole, and the card says what it says."""

import re
from collections import Counter
from pathlib import Path

import pytest

from helixfold.weights import demonstration
from tests.data_pipeline.datasets.training_files import write_training_files
from tests.examples.small.scripts import small_script

sources = small_script("sources")
LIST = demonstration.DIRECTORY / "small_sources.tsv"
CARD = (demonstration.DIRECTORY / "small.md").read_text()
LINES = list(sources.rows(LIST))


def test_each_chain_that_was_trained_on_is_in_one_file() -> None:
    lists = re.findall(
        r"<summary>The [\d,]+ (?:chains with|other)[^<]*</summary>\n\n(.*?)\n\n</details>", CARD, re.DOTALL
    )
    trained = [name for names in lists for name in names.split()]
    listed = Counter(name for line in LINES if line["kind"] == "structure" for name in line["chains"].split(";"))
    assert len(trained) == demonstration.facts()["training_chains"] == len(listed)
    assert listed == Counter(trained)
    assert {name for line in LINES for name in line["chains"].split(";")} == set(trained)


def test_each_file_has_a_repository_a_commit_and_a_licence() -> None:
    for line in LINES:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", line["repository"]), line
        assert re.fullmatch(r"[0-9a-f]{40}", line["commit"]), line
        assert line["path"], line
        assert line["licence"], line


def test_the_card_has_the_numbers_of_the_list() -> None:
    found = sources.counts(LINES)
    for licence, chains, alignments in found.licences:
        assert f"| {licence} | {chains} | {alignments} |" in CARD
    text = " ".join(CARD.split())
    chains, alignments, targets = found.copyleft
    for words in (
        f"names all {found.files:,} files",
        f"{found.pdb} of the chains are entries of it. {found.casp} are targets of CASP",
        f"The files of {len(found.unnamed)} chains ({', '.join(found.unnamed)}) do not",
        f"{chains} chains come from repositories under the GPL or LGPL",
        f"{alignments} files of alignments, for {targets} of the {found.aligned} chains that have any",
        "; ".join(f"{name} ({licence}): {count}" for name, licence, count in found.repositories),
    ):
        assert words in text


def test_files_of_targets_come_before_others(tmp_path: Path) -> None:
    structures, _ = write_training_files(tmp_path, 2)
    one = min(path.name for path in structures.iterdir())
    data = tmp_path / "data"
    (data / "train_mmcif").mkdir(parents=True)
    for name in ("target", "train_mmcif/other_A"):
        (data / f"{name}.cif").write_bytes((structures / one).read_bytes())
    header = sources.read_structure(structures / one)
    chain = header.chains[0].name
    name = sources.chain_name(header, chain, data / "target.cif")
    manifest = [
        (each, "o/r", "c" * 40, each, licence)
        for each, licence in (("target.cif", "MIT"), ("a", ""), ("train_mmcif/other_A.cif", "BSD"))
    ]
    (data / "manifest.tsv").write_text(
        "file\trepo\tcommit\tpath\tlicence\n" + "".join("\t".join(each) + "\n" for each in manifest)
    )
    (data / "triples.tsv").write_text(f"structure\tstructure_chain\tmsas\ntarget.cif\t{chain}\ta\n")
    found = sources.sources({name, "other_A"}, data)
    assert [(line["kind"], line["chains"], line["file"], line["licence"]) for line in found] == [
        ("structure", name, "target.cif", "MIT"),
        ("structure", "other_A", "train_mmcif/other_A.cif", "BSD"),
        ("alignment", name, "a", "not known"),
    ]
    with pytest.raises(sources.InputError, match="there is no file of nowhere"):
        sources.sources({"nowhere"}, data)
