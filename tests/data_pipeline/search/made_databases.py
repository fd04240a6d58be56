"""Small databases of clusters, of two made families of proteins in eight species."""

from pathlib import Path

import numpy as np

from data_pipeline.search.cluster_build import ClusterBuild
from data_pipeline.search.colabfold_databases import ClusterDatabase
from data_pipeline.search.colabfold_search import ColabfoldSearch, MmseqsBatch
from tests.data_pipeline.search.families import random_protein, relative

SPECIES = 8


class Made:
    """Two families of proteins in eight species, with databases of them and of others."""

    def __init__(self, program: Path, folder: Path) -> None:
        rng = np.random.default_rng(6)
        self.first, self.second = random_protein(rng, 90), random_protein(rng, 80)
        families = {"one": self.first, "two": self.second}
        lines = [
            f">{name}_{index} OX={500 + index}\n{relative(rng, ancestor, 0.6)}\n"
            for name, ancestor in families.items()
            for index in range(SPECIES if name == "one" else SPECIES - 2)
        ]
        others = [f">other_{index}\n{random_protein(rng, 100)}\n" for index in range(60)]
        (folder / "uniref.fasta").write_text("".join(lines + others))
        (folder / "env.fasta").write_text("".join(line.replace(">", ">env_") for line in lines[::3] + others[:20]))
        (folder / "pdb.fasta").write_text(f">9abc_A\nMSGS{relative(rng, self.first, 0.7)}\n{''.join(others[20:40])}")
        build = ClusterBuild(program=program, single_step=True, cpus=1)
        assert build.clusters([folder / "uniref.fasta"], folder / "uniref30_x_db") == 74
        build.clusters([folder / "env.fasta"], folder / "colabfold_envdb_x_db")
        build.sequences([folder / "pdb.fasta"], folder / "pdb100_x")
        self.folder, self.batch = folder, MmseqsBatch(program=program, cpus=1)
        self.uniref = ClusterDatabase(folder / "uniref30_x_db")
        self.search = ColabfoldSearch(
            batch=self.batch,
            uniref=self.uniref,
            environmental=ClusterDatabase(folder / "colabfold_envdb_x_db"),
            templates=folder / "pdb100_x",
        )
