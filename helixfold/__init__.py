"""HelixFold/AlphaFold 2 in plain PyTorch: sequences in, structures out, and the training of such models."""

__version__ = "0.2.0"
