"""The report of a target is one page that holds everything, escapes everything and does without what is missing."""

import base64
import contextlib
import hashlib
import json
import re
import shutil
import zlib
from dataclasses import asdict, fields, replace
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path

import gemmi
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_pipeline.features.assembly import Chain, complex_features
from data_pipeline.features.complexes.feature_file import save_features
from data_pipeline.features.complexes.feature_set import ComplexFeatureSet
from data_pipeline.features.schema import FEATURE_AXES, Features
from data_pipeline.io.errors import InputError
from data_pipeline.parse.structures import read_structure
from helixfold.folding.prediction import ConfidenceBand
from helixfold.folding.provenance import Provenance
from helixfold.report.index import write_index
from helixfold.report.maps import distance_maps, pae_map
from helixfold.report.page import Blobs
from helixfold.report.target_page import write_report
from tests.report.reported import (
    HAIRPIN,
    chain_of,
    features_of,
    many_chains,
    write_dimer,
    write_read_templates,
    write_relaxation,
    write_target,
    write_templates,
)

# build/3Dmol-min.js of the npm package 3dmol.
VIEWER_VERSION = "2.5.5"
VIEWER_SHA256 = "f7cc78921ae72e7623e89cdd111434f58c2efddd2ffda1cd212644b406fb8016"


def page_of(directory: Path) -> str:
    write_report(directory)
    return (directory / "report.html").read_text(encoding="utf-8")


def data_of(page: str) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def blob_of(page: str, name: str) -> bytes:
    found = re.search(rf'<script type="text/plain" id="{name}">(.*?)</script>', page)
    assert found is not None
    return zlib.decompress(base64.b64decode(found[1]))


