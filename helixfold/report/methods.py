"""Write the methods paragraph of a report, with references, to copy into a paper."""

from collections.abc import Iterator
from dataclasses import dataclass

from helixfold.folding.provenance import Provenance, RecordedSearch
from helixfold.report.files import TargetFiles
from helixfold.report.page import counted
from helixfold.report.tables import DEMONSTRATION, RESIDUE_GAP, UNTRAINED, mark_of, notes_of, relaxation_results
from helixfold.results.works import WORKS

# Publications (keys of `WORKS`) that describe the search programs, by the word in the record of a search.
_PUBLICATIONS_OF_PROGRAMS = {
    "jackhmmer": "hmmer",
    "hmmsearch": "hmmer",
    "hhblits": "hhsuite",
    "hhsearch": "hhsuite",
    "mmseqs": "mmseqs",
}
_PARAMETER_SENTENCES = {
    DEMONSTRATION: "The parameters come from the small demonstration model of helixfold.",
    UNTRAINED: "The parameters were random, so the structures are meaningless.",
}


@dataclass(frozen=True, kw_only=True)
class Methods:
    """A methods paragraph and its references in the order of their numbers, which the text cites as [1]."""

    text: str
    references: tuple[str, ...]


def methods_of(target: TargetFiles) -> Methods | None:
    """Return the methods paragraph of a target: prediction, alignment, templates and relaxation.

    Return None if the best prediction has no provenance, or settings.json has no options.
    """
    record = target.best.provenance
    if record is None or "options" not in target.settings.content:
        return None
    cited: list[str] = []
    sentences = [
        *_prediction(target, record, cited),
        _alignment(target, record, cited),
        _templates(record, cited),
        *_relaxation(target, cited),
    ]
    return Methods(text=" ".join(sentences), references=tuple(WORKS[name].citation for name in cited))


def _cite(cited: list[str], *names: str) -> str:
    """Return the numbers of publications in brackets, such as [1, 3], and add new ones to those that are `cited`."""
    cited += [name for name in names if name not in cited]
    return f"[{', '.join(str(cited.index(name) + 1) for name in names)}]"


def _prediction(target: TargetFiles, record: Provenance, cited: list[str]) -> Iterator[str]:
    chains = len(target.summary.chains)
    size = counted(len(target.sequence), "residue") + (f" in {chains} chains" if chains > 1 else "")
    method, ranked_by = f"AlphaFold 2 {_cite(cited, 'alphafold')}", "mean pLDDT"
    if target.best.iptm is not None:
        ranked_by = "0.8 ipTM + 0.2 pTM"
    if any(note.startswith(RESIDUE_GAP) for note in notes_of(target)):
        method += ", which read the chains as one chain with gaps in the residue numbers"
    elif target.best.iptm is not None:
        method = f"AlphaFold-Multimer {_cite(cited, 'alphafold', 'multimer')}"
    version = record.software.get("helixfold", "")
    torch = record.software.get("torch", "").partition("+")[0]
    name = f"{target.name} ({target.protein}; {size})" if target.protein else f"{target.name} ({size})"
    yield f"The structure of {name} was predicted by {method},"
    yield f"as implemented in helixfold {version} (PyTorch {torch})."
    recycles = target.settings.child("options").get("num_recycles", int, target.best.num_recycles)
    identities = [prediction.identity for prediction in target.predictions]
    models = ", ".join(sorted({each.model for each in identities}))
    seeds = counted(len({each.seed for each in identities}), "random seed")
    yield f"{counted(len(identities), 'prediction')} ({models}; {seeds}; at most {counted(recycles, 'recycle')})"
    yield f"{'was made' if len(identities) == 1 else f'were made and ranked by {ranked_by}'}."
    if (mark := mark_of(notes_of(target))) is not None:
        yield _PARAMETER_SENTENCES[mark]


def _alignment(target: TargetFiles, record: Provenance, cited: list[str]) -> str:
    rows = target.rows
    size = "" if rows is None else f", which has {counted(rows, 'sequence')}"
    if target.rows_read is not None:
        size += f" (of which at most {target.rows_read:,} were used in each recycling iteration)"
    searches = [each for each in record.searches if each.purpose in ("alignment", "pairs")]
    if searches:
        return f"The multiple sequence alignment{size}, was made by {_searches_text(searches, cited)}."
    if rows == 1:
        return "Only the sequence was used, without a multiple sequence alignment."
    return f"The multiple sequence alignment{size}, was provided by the user."


def _templates(record: Provenance, cited: list[str]) -> str:
    searches = [each for each in record.searches if each.purpose == "templates"]
    source = f", found by {_searches_text(searches, cited)}" if searches else ""
    if not record.templates:
        return "No template was used."
    subject = "Templates were" if len(record.templates) > 1 else "The template was"
    return f"{subject} {', '.join(record.templates)}{source}."


def _searches_text(searches: list[RecordedSearch], cited: list[str]) -> str:
    lines = " ".join(each.search for each in searches).lower()
    servers = any(database.url for each in searches for database in each.databases)
    works = list(dict.fromkeys(work for word, work in _PUBLICATIONS_OF_PROGRAMS.items() if word in lines))
    works += ["colabfold", "mmseqs"] if servers and "mmseqs" not in works else ["colabfold"] if servers else []
    names = dict.fromkeys(
        " ".join(filter(None, (database.name, database.version))) for each in searches for database in each.databases
    )
    return f"searches {_cite(cited, *works) + ' ' if works else ''}of {', '.join(names) or 'the databases of the user'}"


def _relaxation(target: TargetFiles, cited: list[str]) -> Iterator[str]:
    relaxed = [name for name, result in relaxation_results(target) if "failed" not in result.content]
    if relaxed == [target.best.name]:
        yield f"The best prediction was relaxed with OpenMM {_cite(cited, 'openmm')}."
    elif relaxed:
        verb = "was" if len(relaxed) == 1 else "were"
        yield f"{counted(len(relaxed), 'prediction')} {verb} relaxed with OpenMM {_cite(cited, 'openmm')}."
