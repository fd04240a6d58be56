"""ModelCIF files are valid by the dictionaries of PDBx and ModelCIF, and tell what made a model."""

import dataclasses
import gzip
import io
import warnings
from functools import cache
from typing import Any

import gemmi
import ihm.dictionary
import modelcif.qa_metric as qa
import modelcif.reader
import numpy as np
import pytest
from Bio.PDB.MMCIF2Dict import MMCIF2Dict
from biotite.structure.io import pdbx

from data_pipeline.features.assembly import Chain, complex_features
from data_pipeline.protein import Hydrogens, Protein
from data_pipeline.residues import THREE_LETTER
from data_pipeline.search.database import SearchedDatabase
from helixfold.folding.provenance import RecordedSearch
from helixfold.folding.templates import AlignedTemplate, templates_in
from helixfold.results.chains import split_chains
from helixfold.results.mmcif import PAE_METRIC, ModelOrigin, ModelScores, to_mmcif
from helixfold.results.pairwise_errors import CATEGORY, pairwise_errors
from tests.conftest import SHARED
from tests.data_pipeline.sampling.samples import random_features
from tests.report.reported import features_of
from tests.results.proteins import random_protein
from tests.results.test_mmcif import SIX_NAMES, six_chains
from tests.support import special_complex

DICTIONARIES = SHARED / "data" / "dictionaries"
needs_dictionaries = pytest.mark.skipif(
    not DICTIONARIES.is_dir(), reason=f"{DICTIONARIES} has the dictionaries and is not there"
)
# The keyword came with a later version of PDBx than the one that is checked against; python-modelcif writes it always.
NEWER = """
data_newer
save__struct.pdbx_structure_determination_methodology
_item.name '_struct.pdbx_structure_determination_methodology'
_item.category_id struct
_item.mandatory_code no
loop_
_item_enumeration.value
computational
experimental
integrative
save_
"""


@cache
def dictionary() -> ihm.dictionary.Dictionary:
    both = ihm.dictionary.Dictionary()
    for name in ("mmcif_pdbx_v42", "mmcif_ma_ext"):
        with gzip.open(DICTIONARIES / f"{name}.dic.gz", "rt") as file:
            both += ihm.dictionary.read(file)
    both += ihm.dictionary.read(io.StringIO(NEWER))
    return both


UNIREF = SearchedDatabase(name="uniref90_2022_01.fasta", version="2022_01", size=12345)
SERVER = SearchedDatabase(name="MMseqs2 server, mode env", url="https://x.org/a?b='c'")
PAIRS = RecordedSearch(purpose="pairs", search="mmseqs 18 colabfold pair greedy", databases=(UNIREF,))
ORIGIN = ModelOrigin(
    software={"torch": "2.13.0+cpu", "numpy": "2.3.0"},
    parameters="params_model_1_ptm.npz",
    parameters_digest="0123456789abcdef" * 4,
    settings={
        "seed": 3,
        "num_recycles": 3,
        "recycle_tolerance": 0.5,
        "step": 1e-5,
        "dtype": "bfloat16",
        "ensemble": True,
    },
    searches=(
        RecordedSearch(
            purpose="alignment", search="jackhmmer of pyhmmer 0.11.1 -N 1 in uniref90.fasta:12345", databases=(UNIREF,)
        ),
        RecordedSearch(purpose="alignment", search="mmseqs2 server https://x.org mode env", databases=(SERVER, UNIREF)),
        RecordedSearch(
            purpose="templates",
            search="hhsearch 3.3.0 in pdb70:99 until 2020-05-14",
            databases=(SearchedDatabase(name="pdb70", size=99),),
        ),
    ),
)


def with_templates(protein: Protein, chain_ids: tuple[str, ...]) -> ModelOrigin:
    """Templates of each chain: one of the Protein Data Bank with gaps, and a file of another origin."""
    templates = []
    for chain in split_chains(protein, chain_ids):
        length = chain.stop - chain.start
        templates += [
            aligned("1abc_B", chain.name, "-" + "W" * (length - 2) + "X"),
            aligned("my model; 'x'", chain.name, "A" + "-" * (length - 1)),
        ]
    searches = (*ORIGIN.searches, PAIRS) if len(chain_ids) > 1 else ORIGIN.searches
    return dataclasses.replace(ORIGIN, searches=searches, templates=tuple(templates))


