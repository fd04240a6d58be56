"""Each option of a command reaches the function that it is for, whose result is printed or is the exit code."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from helixfold.apps.serve.tokens import TokenFile
from helixfold.benchmark.options import BlockOptions, CommonOptions, ModelOptions
from helixfold.cli import serve
from helixfold.cli.main import main
from helixfold.relax.result import RelaxOptions
from helixfold.training.finetune.options import FinetuneOptions
from helixfold.weights.adapters import parse_adapters

Calls = list[tuple[tuple[Any, ...], dict[str, Any]]]
Record = Callable[..., Calls]
A, B, OUT = Path("a"), Path("b"), Path("out")


def run(words: str) -> int:
    return main(words.split())


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Record:
    """Replace a function by one that returns a result, and return the list of its calls."""
    monkeypatch.chdir(tmp_path)

    def record(name: str, result: object = None) -> Calls:
        calls: Calls = []

        def call(*arguments: Any, **options: Any) -> object:
            calls.append((arguments, options))
            return result

        monkeypatch.setattr(name, call)
        return calls

    return record


def test_relax_passes_limits_and_returns_the_exit_code(record: Record) -> None:
    record("helixfold.execution.device.limit_threads")
    calls = record("helixfold.apps.predict.relaxation.relax_files", 1)
    assert run("relax a b -o out --overwrite --max-rounds 2 --max-seconds 5 --device cpu") == 1
    assert run("relax a --device cpu") == 1
    own, usual = RelaxOptions(max_rounds=2, max_seconds=5.0), RelaxOptions(max_rounds=8, max_seconds=3600.0)
    cpu = torch.device("cpu")
    assert calls == [
        (((A, B),), {"output": OUT, "options": own, "device": cpu, "overwrite": True}),
        (((A,),), {"output": Path("relaxed"), "options": usual, "device": cpu, "overwrite": False}),
    ]


@pytest.mark.parametrize(
    ("words", "function", "arguments", "options"),
    [
        ("download", "files.download", (("model_1_ptm",),), {"directory": None, "url": None}),
        (
            "download --models model_1 model_2_ptm --output out --url http://a",
            "files.download",
            (("model_1", "model_2_ptm"),),
            {"directory": OUT, "url": "http://a"},
        ),
        ("inspect a", "files.inspect", (A,), {"arrays": False}),
        ("inspect a --arrays", "files.inspect", (A,), {"arrays": True}),
        ("convert a b", "files.convert", (A, B, None), {"overwrite": False, "dtype": "float32"}),
        (
            "convert a b --model tiny --dtype bfloat16 --overwrite",
            "files.convert",
            (A, B, "tiny"),
            {"overwrite": True, "dtype": "bfloat16"},
        ),
        (
            "merge a b --adapter c=0.5 d --model tiny",
            "files.merge",
            (A, B, parse_adapters(("c=0.5", "d")), "tiny"),
            {"overwrite": False},
        ),
    ],
)
def test_weights_pass_their_options(
    words: str, function: str, arguments: tuple[Any, ...], options: dict[str, Any], record: Record
) -> None:
    calls = record(f"helixfold.weights.{function}")
    assert main(["weights", *words.split()]) == 0
    assert calls == [(arguments, options)]


def test_verify_passes_its_options_and_returns_the_exit_code(record: Record) -> None:
    calls = record("helixfold.apps.verify.verify.run", 1)
    words = "weights verify a --model tiny --dtype float32 --own --against jax --jax-python b --device cuda:1"
    assert run(words) == 1
    assert run("weights verify a") == 1
    own, usual = (options for _, options in calls)
    assert own == {
        "preset": "tiny",
        "dtypes": ("float32",),
        "own": True,
        "against": "jax",
        "jax_python": B,
        "device": "cuda:1",
    }
    assert (usual["dtypes"], usual["own"], usual["against"]) == (("float32", "bfloat16"), False, None)


class ClusterBuild:
    """Databases that are not built: each has as many sequences as files."""

    made: list[dict[str, Any]] = []  # noqa: RUF012

    def __init__(self, **options: Any) -> None:
        self.made.append(options)
        if options["coverage"] > 1:
            raise ValueError("coverage must be at most 1")

    def clusters(self, inputs: tuple[Path, ...], prefix: Path) -> int:
        return 1000 * len(inputs)

    def sequences(self, inputs: list[Path], prefix: Path) -> int:
        return 7 * len(inputs)


def test_databases_are_built_under_the_names_that_searches_look_for(
    record: Record, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record("data_pipeline.search.mmseqs_program.require_mmseqs", "mmseqs")
    record("data_pipeline.io.processors.available_processors", 12)
    monkeypatch.setattr("data_pipeline.search.cluster_build.ClusterBuild", ClusterBuild)
    build = ["databases", "build"]
    words = (
        "a b -o out --name lab --environmental c d e --templates f --min-identity 0.5 --min-coverage 0.9 --threads 3"
    )
    assert main([*build, *words.split()]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "out/uniref30_lab_db: 2,000 sequences",
        "out/colabfold_envdb_lab_db: 3,000 sequences",
        "out/pdb100_lab: 7 sequences",
    ]
    assert ClusterBuild.made == [{"program": "mmseqs", "min_identity": 0.5, "coverage": 0.9, "cpus": 3}]
    assert main([*build, "a"]) == 0
    assert capsys.readouterr().out == "databases/uniref30_own_db: 1,000 sequences\n"
    assert ClusterBuild.made[1:] == [{"program": "mmseqs", "min_identity": 0.3, "coverage": 0.8, "cpus": 12}]
    for wrong, message in (
        ("", "name the FASTA files whose sequences are to be searched"),
        ("a --name x/y", "--name "),
        ("a --min-coverage 2", "coverage must be at most 1"),
    ):
        assert main([*build, *wrong.split()]) == 2
        assert f"error: {message}" in capsys.readouterr().err


def test_databases_are_listed_or_downloaded(record: Record, capsys: pytest.CaptureFixture[str]) -> None:
    calls = record("data_pipeline.search.database_download.download_databases", [OUT / "a"])
    assert run("databases download --url http://mirror") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["uniref30_2302", "colabfold_envdb_202108", "pdb100_230517"]
    assert lines[2].endswith(": http://mirror/pdb100_230517.fasta.gz")
    assert lines[0].count("http://mirror/uniref30_2302") == 2
    assert calls == []
    assert run("databases download pdb100_230517 -o out") == 0
    assert calls[0][0] == (("pdb100_230517",), OUT)
    assert capsys.readouterr().out == "out/a\n"


@pytest.mark.parametrize("problem", [None, "cut off"])
def test_one_incomplete_database_fails_the_check(
    problem: str | None, record: Record, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = SimpleNamespace(notes=["no templates"])
    read = record("data_pipeline.search.database_profile.read_database_profile", profile)
    record("data_pipeline.search.process.find_program")
    record("data_pipeline.search.database_check.check_databases", [("first", problem), ("second", None)])
    assert main(["databases", "check", "a"]) == (0 if problem is None else 1)
    assert read[0][0] == (A, set())  # no program is installed
    assert capsys.readouterr().out.splitlines() == [
        f"first: {problem or 'whole'}",
        "second: whole",
        "note: no templates",
    ]


class Server:
    """A client whose server ends jobs in the states of their names."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def submit(self, sequence: str, **options: Any) -> dict[str, Any]:
        self.asked.append((sequence, options))
        return {"id": f"id-{len(self.asked)}"}

    def job(self, job: str) -> dict[str, Any]:
        error = f"{job} is broken" if job.startswith("failed") else None
        stages = [{"name": "features"}, {"name": "folding"}]
        summary = {"provenance": job.partition("-")[2]}
        state = job.partition("-")[0]
        place = 3 if state == "queued" else None
        progress = {"stages": stages} if state in ("running", "done") else {}
        return {
            "id": job,
            "state": state,
            "name": "my protein",
            "place": place,
            "progress": progress,
            "error": error,
            "summary": summary,
        }

    def jobs(self, *, limit: int) -> list[dict[str, Any]]:
        return [self.job("queued-x")] * limit

    def wait(self, job: str, **_: Any) -> dict[str, Any]:
        number = int(job.removeprefix("id-")) if job.startswith("id-") else None
        return self.job(job if number is None else "failed-2" if number == 2 else "done-1")

    def fetch(self, *arguments: Any, **options: Any) -> None:
        self.asked.append((arguments, options))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Server:
    server = Server()

    @contextmanager
    def server_client(url: str, token_file: Path | None, *, allow_http: bool = False) -> Iterator[Server]:
        server.asked.append((url, token_file, allow_http))
        yield server

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("helixfold.apps.serve.client.server_client", server_client)
    return server


