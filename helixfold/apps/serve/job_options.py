"""Options of a job: the source of its alignments, and the options of `helixfold predict` that the service offers."""

from collections.abc import Mapping
from typing import Any, Final, Literal

from data_pipeline.io.errors import InputError, choice_problem, did_you_mean, printable
from helixfold.apps.options import PredictOptions
from helixfold.runtime.options import Offer, traits_of

AlignmentSource = Literal["best", "databases", "none"]
_SERVICE_OPTIONS = (
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
# Options of `helixfold predict` that a job may set, by the names of their fields in `PredictOptions`.
PREDICT_OPTIONS = {name: traits.offer for name, traits in traits_of(PredictOptions).items() if traits.offer is not None}
# Options by their names in a request, in the order of the form.
OFFERS: Final[Mapping[str, Offer]] = {offer.name: offer for offer in (*_SERVICE_OPTIONS, *PREDICT_OPTIONS.values())}


def job_options(values: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Check option values, and return them with the defaults of all other options.

    None lets the service choose; only options whose default is None accept it. Raise `InputError` for an unknown
    option or an invalid value.
    """
    values = values or {}
    if unknown := values.keys() - OFFERS.keys():
        raise InputError(unknown_option_problem(min(map(str, unknown))))
    for name, value in values.items():
        if (problem := option_problem(OFFERS[name], value)) is not None:
            raise InputError(f"{name} {problem}")
    return {name: values.get(name, offer.default) for name, offer in OFFERS.items()}


def unknown_option_problem(name: str) -> str:
    """Return an error message for an option that does not exist, with the names of all options."""
    return f"unknown option '{printable(name, 40)}'; options: {', '.join(OFFERS)}{did_you_mean(name, OFFERS)}"


def model_label(name: str) -> str:
    """Return the name of a model with a description, such as "AlphaFold 2 (model_1_ptm)".

    A name that is not one of helixfold's models is returned unchanged.
    """
    kinds = {"small": "demonstration model", "tiny": "random parameters", "tiny_multimer": "random parameters"}
    if name.startswith("model_"):
        return f"AlphaFold{'-Multimer' if '_multimer' in name else ' 2'} ({name})"
    return f"{kinds[name]} ({name})" if name in kinds else name


def request_labels(request: Mapping[str, Any], model: str | None) -> list[tuple[str, str]]:
    """Return the options of a job for its page, as pairs of label and value.

    They are the sources of alignments and templates, the model, and the options that differ from their defaults.
    `request` is the JSON object of the job. `model` is the name of the model of the best prediction, or None before
    the job is done.
    """
    options = request["options"]
    source = "your files" if request["alignments"] else "from the server's databases, if it has any"
    if options["search"] == "databases":
        source = "from the server's databases" + (" and your files" if request["alignments"] else "")
    elif options["search"] == "none" and not request["alignments"]:
        source = "none, only the sequence"
    name = model or options["model"]
    labels = [("MSA", source), ("Model", model_label(name) if name else "chosen by the server")]
    if request["templates"]:
        labels.append(("Templates", "your files"))
    for offer in OFFERS.values():
        value = options.get(offer.name, offer.default)
        if offer.name not in ("search", "model") and value != offer.default:
            labels.append((offer.label, "yes" if value is True else offer.choices.get(value, str(value))))
    return labels


def option_problem(offer: Offer, value: Any) -> str | None:
    """Return what is wrong with the value of an option; None if it is valid."""
    if value is None and offer.default is None:
        return None
    if type(value).__name__ != offer.kind:
        kinds = {"int": "a whole number", "bool": "true or false", "str": "a text"}
        return f"must be {kinds[offer.kind]}, got '{printable(str(value), 40)}'"
    if offer.choices and value not in offer.choices:
        return choice_problem(value, offer.choices)
    if offer.bounds is not None:
        size, unit = (len(value), " characters long") if offer.kind == "str" else (value, "")
        minimum, maximum = offer.bounds
        if not minimum <= size <= maximum:
            return f"must be at least {minimum} and at most {maximum:,}{unit}, got {size:,}"
    if offer.convert is not None:
        try:
            offer.convert(value)
        except ValueError as error:
            return str(error)
    return None


def predict_values(options: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the options of a job to values of `PredictOptions`, by the names of its fields.

    `options` are complete, as `job_options` returns them. Options that are None or only of the service are left out.
    """
    values = {}
    for name, offer in PREDICT_OPTIONS.items():
        value = options[offer.name]
        if value is not None:
            values[name] = value if offer.convert is None else offer.convert(value)
    return values
