"""The examples in docstrings, run as they stand there, without the tests' check of shapes, which
hides functions from doctest."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
WITH_EXAMPLES = sorted(
    path
    for path in (ROOT / "helpers").rglob("*.py")
    if re.search(r"^ +>>> ", path.read_text(), flags=re.M)
)


def test_examples_in_docstrings():
    options = ["-q", "-o", "addopts=", "-p", "no:cacheprovider", "--doctest-modules"]
    command = [sys.executable, "-m", "pytest", *options, *map(str, WITH_EXAMPLES)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    # Each of them was found: as many functions and classes as have an example.
    every = "".join(path.read_text() for path in WITH_EXAMPLES)
    having = sum(">>>" in text for text in re.findall(r'""".*?"""', every, flags=re.S))
    assert having >= 8 and f"{having} passed" in done.stdout