def aligned(name: str, chain: str, residues: str) -> AlignedTemplate:
    return AlignedTemplate(name=name, chain_id=chain, residues=residues, label=f"{name} of {chain}")


def written(protein: Protein, **given: Any) -> str:
    return to_mmcif(protein, **{"name": "T1", "model": "model_1_ptm", "origin": ORIGIN, **given})


def scores(protein: Protein, chains: int) -> ModelScores:
    tm = np.linspace(0.1, 0.9, chains * chains).reshape(chains, chains)
    return ModelScores(
        plddt=np.full(len(protein.aatype), 80.0),
        ptm=0.71,
        iptm=0.62,
        tm_by_chain=tm if chains > 1 else None,
        has_pae=True,
    )


def hydrogens_of(protein: Protein) -> Hydrogens:
    return Hydrogens(residue=np.array([0]), names=("HA",), positions=protein.atom_positions[:1, 1])


MONOMER, SIX = random_protein(30, unknown=(4,)), six_chains()
FILES = {
    "a monomer": lambda: written(MONOMER, scores=scores(MONOMER, 1)),
    "a monomer without scores and origin": lambda: written(MONOMER, origin=None),
    "a relaxed monomer": lambda: written(MONOMER, scores=scores(MONOMER, 1), hydrogens=hydrogens_of(MONOMER)),
    "a monomer with templates": lambda: written(
        MONOMER, scores=scores(MONOMER, 1), origin=with_templates(MONOMER, ("A",))
    ),
    "a complex of six chains": lambda: written(
        SIX, scores=scores(SIX, 6), chain_ids=SIX_NAMES, origin=with_templates(SIX, SIX_NAMES)
    ),
    "awkward names": lambda: written(MONOMER, name="sp|P1'2\"3;# data_x", notes=['it\'s "so"', ";x"]),
    "a reserved name": lambda: written(MONOMER, name="data_x", model="loop_"),
}


@needs_dictionaries
@pytest.mark.parametrize("kind", FILES)
def test_files_are_valid(kind: str) -> None:
    dictionary().validate(io.StringIO(FILES[kind]()))


@needs_dictionaries
def test_a_file_with_a_value_that_the_dictionary_does_not_have_is_not_valid() -> None:
    text = FILES["a monomer"]()
    with pytest.raises(ihm.dictionary.ValidatorError, match="model_type value Homology is not a valid"):
        dictionary().validate(io.StringIO(text.replace("'Ab initio model'", "Homology")))


@needs_dictionaries
def test_pairwise_errors_are_valid_with_the_models_file() -> None:
    text = pairwise_errors(np.ones((30, 30)), MONOMER, split_chains(MONOMER), entry="T1", metric=PAE_METRIC)
    only_pairs = ihm.dictionary.Dictionary()
    only_pairs.categories = {
        name: dictionary().categories[name] for name in ("entry", "entry_link", CATEGORY.removeprefix("_"))
    }
    only_pairs.validate(io.BytesIO(gzip.decompress(text)), format="BCIF")


def test_a_file_tells_what_made_the_model() -> None:
    table = MMCIF2Dict(io.StringIO(written(MONOMER, scores=scores(MONOMER, 1), hydrogens=hydrogens_of(MONOMER))))
    assert table["_software.name"] == ["helixfold", "torch", "numpy", "OpenMM"]
    assert table["_software.version"][1:3] == ["2.13.0+cpu", "2.3.0"]
    assert table["_ma_protocol_step.method_type"] == [
        *("coevolution MSA", "template search", "modeling", "model refinement")
    ]
    values = dict(zip(table["_ma_software_parameter.name"], table["_ma_software_parameter.value"], strict=True))
    assert values == {
        **{
            "network": "model_1_ptm",
            "parameters": "params_model_1_ptm.npz",
            "parameters_sha256": "0123456789abcdef" * 4,
        },
        **{
            "seed": "3",
            "num_recycles": "3",
            "recycle_tolerance": "0.500",
            "step": "1e-05",
            "dtype": "bfloat16",
            "ensemble": "YES",
        },
    }
    assert table["_ma_data_ref_db.name"] == ["uniref90_2022_01.fasta", "MMseqs2 server, mode env", "pdb70"]
    assert table["_ma_data_ref_db.version"] == ["2022_01", ".", "."]
    assert table["_ma_data_ref_db.location_url"] == [".", "https://x.org/a%3Fb%3D%27c%27", "."]
    assert "pyhmmer 0.11.1" in table["_ma_protocol_step.details"][0]
    assert "mode env" in table["_ma_protocol_step.details"][0]
    assert table["_ma_model_list.model_type"] == ["Ab initio model"]
    assert table["_ma_entry_associated_files.file_url"] == ["pae_model_1_ptm.bcif.gz", "pae_model_1_ptm.json"]


