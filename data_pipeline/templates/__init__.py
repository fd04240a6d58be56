"""From template hits, or structures that the user gives, to template features."""
