"""Publications to cite for a prediction, as plain references and as BibTeX."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Work:
    """A publication to cite."""

    key: str  # in BibTeX
    author: str  # the first authors, in BibTeX's format
    title: str
    journal: str
    year: int
    doi: str

    @property
    def bibtex(self) -> str:
        """The entry in BibTeX's format."""
        fields = ("author", "title", "journal", "year", "doi")
        return f"@article{{{self.key},\n" + "".join(f"{name} = {{{getattr(self, name)}}},\n" for name in fields) + "}\n"

    @property
    def citation(self) -> str:
        """The reference as one line of plain text."""
        first, *others = self.author.replace('{\\"u}', "ü").split(" and ")
        authors = f"{first.partition(',')[0]} et al." if len(others) > 1 else " and ".join([first, *others])
        return f"{authors} {self.title}. {self.journal} ({self.year}), doi:{self.doi}"


# The publications by short names: of methods, and of programs that search or relax.
WORKS: Final = {
    "alphafold": Work(
        "Jumper2021",
        "Jumper, John and Evans, Richard and Pritzel, Alexander and others",
        "Highly accurate protein structure prediction with AlphaFold",
        "Nature",
        2021,
        "10.1038/s41586-021-03819-2",
    ),
    "multimer": Work(
        "Evans2021",
        "Evans, Richard and O'Neill, Michael and Pritzel, Alexander and others",
        "Protein complex prediction with AlphaFold-Multimer",
        "bioRxiv",
        2021,
        "10.1101/2021.10.04.463034",
    ),
    "colabfold": Work(
        "Mirdita2022",
        'Mirdita, Milot and Sch{\\"u}tze, Konstantin and Moriwaki, Yoshitaka and others',
        "ColabFold: making protein folding accessible to all",
        "Nature Methods",
        2022,
        "10.1038/s41592-022-01488-1",
    ),
    "openmm": Work(
        "Eastman2017",
        "Eastman, Peter and Swails, Jason and Chodera, John D. and others",
        "OpenMM 7: Rapid development of high performance algorithms for molecular dynamics",
        "PLOS Computational Biology",
        2017,
        "10.1371/journal.pcbi.1005659",
    ),
    "hmmer": Work(
        "Eddy2011",
        "Eddy, Sean R.",
        "Accelerated Profile HMM Searches",
        "PLOS Computational Biology",
        2011,
        "10.1371/journal.pcbi.1002195",
    ),
    "hhsuite": Work(
        "Steinegger2019",
        "Steinegger, Martin and Meier, Markus and Mirdita, Milot and others",
        "HH-suite3 for fast remote homology detection and deep protein annotation",
        "BMC Bioinformatics",
        2019,
        "10.1186/s12859-019-3019-7",
    ),
    "mmseqs": Work(
        "Steinegger2017",
        'Steinegger, Martin and S{\\"o}ding, Johannes',
        "MMseqs2 enables sensitive protein sequence searching for the analysis of massive data sets",
        "Nature Biotechnology",
        2017,
        "10.1038/nbt.3988",
    ),
}
