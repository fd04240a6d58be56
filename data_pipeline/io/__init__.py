"""Communicate with servers over HTTP."""
