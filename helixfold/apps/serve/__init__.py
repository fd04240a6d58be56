"""The prediction service: users submit jobs to one server, its workers predict them, users watch and share results."""
