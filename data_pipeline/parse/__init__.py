"""Read sequences, alignments, template hits and structures; errors are `InputError`s with file and line."""