@pytest.fixture(scope="module")
def full_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target with every file that a report can show."""
    directory = tmp_path_factory.mktemp("full") / "hairpin"
    order = write_target(directory, models=["model_1_ptm", "model_2_ptm"])
    write_templates(directory)
    write_relaxation(directory, *order)
    made = {"model_1_ptm": {"model": "model_1_ptm", "seed": 0, "weights": "0" * 64}}
    options = {
        "inputs": {"alignments": [{"file": "mine.a3m", "sha256": "0" * 64}], "templates": []},
        "options": {"num_recycles": 3},
        "predictions": made,
    }
    (directory / "settings.json").write_text(json.dumps(options))
    return directory


@pytest.fixture(scope="module")
def plain_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("plain") / "hairpin"
    write_target(directory, models=["model_1_ptm", "model_2_ptm"])
    return directory


@pytest.fixture
def target(plain_target: Path, tmp_path: Path) -> Path:
    """A copy of a target to change."""
    return Path(shutil.copytree(plain_target, tmp_path / "hairpin"))


@pytest.fixture(scope="module")
def dimer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("dimer") / "dimer"
    assert write_dimer(directory) > 0
    return directory


def test_a_complex_has_its_chains_and_their_pairs(dimer: Path) -> None:
    page = page_of(dimer)
    half = len(data_of(page)["sequence"]) // 2
    assert data_of(page)["chains"] == [["A", half], ["B", half]]
    assert [*re.findall(r'<h3 class="chain">(.*?)</h3>', page)] == ["Chain A", "Chain B"]
    firsts = [int(number) for number in re.findall(r'<span class="ten"><b>(\d+)</b>', page)]
    assert firsts == 2 * [*range(1, half + 1, 10)]
    assert len(re.findall(r'<i class="[HMLD]">', page)) == 2 * half
    rows = [
        re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)
        for row in page.splitlines()
        if "Interface PAE" in row or "data-pair" in row
    ]
    contacts = json.loads((dimer / "confidence_model_1_ptm.json").read_text())["interfaces"][0]["contacts"]
    assert rows[0][2:] == [
        "Contacts",
        "ipTM",
        "ipSAE",
        "pDockQ2",
        "pDockQ",
        "LIS",
        "Interface pLDDT",
        "Interface PAE, Å",
    ]
    assert rows[1][:1] + rows[1][2:] == ["A and B", str(contacts), "0.71", "0.64", "0.50", "", "0.42", "91.3", "3.4"]
    assert '0.71</span> <span class="what">ipTM of 2 chains' in page
    (domain,) = data_of(page)["models"][0]["domains"]
    assert (domain["ranges"], domain["chains"]) == ([[1, half], [1, half]], ["A", "B"])
    assert f"<td>A 1\u2013{half}, B 1\u2013{half}</td>" in page


def test_a_single_chain_has_no_words_about_pairs(plain_target: Path) -> None:
    page = page_of(plain_target)
    assert not [word for word in ("ipTM", "ipSAE", "data-pair=", "Chain A", "along the chains") if word in page]


def test_a_damaged_pair_is_named(dimer: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(dimer, tmp_path / "dimer"))
    path = copy / "confidence_model_1_ptm.json"
    content = json.loads(path.read_text())
    content["interfaces"][0]["chains"] = ["A"]
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match="an interface has 1 chains; expected 2; fold the target again"):
        write_report(copy)


def test_no_object_of_python_or_json_is_in_the_text(full_target: Path) -> None:
    metrics = json.loads((full_target / "relax_metrics.json").read_text())
    next(iter(metrics.values()))["violations_before"] |= {"by_kind": {"clash": 3, "bond": 1}}
    (full_target / "relax_metrics.json").write_text(json.dumps(metrics))
    text = re.sub(r"<(script|style)[^>]*>.*?</\1>|<[^>]*>", " ", page_of(full_target), flags=re.DOTALL)
    assert "mine.a3m (000000000000…)" in text
    assert "clash 3, bond 1" in text
    assert not re.search(r"[{}\[\]]|&#39;\w+&#39;:|\bNone\b", text)


def test_the_viewer_is_the_published_one() -> None:
    viewer = resources.files("helixfold.report") / f"pages/3Dmol-{VIEWER_VERSION}-min.js"
    assert hashlib.sha256(viewer.read_bytes()).hexdigest() == VIEWER_SHA256
    licence = (resources.files("helixfold.report") / "pages/3Dmol-LICENSE.txt").read_text()
    assert "BSD-3-Clause" in licence
    assert "University of Pittsburgh" in licence


def test_the_page_holds_structures_and_errors_as_the_files_have_them(target: Path) -> None:
    page = page_of(target)
    model = data_of(page)["models"][0]
    assert blob_of(page, model["structures"]["unrelaxed"]["data"]) == (target / "ranked_0.pdb").read_bytes()
    pae = np.array(json.loads((target / f"pae_{model['name']}.json").read_text())[0]["predicted_aligned_error"])
    shown = model["maps"][0]
    bytes_of = np.frombuffer(blob_of(page, shown["data"]), np.uint8).reshape(pae.shape)
    np.testing.assert_allclose(bytes_of * shown["step"], pae, atol=shown["step"] / 2 + 1e-6)


def test_structures_are_laid_on_the_best_one(target: Path) -> None:
    page = page_of(target)
    placed = []
    for model in data_of(page)["models"]:
        given = model["structures"]["unrelaxed"]
        lines = [line for line in blob_of(page, given["data"]).decode().splitlines() if line[12:16] == " CA "]
        atoms = np.array([[float(line[start : start + 8]) for start in (30, 38, 46)] for line in lines])
        rotation = np.array(given["rotation"]).reshape(3, 3)
        assert np.linalg.det(rotation) == pytest.approx(1, abs=1e-4)
        placed.append(atoms @ rotation.T + given["shift"])
    assert np.sqrt(((placed[0] - placed[1]) ** 2).sum(-1).mean()) < 0.5
    assert placed[0].std(0)[0] == placed[0].std(0).max()
    assert placed[0].std(0)[2] == placed[0].std(0).min()


def test_templates_that_were_read_are_laid_on_the_best_structure(target: Path) -> None:
    write_read_templates(target)
    page = page_of(target)
    (template,) = data_of(page)["templates"]
    assert template["name"] == "1abc_A"
    placed = []
    for packed in (template["structure"], data_of(page)["models"][0]["structures"]["unrelaxed"]):
        lines = [line for line in blob_of(page, packed["data"]).decode().splitlines() if line.startswith("ATOM")]
        atoms = np.array([[float(line[start : start + 8]) for start in (30, 38, 46)] for line in lines])
        atoms = atoms @ np.array(packed["rotation"]).reshape(3, 3).T + packed["shift"]
        placed.append({line[12:26]: at for line, at in zip(lines, atoms, strict=True)})
    assert {int(name[10:]) for name in placed[0]} == set(range(1, 21))
    for name, at in placed[0].items():
        np.testing.assert_allclose(at, placed[1][name], atol=0.01)


def test_templates_of_a_complex_are_laid_each_on_its_chain(dimer: Path, tmp_path: Path) -> None:
    target = Path(shutil.copytree(dimer, tmp_path / "dimer"))
    first, second = read_structure(target / "ranked_0.pdb").chains
    turn = np.array([[0, 1, 0], [0, 0, 1], [1, 0, 0]])
    chains = [
        Chain(
            name=name,
            features=replace(
                features_of(chain_of(HAIRPIN), "dimer", rows=1),
                template_domain_names=(template,),
                template_aatype=chain.aatype[None].astype(np.int32),
                template_all_atom_positions=(chain.atom_positions @ turn + 50)[None].astype(np.float32),
                template_all_atom_masks=chain.atom_mask[None].astype(np.float32),
                template_sum_probs=np.zeros((1, 1), np.float32),
            ),
        )
        for name, template, chain in (("A", "1abc_A", first), ("B", "2xyz_B", second))
    ]
    gap = features_of(chain_of(HAIRPIN), "dimer", rows=1)
    whole = ComplexFeatureSet(multimer=complex_features(chains), residue_gap=two_copies(gap))
    save_features(target / "features.npz", whole)
    record = Provenance(threads=1, executor="whole", backends={}, templates=("chain A: 1abc_A", "chain B: 2xyz_B"))
    content = {"provenance": [{"predictions": ["model_1_ptm"], **asdict(record)}], "predictions": {}}
    (target / "settings.json").write_text(json.dumps(content))
    page = page_of(target)
    templates = data_of(page)["templates"]
    assert [template["name"] for template in templates] == ["chain A: 1abc_A", "chain B: 2xyz_B"]
    best = alphas(page, data_of(page)["models"][0]["structures"]["unrelaxed"])
    half = len(best) // 2
    for template, own in zip(templates, (best[:half], best[half:]), strict=True):
        np.testing.assert_allclose(alphas(page, template["structure"]), own, atol=0.01)


def two_copies(features: Features) -> Features:
    """The features of a chain twice, with a gap of residue numbers."""
    arrays = {
        name: np.concatenate([getattr(features, name)] * 2, axis=FEATURE_AXES[name].index("r"))
        for name in FEATURE_AXES
        if "r" in FEATURE_AXES[name] and name != "residue_index"
    }
    numbers = np.concatenate([features.residue_index, features.residue_index + 500])
    return replace(features, sequence=2 * features.sequence, residue_index=numbers, **arrays)


def alphas(page: str, packed: dict) -> np.ndarray:
    """C-alpha positions of a structure in a page, where the page draws them."""
    lines = [line for line in blob_of(page, packed["data"]).decode().splitlines() if line[12:16] == " CA "]
    atoms = np.array([[float(line[start : start + 8]) for start in (30, 38, 46)] for line in lines])
    return atoms @ np.array(packed["rotation"]).reshape(3, 3).T + packed["shift"]


def test_a_sample_of_the_alignment_is_shown_as_part_of_it(target: Path) -> None:
    page = page_of(target)
    assert '40</span> <span class="what">sequences in the alignment' in page
    timings = json.loads((target / "timings.json").read_text())
    for models in timings["models"].values():
        models["msa_rows_read"] = 40
    (target / "timings.json").write_text(json.dumps(timings))
    assert '40</span> <span class="what">sequences in the alignment' in page_of(target)
    best = json.loads((target / "ranking_debug.json").read_text())["order"][0]
    timings["models"][best]["msa_rows_read"] = 32
    (target / "timings.json").write_text(json.dumps(timings))
    page = page_of(target)
    assert '32 of 40</span> <span class="what">sequences of the alignment read' in page
    assert "; a sample of 32 is used in each recycling iteration" in page


@pytest.mark.parametrize(
    ("description", "name"),
    [
        ("", ""),
        ("SH3 domain of Src", "SH3 domain of Src"),
        (
            "Hemoglobin subunit alpha OS=Homo sapiens OX=9606 GN=HBA1 PE=1 SV=2",
            "Hemoglobin subunit alpha, Homo sapiens",
        ),
        ("A, C|HEMOGLOBIN (ALPHA CHAIN)|Homo sapiens (9606)", "HEMOGLOBIN (ALPHA CHAIN), Homo sapiens"),
    ],
)
def test_the_heading_has_the_name_of_the_protein(description: str, name: str, target: Path) -> None:
    (target / "settings.json").write_text(json.dumps({"description": description, "predictions": {}}))
    page = page_of(target)
    assert re.findall('<p class="protein">(.*)</p>', page) == [name] * bool(name)
    assert f"<title>{target.name}{f' · {name}' if name else ''} · helixfold</title>" in page


def test_thresholds_of_interface_scores_have_their_sources(dimer: Path) -> None:
    guide = page_of(dimer).partition('<details class="card guide">')[2].partition("</details>")[0]
    for words in ("at least 0.203", "doi:10.1101/2024.02.19.580970", "no threshold is published", "more than 0.61"):
        assert words in guide


def test_a_structure_that_pdb_cannot_hold_is_shown_from_its_mmcif_file(tmp_path: Path) -> None:
    target, protein = tmp_path / "many", many_chains(63)
    write_target(target, protein=protein, rows=1)
    assert not list(target.glob("*.pdb"))
    sequence = Features.load(target / "features.npz").sequence
    (target / "features.npz").unlink()
    page = page_of(target)
    (given,) = data_of(page)["models"][0]["structures"].values()
    assert given["form"] == "cif"
    content = blob_of(page, given["data"])
    assert content == (target / "ranked_0.cif").read_bytes()
    # Without features, the file says the sequence.
    assert data_of(page)["sequence"] == sequence
    table = (
        gemmi.cif.read_string(content.decode())
        .sole_block()
        .find("_atom_site.", ["label_atom_id", "Cartn_x", "Cartn_y", "Cartn_z"])
    )
    alpha = np.array([[float(row[axis]) for axis in (1, 2, 3)] for row in table if row[0] == "CA"])
    placed = alpha @ np.array(given["rotation"]).reshape(3, 3).T + given["shift"]
    assert len(alpha) == len(sequence)
    # Along the row of chains, which is the longest axis.
    longest = np.linalg.svd(alpha - alpha.mean(0))[1][0] / np.sqrt(len(alpha))
    assert placed.std(0)[0] == pytest.approx(longest, rel=0.05)
    assert abs(placed.mean(0)).max() < 20


def test_the_policy_allows_our_scripts_and_nothing_else(target: Path) -> None:
    page = page_of(target)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    words = policy[1].replace("&#39;", "'")
    assert words.startswith("default-src 'none';")
    assert "connect-src 'none';" in words
    assert "unsafe" not in words
    assert "http" not in words
    script = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert len(script) == 1
    assert base64.b64encode(hashlib.sha256(script[0].encode()).digest()).decode() in words


HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\u2028'\"&{{ 7 * 7 }}"


class Tags(HTMLParser):
    """The tags of a page, and the scripts that would run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += attrs


