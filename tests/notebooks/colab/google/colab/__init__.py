"""Stands in for Colab's package of this name."""
