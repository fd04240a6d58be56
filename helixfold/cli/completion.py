"""Define the command `helixfold completion`, which prints a completion script for a shell."""

from typing import Annotated, Literal

from cyclopts import Parameter

from helixfold.cli.command import Command

_EXAMPLES = """install:
  helixfold completion bash > ~/.helixfold.bash
      for bash, with the line "source ~/.helixfold.bash" in ~/.bashrc
  helixfold completion zsh > ~/.zfunc/_helixfold
      for zsh, with the line "fpath+=~/.zfunc" before compinit in ~/.zshrc
  helixfold completion fish > ~/.config/fish/completions/helixfold.fish
      for fish

Print the script again after an update of helixfold.
"""
app = Command(
    name="completion",
    usage="helixfold completion SHELL\nexample: helixfold completion bash > helixfold.bash",
    help_epilogue=_EXAMPLES,
)


@app.default
def completion(shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(name="SHELL")], /) -> None:
    """Print a script that completes commands, options and their choices in a shell.

    Parameters
    ----------
    shell
        bash, zsh or fish.
    """
    from helixfold.cli.app import application

    print(application([]).generate_completion(prog_name="helixfold", shell=shell))
