"""Files that are whole or not there."""

import os
import secrets
from pathlib import Path


def replace(path: Path, content: bytes) -> Path:
    """Write `content` to `path`: a reader, or a crash, sees the old file or the new one and nothing between."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")  # the same folder: a rename cannot cross disks
    try:
        with open(part, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return path
