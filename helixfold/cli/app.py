"""The command-line application: list the commands, parse the command line with cyclopts, and run a command."""

import inspect
import shlex
from collections.abc import Sequence
from typing import Annotated, Any, Literal, get_args

import cyclopts
from cyclopts import App, Argument, Group, Parameter

import helixfold
from data_pipeline.io.errors import InputError, choice_problem, did_you_mean
from helixfold.cli.command import Command, CommonOptions, ConfigFile
from helixfold.cli.help import help_page, show_default
from helixfold.runtime.imports import collecting_no_garbage
from helixfold.runtime.standard_streams import print_detail, set_verbosity

# The commands by group. A command is imported from its entry in `PLACES`, or else as `app` of the module with its name.
GROUPS = {
    "Predict": {
        "predict": "Predict structures from sequences or alignments.",
        "features": "Make features to predict elsewhere, or a training set.",
        "relax": "Remove clashes and strained bonds with OpenMM.",
        "report": "Rewrite the report pages of finished predictions.",
        "status": "Show the progress of a batch of predictions.",
    },
    "Analyse": {
        "evaluate": "Compare predictions with known structures: lDDT, TM-score, GDT, RMSD, DockQ.",
        "score": "Rank structures by the confidence that the network gives them.",
        "scan": "Predict mutants and compare them with the wild type.",
        "compare": "Compare how two results were produced.",
    },
    "Design": {
        "design": "Design binders, sequences for a backbone, or new folds.",
    },
    "Train": {
        "train": "Train a model from scratch.",
        "finetune": "Adapt a trained model to your own data.",
        "plan": "Estimate how long a training takes on given hardware.",
    },
    "Serve": {
        "serve": "Run a prediction service for a lab.",
        "submit": "Submit sequences to a service.",
        "fetch": "Download results from a service.",
    },
    "Maintain": {
        "doctor": "Check this installation: devices, models, search programs and databases.",
        "weights": "Download, inspect, verify and convert model parameters.",
        "databases": "Download, build and check sequence databases.",
        "cache": "Show and remove what is kept on disk between runs.",
        "benchmark": "Measure speed and memory on this machine.",
        "completion": "Print a script that completes commands and options in a shell.",
    },
}
# All commands with their summaries.
COMMANDS = {name: summary for commands in GROUPS.values() for name, summary in commands.items()}
PLACES = {"completion": "app:completion", "fetch": "submit:fetching"}
_DEFAULT_OPTIONS = CommonOptions()
# Commands of earlier versions and their replacements.
RENAMED = {
    "layouts": "plan --layouts, with --hardware h100x128 for --machine h100 --ranks 128",
    "benchmark data": "benchmark loader",
    "benchmark layouts": "plan --layouts",
    "benchmark optimizer": "benchmark step",
    "benchmark recompute": "train --dry-run",
}


def application(words: Sequence[str]) -> App:
    """Return the command-line application; only the command that `words` name is imported later."""
    app = App(
        name="helixfold",
        help="Predict protein structures with AlphaFold 2 in PyTorch. `helixfold COMMAND --help` explains a command.",
        usage="helixfold COMMAND [options]\nexample: helixfold predict protein.fasta --msa-server",
        version=f"helixfold {helixfold.__version__}",
        default_parameter=Parameter(
            negative=(),
            allow_repeating=True,
            consume_multiple=(1, None),
            json_dict=False,
            json_list=False,
            show_default=show_default,
        ),
        help_format="plaintext",
        result_action="return_value",
        exit_on_error=False,
        print_error=False,
        suppress_keyboard_interrupt=False,
    )
    for title, commands in GROUPS.items():
        group = Group.create_ordered(title)
        for index, (name, summary) in enumerate(commands.items()):
            # The command to be run has its own help text.
            text = None if name in words[:1] else summary
            source = PLACES.get(name, f"{name}:app")
            app.command(f"helixfold.cli.{source}", name=name, help=text, group=group, sort_key=index)
    app.group_commands = Group.create_ordered("Options")  # --help and --version
    return app


