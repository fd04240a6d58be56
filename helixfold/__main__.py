"""Run the command as `python -m helixfold`, which torchrun starts on several machines."""

from helixfold.cli.main import command

if __name__ == "__main__":
    command()
