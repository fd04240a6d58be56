"""Run the `helixfold` command, and translate errors into sentences and exit codes."""

import signal
import sys
from collections.abc import Callable, Sequence

from data_pipeline.errors import InputError, SearchError, printable

_LONGEST = 4000  # characters of an error message
FAILED, WRONG_INPUT, INTERRUPTED, TERMINATED = 1, 2, 130, 143


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that `arguments`, or the process's own arguments, name; return its exit code.

    0: done, 1: something failed, 2: the input is wrong, 3: a server is unavailable, 130: interrupted, 143: terminated.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)

    def command() -> object:
        # Commands import their modules here, so that Ctrl-C during imports is handled as at any other time.
        from helixfold.cli.app import run

        return run(given)

    return exit_code(command)


def exit_code(action: Callable[[], object]) -> int:
    """Call a function and return its result as the exit code, 0 if it returns none.

    Errors of input, searches and files are printed as one line and give the exit codes 1 and 2.
    """
    # On SIGTERM (kill, a scheduler's time limit), leave as after any error, without search programs or their files.
    earlier = signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    try:
        code = action()
        return code if isinstance(code, int) else 0
    except InputError as error:
        _say(str(error))
        return WRONG_INPUT
    except SearchError as error:
        _say(str(error))
        return FAILED
    except OSError as error:
        # An error that no command expects, such as a full disk, concerns the machine: a traceback would not help.
        _say(f"{'' if error.filename is None else f'{error.filename}: '}{error.strerror or error}")
        return FAILED
    except KeyboardInterrupt:
        print("helixfold: interrupted; run the same command again to go on", file=sys.stderr)
        return INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, earlier)


def _say(problem: str) -> None:
    """Print an error as one line without control characters, which a file's name may contain."""
    print(f"helixfold: error: {printable(problem, _LONGEST)}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