def test_a_model_by_templates_names_them_with_their_alignments() -> None:
    features = dataclasses.replace(
        features_of(MONOMER, "T1", 2),
        template_domain_names=("1abc_B", "none_A"),
        template_aatype=np.stack([np.where(np.arange(30) % 29 < 3, 21, MONOMER.aatype), np.full(30, 21)]),
        template_all_atom_positions=np.zeros((2, 30, 37, 3), np.float32),
        template_all_atom_masks=np.zeros((2, 30, 37), np.float32),
        template_sum_probs=np.zeros((2, 1), np.float32),
    )
    templates = templates_in(features)
    assert [template.name for template in templates] == ["1abc_B"]
    text = written(MONOMER, origin=dataclasses.replace(ORIGIN, templates=templates))
    table = MMCIF2Dict(io.StringIO(text))
    assert table["_ma_model_list.model_type"] == ["Homology model"]
    assert (table["_ma_template_ref_db_details.db_name"], table["_ma_template_ref_db_details.db_accession_code"]) == (
        *(["PDB"], ["1ABC"]),
    )
    assert table["_ma_template_details.template_auth_asym_id"] == ["B"]
    assert table["_ma_target_template_poly_mapping.target_seq_id_begin"] == ["4"]
    assert table["_ma_target_template_poly_mapping.target_seq_id_end"] == ["29"]
    assert table["_ma_alignment_details.percent_sequence_identity"] == ["100.0"]
    target, template = ("".join(row.split()) for row in table["_ma_alignment.sequence"])
    assert target == template == features.sequence[3:29]
    (system,) = modelcif.reader.read(io.StringIO(text))
    assert [step.method_type for step in system.protocols[0].steps][:2] == ["coevolution MSA", "template search"]


def test_templates_of_a_complex_are_those_of_its_chains() -> None:
    one, other = random_features(3, 5, 2), random_features(3, 7, 1)
    one, other = (
        dataclasses.replace(each, template_domain_names=names, template_aatype=np.full_like(each.template_aatype, 3))
        for each, names in ((one, ("1abc_A", "2abc_B")), (other, ("1abc_A",)))
    )
    features = complex_features([Chain(name="H", features=one), Chain(name="long", features=other)])
    found = templates_in(features)
    assert [each.label for each in found] == ["chain H: 1abc_A", "chain H: 2abc_B", "chain long: 1abc_A"]
    assert [(each.chain_id, each.residues) for each in found] == [("H", "D" * 5)] * 2 + [("long", "D" * 7)]
    assert [each.label for each in templates_in(features, 1)] == ["chain H: 1abc_A", "chain long: 1abc_A"]
    assert templates_in(dataclasses.replace(features, template_names=())) == ()


def test_a_complex_tells_how_its_rows_were_paired() -> None:
    table = MMCIF2Dict(io.StringIO(FILES["a complex of six chains"]()))
    assert table["_ma_protocol_step.step_name"][:3] == [
        *("search for relatives", "search for relatives of several chains", "search for templates")
    ]
    # A database that is searched for both is there once.
    assert table["_ma_data_ref_db.name"].count(UNIREF.name) == 1


def test_a_template_of_no_chain_is_refused() -> None:
    template = aligned("1abc_B", "B", "A" * 30)
    with pytest.raises(ValueError, match="template 1abc_B must have a letter for each residue of a chain"):
        written(MONOMER, origin=ModelOrigin(templates=(template,)))