def test_whatever_the_files_say_is_text(target: Path) -> None:
    def tags_of(page: str) -> Tags:
        tags = Tags()
        tags.feed(page)
        return tags

    harmless = tags_of(page_of(target))
    for file in target.glob("confidence_*.json"):
        content = json.loads(file.read_text())
        content["notes"] = [HOSTILE]
        content["domains"] = [{"name": HOSTILE, "ranges": [[1, 5]], "residues": 5, "mean_plddt": 80.0, "mean_pae": 1.0}]
        file.write_text(json.dumps(content))
    timings = json.loads((target / "timings.json").read_text())
    timings["stages"][HOSTILE] = {"seconds": 1.0, "peak_memory_gib": 1.0}
    timings[HOSTILE] = {HOSTILE: HOSTILE}
    (target / "timings.json").write_text(json.dumps(timings))
    row = {"name": HOSTILE, "release_date": HOSTILE, "aligned_residues": 1, "identity": 0.5, "note": HOSTILE}
    hit = {"name": HOSTILE, "reason": HOSTILE, "detail": HOSTILE}
    (target / "templates.json").write_text(json.dumps({"used": [row], "rejected": [hit]}))
    (target / "javascript:alert(1)").write_text("")
    (target / "<img src=x onerror=alert(1)>.txt").write_text("")
    page = page_of(target)
    hostile = tags_of(page)
    assert hostile.names.count("script") == harmless.names.count("script")
    assert "img" not in hostile.names
    assert not [name for name, _ in hostile.attributes if name.startswith("on")]
    assert all(value.startswith(("./", "#", "templates.json")) for name, value in hostile.attributes if name == "href")
    assert "49" not in re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL).split("{{")[0][-40:]
    assert "\u2028" not in page[page.index('id="data"') :]


