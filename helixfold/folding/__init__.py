from helixfold._deprecated import moved_names

__getattr__ = moved_names(__name__)
