"""The web server: REST interface, interfaces compatible with other programs, and pages."""
