"""Define the command `helixfold databases`, which downloads, builds and checks databases to search."""

from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from helixfold.cli.command import Command
from helixfold.runtime.options import Output, Workers
from helixfold.runtime.standard_streams import print_summary

app = Command(
    name="databases",
    usage="helixfold databases ACTION [options]\n"
    "example: helixfold databases download uniref30_2302 --output databases",
    help="Download, build and check sequence databases: ColabFold's, or your own from FASTA files.",
    group_commands=Group.create_ordered("Actions"),
)


@app.command(usage="helixfold databases download [NAME...] [options]")
def download(
    *names: Annotated[str, Parameter(name="NAME")],
    output: Output = Path("databases"),
    url: Annotated[str | None, Parameter(metavar="URL", show_default="ColabFold's server")] = None,
) -> None:
    """Download ColabFold's databases (hundreds of GB). An interrupted download resumes. Without NAME, list them.

    Parameters
    ----------
    names
        uniref30_2302, colabfold_envdb_202108 (environmental sequences), pdb100_230517 (templates).
    output
        Output directory; pass it to `helixfold predict --databases`.
    url
        Mirror of ColabFold's files.
    """
    from data_pipeline.search.database_download import DOWNLOADS, SERVER, download_databases

    if not names:
        for name, each in DOWNLOADS.items():
            print(f"{name}: {', '.join(f'{url or SERVER}/{archive}' for archive in each.archives)}")
        return
    for path in download_databases(names, output, url=url or SERVER):
        print_summary(path)


@app.command(usage="helixfold databases build FASTA... [--output DIR] [options]")
def build(
    *inputs: Annotated[Path, Parameter(name="FASTA")],
    output: Output = Path("databases"),
    name: str = "own",
    environmental: Annotated[tuple[Path, ...], Parameter(metavar="FASTA...")] = (),
    templates: Annotated[Path | None, Parameter(metavar="FASTA")] = None,
    min_identity: Annotated[float, Parameter(metavar="FRACTION")] = 0.3,
    min_coverage: Annotated[float, Parameter(metavar="FRACTION", alias="--coverage")] = 0.8,
    threads: Annotated[Workers | None, Parameter(show_default="all processors")] = None,
) -> None:
    """Build databases like ColabFold's from your own sequences.

    Parameters
    ----------
    inputs
        FASTA files (.gz too). Species for pairing complexes are read from OX= or TaxID= in the headers.
    output
        Output directory; pass it to `helixfold predict --databases`.
    name
        Name in the file names uniref30_<name>_db, colabfold_envdb_<name>_db and pdb100_<name>.
    environmental
        FASTA files of environmental sequences, for a separate database.
    templates
        FASTA file of chains with known structures, named like 1abc_A.
    min_identity
        Minimum sequence identity between a cluster's members and its representative.
    min_coverage
        Minimum fraction of both sequences that is aligned.
    threads
        Threads for MMseqs2.
    """
    from data_pipeline.io.errors import InputError
    from data_pipeline.io.processors import available_processors
    from data_pipeline.parse.fasta import file_name_problem
    from data_pipeline.search.cluster_build import ClusterBuild
    from data_pipeline.search.mmseqs_program import require_mmseqs

    if not inputs:
        raise InputError("name the FASTA files whose sequences are to be searched")
    if (problem := file_name_problem(name)) is not None:
        raise InputError(f"--name {problem}")
    try:
        settings = ClusterBuild(
            program=require_mmseqs(),
            min_identity=min_identity,
            coverage=min_coverage,
            cpus=threads or available_processors(),
        )
    except ValueError as error:
        raise InputError(str(error)) from error
    prefix = output / f"uniref30_{name}_db"
    print_summary(f"{prefix}: {settings.clusters(inputs, prefix):,} sequences")
    if environmental:
        prefix = output / f"colabfold_envdb_{name}_db"
        print_summary(f"{prefix}: {settings.clusters(environmental, prefix):,} sequences")
    if templates is not None:
        prefix = output / f"pdb100_{name}"
        print_summary(f"{prefix}: {settings.sequences([templates], prefix):,} sequences")


@app.command(usage="helixfold databases check PATH")
def check(path: Annotated[Path, Parameter(name="PATH")], /) -> int:
    """Check that databases are complete: all files, their types and their lengths.

    Parameters
    ----------
    path
        Profile (TOML) or directory, as for `helixfold predict --databases`.
    """
    from data_pipeline.search.database_check import check_databases
    from data_pipeline.search.database_profile import read_database_profile
    from data_pipeline.search.process import PACKAGES, find_program

    programs = {name for name in PACKAGES if find_program(name) is not None}
    profile = read_database_profile(path, programs)
    has_failed = False
    for name, problem in check_databases(profile):
        print(f"{name}: {'whole' if problem is None else problem}")
        has_failed = has_failed or problem is not None
    for note in profile.notes:
        print(f"note: {note}")
    return int(has_failed)
