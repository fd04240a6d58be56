"""Options of a job: those of `helixfold predict` that the service offers, and where its alignments come from."""

from collections.abc import Mapping
from typing import Any, Final, Literal

from data_pipeline.io.errors import InputError, choice_problem, did_you_mean, printable
from helixfold.apps.options import PredictOptions
from helixfold.runtime.options import Offer, traits_of

AlignmentSource = Literal["best", "databases", "none"]
_OWN = (
    Offer(
        name="search",
        kind="str",
        default="best",
        choices={
            "best": "my files, else from the server's databases",
            "databases": "from the server's databases",
            "none": "only my files",
        },
        label="MSA",
        text="where alignments come from",
    ),
    Offer(
        name="templates",
        kind="bool",
        default=False,
        needs="templates",
        label="Search for templates",
        text="search for templates in the databases of the service",
    ),
)
OF_PREDICT = {name: traits.offer for name, traits in traits_of(PredictOptions).items() if traits.offer is not None}
# Options by their names in a request, in the order of the form.
OFFERS: Final[Mapping[str, Offer]] = {offer.name: offer for offer in (*_OWN, *OF_PREDICT.values())}


def job_options(given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return all options of a job: those given, and the defaults of others; None leaves a choice to the service.

    Raise `InputError` for an unknown option, or for a value that an option cannot have.
    """
    given = given or {}
    if unknown := given.keys() - OFFERS.keys():
        name = min(map(str, unknown))
        choices = f"{', '.join(OFFERS)}{did_you_mean(name, OFFERS)}"
        raise InputError(f"unknown option '{printable(name, 40)}'; options: {choices}")
    for name, value in given.items():
        if (problem := _problem(OFFERS[name], value)) is not None:
            raise InputError(f"{name} {problem}")
    return {name: given.get(name, offer.default) for name, offer in OFFERS.items()}


def model_words(name: str) -> str:
    """Return a model's name for people who have not met it."""
    kinds = {"small": "demonstration model", "tiny": "random parameters", "tiny_multimer": "random parameters"}
    if name.startswith("model_"):
        return f"AlphaFold{'-Multimer' if '_multimer' in name else ' 2'} ({name})"
    return f"{kinds[name]} ({name})" if name in kinds else name


def request_words(request: Mapping[str, Any], model: str | None) -> list[tuple[str, str]]:
    """Return what a job asks for, as labels and words; `model` is the one that made the best prediction, if any."""
    options = request["options"]
    source = "your files" if request["alignments"] else "from the server's databases, if it has any"
    if options["search"] == "databases":
        source = "from the server's databases" + (" and your files" if request["alignments"] else "")
    elif options["search"] == "none" and not request["alignments"]:
        source = "none, the sequence alone"
    name = model or options["model"]
    words = [("MSA", source), ("Model", model_words(name) if name else "chosen by the server")]
    if request["templates"]:
        words.append(("Templates", "your files"))
    for offer in OFFERS.values():
        value = options.get(offer.name, offer.default)
        if offer.name not in ("search", "model") and value != offer.default:
            words.append((offer.label, "yes" if value is True else offer.choices.get(value, str(value))))
    return words


def _problem(offer: Offer, value: Any) -> str | None:
    """Return what is wrong with the value of an option, or None."""
    if value is None and offer.default is None:
        return None
    if type(value).__name__ != offer.kind:
        words = {"int": "a whole number", "bool": "true or false", "str": "a text"}
        return f"must be {words[offer.kind]}, got '{printable(str(value), 40)}'"
    if offer.choices and value not in offer.choices:
        return choice_problem(value, offer.choices)
    if offer.bounds is not None:
        size, unit = (len(value), " characters long") if offer.kind == "str" else (value, "")
        first, last = offer.bounds
        if not first <= size <= last:
            return f"must be at least {first} and at most {last:,}{unit}, got {size:,}"
    if offer.convert is not None:
        try:
            offer.convert(value)
        except ValueError as error:
            return str(error)
    return None


def predict_values(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of `helixfold predict` that the options of a job stand for, by name."""
    values = {}
    for name, offer in OF_PREDICT.items():
        value = options[offer.name]
        if value is not None:
            values[name] = value if offer.convert is None else offer.convert(value)
    return values
