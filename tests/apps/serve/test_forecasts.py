"""What a worker offers: which chains fit, as the planner of `helixfold predict` says, and which weights it has."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from helixfold.apps.serve.forecast_curve import estimate_job
from helixfold.apps.serve.queue.jobs import QueueOptions
from helixfold.apps.serve.queue.workers import WorkerOffers
from helixfold.apps.serve.service import Service
from helixfold.apps.serve.worker import tasks
from helixfold.apps.serve.worker.options import WorkerOptions
from helixfold.execution.device import AUTO, DTYPES, settled_dtype
from helixfold.model.presets import preset
from helixfold.ops.device_properties import properties_of
from helixfold.planning.estimate import Device, Prediction, estimate
from helixfold.planning.memory import FeatureRows
from helixfold.weights import demonstration
from tests.apps.serve.running import OFFERS, Running, running
from tests.apps.serve.test_pages import Browser

GIB = 2**30


@pytest.fixture
def offers_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The offers of a worker on a CPU with so much memory, and no disk to spill to."""
    monkeypatch.setattr(tasks, "limit_threads", lambda: None)

    def offers(model: str, memory: float, **options: Any) -> dict[str, Any]:
        device = Device(properties=properties_of(torch.device("cpu")), memory=int(memory * GIB))
        monkeypatch.setattr(Device, "at_hand", lambda *_: device)
        return tasks.offers(WorkerOptions(device="cpu", models=(model,), **options))

    return offers


def planned(model: str, residues: int, memory: float) -> tuple[bool, int]:
    """Whether `helixfold predict` finds that a chain fits, and the bytes that it needs."""
    chosen, properties = preset(model), properties_of(torch.device("cpu"))
    size = FeatureRows.at_most(residues, chosen.sampling).size(chosen, DTYPES[settled_dtype(AUTO, properties)])
    found = estimate(Prediction(model=chosen.model, size=size), Device(properties=properties, memory=int(memory * GIB)))
    return found.fits, found.memory.peak


@pytest.mark.long
@pytest.mark.parametrize("memory", [6.0, 16.5])
def test_service_takes_the_chains_that_predict_folds_in_slabs(memory: float, offers_of: Any) -> None:
    offers = WorkerOffers.model_validate(offers_of("tiny", memory))
    for residues in (256, 3_000, 6_000):
        found = estimate_job([offers], residues=residues, chains=1, model=None, recycles=None, count=1)
        fits, peak = planned("tiny", residues, memory)
        assert found is not None
        assert found.fits == fits, residues
        if fits and residues > 256:
            assert found.peak_bytes == pytest.approx(peak, rel=0.15), residues


@pytest.mark.integration
def test_running_service_queues_a_chain_of_3000_residues(offers_of: Any, tmp_path: Path) -> None:
    with running(tmp_path, offers=offers_of("tiny", 16.5), queue=QueueOptions(max_residues=10_000)) as server:
        assert server.json("POST", "/api/v1/jobs", {"sequence": "MKTAYIAKQR" * 300})["state"] == "queued"
        status, _, body = server.asked("POST", "/api/v1/jobs", {"sequence": "MKTAYIAKQR" * 600})
        assert status == 422
        assert b"do not fit into the memory of any worker" in body


@pytest.mark.parametrize(
    ("model", "weights", "expected"),
    [("small", None, "demonstration"), ("tiny", None, "untrained"), ("small", demonstration.WEIGHTS, "demonstration")],
)
def test_worker_sends_where_its_parameters_come_from(
    model: str, weights: Path | None, expected: str, offers_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "_estimate_curve", lambda *_: {})
    offers = offers_of(model, 16.5, weights=weights)
    assert offers["provenance"] == {model: expected}
    assert WorkerOffers.model_validate(offers).best_provenance == expected


@pytest.mark.integration
@pytest.mark.parametrize("provenances", [*itertools.permutations(("trained", "demonstration", "untrained"), 2)])
def test_service_has_the_provenance_of_its_least_trustworthy_worker(
    provenances: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = [WorkerOffers.model_validate({**OFFERS, "provenance": {"tiny": each}}) for each in provenances]
    monkeypatch.setattr(Service, "offers", lambda _: workers)
    with running(tmp_path) as server:
        found = server.json("GET", "/api/v1/service")["provenance"]
        assert found == next(each for each in ("untrained", "demonstration", "trained") if each in provenances)


def ended_job(server: Running, provenance: str | None) -> str:
    job = str(server.json("POST", "/api/v1/jobs", {"sequence": "MKTAYIAKQR"})["id"])
    summary = {} if provenance is None else {"provenance": provenance}
    server.finish(server.claim(), {"report.html": b""}, plddt=40.0, **summary)
    return job


@pytest.mark.integration
@pytest.mark.parametrize(
    ("provenance", "banner"),
    [("demonstration", "Demonstration."), ("untrained", "Untrained."), ("trained", None), (None, None)],
)
def test_every_page_shows_what_made_the_results(provenance: str | None, banner: str | None, tmp_path: Path) -> None:
    offers = {**OFFERS, **({} if provenance is None else {"provenance": {"tiny": provenance}})}
    with running(tmp_path, offers=offers) as server:
        job = ended_job(server, provenance)
        link = server.json("POST", f"/api/v1/jobs/{job}/share")["path"]
        browser = Browser(server)
        for path in ("/", "/jobs", f"/jobs/{job}", link, "/login", "/nowhere"):
            assert browser.open(path) == (404 if path == "/nowhere" else 200)
            assert ('<p class="banner"' in browser.text) == (banner is not None), path
            assert banner is None or f"<strong>{banner}</strong>" in browser.text, path
        assert server.json("GET", "/api/v1/service")["provenance"] == (provenance or "trained")
        assert server.json("GET", f"/api/v1/jobs/{job}")["summary"]["provenance"] == provenance


def test_result_of_the_demonstration_model_is_marked_after_the_weights_have_come(tmp_path: Path) -> None:
    with running(tmp_path, offers={**OFFERS, "provenance": {"tiny": "trained"}}) as server:
        job, other = ended_job(server, "demonstration"), ended_job(server, "trained")
        link = server.json("POST", f"/api/v1/jobs/{job}/share")["path"]
        browser = Browser(server)
        for path in (f"/jobs/{job}", link):
            browser.open(path)
            assert "predicted by helixfold's small demonstration model" in browser.text
        browser.open("/jobs")
        assert browser.text.count(">demonstration<") == 1
        browser.open(f"/jobs/{other}")
        assert "demonstration" not in browser.text.lower()


def test_worker_with_weights_does_not_hide_one_without(tmp_path: Path) -> None:
    with running(tmp_path, offers={**OFFERS, "provenance": {"tiny": "trained", "small": "demonstration"}}) as server:
        assert server.service.provenance() == "trained"
        other = WorkerOffers.model_validate({**OFFERS, "provenance": {"small": "demonstration"}})
        server.service.workers.record_message("local/other", other)
        server.service._offers = (0.0, [])
        assert server.service.provenance() == "demonstration"
