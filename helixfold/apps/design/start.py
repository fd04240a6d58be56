"""Start `helixfold design binder` and `redesign` from the command line and BindCraft's settings files."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from data_pipeline.io.errors import InputError, did_you_mean, printable
from data_pipeline.parse.structures import read_structure
from data_pipeline.structure import protein_from_chains
from helixfold.apps.design import binders, run, sources
from helixfold.apps.design.measures import interface_residues
from helixfold.apps.design.options import BinderCommand
from helixfold.apps.design.redraw import RedrawOptions, redrawn
from helixfold.apps.design.settings import read_target
from helixfold.apps.design.sources import BinderInput
from helixfold.results.file_table import REDESIGNED
from helixfold.results.lock import locked_directory
from helixfold.results.writing import write_file
from helixfold.runtime.options import changed_options
from helixfold.runtime.standard_streams import print_note, print_summary


def run_binders(inputs: BinderInput, command: BinderCommand) -> int:
    """Run `helixfold design binder` and return its exit code.

    With a number of binders to accept, from the options or BindCraft's target settings, binders are designed, redrawn,
    checked and filtered (`binders.run`). Otherwise binders of one length are only designed (`run.run`). Command-line
    values take precedence over the target settings. Raise `InputError` if the structure or length is missing.
    """
    name, accepted = None, command.accepted
    if command.target_settings is not None:
        settings = read_target(command.target_settings)
        if settings.unused:
            print_note(f"{command.target_settings}: not used: {', '.join(settings.unused)}")
        inputs = BinderInput(
            structures=inputs.structures or (settings.structure,),
            lengths=inputs.lengths or settings.lengths,
            chains=inputs.chains or settings.chains,
            hotspots=inputs.hotspots or settings.hotspots,
            cyclic=inputs.cyclic,
        )
        name, accepted = settings.name, accepted or settings.accepted or 100
        if settings.output is not None and command.output == BinderCommand().output:
            command = replace(command, output=settings.output)
    if not inputs.structures:
        raise InputError("pass the structure of a target, or --target-settings")
    if inputs.lengths is None:
        raise InputError("pass --length, such as 80 or 65-150")
    if accepted is None:
        return _run_plain(inputs, inputs.lengths, command)
    binder_sources = []
    for path in inputs.structures:
        make = partial(sources.binder_of, path, inputs.chains, hotspots=inputs.hotspots, cyclic=inputs.cyclic)
        title = name or sources.title_of(path)
        make(inputs.lengths[0])  # which cannot be read is an error at once
        binder_sources.append(
            binders.BinderSource(
                name=title,
                make=lambda length, make=make, title=title: replace(make(length), name=title),  # type: ignore[misc]
                lengths=inputs.lengths,
                accepted=accepted,
                hotspots=",".join(inputs.hotspots),
            )
        )
    return binders.run(binder_sources, command)


def _run_plain(inputs: BinderInput, lengths: tuple[int, int], command: BinderCommand) -> int:
    """Design binders of one length that are neither redrawn nor filtered."""
    unusable = set(changed_options(command)) & {f"--{name.replace('_', '-')}" for name in _ONLY_END_TO_END}
    if lengths[0] != lengths[1] or unusable:
        reason = "a range of lengths" if lengths[0] != lengths[1] else min(unusable)
        raise InputError(f"{reason} is for binders that are filtered; pass --accepted too, the number of binders")
    return run.run(
        [
            (
                sources.title_of(path),
                partial(sources.binder_of, path, inputs.chains, lengths[0], inputs.hotspots, cyclic=inputs.cyclic),
            )
            for path in inputs.structures
        ],
        command,
    )


_ONLY_END_TO_END = (
    *(
        "advanced",
        "filters",
        "threshold",
        "trajectory_plddt",
        "sequences",
        "max_trajectories",
        "rank_by",
        "no_relax",
        "shared",
    ),
)


def redesigned(
    path: Path, chain: str | None, fixed: Sequence[str], options: RedrawOptions, *, output: Path, keeps_interface: bool
) -> int:
    """Run `helixfold design redesign`: draw sequences for a chain of a structure and write them as FASTA; return 0.

    `chain` is by default the last one. Residues in `fixed` (words as in `residues_of`), and with `keeps_interface` all
    residues near other chains, keep their amino acids. `output` is the directory of redesigned.fasta.
    """
    chains = list(read_structure(path).chains)
    names = [each.name for each in chains]
    if not chains:
        raise InputError.at(path, "it holds no protein")
    if chain is not None and chain not in names:
        chain_names = f"{', '.join(names)}{did_you_mean(chain, names)}"
        raise InputError.at(path, f"no chain {printable(chain)}; its chains are {chain_names}")
    number = len(chains) - 1 if chain is None else names.index(chain)
    protein = protein_from_chains(chains)
    kept = {index for _, index in sources.residues_of(fixed, [chains[number]])}
    if keeps_interface:
        kept |= set(interface_residues(protein, np.asarray(protein.chain_index == number)))
    sequences = redrawn(protein, number, options, kept=kept)
    title = sources.title_of(path)
    records = [
        f">{title}_{names[number]}_{index} score={each.score:.4f} recovery={each.recovery:.4f}\n{each.sequence}\n"
        for index, each in enumerate(sequences, start=1)
    ]
    with locked_directory(output):
        write_file(REDESIGNED.path(output), "".join(records))
    print_summary(str(REDESIGNED.path(output)))
    return 0
