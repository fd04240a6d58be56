"""A batch folds what is asked for in the order that was asked for, and tells it on the screen, in a log and index."""

import io
import json
import re
import shutil
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.features.schema import Features
from data_pipeline.io.errors import InputError
from data_pipeline.parse.gemmi_chains import parse_pdb
from data_pipeline.pipeline import Target
from data_pipeline.search.alignment_server import PUBLIC_SERVER
from helixfold.apps.options import PredictOptions
from helixfold.apps.predict import runner
from helixfold.apps.predict.jobs import Job
from helixfold.apps.predict.run import _sorted
from helixfold.apps.predict.settings import RunSettings, folding_of
from helixfold.apps.presets import MONOMER
from helixfold.cli.main import main
from helixfold.folding.options import FoldingOptions
from helixfold.model.presets import tiny
from helixfold.runtime.screen import _Copied, _Log, logged_screen
from helixfold.weights import demonstration
from helixfold.weights.adapters import AdapterCard, save_adapter
from helixfold.weights.checkpoint import load_checkpoint, save_checkpoint
from helixfold.weights.tensor_file import digest_of
from helixfold.weights.untrained import untrained_model
from tests.apps.predict.conftest import SEQUENCE, Runs, positions

pytestmark = pytest.mark.usefixtures("quick")


def test_seeds_that_change_nothing_are_not_folded_again(fasta: Path, runs: Runs, tmp_path: Path) -> None:
    names = [f"small_seed_{seed}" for seed in range(3)]
    given = ("--models", "small", "--num-recycles", 0, "--num-seeds", 3)
    assert runs(fasta, *given) == names[:1]
    assert runs.out.count("its input does not depend on the seed; not folded again") == 2
    assert sorted(runs.order()) == names
    assert np.ptp(positions(runs.target / "unrelaxed_small_seed_0.pdb")) > 1
    assert len({(runs.target / f"pae_{name}.json").read_bytes() for name in names}) == 1
    assert runs(fasta, *given) == []
    assert "finished before, skipped" in runs.out
    # With more rows than the model reads at once, each seed draws others.
    a3m = tmp_path / "one.a3m"
    for count, folded in ((20, names[:1]), (40, names)):
        rows = np.random.default_rng(0).choice(list("ACDEFGHIKL"), (count, len(SEQUENCE)))
        a3m.write_text(f">one\n{SEQUENCE}\n" + "".join(f">{index}\n{''.join(row)}\n" for index, row in enumerate(rows)))
        assert runs(a3m, *given, "--overwrite") == folded


def test_results_record_the_rows_that_were_read_and_what_the_header_says(fasta: Path, runs: Runs) -> None:
    fasta.write_text(f">one Peptide for tests OS=None\n{SEQUENCE}\n")
    a3m = fasta.with_name("one.a3m")
    a3m.write_text(f">one\n{SEQUENCE}\n>two\nMKTAYIAAKQ\n>three\nMKTAYIVVKQ\n")
    quick = ("--msa", a3m, "--num-recycles", 0, "--overwrite")
    for limits, read in (((), 3), (("--max-msa-rows", 1, "--max-extra-rows", 1), 2)):
        runs(fasta, *quick, *limits)
        timings = json.loads((runs.target / "timings.json").read_text())
        assert (timings["models"]["tiny"]["msa_rows_read"], timings["msa_rows"]) == (read, 3)
    assert json.loads((runs.target / "settings.json").read_text())["description"] == "Peptide for tests OS=None"
    # It changes no result.
    fasta.write_text(f">one Another name\n{SEQUENCE}\n")
    assert runs(fasta, *quick[:-1], *limits) == []


