"""The server of the service: its REST interface, the interfaces of other programs, and its pages."""
