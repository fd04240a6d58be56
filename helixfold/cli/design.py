"""Define the command `helixfold design`, which designs proteins by the gradients of a network."""

from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from helixfold.design.command import DesignCommand
from helixfold.options import reads, whole_number

_USUAL = DesignCommand()
_Length = Annotated[int, reads(whole_number(2, 2000), "N")]
_Structures = Annotated[Path, Parameter(name="STRUCTURE", required=True)]
_Words = Annotated[tuple[str, ...], Parameter(metavar="RESIDUES...")]
app = App(
    name="design",
    usage="helixfold design PROTOCOL [options]",
    help="Design proteins: sequences whose predicted structures have what is wanted, found by gradients. The same "
    "command again goes on with a run.",
)


@app.command(usage="helixfold design hallucination --length N [options]")
def hallucination(
    *, length: _Length, name: str = "hallucination", cyclic: bool = False, options: DesignCommand = _USUAL
) -> int:
    """Design chains of any fold.

    Parameters
    ----------
    length
        Number of residues.
    name
        Name of the target and its directory.
    cyclic
        Close the chain to a ring.
    """
    from helixfold.design import task
    from helixfold.design.run import run

    return run([(name, lambda: task.hallucination(length, name=name, cyclic=cyclic))], options)


@app.command(usage="helixfold design fixbb STRUCTURE... [options]")
def fixbb(
    *structures: _Structures,
    chain: Annotated[str | None, Parameter(metavar="ID", show_default="the only one")] = None,
    fixed: _Words = (),
    cyclic: bool = False,
    options: DesignCommand = _USUAL,
) -> int:
    """Design sequences for the backbones of structures (PDB or mmCIF).

    Parameters
    ----------
    structures
        Structure files, each a target.
    chain
        Chain whose backbone it is.
    fixed
        Residues that keep their amino acid, such as 5-20,30, as the file numbers them.
    cyclic
        Close the chain to a ring.
    """
    from helixfold.design import sources
    from helixfold.design.run import run

    return run(
        [
            (sources.title_of(path), partial(sources.fixed_backbone_of, path, chain, fixed, cyclic=cyclic))
            for path in structures
        ],
        options,
    )


@app.command(name="partial", usage="helixfold design partial STRUCTURE... --keep RESIDUES [options]")
def partial_design(
    *structures: _Structures,
    keep: _Words,
    chain: Annotated[str | None, Parameter(metavar="ID", show_default="the only one")] = None,
    length: Annotated[_Length | None, Parameter(show_default="the structure's")] = None,
    start: Annotated[int, reads(whole_number(1, 2000), "N")] = 1,
    keep_sequence: bool = False,
    options: DesignCommand = _USUAL,
) -> int:
    """Design chains around a part of a structure, such as an active site, which they are to have.

    Parameters
    ----------
    structures
        Structure files, each a target.
    keep
        Residues of the part, such as 5-20,30, as the file numbers them.
    chain
        Chain that has the part.
    length
        Number of residues of the design.
    start
        Residue of the design, from 1, at which the part begins; for a design as long as the structure it stays where
        it is.
    keep_sequence
        Also keep the amino acids of the part.
    """
    from helixfold.design import sources
    from helixfold.design.run import run

    return run(
        [
            (
                sources.title_of(path),
                partial(sources.partial_of, path, chain, keep, length=length, start=start, fix_sequence=keep_sequence),
            )
            for path in structures
        ],
        options,
    )


@app.command(usage="helixfold design binder STRUCTURE... --length N [options]")
def binder(
    *structures: _Structures,
    length: _Length,
    target_chains: Annotated[tuple[str, ...], Parameter(metavar="ID...", show_default="all")] = (),
    hotspots: _Words = (),
    cyclic: bool = False,
    options: DesignCommand = _USUAL,
) -> int:
    """Design chains that bind the proteins in structures.

    Parameters
    ----------
    structures
        Structure files of what is to be bound, each a target.
    length
        Number of residues of the binder.
    target_chains
        Chains of the structure that are to be bound.
    hotspots
        Residues that the binder is to touch, such as A45,A50-52, as the file numbers them.
    cyclic
        Close the binder to a ring.
    """
    from helixfold.design import sources
    from helixfold.design.run import run

    return run(
        [
            (
                sources.title_of(path),
                partial(sources.binder_of, path, target_chains, length, hotspots, cyclic=cyclic),
            )
            for path in structures
        ],
        options,
    )
