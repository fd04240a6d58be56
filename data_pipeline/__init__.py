"""Turn sequences, alignments and structures into the NumPy arrays that the model reads, without torch."""

from data_pipeline._deprecated import MODULES, install

install(MODULES)
