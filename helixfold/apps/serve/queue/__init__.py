"""The queue of the service: jobs in one SQLite database, which only the server opens."""
