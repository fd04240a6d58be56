"""Define the command `helixfold design`, which designs proteins with gradients of the network."""

from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from helixfold.apps.design.options import BinderCommand, DesignCommand, MpnnWeights, length_range
from helixfold.cli.command import Command
from helixfold.runtime.options import Integer, Number, Output, reads, whole_number

_DEFAULT_OPTIONS, _DEFAULT_BINDER_OPTIONS = DesignCommand(), BinderCommand()
_Length = Annotated[int, reads(whole_number(2, 2000), "N")]
_Structures = Annotated[Path, Parameter(name="STRUCTURE", required=True)]
_Words = Annotated[tuple[str, ...], Parameter(metavar="RESIDUES...")]
app = Command(
    name="design",
    usage="helixfold design PROTOCOL [options]\nexample: helixfold design binder target.pdb --length 60 --hotspots A45",
    help="Design proteins by optimising a sequence until its predicted structure meets the goal. Run the same command "
    "again to resume.",
    group_commands=Group.create_ordered("Protocols"),
)


@app.command(usage="helixfold design hallucination --length N [options]")
def hallucination(
    *, length: _Length, name: str = "hallucination", cyclic: bool = False, options: DesignCommand = _DEFAULT_OPTIONS
) -> int:
    """Design proteins of any fold.

    Parameters
    ----------
    length
        Number of residues.
    name
        Name of the target and of its directory.
    cyclic
        Close the chain into a ring.
    """
    from helixfold.apps.design import task
    from helixfold.apps.design.run import run

    return run([(name, lambda: task.hallucination(length, name=name, cyclic=cyclic))], options)


@app.command(usage="helixfold design fixbb STRUCTURE... [options]")
def fixbb(
    *structures: _Structures,
    chain: Annotated[str | None, Parameter(metavar="ID", show_default="the only one")] = None,
    fixed_residues: Annotated[_Words, Parameter(alias="--fixed")] = (),
    cyclic: bool = False,
    options: DesignCommand = _DEFAULT_OPTIONS,
) -> int:
    """Design sequences for given backbones.

    Parameters
    ----------
    structures
        PDB or mmCIF files; each is a target.
    chain
        Chain with the backbone.
    fixed_residues
        Residues that keep their amino acid, such as 5-20,30, numbered as in the file.
    cyclic
        Close the chain into a ring.
    """
    from helixfold.apps.design import sources
    from helixfold.apps.design.run import run

    return run(
        [
            (sources.title_of(path), partial(sources.fixed_backbone_of, path, chain, fixed_residues, cyclic=cyclic))
            for path in structures
        ],
        options,
    )


@app.command(name="partial", usage="helixfold design partial STRUCTURE... --motif RESIDUES [options]")
def partial_design(
    *structures: _Structures,
    motif: Annotated[_Words, Parameter(alias="--keep")],
    chain: Annotated[str | None, Parameter(metavar="ID", show_default="the only one")] = None,
    length: Annotated[_Length | None, Parameter(show_default="the structure's")] = None,
    start: Annotated[int, reads(whole_number(1, 2000), "N")] = 1,
    keep_sequence: bool = False,
    options: DesignCommand = _DEFAULT_OPTIONS,
) -> int:
    """Design proteins around a motif, such as an active site.

    Parameters
    ----------
    structures
        PDB or mmCIF files with the motif; each is a target.
    motif
        Residues of the motif, such as 5-20,30, numbered as in the file.
    chain
        Chain with the motif.
    length
        Number of residues of the design.
    start
        Residue of the design, counted from 1, at which the motif begins. A design as long as the structure keeps the
        motif at its position.
    keep_sequence
        Also keep the amino acids of the motif.
    """
    from helixfold.apps.design import sources
    from helixfold.apps.design.run import run

    return run(
        [
            (
                sources.title_of(path),
                partial(sources.partial_of, path, chain, motif, length=length, start=start, fix_sequence=keep_sequence),
            )
            for path in structures
        ],
        options,
    )


@app.command(usage="helixfold design binder STRUCTURE... --length N [options]")
def binder(
    *structures: Annotated[Path, Parameter(name="STRUCTURE")],
    length: Annotated[tuple[int, int] | None, reads(length_range, "N|N-N"), Parameter(n_tokens=1)] = None,
    target_chains: Annotated[tuple[str, ...], Parameter(metavar="ID...", show_default="all")] = (),
    hotspots: _Words = (),
    cyclic: bool = False,
    options: BinderCommand = _DEFAULT_BINDER_OPTIONS,
) -> int:
    """Design binders for a target protein.

    Parameters
    ----------
    structures
        PDB or mmCIF files of proteins to bind; each is a target.
    length
        Number of residues of the binder; with --accepted, a range such as 65-150 from which each trajectory draws.
    target_chains
        Chains of the structure to bind.
    hotspots
        Residues that the binder must contact, such as A45,A50-52, numbered as in the file.
    cyclic
        Close the binder into a ring.
    """
    from helixfold.apps.design.sources import BinderInput
    from helixfold.apps.design.start import run_binders

    binder_input = BinderInput(
        structures=structures, lengths=length, chains=target_chains, hotspots=hotspots, cyclic=cyclic
    )
    return run_binders(binder_input, options)


@app.command(usage="helixfold design redesign STRUCTURE [options]")
def redesign(
    structure: Annotated[Path, Parameter(name="STRUCTURE")],
    *,
    chain: Annotated[str | None, Parameter(metavar="ID", show_default="the last one")] = None,
    fixed_residues: Annotated[_Words, Parameter(alias="--fixed")] = (),
    keep_interface: bool = False,
    sequences: Annotated[int, reads(whole_number(1, 10_000), "N")] = 20,
    temperature: Number = 0.1,
    exclude: Annotated[str, Parameter(metavar="LETTERS")] = "C",
    weights: MpnnWeights = "soluble",
    seed: Integer = 0,
    output: Output = Path("designs"),
) -> int:
    """Draw sequences for a chain of a structure with ProteinMPNN.

    Parameters
    ----------
    structure
        PDB or mmCIF file.
    chain
        Chain to draw sequences for; the others stay as they are.
    fixed_residues
        Residues that keep their amino acid, such as 5-20,30, numbered as in the file.
    keep_interface
        Keep the amino acids of residues with an atom at most 4 Angstrom from another chain.
    sequences
        Number of sequences.
    temperature
        Sampling temperature.
    exclude
        Amino acids to leave out, as one-letter codes.
    weights
        Parameters of ProteinMPNN: soluble, trained on soluble proteins, or original.
    seed
        Seed of all random numbers.
    output
        Output directory for redesigned.fasta.
    """
    from helixfold.apps.design.redraw import RedrawOptions
    from helixfold.apps.design.start import redesigned

    redraw_options = RedrawOptions(
        count=sequences, temperature=temperature, excluded=exclude, weights=weights, seed=seed
    )
    return redesigned(structure, chain, fixed_residues, redraw_options, output=output, keeps_interface=keep_interface)
