"""Readers of the file formats people bring; each returns a value or raises an `InputError` with file and line."""