def test_a_complex_is_one_assembly_with_scores_of_its_chains_and_pairs() -> None:
    text = FILES["a complex of six chains"]()
    block = gemmi.cif.read_string(text).sole_block()
    (assembly,) = gemmi.make_structure_from_block(block).assemblies
    assert assembly.oligomeric_details == "hexameric"
    assert [name for generator in assembly.generators for name in generator.subchains] == list(SIX_NAMES)
    table = MMCIF2Dict(io.StringIO(text))
    assert table["_ma_qa_metric.name"] == [
        "pLDDT",
        "pLDDT",
        "PAE",
        "pTM",
        "ipTM",
        "pTM of a chain",
        "ipTM of two chains",
    ]
    assert table["_ma_qa_metric.id"][2] == str(PAE_METRIC)
    assert table["_ma_qa_metric_global.metric_value"] == ["80.00", "0.7100", "0.6200"]
    tm = scores(SIX, 6).tm_by_chain
    assert tm is not None
    assert list(map(float, table["_ma_qa_metric_feature.metric_value"])) == pytest.approx(
        np.diag(tm).tolist(), abs=1e-4
    )
    assert table["_ma_entity_instance_feature.label_asym_id"] == list(SIX_NAMES)
    pairs = list(map(float, table["_ma_qa_metric_feature_pairwise.metric_value"]))
    assert len(pairs) == 15
    assert pairs[1] == pytest.approx(max(tm[0, 2], tm[2, 0]), abs=1e-4)


def test_errors_of_all_pairs_are_read_back() -> None:
    protein = random_protein(7, chains=2, unknown=(2,))
    chains = split_chains(protein, ("A", "long"))
    pae = np.random.default_rng(0).uniform(0, 31.75, (7, 7)).astype(np.float32)
    rows = read_pairs(pairwise_errors(pae, protein, chains, entry="T1", metric=PAE_METRIC))
    places = [
        (chain.name, place - chain.start + 1, THREE_LETTER[protein.aatype[place]])
        for chain in chains
        for place in range(chain.start, chain.stop)
        if place != 2
    ]
    expected = [(*one, *other) for one in places for other in places]
    assert [tuple(row[2:8]) for row in rows] == [tuple(map(str, row)) for row in expected]
    assert [(row[0], row[1], row[8]) for row in rows] == [(str(n), "1", str(PAE_METRIC)) for n in range(1, 37)]
    known = np.delete(np.delete(pae, 2, 0), 2, 1)
    assert np.abs(np.array([float(row[9]) for row in rows]) - known.ravel()).max() <= 0.05 + 1e-6
    single = random_protein(1)
    one = pairwise_errors(pae[:1, :1], single, split_chains(single), entry="T1", metric=3)
    assert [row[:4] for row in read_pairs(one)] == [("1", "1", "A", "1")]


def read_pairs(content: bytes) -> list[tuple[str, ...]]:
    """The rows of a file as python-ihm reads them."""

    class Handler:
        not_in_file = omitted = unknown = None
        _keys = (
            *("ordinal_id", "model_id", "label_asym_id_1", "label_seq_id_1", "label_comp_id_1"),
            *("label_asym_id_2", "label_seq_id_2", "label_comp_id_2", "metric_id", "metric_value"),
        )

        # Without annotations, which python-ihm would take for types of columns.
        __call__ = staticmethod(lambda *row: rows.append(row))

    rows: list[tuple[str, ...]] = []
    reader = ihm.format_bcif.BinaryCifReader(io.BytesIO(gzip.decompress(content)), {CATEGORY: Handler()})
    reader.read_file()
    return rows


def special_text(**given: Any) -> str:
    one = special_complex.prediction()
    scores = ModelScores(plddt=one.plddt, ptm=one.ptm, iptm=one.iptm, tm_by_chain=one.tm_by_chain, has_pae=True)
    return to_mmcif(one.protein, name="T1", model=one.model, scores=scores, chain_ids=one.chain_ids, **given)


def places() -> list[tuple[str, int, special_complex.Residue]]:
    """Each residue of the special complex with its chain and its place in the chain from 1."""
    every = special_complex.residues()
    return [
        (each.chain, 1 + sum(other.chain == each.chain for other in every[:number]), each)
        for number, each in enumerate(every)
    ]


