"""Files of two runs, which are compared byte for byte but for the command that each was given."""

import json
from pathlib import Path


def without_command(path: Path) -> bytes:
    """The bytes of a file; those of settings.json without the words of the command, such as its --output."""
    if path.name != "settings.json":
        return path.read_bytes()
    content = json.loads(path.read_bytes())
    for entry in content["provenance"]:
        del entry["command"]
    return json.dumps(content).encode()
