"""Write the small model's card, and the few numbers of it that the program itself says.

    python examples/small/card.py assessment/summary.json training_set held_out.txt small_sources.tsv run1 run2 run3

Everything in it is read off: the assessment (assess.py), the training set, where its files came from (sources.py) and
the directories of the runs, in order. Writes `small.md` and `small.json` into the package,
beside the parameters, and the picture of the curves beside the documentation.
"""

import argparse
import json
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
from chains import Chains
from curves import plot_stages
from sources import SourceCounts, counts, rows
from stages import Stage, read_stages
from summary import MODEL

from data_pipeline.errors import InputError
from data_pipeline.files import atomic_write

ROOT = Path(__file__).parents[2]
PACKAGED = ROOT / "helixfold" / "weights" / "packaged"
IMAGE = "docs/images/small_training.png"
_FROM_PACKAGED = "../../../"
_NAMES_WIDTH = 118
_TITLES = {
    "held_out": "held out",
    "training": "trained on, a sample of those without alignment",
    "aligned": "trained on, with alignments",
}
_NAMES = {
    "secondary_structure": "ideal chains by predicted secondary structure",
    "nearest_chain": "the nearest training chain",
    "untrained": "the untrained network",
    "shuffled": "itself, reading their residues in a random order",
}


def facts(summary: dict[str, Any], chains: Chains) -> dict[str, Any]:
    """What the program says of its model, for machines."""
    held_out = summary["sets"]["held_out"]
    score = held_out["methods"][MODEL]["lddt_ca"]
    over_residues = held_out["plddt_pearson"]["residues"]
    return {
        "parameters": summary["model"]["parameters"],
        "digest": summary["model"]["digest"],
        "training_chains": len(chains.trained),
        "held_out_chains": held_out["chains"],
        "held_out_lddt_ca": {name: score[name] for name in ("mean", "low", "high")},
        "baselines": {name: held_out["methods"][name]["lddt_ca"]["mean"] for name in baselines_of(held_out)},
        "plddt_pearson": None if over_residues is None else over_residues["pearson"],
    }


