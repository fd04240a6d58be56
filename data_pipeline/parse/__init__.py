"""Read sequences, alignments, template hits and structures; invalid input raises `InputError` with file and line."""