def test_templates_that_no_model_reads_are_not_said_to_be_used(
    fasta: Path, runs: Runs, without_templates: Path
) -> None:
    structure = Path(__file__).parents[3] / "examples/structures/helix_long.pdb"
    fasta.write_text(f">one\n{parse_pdb(structure.read_bytes()).chains[0].sequence}\n")
    for model, count in ((("--weights", without_templates), 0), (("--models", "tiny"), 1)):
        runs(fasta, "--templates", structure, "--num-recycles", 0, *model, "--overwrite")
        unread = "0 templates, 1 (helix_long_A) that no model of this run uses"
        assert (unread in runs.out) == (count == 0), runs.out
        assert json.loads((runs.target / "timings.json").read_text())["templates"] == count
        templates = json.loads((runs.target / "templates.json").read_text())
        assert [each["name"] for each in templates["used"]] == ["helix_long_A"] * count
        reasons = [each["reason"] for each in templates["rejected"]]
        assert reasons == ["the models of this run read no templates"] * (1 - count)


def test_a_template_of_a_complex_changes_the_prediction_of_a_monomer_model(fasta: Path, runs: Runs) -> None:
    structure = Path(__file__).parents[3] / "examples/structures/helix_long.pdb"
    helix = parse_pdb(structure.read_bytes()).chains[0].sequence
    fasta.write_text(f">one\n{helix}:{SEQUENCE}\n")
    quick = ("--num-recycles", 0, "--models", "tiny")
    runs(fasta, *quick)
    without = positions(runs.target / "unrelaxed_tiny.pdb")
    runs(fasta, *quick, "--templates", structure, "--overwrite")
    assert not np.array_equal(without, positions(runs.target / "unrelaxed_tiny.pdb"))
    templates = json.loads((runs.target / "templates.json").read_text())
    assert [(each["chain"], each["name"]) for each in templates["used"]] == [("A", "helix_long_A")]
    (made,) = json.loads((runs.target / "settings.json").read_text())["provenance"]
    assert made["templates"] == ["chain A: helix_long_A"]
    assert json.loads((runs.target / "timings.json").read_text())["templates"] == 1


def test_templates_of_earlier_predictions_stay_listed(
    fasta: Path, runs: Runs, without_templates: Path, tmp_path: Path
) -> None:
    structure = Path(__file__).parents[3] / "examples/structures/helix_long.pdb"
    fasta.write_text(f">one\n{parse_pdb(structure.read_bytes()).chains[0].sequence}\n")
    reading, weights = replace(tiny(), name="reading"), tmp_path / "reading.safetensors"
    state = untrained_model(reading.model, 0).state_dict()
    save_checkpoint(weights, state, reading.model.to_dict(), reading.without_model())
    for model in (weights, without_templates):
        runs(fasta, "--templates", structure, "--num-recycles", 0, "--weights", model)
    assert sorted(runs.order()) == ["reading", "tiny"]
    templates = json.loads((runs.target / "templates.json").read_text())
    assert [each["name"] for each in templates["used"]] == ["helix_long_A"]


def test_seeds_draw_anew_and_are_ranked_together(fasta: Path, runs: Runs, tmp_path: Path) -> None:
    a3m = tmp_path / "one.a3m"
    rows = np.random.default_rng(0).choice(list("ACDEFGHIKL"), (300, len(SEQUENCE)))
    a3m.write_text(f">one\n{SEQUENCE}\n" + "".join(f">{number}\n{''.join(row)}\n" for number, row in enumerate(rows)))
    assert runs(a3m, "--num-seeds", 3, "--seed", 4) == ["tiny_seed_4", "tiny_seed_5", "tiny_seed_6"]
    structures = [positions(runs.target / f"unrelaxed_tiny_seed_{seed}.pdb") for seed in (4, 5, 6)]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert np.abs(structures[one] - structures[other]).max() > 0.01
    assert sorted(runs.order()) == ["tiny_seed_4", "tiny_seed_5", "tiny_seed_6"]
    scores = [
        json.loads((runs.target / f"confidence_{name}.json").read_text())["ranking_confidence"] for name in runs.order()
    ]
    assert scores == sorted(scores, reverse=True)
    # A seed's prediction is the same alone.
    assert (
        main(
            [
                "predict",
                str(a3m),
                "--seed",
                "5",
                "--num-recycles",
                "0",
                "--output",
                str(tmp_path / "alone"),
                "--models",
                "tiny",
            ]
        )
        == 0
    )
    # But its parameters are drawn with the seed, too, where there are none that were trained.
    settings = json.loads((tmp_path / "alone" / "one" / "settings.json").read_text())
    assert settings["predictions"]["tiny"]["seed"] == 5
    # Names that files of earlier runs have.
    assert list(settings["predictions"]["tiny"]) == ["model", "seed", "weights", "standing"]
    assert settings["predictions"]["tiny"]["standing"] == "untrained"