def card(summary: dict[str, Any], chains: Chains, stages: Sequence[Stage], sources: SourceCounts) -> str:
    """The card's text."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=False,
        keep_trailing_newline=True,
    )
    groups = summary["sets"]
    held_out = groups["held_out"]
    aligned = [name for name in chains.trained if chains.entries[name].msa_rows > 1]
    depths = [chains.entries[name].msa_rows for name in aligned]
    config = stages[-1].config
    tables = (
        ("By what it was trained on", {_TITLES[name]: group for name, group in groups.items()}),
        ("Held-out chains by length", _labelled(summary["held_out_by_length"], "residues")),
        ("Held-out chains by relatives among the training chains", summary["held_out_by_relative"]),
        (
            "By depth of the alignment",
            {
                **_labelled(summary["held_out_by_depth"], "rows, held out"),
                **_labelled(summary["trained_by_depth"], "rows, trained on"),
            },
        ),
    )
    text = environment.get_template("card.md.jinja").render(
        model=summary["model"],
        held_out=held_out,
        resamples=summary["resamples"],
        verdicts=[verdict(name, held_out) for name in baselines_of(held_out)],
        q3=summary["secondary_structure_q3"],
        tables=tables,
        sets={_TITLES[name]: group for name, group in groups.items()},
        baselines=baselines_of(held_out),
        architecture=config.model,
        sampling=config.example.sampling,
        chains={
            "trained": chains.trained,
            "held_out": chains.held_out,
            "aligned": aligned,
            "single": [name for name in chains.trained if chains.entries[name].msa_rows == 1],
        },
        clusters={"trained": len({chains.entries[name].cluster for name in chains.trained})},
        rows={"least": min(depths, default=1), "most": max(depths, default=1)},
        related=next(iter(summary["held_out_by_relative"].values()))["chains"],
        sources=sources,
        image=_FROM_PACKAGED + IMAGE,
        stages=stages,
        hours=sum(stage.seconds for stage in stages) / 3600,
        longest=max(chains.entries[name].length for name in chains.trained),
        largest_crop=max(stage.config.example.crop_size for stage in stages),
        interval=interval,
        correlation=lambda found: interval(found, "pearson"),
        best_difference=best_difference,
        last_score=last_score,
        names=lambda some: textwrap.fill(" ".join(some), _NAMES_WIDTH, break_on_hyphens=False, break_long_words=False),
    )
    return "\n".join(line.rstrip() for line in text.split("\n"))


def baselines_of(group: dict[str, Any]) -> list[str]:
    return [name for name in group["methods"] if name != MODEL]


def interval(found: dict[str, float] | None, of: str = "mean") -> str:
    """A number and its interval, as tables have them."""
    if found is None:
        return "-"
    if "low" not in found:
        return f"{found[of]:.3f}"
    return f"{found[of]:.3f} [{found['low']:.3f}, {found['high']:.3f}]"


def best_difference(group: dict[str, Any]) -> dict[str, float]:
    """To the baseline with the highest mean."""
    best = max(baselines_of(group), key=lambda name: group["methods"][name]["lddt_ca"]["mean"])
    found: dict[str, float] = group["model_minus"][best]["lddt_ca"]
    return found


def verdict(name: str, group: dict[str, Any]) -> str:
    """How the model stands to one baseline, in a sentence that the interval allows."""
    found = group["model_minus"][name]["lddt_ca"]
    how = "cannot be told apart from"
    if found.get("low", 0) > 0:
        how = "is better than"
    elif found.get("high", 0) < 0:
        how = "is worse than"
    return f"- On them it {how} {_NAMES[name]}: CA-lDDT differs by {interval(found)}."


def last_score(stage: Stage) -> str:
    found = [each.summary["lddt_ca"] for each in stage.history.evaluations if "lddt_ca" in each.summary]
    return f"{found[-1]:.3f}" if found else "-"


def _labelled(groups: dict[str, Any], of: str) -> dict[str, Any]:
    return {f"{name} {of}": group for name, group in groups.items()}


def write(
    summary: Path, chains: Chains, stages: Sequence[Stage], sources: Path, *, packaged: Path, image: Path
) -> None:
    """Card, facts and picture; all from the same numbers."""
    found = json.loads(summary.read_text(encoding="utf-8"))
    if found["failures"]:
        raise InputError.at(summary, f"{len(found['failures'])} structures are missing; run assess.py again first")
    numbers = facts(found, chains)
    text = card(found, chains, stages, counts(list(rows(sources))))
    for directory in (packaged, image.parent):
        directory.mkdir(parents=True, exist_ok=True)
    plot_stages(stages, numbers["baselines"], image)
    for name, content in (("small.json", json.dumps(numbers, indent=1) + "\n"), ("small.md", text)):
        with atomic_write(packaged / name) as temporary:
            temporary.write_text(content, encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("summary", type=Path, help="summary.json of the assessment")
    parser.add_argument("training_set", type=Path)
    parser.add_argument("held_out", type=Path, help="names of the chains that were not trained on")
    parser.add_argument("sources", type=Path, help="the list that sources.py wrote")
    parser.add_argument("runs", type=Path, nargs="+", help="directories of the training runs, in their order")
    parser.add_argument(
        "--packaged", type=Path, default=PACKAGED, help="where small.md and small.json go (%(default)s)"
    )
    parser.add_argument("--image", type=Path, default=ROOT / IMAGE, help="where the picture goes (%(default)s)")
    options = parser.parse_args()
    try:
        write(
            options.summary,
            Chains.open(options.training_set, options.held_out),
            read_stages(options.runs),
            options.sources,
            packaged=options.packaged,
            image=options.image,
        )
    except (InputError, OSError, ValueError) as error:
        sys.exit(f"card.py: {error}")
    print(f"-> {options.packaged}/small.md, {options.packaged}/small.json, {options.image}")