def run(words: Sequence[str]) -> Any:
    """Run the command that `words` name, and return its result, usually an exit code; or print help and return 0.

    `words` are the arguments after `helixfold`. Raise `InputError` for an unknown command or for invalid options.
    """
    app = application(words)
    config = ConfigFile(COMMANDS)
    app.config = (config,)
    options = words[: words.index("--")] if "--" in words else words
    wants_help = not {"-h", "--help"}.isdisjoint(options)
    if wants_help:
        words = [word for word in words if word not in ("-h", "--help")]
    command_chain, apps, rest = app.parse_commands(list(words))
    if wants_help and (apps[-1].default_command is not None or not rest):
        with collecting_no_garbage(), app.app_stack(apps):
            print(help_page(apps[-1], " ".join(("helixfold", *command_chain)), GROUPS if len(apps) == 1 else None))
        return 0
    commands = [name for name in apps[-1] if not name.startswith("-")]
    help_option = f"(see {' '.join(('helixfold', *command_chain))} --help)"
    if apps[-1].default_command is None and not rest:
        raise InputError(f"name a COMMAND: {', '.join(commands)} {help_option}")
    try:
        command, bound, _ = app.parse_args(list(words))
    except cyclopts.UnknownCommandError:
        renamed = RENAMED.get(" ".join((*command_chain, rest[0])))
        choices = f"choose one of {', '.join(commands)}{did_you_mean(rest[0], commands)}"
        advice = choices if renamed is None else f"use helixfold {renamed}"
        raise InputError(f"unknown command {rest[0]!r}; {advice} {help_option}") from None
    except cyclopts.CycloptsError as error:
        raise InputError(f"{_sentence(error, words)} {help_option}") from None
    common_options = bound.arguments.pop("shared_options", _DEFAULT_OPTIONS)
    if common_options.quiet and common_options.verbose:
        raise InputError(f"--quiet and --verbose cannot be combined {help_option}")
    set_verbosity("quiet" if common_options.quiet else "verbose" if common_options.verbose else "normal")
    if common_options.config is not None:
        words = config.without_file(words)
        print_detail(f"with the options of {common_options.config}: helixfold {shlex.join(words)}")
    # Results record the command that produced them.
    if "command" in inspect.signature(command).parameters:
        bound.arguments["command"] = ("helixfold", *words)
    # Call the function without the wrapper from `Command`, which would add a frame to each traceback.
    return getattr(command, "__wrapped__", command)(*bound.args, **bound.kwargs)


def _sentence(error: cyclopts.CycloptsError, words: Sequence[str]) -> str:
    """Return the message for a parsing error of cyclopts."""
    argument = error.argument
    match error:
        case cyclopts.UnknownOptionError():
            word = (error.token.keyword or error.token.value).split("=")[0]
            return f"unknown option {word}{_nearest(word, error.argument_collection)}"
        case cyclopts.UnusedCliTokensError():
            word, *_ = error.unused_tokens or [""]
            return f"unexpected argument {word!r}"
        case cyclopts.ConsumeMultipleError() | cyclopts.MissingArgumentError() if argument is not None:
            return f"{argument.name} {'needs a value' if argument.name in words else 'is required'}"
        case cyclopts.CoercionError(token=token) if argument is not None and token is not None:
            name = token.keyword or argument.name
            place = "" if token.source in ("", "cli") else f"{token.source}: "
            name = name.removeprefix("--").replace("-", "_") if place else name
            return f"{place}{name}: {error.msg or _expected(argument, error.target_type, token.value)}"
    return " ".join(str(error).split())


def _nearest(word: str, arguments: Sequence[Argument]) -> str:
    """Return a hint with the option that is most similar to a wrong one, or ""."""
    names = [argument.name for argument in arguments if argument.show and argument.name.startswith("-")]
    return did_you_mean(word, names)


def _expected(argument: Argument, kind: Any, word: str) -> str:
    """Return what is wrong with the value of an option (`word`), and what was expected."""
    choices: Any = argument.parameter.choices or get_args(kind) or (("true", "false") if kind is bool else ())
    return choice_problem(word, choices) if choices else f"cannot be {word!r}"


_INSTALLATION_HELP = """install:
  helixfold completion bash > ~/.helixfold-completion.bash
      for bash, with the line "source ~/.helixfold-completion.bash" in ~/.bashrc
  helixfold completion zsh > ~/.zfunc/_helixfold
      for zsh, with the line "fpath+=~/.zfunc" before compinit in ~/.zshrc
  helixfold completion fish > ~/.config/fish/completions/helixfold.fish
      for fish

Print the script again after an update of helixfold.
"""
completion = Command(
    name="completion",
    usage="helixfold completion SHELL\nexample: helixfold completion bash > helixfold-completion.bash",
    help_epilogue=_INSTALLATION_HELP,
)


@completion.default
def _complete(shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(name="SHELL")], /) -> None:
    """Print a script that completes commands, options and their choices in a shell.

    Parameters
    ----------
    shell
        bash, zsh or fish.
    """
    print(application([]).generate_completion(prog_name="helixfold", shell=shell))
