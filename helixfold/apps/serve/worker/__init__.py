"""Workers of the service: they claim jobs over HTTP, run the code of `helixfold predict`, and send results back."""