def test_every_atom_of_a_special_complex_has_its_values_in_all_columns() -> None:
    """Read by gemmi and by biotite."""
    text = special_text()
    entities = {"H": "1", "L": "2", "h": "1", "2": "3"}
    expected = [
        *(
            (
                *("ATOM", name[0], name, residue.name, str(place), str(residue.number), chain, chain, residue.name),
                *(entities[chain], f"{x:.3f}", f"{y:.3f}", f"{z:.3f}", "1.00", f"{residue.plddt:.2f}", "1"),
            )
            for chain, place, residue in places()
            for name, (x, y, z) in residue.atoms.items()
        )
    ]
    items = ["group_PDB", "type_symbol", "label_atom_id", "label_comp_id", "label_seq_id", "auth_seq_id"]
    items += ["label_asym_id", "auth_asym_id", "auth_comp_id", "label_entity_id", "Cartn_x", "Cartn_y", "Cartn_z"]
    items += ["occupancy", "B_iso_or_equiv", "pdbx_PDB_model_num"]
    table = gemmi.cif.read_string(text).sole_block().find("_atom_site.", ["id", *items])
    assert [tuple(row)[1:] for row in table] == expected
    assert [row[0] for row in table] == [str(number) for number in range(1, len(expected) + 1)]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Attribute 'auth_atom_id' not found")  # an item that files may leave out
        atoms = pdbx.get_structure(pdbx.CIFFile.read(io.StringIO(text)), model=1, extra_fields=["b_factor"])
    found = zip(atoms.chain_id, atoms.res_id, atoms.res_name, atoms.atom_name, atoms.element, strict=True)
    assert list(found) == [(row[7], int(row[5]), row[3], row[2], row[1]) for row in expected]
    np.testing.assert_allclose(atoms.coord, [[float(value) for value in row[10:13]] for row in expected], atol=1e-4)
    np.testing.assert_allclose(atoms.b_factor, [float(row[14]) for row in expected], atol=1e-4)


def test_a_special_complex_is_read_by_modelcif_with_the_scores_of_the_right_residues_and_chains() -> None:
    (system,) = modelcif.reader.read(io.StringIO(special_text()))
    names = special_complex.chain_names()
    letters = dict.fromkeys(names, "")
    for chain, _, residue in places():
        letters[chain] += special_complex.LETTERS[residue.name]
    assert [unit.id for unit in system.asym_units] == list(names)
    assert {u.id: "".join(c.code_canonical for c in u.entity.sequence) for u in system.asym_units} == letters
    assert [unit.entity._id for unit in system.asym_units] == ["1", "2", "1", "3"]
    for chain, place, residue in places():
        (unit,) = (unit for unit in system.asym_units if unit.id == chain)
        assert int(unit.residue(place).auth_seq_id) == residue.number
    ((model,),) = system.model_groups
    by_kind: dict[type, list[Any]] = {}
    for metric in model.qa_metrics:
        kind = next(
            kind
            for kind in (qa.Global, qa.Local, qa.FeaturePairwise, qa.Feature, qa.MetricMode)
            if isinstance(metric, kind)
        )
        by_kind.setdefault(kind, []).append(metric)
    modelled = [(chain, place, residue) for chain, place, residue in places() if residue.atoms]
    assert [(m.residue.asym.id, m.residue.seq_id, m.value) for m in by_kind[qa.Local]] == [
        (chain, place, residue.plddt) for chain, place, residue in modelled
    ]
    mean = np.mean([residue.plddt for _, _, residue in places()])
    assert [(m.type, m.name, m.value) for m in by_kind[qa.Global]] == [
        ("pLDDT", "pLDDT", pytest.approx(mean, abs=0.005)),
        ("pTM", "pTM", 0.58),
        ("ipTM", "ipTM", 0.43),
    ]
    tm = special_complex.TM_BY_CHAIN
    chains = {unit.id: number for number, unit in enumerate(system.asym_units)}

    def chain_of_feature(feature: Any) -> int:
        (unit,) = feature.asym_units
        return chains[unit.id]

    assert [(chain_of_feature(m.feature), m.value) for m in by_kind[qa.Feature]] == [
        (number, tm[number, number]) for number in range(4)
    ]
    pairs = {(chain_of_feature(m.feature1), chain_of_feature(m.feature2)): m.value for m in by_kind[qa.FeaturePairwise]}
    assert pairs == {(0, 1): 0.52, (0, 2): 0.39, (0, 3): 0.19, (1, 2): 0.61, (1, 3): 0.08, (2, 3): 0.28}


