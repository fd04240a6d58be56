"""Search for homologous sequences and templates: in this process, with installed programs, or on a server."""