def test_submit_passes_its_options_and_fails_with_any_job(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    Path("two.fasta").write_text(">one\nMKTAYIAKQR\n>two\nMKTAYIAKQR:MKTAY\n")
    place = ["--server", "http://a"]
    more = "--token-file t --allow-http --model tiny --num-recycles 0 --num-seeds 4 --wait"
    assert main(["submit", "two.fasta", *place, *more.split()]) == 1
    options = {"alignments": (), "templates": (), "search_templates": False}
    options |= {"model": "tiny", "recycles": 0, "predictions": 4}
    assert server.asked == [
        ("http://a", Path("t"), True),
        ("MKTAYIAKQR", {"name": "one", **options}),
        ("MKTAYIAKQR:MKTAY", {"name": "two", **options}),
    ]
    assert capsys.readouterr().out.splitlines() == [
        "id-2 one",
        "id-3 two",
        "failed-2 failed failed-2 is broken",
        "done-1 done",
    ]
    server.asked.clear()
    more = "--msa a --templates b --search none --search-templates --max-template-date 2021-11-01 --pair-mode paired"
    assert main(["submit", "MKTAYIAKQR", *place, *more.split(), "--seed", "5", "--dropout", "--relax"]) == 0
    assert server.asked[0] == ("http://a", None, False)
    options = {"alignments": (A,), "templates": (B,), "search_templates": True, "search": "none"}
    options |= {"newest_template": "2021-11-01", "pairing": "paired", "seed": 5, "dropout": True, "relax": True}
    assert server.asked[1] == ("MKTAYIAKQR", {"name": "protein", **options})


def test_fetch_writes_each_result_into_its_own_directory(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    place = ["--server", "http://a", "-o", "out"]
    assert main(["fetch", "done-123456", "failed-1", "done-654321", *place, "--max-disk", "1GiB"]) == 1
    targets = [OUT / "my_protein_done-123", OUT / "my_protein_done-654"]
    assert server.asked[1:] == [
        (("done-123456", targets[0]), {"max_bytes": 2**30}),
        (("done-654321", targets[1]), {"max_bytes": 2**30}),
    ]
    assert capsys.readouterr().out.splitlines() == [
        str(targets[0]),
        "failed-1: failed: failed-1 is broken",
        str(targets[1]),
    ]
    assert main(["fetch", "done-1", *place]) == 0
    assert server.asked[-1][1] == {"max_bytes": 20 * 2**30}
    assert main(["fetch", *place]) == 2
    assert "name the jobs to fetch" in capsys.readouterr().err


def test_status_shows_place_stage_provenance_and_error(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = ["queued-trained", "running-demonstration", "done-untrained", "failed-trained"]
    assert main(["status", "--server", "http://a", "--token-file", "t", *jobs]) == 0
    assert server.asked == [("http://a", Path("t"), False)]
    assert capsys.readouterr().out.splitlines() == [
        "queued-trained  queued, place 3  my protein",
        "running-demonstration  running, folding done  my protein (demonstration)",
        "done-untrained  done  my protein (untrained)",
        "failed-trained  failed  my protein: failed-trained is broken",
    ]
    assert main(["status", "--server", "http://a"]) == 0
    assert capsys.readouterr().out.count("\n") == 20
    assert main(["status"]) == main(["status", "a", "b"]) == 2


def test_doctor_prints_facts_as_lines_or_json(record: Record, capsys: pytest.CaptureFixture[str]) -> None:
    record("helixfold.apps.search_plan.profile_of", "profile")
    record("helixfold.apps.search_plan.server_of", "server")
    read = record("data_pipeline.features.complexes.target_files.read_targets", ["target"])
    facts = record("helixfold.apps.predict.doctor.facts", {"cores": 2})
    record("helixfold.apps.predict.doctor.configuration_facts", {"error": None})
    record("helixfold.apps.predict.doctor.report", ["2 cores", "no GPU"])
    record("helixfold.benchmark.operators.operator_backends", {"attention": "flash"})
    record("helixfold.benchmark.operators.operator_lines", ["attention: flash"])
    assert run("doctor a --msa b --templates c --length 50 --device cpu") == 0
    assert read == [(((A,), (B,), (Path("c"),)), {})]
    assert facts[0][0] == ("profile", ["target"], "server", 50, "cpu")
    assert capsys.readouterr().out == "2 cores\nno GPU\n"
    assert run("doctor --operators") == 0
    assert capsys.readouterr().out == "2 cores\nno GPU\n\nattention: flash\n"
    assert run("doctor --operators --json") == 0
    found = {"cores": 2, "configuration": {"error": None}, "operators": {"attention": "flash"}}
    assert json.loads(capsys.readouterr().out) == found


def test_finetune_chooses_what_is_trained_by_its_arguments(record: Record, capsys: pytest.CaptureFixture[str]) -> None:
    module = "helixfold.training.finetune.run."
    sets, several = record(f"{module}finetune", 1), record(f"{module}finetune_jobs", 0)
    table = record("helixfold.training.finetune.task_command.finetune_task", 1)
    record(f"{module}settings_lines", ["steps=3"])
    record(f"{module}dry_run_lines", ["2 GiB"])
    assert run("finetune a -o out --seed 4") == 1
    assert sets == [((A, FinetuneOptions(output=OUT, seed=4), OUT), {})]
    assert run("finetune --jobs b -o out") == 0
    assert (several[0][0][0], several[0][0][2]) == (B, OUT)
    assert run("finetune --table b -o out") == 1
    assert table == [((B, FinetuneOptions(output=OUT, table=B), OUT), {})]
    assert run("finetune --show-settings") == run("finetune --dry-run") == 0
    assert capsys.readouterr().out == "steps=3\n2 GiB\n"
    for words, message in (
        ("finetune a", "pass --output"),
        ("finetune -o out", "pass exactly one of a training set"),
        ("finetune a -o out --progress json", "--progress json is for --jobs"),
        ("finetune a --jobs b -o out", "pass exactly one of a training set"),
        ("finetune --jobs b -o out --new-parameters x", "--new-parameters is for a training set"),
        ("finetune --table a --jobs b -o out", "pass exactly one of a training set"),
    ):
        assert run(words) == 2
        assert message in capsys.readouterr().err


def test_train_passes_its_options(record: Record, capsys: pytest.CaptureFixture[str]) -> None:
    calls = record("helixfold.training.run.train", 1)
    words = "train a -o out --preset small --set steps=7 --held-out b --weights c --device cpu"
    more = "--new-parameters x.* --new-parameters y --workers 2 --cuda-graphs off --layout dp=2"
    assert main([*words.split(), *more.split(), "--timeout", "9"]) == 1
    ((training_set, config), options) = calls[0]
    assert (training_set, config.steps) == (A, 7)
    draw = options.pop("draw")
    assert draw.__name__ == "plot_curves"
    assert options == {
        "output": OUT,
        "name": "small",
        "held_out": B,
        "weights": Path("c"),
        "new_parameters": ("x.*", "y"),
        "device": "cpu",
        "workers": 2,
        "cuda_graphs": "off",
        "layout": "dp=2",
        "timeout": 9.0,
    }
    assert run("train a -o out --patience 5") == 1
    assert calls[1][1]["timeout"] == 5.0
    assert calls[1][0][1].steps != 7
    for words, message in (
        ("train a -o out --timeout 0", "--timeout must be greater than 0 seconds, got 0"),
        ("train a -o out --stages 1", "--stages requires --recipe"),
        ("train a -o out --memory 8GiB", "--memory requires --dry-run"),
        ("train a", "pass a training set and --output"),
        ("train -o out", "pass a training set and --output"),
        ("train a -o out --recipe small --weights b", "--weights cannot be combined with --recipe"),
        ("train a -o out --recipe small --preset small", "--preset cannot be combined with --recipe"),
        ("train a -o out --recipe small --stages 99", "stages, got --stages 99"),
    ):
        assert run(words) == 2
        assert message in capsys.readouterr().err


def test_benchmarks_pass_their_peers(record: Record) -> None:
    blocks, networks = record("helixfold.benchmark.block.run"), record("helixfold.benchmark.model.run")
    assert run("benchmark block --preset model_2 --peer openfold open-omics --peer jax --dtypes bfloat16") == 0
    assert run("benchmark model --peer openfold colabfold --jax-python b") == 0
    common = CommonOptions(dtypes=("bfloat16",))
    assert blocks == [((BlockOptions(preset="model_2", peer=("openfold", "open-omics", "jax")), common), {})]
    options = ModelOptions(peer=("openfold", "colabfold"), jax_python=B)
    assert networks == [((options, CommonOptions()), {})]
    assert run("benchmark model --peer open-omics") == run("benchmark block --peer colabfold") == 2


def test_evaluate_compares_or_runs_a_benchmark(record: Record, capsys: pytest.CaptureFixture[str]) -> None:
    record("helixfold.cli.evaluate.require")
    compare, benchmark = (
        record("helixfold.cli.evaluate._compare", 1),
        record("helixfold.cli.evaluate._run_benchmark", 3),
    )
    assert run("evaluate a b -o out --all-ranks") == 1
    assert run("evaluate a b") == 1
    assert compare == [((A, B, OUT), {"all_ranks": True}), ((A, B, Path("evaluation")), {"all_ranks": False})]
    words = ["evaluate", "--benchmark", "table.tsv", "-o", "out"]
    assert main(words) == 3
    ((name, output, _, command), options) = benchmark[0]
    assert (name, output, command, options) == ("table.tsv", OUT, ("helixfold", *words), {"all_ranks": False})
    Path("file").touch()
    for wrong, message in (
        ("evaluate a --benchmark b", "a cannot be combined with --benchmark"),
        ("evaluate a", "pass PREDICTIONS and REFERENCES"),
        ("evaluate a b --num-recycles 1", "--num-recycles requires --benchmark"),
        ("evaluate a b -o file", "file: is a file"),
    ):
        assert run(wrong) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("failures", "count", "code"), [({}, 2, 0), ({"x": "no reference"}, 3, 1)], ids=["none failed", "one failed"]
)
def test_evaluate_reports_what_was_not_compared(
    failures: dict[str, str], count: int, code: int, record: Record, capsys: pytest.CaptureFixture[str]
) -> None:
    record("helixfold.cli.evaluate.require")
    unused = [f"r{number}" for number in range(12)]
    found = SimpleNamespace(results=["a", "b"], failures=failures, unused=unused, count=count)
    named = record("helixfold.results.find.find_predictions", ["files of a"])
    compared = record("helixfold.analysis.compare_files.compare_files", found)
    record("helixfold.apps.evaluate.results.screen_table", ["a 0.5"])
    record("helixfold.apps.evaluate.results.complex_table", ["b 0.6"])
    record("helixfold.report.evaluation_plot.evaluation_plot", b"png")
    written = record("helixfold.apps.evaluate.results.write_evaluation")
    # The driver has a `write_file` of its own, which is not recorded if it is imported before.
    import_module("helixfold.results.driver")
    files = record("helixfold.results.writing.write_file")
    assert run("evaluate a b -o out") == code
    assert named == [((A,), {"all_ranks": False})]
    assert compared == [((["files of a"], B), {})]
    assert written == [((OUT, ["a", "b"], failures, unused), {})]
    assert files == [((OUT / "scores.png", b"png"), {})]
    said = capsys.readouterr()
    assert said.out == "a 0.5\nb 0.6\n-> out\n"
    lines = [f"helixfold: no prediction for {', '.join(unused[:10])} and 2 more"]
    lines += [f"{name}: failed: {why}" for name, why in failures.items()]
    lines += ["helixfold: 1 failed, see out/failures.json"] * len(failures)
    assert said.err.splitlines() == lines


def test_features_choose_targets_or_a_training_set(record: Record, capsys: pytest.CaptureFixture[str]) -> None:
    store, made = (
        record("helixfold.training.feature_store.make_store", 1),
        record("helixfold.apps.search.make_features", 3),
    )
    converted = record("helixfold.apps.search.convert_features", 0)
    assert run("features --from-pickle a b -o out") == 0
    assert converted == [(((A, B), OUT), {})]
    assert run("features --structures a --shard 1/3 -o out") == 1
    assert (store[0][0][0].structures, *store[0][0][1:]) == (A, OUT, (1, 3))
    assert run("features MKTAYIAKQR --msa-mode single_sequence --shard 0/2 --shared -o out") == 3
    ((targets,), options) = made[0]
    assert [target.name for target in targets]
    assert (options["output"], options["part"], options["is_shared"]) == (OUT, (0, 2), True)
    Path("in.fasta").write_text(">one\nMKTAYIAKQR\n>tr/Q8\nMK1\n")
    assert run("features in.fasta gone.fasta --skip-invalid -o out") == 3
    ((targets,), options) = made[1]
    assert [target.name for target in targets] == ["one"]
    assert {name: why.split(":")[0] for name, why in options["invalid"].items()} == {
        "tr_Q8": "InputError",
        "gone.fasta": "InputError",
    }
    for words, message in (
        ("--from-pickle a --skip-invalid", "--from-pickle can be combined only with --output"),
        ("--from-pickle a --shared", "--from-pickle can be combined only with --output"),
        ("--from-pickle a --structures b", "--from-pickle can be combined only with --output"),
        ("--from-predictions a --structures b", "--from-predictions cannot be combined with --structures"),
        ("b --structures a", "targets cannot be combined with --structures"),
        ("--structures a --msa b", "--msa is for targets to fold"),
        ("MKTAYIAKQR --hold-out 0.1", "--hold-out is for a training set"),
        ("", "there is nothing to do"),
        ("MKTAYIAKQR --msa-mode single_sequence --shard 2/2", "a shard must be i/n with i from 0 to n - 1, got '2/2'"),
    ):
        assert main(["features", *words.split()]) == 2, words
        assert message in capsys.readouterr().err


def test_predictions_become_a_training_set_for_distillation(record: Record, capsys: pytest.CaptureFixture[str]) -> None:
    store = record("helixfold.training.feature_store.make_store", 0)
    chosen = SimpleNamespace(structures=A, alignments=B, selected=5, left_out=2)
    select = record("helixfold.training.finetune.distillation.select_predictions", chosen)
    assert run("features --from-predictions c --min-plddt 80 -o out") == 0
    assert select == [((Path("c"), OUT, 80.0), {})]
    options = store[0][0][0]
    assert (options.structures, options.alignments, options.distillation) == (A, B, True)
    assert capsys.readouterr().out == "a: 5 predictions, 2 left out\n"
    assert run("features --from-predictions c --alignments d -o out") == 0
    assert store[1][0][0].alignments == Path("d")


@pytest.mark.parametrize(
    ("words", "function", "arguments", "options"),
    [
        (
            "fixbb a.pdb --chain B --fixed-residues 1-2 5 --cyclic",
            "fixed_backbone_of",
            ("B", ("1-2", "5")),
            {"cyclic": True},
        ),
        (
            "partial a.pdb --motif 3-5 --chain B --length 9 --start 2 --keep-sequence",
            "partial_of",
            ("B", ("3-5",)),
            {"length": 9, "start": 2, "fix_sequence": True},
        ),
        ("partial a.pdb --motif 3", "partial_of", (None, ("3",)), {"length": None, "start": 1, "fix_sequence": False}),
        (
            "binder a.pdb --length 7 --target-chains B C --hotspots B5 --cyclic",
            "binder_of",
            (("B", "C"), 7, ("B5",)),
            {"cyclic": True},
        ),
    ],
)
def test_protocols_read_each_structure_with_their_options(
    words: str, function: str, arguments: tuple[Any, ...], options: dict[str, Any], record: Record
) -> None:
    read, made = record(f"helixfold.apps.design.sources.{function}", "task"), record("helixfold.apps.design.run.run", 1)
    assert main(["design", *words.split(), "--designs", "3"]) == 1
    ((((name, make),), command), _) = made[0]
    assert (name, make(), command.designs) == ("a", "task", 3)
    assert read == [((Path("a.pdb"), *arguments), options)]


def test_hallucination_makes_a_task_of_its_length(record: Record) -> None:
    calls = record("helixfold.apps.design.run.run", 0)
    assert run("design hallucination --length 6 --name ring --cyclic") == 0
    ((name, make),) = calls[0][0][0]
    made = make()
    assert (name, made.name, made.cyclic, len(made.chains[0].placeholder)) == ("ring", "ring", (), 6)


def test_plan_prints_estimates_or_published_steps(record: Record, capsys: pytest.CaptureFixture[str]) -> None:
    plan = record("helixfold.training.plan.plan_lines", ["5 days"])
    record("helixfold.training.plan.published_step_lines", ["5.5 s"])
    assert run("plan --hardware h100x8 --layouts") == 0
    assert (plan[0][0][0].hardware, plan[0][0][0].layouts) == (("h100x8",), True)
    assert run("plan --published-steps") == 0
    assert capsys.readouterr().out == "5 days\n5.5 s\n"


def test_serve_passes_where_it_listens_and_the_limits_of_users(
    record: Record, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("fastapi")
    calls = record("helixfold.apps.serve.run.serve")
    record("data_pipeline.io.processors.available_processors", 12)
    monkeypatch.setattr("helixfold.cli.serve._gpus", lambda: 0)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    listening = "--data out --port 9 --workers 3 --require-tokens --host-name Fold.Org --public-url https://Fold.Org/"
    limits = "--max-residues 50 --max-jobs 4 --max-disk 1GiB --max-upload 1MiB --max-requests 7 --keep-days 2"
    words = f"serve {listening} --webhook-host a:1 {limits} --max-attempts 5 --max-hours 0.5 --device cpu --models tiny"
    assert run(words) == run("serve --behind-proxy") == 0
    (settings, predicting, environments), usual = (arguments for arguments, _ in calls)
    assert (settings.data, settings.host, settings.port) == (tmp_path / "out", "127.0.0.1", 9)
    assert (settings.require_tokens, settings.behind_proxy) == (True, False)
    assert (settings.host_name, settings.public_url) == (("fold.org",), "https://fold.org")
    assert (settings.webhook_host, settings.max_upload, settings.max_requests) == (("a:1",), 2**20, 7)
    queue = settings.queue
    assert (queue.max_residues, queue.max_active_jobs) == (50, 4)
    assert (queue.max_user_bytes, queue.keep_days, queue.max_attempts, queue.max_hours) == (2**30, 2, 5, 0.5)
    assert (predicting.models, predicting.device) == (("tiny",), "cpu")
    assert environments == [{"OMP_NUM_THREADS": "4"}] * 3  # twelve processors for three workers
    assert (usual[0].require_tokens, usual[0].behind_proxy, usual[2]) == (False, True, [{"OMP_NUM_THREADS": "12"}])


@pytest.mark.parametrize(
    ("visible", "device", "workers", "expected"),
    [
        ("", "auto", None, ["0", "1"]),
        ("5,7", "cuda", 3, ["5", "7", "5"]),
        ("5", "auto", 1, ["0"]),
        ("", "cpu", 2, [None, None]),
        ("", "auto", 0, []),
    ],
)
def test_each_worker_of_a_server_has_a_gpu(
    visible: str, device: str, workers: int | None, expected: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("helixfold.cli.serve._gpus", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setenv("OMP_NUM_THREADS", "6")
    found = serve._environments(workers, device)
    assert [each.get("CUDA_VISIBLE_DEVICES") for each in found] == expected
    assert all(each["OMP_NUM_THREADS"] == "6" for each in found)


def test_worker_passes_its_options(record: Record, tmp_path: Path) -> None:
    calls = record("helixfold.apps.serve.worker.run.run_worker")
    Path("t").write_text("secret\n")
    assert run("serve worker http://a --token-file t --allow-http --name b --device cpu --threads 2") == 0
    (call,) = calls[0][0]
    assert (call.url, call.token, call.name, call.allow_http) == ("http://a", "secret", "b", True)
    assert (call.options.device, call.options.threads) == ("cpu", 2)
    record("helixfold.cli.serve.require")
    clustered = record("helixfold.apps.serve.worker.cluster.run_on_cluster")
    assert run("serve worker https://a --token-file t --cluster c --work out") == 0
    assert (len(calls), clustered[0][0][1:]) == (1, (Path("c"), tmp_path / "out"))


def test_tokens_are_created_listed_and_revoked(record: Record, capsys: pytest.CaptureFixture[str]) -> None:
    data = "--data out"
    for words in (f"create anna {data}", f"create node --worker {data}", f"create ben {data}"):
        assert run(f"serve token {words}") == 0
    tokens = {each.user: each for each in TokenFile(OUT).all()}
    assert {user: token.kind for user, token in tokens.items()} == {"anna": "user", "node": "worker", "ben": "user"}
    assert {token.expires for token in tokens.values()} == {None}
    capsys.readouterr()
    assert run(f"serve token revoke anna {data}") == run(f"serve token revoke {tokens['ben'].id} {data}") == 0
    assert capsys.readouterr().out == f"{tokens['anna'].id} of anna is revoked\n{tokens['ben'].id} of ben is revoked\n"
    TokenFile(OUT).create("old", seconds=-1)
    assert run(f"serve token list {data}") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[1:4] for line in lines] == [
        ["anna", "user", "revoked"],
        ["node", "worker", "valid"],
        ["ben", "user", "revoked"],
        ["old", "user", "expired"],
    ]
    assert run(f"serve token revoke anna {data}") == 2
