"""Workers of the service: processes that claim jobs over HTTP, run `predict`, and send results back."""