@pytest.mark.parametrize(
    "missing",
    ["pae_*.json", "features.npz", "timings.json", "unrelaxed_*.pdb", "templates.json", "ranked_*"],
)
def test_a_missing_file_leaves_out_its_part(target: Path, missing: str) -> None:
    for path in target.glob(missing):
        path.unlink()
    assert "pLDDT" in page_of(target)


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("confidence_model_1_ptm.json", "{", "not a complete JSON file"),
        ("confidence_model_1_ptm.json", "[" * 100_000, "not a complete JSON file"),
        ("confidence_model_1_ptm.json", '{"plddt": [1, "x"]}', "plddt: expected a list of numbers"),
        ("confidence_model_1_ptm.json", '{"plddt": [1, NaN]}', "plddt: expected a list of numbers"),
        ("pae_model_1_ptm.json", '[{"predicted_aligned_error":[[1,2],[3,4]]}]', "is damaged"),
        ("pae_model_1_ptm.json", "", "is damaged"),
        ("ranking_debug.json", '{"order": ["../../secret"]}', "cannot be part of a file name"),
        ("ranking_debug.json", '{"order": []}', "has no predictions"),
        ("timings.json", '{"stages": {"a": {"seconds": "x"}}}', "seconds: expected a number"),
        ("templates.json", '{"used": [3]}', "used[0]: expected an object"),
        ("features.npz", "x", "damaged"),
        ("unrelaxed_model_1_ptm.pdb", "ATOM      1  CA  ALA A   1      x", "not a PDB file"),
    ],
)
def test_a_damaged_file_is_named(target: Path, file: str, content: str, says: str) -> None:
    (target / "report.html").write_text("earlier")
    (target / file).write_text(content)
    with pytest.raises(InputError, match=re.escape(file)) as caught:
        write_report(target)
    assert says in str(caught.value)
    assert (target / "report.html").read_text() == "earlier"


