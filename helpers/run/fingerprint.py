"""What an execution hangs on: with the same code it need not be done again on this machine.

Published results are bound to the code by their numbers (`helpers.claims`), not by this digest,
which any edit of the package changes.
"""

import os
from functools import cache

from helpers.claims.place import HELPERS
from helpers.claims.project import Project
from helpers.files import digest_of
from helpers.run.provenance import ARITHMETIC, provenance


def fingerprint(project: Project, id: str) -> str:
    """Digest of the package with its weights, the notebook, the claims and the libraries."""
    notebook = project.source(id)
    claims = project.root / "notebooks" / "claims" / f"{project.registry[id].paper}.yml"
    origin = provenance(project.root)
    instructions = [os.environ.get(name) for name in ARITHMETIC]
    libraries = f"{origin['python']} {origin['packages']} {instructions}"
    return digest_of(_package(), notebook.read_bytes(), claims.read_bytes(), libraries, length=16)


@cache  # the package is imported once as well
def _package() -> str:
    files = sorted(path for kind in ("py", "safetensors") for path in HELPERS.rglob(f"*.{kind}"))
    return digest_of(*(part for path in files for part in (path.name, path.read_bytes())))
