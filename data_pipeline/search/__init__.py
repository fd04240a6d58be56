"""Finding relatives and templates of a target: tools in this process, programs on this machine, a server."""
