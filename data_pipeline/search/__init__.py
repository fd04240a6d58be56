"""Search for homologous sequences and templates: with Python libraries, installed programs, or a server."""
