"""The queue of the service: jobs in one SQLite database, which the server alone opens."""
