"""Files, archives, configuration, HTTP, and locks and claims among processes."""
