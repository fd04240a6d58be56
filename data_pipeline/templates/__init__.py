"""Compute template features from the hits of a template search, or from the user's structure files."""
