"""The list of training files of the small model is complete, and agrees with the card."""

import re
from collections import Counter
from pathlib import Path

import pytest

from helixfold.weights import demonstration
from tests.examples.small.scripts import small_script

manifest, sources, split = map(small_script, ("manifest", "sources", "split"))
LIST = demonstration.DIRECTORY / "small_sources.tsv"
CARD = (demonstration.DIRECTORY / "small.md").read_text()
LINES = list(manifest.rows(LIST))


def names_in_card(kind: str) -> list[str]:
    (names,) = re.findall(rf"<summary>The [\d,]+ {kind}</summary>\n\n(.*?)\n\n</details>", CARD, re.DOTALL)
    return list(names.split())


def test_each_chain_that_was_trained_on_is_in_one_file() -> None:
    trained = names_in_card("training chains")
    listed = Counter(name for line in LINES if line["kind"] == "structure" for name in line["chains"].split(";"))
    assert len(trained) == demonstration.facts()["training_chains"] == len(listed)
    assert listed == Counter(trained)
    assert {name for line in LINES if line["chains"] for name in line["chains"].split(";")} == set(trained)


def test_nothing_that_was_set_aside_or_is_under_copyleft_was_learnt_from() -> None:
    table = split.read_split()
    trained = set(names_in_card("training chains"))
    assert trained <= {chain.name for chain in table if chain.set == split.TRAIN}
    kinds = {"template": "templates", "alignment": "alignments", "single": "only a sequence"}
    for kind, words in kinds.items():
        targets = sorted(chain.name for chain in table if chain.target == kind)
        assert names_in_card(f"targets with {words}") == targets
        assert not trained & set(targets)
    assert not any(manifest.is_copyleft(line["licence"]) for line in LINES)


def test_each_file_has_a_repository_a_commit_and_a_licence() -> None:
    for line in LINES:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", line["repository"]), line
        assert re.fullmatch(r"[0-9a-f]{40}", line["commit"]), line
        assert line["path"], line
        assert line["licence"], line


def test_the_card_has_the_numbers_of_the_list() -> None:
    counts = sources.counts(LINES)
    for licence, each in counts.licences:
        assert f"| {licence} | {' | '.join(str(each[kind]) for kind in sources.KINDS)} |" in CARD
    text = " ".join(CARD.split())
    for words in (
        f"lists all {counts.files:,} training files",
        f"{counts.aligned} chains have alignments from other projects",
        f"{counts.with_templates} chains have homologous templates",
        f"{counts.pdb} of the chains are PDB entries. {counts.casp} are CASP targets",
        f"The files of {len(counts.unnamed)} chains ({', '.join(counts.unnamed)}) have",
        "; ".join(f"{name} ({licence}): {count}" for name, licence, count in counts.repositories),
    ):
        assert words in text


def test_structures_alignments_and_templates_are_found_in_the_collection(tmp_path: Path) -> None:
    data, collection = tmp_path / "data", tmp_path / "collection"
    files = (
        "mmcif/1abc.cif.gz",
        "mmcif/2def.cif.gz",
        "msa/one.a3m",
        "fasta/minidb_small.fasta",
        "fasta/minidb_left.fa",
    )
    for file in files:
        (data / file).parent.mkdir(parents=True, exist_ok=True)
        (data / file).touch()
    lines = [f"{file}\to/r\t{'c' * 40}\t{file}\t{'GPL' if 'left' in file else ''}" for file in files]
    (data / "manifest.tsv").write_text("\n".join(["file\trepo\tcommit\tpath\tlicence", *lines]) + "\n")
    folder = collection / "alignments" / "1abc_A"
    manifest.link(data / "msa/one.a3m", folder / "0_one.a3m")
    (folder / "natural.a3m").touch()
    (folder / "library.m8").write_text("1abc_A\tmmcif-2def_B\t0.4\n")

    def chain(name: str, file: str) -> object:
        return split.SplitChain(
            name=name, file=file, chain=name[-1], length=9, family=name, protein=name, set=split.TRAIN, target="",
            template="", identity=None,
        )  # fmt: skip

    table = [chain("1abc_A", files[0]), chain("2def_B", files[1])]
    found = sources.sources({"1abc_A"}, table, data, collection)
    assert [(line["kind"], line["chains"], line["file"], line["licence"]) for line in found] == [
        ("structure", "1abc_A", files[0], "not known"),
        ("alignment", "1abc_A", files[2], "not known"),
        ("template", "1abc_A", files[1], "not known"),
        ("sequences", "", files[3], "not known"),
    ]
    with pytest.raises(sources.InputError, match="the split has no chain nowhere"):
        sources.sources({"nowhere"}, table, data, collection)
