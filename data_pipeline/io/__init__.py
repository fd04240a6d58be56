"""Exchange bytes with servers."""
