"""The `helixfold` command: its subcommands, and the one place where errors become words and exit codes."""

import argparse
import importlib
import signal
import sys
from collections.abc import Sequence

import helixfold
from data_pipeline.errors import InputError, SearchError, printable
from helixfold.cli.parser import CommandParser

COMMANDS = ("predict", "features", "relax", "evaluate", "report", "train", "layouts", "doctor", "weights", "benchmark")
_LONGEST = 4000  # characters of a sentence
FAILED, WRONG_INPUT, INTERRUPTED, TERMINATED = 1, 2, 130, 143


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 done, 1 something failed, 2 the input is wrong, 130 interrupted, 143 terminated."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    return carry_out(_parser(given).parse_args(given))


def carry_out(options: argparse.Namespace) -> int:
    """Run the command that was read, whose result is its exit code or, where it can only succeed, None; the same
    exit codes.
    """
    # Asked to end (kill, a scheduler's time limit), leave as after any error: search programs and their files go too.
    earlier = signal.signal(signal.SIGTERM, _end)
    try:
        return int(options.run(options) or 0)
    except InputError as error:
        _say(str(error))
        return WRONG_INPUT
    except SearchError as error:
        _say(str(error))
        return FAILED
    except OSError as error:
        # What no command saw coming, such as a disk that is full: it concerns the machine, so a traceback helps nobody.
        _say(f"{'' if error.filename is None else f'{error.filename}: '}{error.strerror or error}")
        return FAILED
    except KeyboardInterrupt:
        print("helixfold: interrupted; run the same command again to go on", file=sys.stderr)
        return INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, earlier)


def _say(problem: str) -> None:
    """In one line that a terminal only shows: what was given may have been made to do more there."""
    print(f"helixfold: error: {printable(problem, _LONGEST)}", file=sys.stderr)


def _end(*_: object) -> None:
    sys.exit(TERMINATED)


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="helixfold", description="Predict protein structures with HelixFold/AlphaFold 2 in PyTorch."
    )
    parser.add_argument("--version", action="version", version=f"helixfold {helixfold.__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    # No other than what is asked for is imported: a benchmark needs none of the libraries that read and write files.
    for name in [command for command in COMMANDS if command in arguments[:1]] or COMMANDS:
        importlib.import_module(f"helixfold.cli.{name}").add_command(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
