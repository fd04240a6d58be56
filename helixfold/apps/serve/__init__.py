"""A service for a lab: jobs are submitted to one server, predicted by its workers, watched and shared."""
