"""The tests of what was changed since the last commit, one a line, for `make quick`.

Of a module those that bear its name, else those of its package that name it, else all of these.
"""

import subprocess
from pathlib import Path


def covering(path: Path) -> list[Path]:
    """The tests of one changed file."""
    if not path.is_file():
        return []
    top, *parts = path.parts
    if path.suffix == ".ipynb" or (top == "tests" and path.match("test_*.py")):
        return [path]
    if path.suffix != ".py" or top not in ("helpers", "training", "tests"):
        return []
    folder = Path("tests", *[top] * (top == "training"), *parts[:-1])
    if own := sorted(folder.glob(f"test_{path.stem}*.py")):
        return own
    module = ".".join(path.with_suffix("").parts).removeprefix("tests.")
    named = [x for x in sorted(folder.glob("test_*.py")) if module in x.read_text()]
    return named or [folder]


if __name__ == "__main__":
    asked = ("diff --name-only HEAD", "ls-files --others --exclude-standard")
    changed = [
        path
        for arguments in asked
        for path in subprocess.check_output(["git", *arguments.split()], text=True).splitlines()
    ]
    print(*dict.fromkeys(test for path in changed for test in covering(Path(path))), sep="\n")