def test_no_more_is_made_once_the_score_is_reached(fasta: Path, runs: Runs) -> None:
    runs(fasta)
    score = json.loads((runs.target / "confidence_tiny.json").read_text())["ranking_confidence"]
    assert runs(fasta, "--overwrite", "--num-seeds", 3, "--stop-at-score", score - 0.01) == ["tiny_seed_0"]
    assert runs.order() == ["tiny_seed_0"]
    assert runs(fasta, "--num-seeds", 3, "--stop-at-score", score - 0.01) == []
    assert "finished before, skipped" in runs.out
    assert len(runs(fasta, "--overwrite", "--num-seeds", 3, "--stop-at-score", 100)) == 3
    # Passes end, too.
    arguments = ["--stop-at-score", "1", "--num-recycles", "4", "--output", str(runs.output), "--overwrite"]
    assert main(["predict", str(fasta), *arguments, "--models", "tiny"]) == 0
    assert json.loads((runs.target / "confidence_tiny.json").read_text())["num_recycles"] == 0
    assert main(["predict", str(fasta), "--stop-at-score", "101"]) == 2


def test_a_mistake_of_the_program_stops_no_other_target_and_says_where_it_is(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = tmp_path / "two.fasta"
    two.write_text(f">bad\n{SEQUENCE}\n>one\n{SEQUENCE}A\n")
    prepare = Job.prepare

    def mistaken(self: Job, *arguments: object) -> object:
        return {}["x"] if self.name == "bad" else prepare(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Job, "prepare", mistaken)
    assert runs(two) == ["tiny"]
    (failure,) = json.loads((runs.output / "failures.json").read_text()).values()
    assert failure.startswith("KeyError: 'x' (in test_batch.py, line ")
    assert runs.code == 1


def test_many_finished_targets_share_a_line(runs: Runs, tmp_path: Path) -> None:
    many = tmp_path / "many.fasta"
    many.write_text(f">one\n{SEQUENCE}\n")
    runs(many)
    for number in range(11):
        shutil.copytree(runs.target, runs.output / f"t{number}")
    many.write_text("".join(f">t{number}\n{SEQUENCE}\n" for number in range(11)))
    assert runs(many) == []
    assert runs.out == "11 targets: finished before, skipped (--overwrite folds them again)\n"


def test_every_target_has_a_line_with_its_place_and_the_time_left(runs: Runs, tmp_path: Path) -> None:
    three = tmp_path / "three.fasta"
    three.write_text("".join(f">{name}\n{SEQUENCE}{'A' * len(name)}\n" for name in ("ccc", "a", "bb")))
    runs(three)
    lines = [line for line in runs.out.splitlines() if "mean pLDDT" in line]
    assert [line.split(":")[0] for line in lines] == ["a", "bb", "ccc"]
    assert "[1 of 3, " in lines[0]
    assert " left]" in lines[1]
    assert lines[2].endswith(" s]")
    assert "\r" not in runs.err


def test_the_index_is_not_written_again_for_every_target(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[object] = []
    write_index = runner.write_index
    monkeypatch.setattr(runner, "write_index", lambda *given: written.append(given) or write_index(*given))
    path = tmp_path / "four.fasta"
    path.write_text("".join(f">t{number}\n{SEQUENCE}\n" for number in range(4)))
    monkeypatch.setattr(runner, "_SECONDS_BETWEEN_INDEXES", 1e9)
    runs(path)
    assert len(written) == 2  # after the first target, and at the end
    assert all(f">t{number}<" in (runs.output / "index.html").read_text() for number in range(4))
    monkeypatch.setattr(runner, "_SECONDS_BETWEEN_INDEXES", 0)
    runs(path, "--overwrite")
    assert len(written) == 2 + 4 + 1


def test_programs_read_the_progress(runs: Runs, tmp_path: Path) -> None:
    path = tmp_path / "two.fasta"
    path.write_text(f">t0\n{SEQUENCE}\n>bad\n{SEQUENCE}\n")
    runs(path, "--progress", "json", "--sort-queries-by", "none")
    lines = [json.loads(line) for line in runs.err.splitlines() if line.startswith("{")]
    assert all(list(line)[:5] == ["target", "stage", "done", "total", "seconds"] for line in lines)
    left, times = [line["seconds_left"] for line in lines], [datetime.fromisoformat(line["time"]) for line in lines]
    first = next(number for number, line in enumerate(lines) if line["stage"] == "finished")
    assert left[:first] == [None] * first  # nothing is known yet
    assert left[first] > 0
    assert left[-1] == 0
    assert times == sorted(times)
    assert [line["stage"] for line in lines if line["target"] == "t0"][:3] == [
        *("features", "tiny: sampling", "tiny: network")
    ]
    ended = [(line["target"], line["stage"], line["done"], line["total"]) for line in lines if " " not in line["stage"]]
    assert [each for each in ended if each[1] in ("finished", "failed")] == [
        ("t0", "finished", 1, 2),
        ("bad", "failed", 2, 2),
    ]
    runs(path, "--overwrite")
    assert "{" not in runs.err


def test_a_run_without_configured_weights_warns_before_it_starts(fasta: Path, runs: Runs) -> None:
    given = [str(fasta), "--num-recycles", "0", "--models-to-relax", "none", "--output", str(runs.output)]
    assert main(["predict", *given, "--progress", "json"]) == 0
    lines = runs.capsys.readouterr().err.splitlines()
    text = (
        "no weights are configured, so the small demonstration model folds 1 target; run 'helixfold weights download'"
    )
    assert lines[0].startswith(f"helixfold: warning: {text}")
    assert json.loads(lines[1])["warning"].startswith(text)
    assert all("target" in line for line in map(json.loads, (line for line in lines[2:] if line.startswith("{"))))
    assert main(["predict", *given, "--overwrite"]) == 0
    lines = runs.capsys.readouterr().err.splitlines()
    assert sum("no weights are configured" in line for line in lines) == 1
    # A user who names the model is not warned.
    assert main(["predict", *given, "--models", "small"]) == 0
    assert "no weights are configured" not in runs.capsys.readouterr().err
    # Nor is a user of an adapter, which was trained on this model.
    state, name = load_checkpoint(demonstration.WEIGHTS)[0], "heads.lddt.out.bias"
    state = {key: tensor.float() for key, tensor in state.items()}
    card = AdapterCard(kind="heads", base=digest_of(state), base_name="small.safetensors")
    save_adapter(fasta.with_name("adapter.safetensors"), {name: state[name]}, card)
    adapter = str(fasta.with_name("adapter.safetensors"))
    assert main(["predict", *given, "--overwrite", "--adapter", adapter]) == 0
    assert "no weights are configured" not in runs.capsys.readouterr().err


def test_a_log_file_has_what_the_screen_shows_with_times(fasta: Path, runs: Runs, tmp_path: Path) -> None:
    log = tmp_path / "logs" / "run.log"
    runs(fasta, "--log-file", log)
    lines = log.read_text().splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d ", line) for line in lines)
    assert [line.split(" ", 1)[1] for line in lines if "one: " in line] == [
        line for line in runs.out.splitlines() if line.startswith("one: ")
    ]
    assert main(["predict", str(fasta), "--log-file", str(log), "--models", "tiny", "--weights", "no.npz"]) == 2
    more = log.read_text().splitlines()
    assert more[: len(lines)] == lines
    assert "helixfold: error: no.npz" in more[-1]
    assert main(["predict", str(fasta), "--log-file", str(tmp_path), "--models", "tiny"]) == 2


def test_a_log_on_a_full_disk_ends_no_run_and_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    with logged_screen(Path("/dev/full")):
        print("first")
        print("second")
    said = "helixfold: /dev/full: lines are missing: No space left on device\n"
    assert capsys.readouterr() == ("first\nsecond\n", said)


def test_bars_are_left_out_of_the_log(tmp_path: Path) -> None:
    screen, path = io.StringIO(), tmp_path / "log"
    log = _Log(path)
    copied = _Copied(screen, log)
    for text in ("\rtargets: 0/2", "\rtargets: 1/2", "\r             \r", "a line\n", "\rtargets: 2/2\n", "last", "\n"):
        copied.write(text)
    log.close()
    assert [line.split(" ", 1)[1] for line in path.read_text().splitlines()] == ["a line", "last"]
    assert screen.getvalue().count("targets") == 3


def test_jobs_are_sorted_as_asked() -> None:
    jobs = [Job(target=Target(name=str(length), sequence="A" * length)) for length in (3, 1, 4, 2, 6, 5)]

    def lengths(order: str, *, several: bool = False) -> list[int]:
        options = PredictOptions(sort_queries_by=order)  # type: ignore[arg-type]
        return [len(job.sequence) for job in _sorted(jobs, options, several=several)]

    assert lengths("length") == [1, 2, 3, 4, 5, 6]
    assert lengths("length", several=True) == [6, 5, 4, 3, 2, 1]
    assert lengths("none") == [3, 1, 4, 2, 6, 5]
    assert sorted(lengths("random")) == [1, 2, 3, 4, 5, 6]
    assert lengths("random") == lengths("random")


def test_presets_are_defaults_for_what_is_not_given() -> None:
    assert folding_of(PredictOptions()) == ((), FoldingOptions())
    casp14 = folding_of(PredictOptions(preset="monomer_casp14"))
    assert casp14 == (MONOMER, FoldingOptions(num_ensemble=8))
    options = PredictOptions(preset="thorough", models=("tiny",), num_recycles=0)
    assert folding_of(options) == (("tiny",), FoldingOptions(num_recycles=0, recycle_tolerance=0.5))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--msa-mode", "single_sequence", "--msa", "x.a3m"],
            "--msa-mode single_sequence and --msa cannot be combined",
        ),
        (["--msa-mode", "single_sequence", "--msa-server"], "cannot be combined"),
        (["--msa-mode", "databases"], "pass --databases or --database"),
        (["--msa-mode", "mmseqs2_uniref", "--database", "x"], "--msa-mode mmseqs2_uniref and --database cannot be"),
        (["--db-preset", "reduced_dbs"], "pass --databases DIR"),
        (["--preset", "quick"], "has no parameters of model_1_ptm"),
        (["--preset", "quick", "--weights", "one.fasta"], "has the parameters of one model, but"),
    ],
)
def test_contradictions_are_one_sentence(
    arguments: list[str], message: str, fasta: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(fasta.parent)
    assert runs(fasta, *arguments) == []
    assert (runs.code, runs.err.count("\n")) == (2, 1)
    assert message in runs.err
    assert not runs.output.exists()


def test_a_single_sequence_has_no_alignment(runs: Runs, tmp_path: Path) -> None:
    a3m = tmp_path / "one.a3m"
    a3m.write_text(f">one\n{SEQUENCE}\n>two\nMKTAYIAAKQ\n")
    assert runs(a3m, "--msa-mode", "single_sequence") == ["tiny"]
    assert "the alignments of one are not read" in runs.err
    assert json.loads((runs.target / "timings.json").read_text())["msa_rows"] == 1
    features = tmp_path / "features"
    assert main(["features", str(a3m), "--msa-mode", "single_sequence", "--output", str(features)]) == 0
    assert len(Features.load(features / "one" / "features.npz").msa) == 1


def test_a_server_is_asked_in_the_mode_that_was_named(
    fasta: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = []

    def stopped(_: object, settings: RunSettings, *__: object) -> None:
        plans.append(settings.searches)
        raise InputError("nobody is to be asked")

    monkeypatch.setattr("helixfold.apps.predict.run._begin", stopped)
    for mode in ("server", "mmseqs2_uniref_env", "mmseqs2_uniref", "mmseqs2_uniref_env_envpair"):
        assert main(["predict", str(fasta), "--msa-mode", mode, "--models", "tiny"]) == 2
        assert f"sequences are sent to {PUBLIC_SERVER}" in capsys.readouterr().err
    assert [plan.alignments[0].tool.server.options.mode for plan in plans] == ["env", "env", "all", "env"]
    assert [plan.pairing.tool.mode for plan in plans[-2:]] == ["pairgreedy", "pairgreedy-env"]
    assert main(["predict", str(fasta), "--msa-mode", "server", "--msa-server", "http://here", "--models", "tiny"]) == 2
    assert plans[-1].alignments[0].tool.server.options.url == "http://here"
    limits = ["--msa-server", "--msa-server-timeout", "5", "--msa-server-wait", "60", "--models", "tiny"]
    assert main(["predict", str(fasta), *limits]) == 2
    own = plans[-1].alignments[0].tool.server.options
    assert (own.timeout, own.max_wait) == (5, 60)
    assert main(["predict", str(fasta), "--msa-server", "--msa-server-wait", "nan", "--models", "tiny"]) == 2
    assert "--msa-server-wait must be a number of seconds above 0, got nan" in capsys.readouterr().err
    capsys.readouterr()
    assert main(["predict", str(fasta), "--msa-mode", "server", "--dry-run", "--models", "tiny"]) == 0
    shown = capsys.readouterr().err
    assert f"sequences would be sent to {PUBLIC_SERVER}" in shown
    assert "are sent" not in shown


def test_precomputed_alignments_are_read_and_missing_ones_are_an_error(fasta: Path, tmp_path: Path, runs: Runs) -> None:
    given = ("--use_precomputed_msas", "--num-recycles", 0, "--models", "tiny")
    assert not runs(fasta, *given)
    assert (runs.code, "no such output directory" in runs.err) == (2, True)
    runs.output.mkdir()
    assert not runs(fasta, *given)
    assert (runs.code, "no one/msas with AlphaFold's results" in runs.err) == (2, True)
    msas = runs.target / "msas"
    msas.mkdir(parents=True)
    (msas / "uniref90_hits.sto").write_text(f"# STOCKHOLM 1.0\none {SEQUENCE}\nrow {SEQUENCE[::-1]}\n//\n")
    assert runs(fasta, *given) == ["tiny"]
    assert "2 rows in the alignment (1 from uniref90_hits.sto)" in runs.out
    assert runs(fasta, *given) == []
    # AlphaFold names the directory after the file and not after the record.
    shutil.copytree(msas, runs.output / "named/msas")
    named = fasta.rename(tmp_path / "named.fasta")
    named.write_text(f">another\n{SEQUENCE}\n")
    assert runs(named, *given) == ["tiny"]
    assert "2 rows in the alignment" in runs.out


def test_msa_mode_files_needs_an_alignment_for_each_target(fasta: Path, runs: Runs) -> None:
    assert not runs(fasta, "--msa-mode", "files")
    assert (runs.code, "needs an alignment for each target; none was found for 'one'" in runs.err) == (2, True)
    assert not runs.output.exists()