def test_what_a_link_points_to_is_not_taken_in(target: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.pdb"
    secret.write_text("SECRET")
    for path in (*target.glob("unrelaxed_*.pdb"), *target.glob("unrelaxed_*.cif")):
        path.unlink()
        path.symlink_to(secret)
    assert data_of(page_of(target))["models"][0]["structures"] == {}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_a_file_holds_makes_a_page_or_a_sentence(full_target: Path, data: st.DataObject) -> None:
    file = full_target / data.draw(st.sampled_from(sorted(path.name for path in full_target.glob("*.json"))))
    good = file.read_bytes()
    content = json.loads(good)
    place = content
    # Somewhere in the file, at most three levels deep, stands something else.
    for _ in range(data.draw(st.integers(0, 2))):
        inner = list(place.values() if isinstance(place, dict) else place)
        nested = [item for item in inner if isinstance(item, dict | list) and item]
        place = data.draw(st.sampled_from(nested)) if nested else place
    keys = sorted(place) if isinstance(place, dict) else range(len(place))
    place[data.draw(st.sampled_from(keys))] = data.draw(JSON)
    try:
        file.write_text(json.dumps(content))
        with contextlib.suppress(InputError):
            write_report(full_target)
        write_index(full_target.parent)
    finally:
        file.write_bytes(good)


def test_the_same_files_give_the_same_page(target: Path) -> None:
    assert page_of(target) == page_of(target)


def test_a_long_chain_takes_no_more_room_than_is_said(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    matrix = random.uniform(0, 31, (64, 64))
    large = np.kron(matrix, np.ones((40, 40)))[:2500, :2500]
    np.savez(tmp_path / "distances.npz", expected_distance=large, contact_probability=np.zeros_like(large))
    blobs = Blobs()
    packed, _ = distance_maps(tmp_path / "distances.npz", 2500, blobs)
    assert (packed["cells"], packed["block"]) == (1250, 2)
    content = zlib.decompress(base64.b64decode(blobs.texts[packed["data"]]))
    values = np.frombuffer(content, np.uint8).reshape(1250, 1250)
    np.testing.assert_allclose(values * 0.5, large[::2, ::2], atol=0.251)


def test_errors_of_a_file_with_spaces_and_lines_are_read(tmp_path: Path) -> None:
    file = tmp_path / "pae_model.json"
    content = {"predicted_aligned_error": [[0.0, 1.5], [2.5, 31.75]], "max_predicted_aligned_error": 31.75}
    file.write_text(json.dumps([content], indent=2))
    packed = pae_map(file, 2, blobs := Blobs())
    assert zlib.decompress(base64.b64decode(blobs.texts[packed["data"]])) == bytes([0, 12, 20, 254])


def test_scripts_read_the_fields_that_confidence_bands_have() -> None:
    pages = resources.files("helixfold.report") / "pages"
    scripts = "".join(
        page.read_text() for page in pages.iterdir() if page.name.endswith(".js") and "3Dmol" not in page.name
    )
    used = set(re.findall(r"\bband\.(\w+)", scripts))
    assert used
    assert used <= {field.name for field in fields(ConfidenceBand)}
