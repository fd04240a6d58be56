"""Make template features from the hits of a template search, or from structure files that the user gives."""