def test_the_scheme_of_residues_of_a_special_complex_tells_both_numbers_and_which_are_missing() -> None:
    table = MMCIF2Dict(io.StringIO(special_text()))
    items = ("asym_id", "seq_id", "mon_id", "pdb_seq_num", "auth_seq_num", "pdb_strand_id")
    found = zip(*(table[f"_pdbx_poly_seq_scheme.{item}"] for item in items), strict=True)
    assert list(found) == [
        (chain, str(place), residue.name, number, number if residue.atoms else "?", chain)
        for chain, place, residue in places()
        for number in [str(residue.number)]
    ]


def test_rings_of_a_special_complex_are_bonds_of_their_own_chains() -> None:
    one = special_complex.prediction(structure=special_complex.protein(cyclic=frozenset({0, 2})))
    text = to_mmcif(one.protein, name="T1", model="m", chain_ids=one.chain_ids)
    structure = gemmi.make_structure_from_block(gemmi.cif.read_string(text).sole_block())
    ends = [
        (end.chain_name, end.res_id.seqid.num, end.res_id.name, end.atom_name)
        for bond in structure.connections
        for end in (bond.partner1, bond.partner2)
    ]
    assert ends == [("H", 5, "GLY", "C"), ("H", 0, "GLY", "N"), ("h", 7, "GLY", "C"), ("h", 3, "GLY", "N")]
    # gemmi reads the numbers of authors; the others are places in the chain.
    table = MMCIF2Dict(io.StringIO(text))
    items = ("label_asym_id", "label_seq_id", "label_comp_id", "label_atom_id")
    first, second = (
        list(zip(*(table[f"_struct_conn.ptnr{partner}_{item}"] for item in items), strict=True)) for partner in (1, 2)
    )
    assert first == [("H", "5", "GLY", "C"), ("h", "5", "GLY", "C")]
    assert second == [("H", "1", "GLY", "N"), ("h", "1", "GLY", "N")]
    # gemmi measures what the file states.
    for bond in structure.connections:
        one_end, other_end = (structure[0].find_cra(end).atom.pos for end in (bond.partner1, bond.partner2))
        assert bond.reported_distance == pytest.approx(one_end.dist(other_end), abs=2e-3)


def test_errors_of_a_special_complex_are_read_by_biotite() -> None:
    """BinaryCIF of pairs: each value at the aligned and the scored residue that it belongs to."""
    one = special_complex.prediction()
    chains = split_chains(one.protein, one.chain_ids)
    assert one.pae is not None
    content = pairwise_errors(one.pae, one.protein, chains, entry="T1", metric=PAE_METRIC, notes=["a note"])
    file = pdbx.BinaryCIFFile.read(io.BytesIO(gzip.decompress(content)))
    block = file.block
    assert block["entry"]["id"].as_item() == "T1"
    assert block["entry_link"]["details"].as_item() == "a note"
    category = block[CATEGORY.removeprefix("_")]
    sides = [
        list(
            zip(
                category[f"label_asym_id_{side}"].as_array(str),
                category[f"label_seq_id_{side}"].as_array(int),
                category[f"label_comp_id_{side}"].as_array(str),
                strict=True,
            )
        )
        for side in "12"
    ]
    modelled = [(number, *at) for number, at in enumerate(places()) if at[2].atoms]
    labels = {number: (chain, place, residue.name) for number, chain, place, residue in modelled}
    pairs = [(first, second) for first in labels for second in labels]
    assert sides[0] == [labels[first] for first, _ in pairs]
    assert sides[1] == [labels[second] for _, second in pairs]
    np.testing.assert_allclose(
        category["metric_value"].as_array(float), [special_complex.pae()[pair] for pair in pairs], atol=1e-5
    )
    assert category["ordinal_id"].as_array(int).tolist() == list(range(1, len(pairs) + 1))
    assert set(category["metric_id"].as_array(int)) == {PAE_METRIC}
    assert set(category["model_id"].as_array(int)) == {1}
