"""What `make mutants` goes by; the mutants themselves take too long for here."""

from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
TABLE = yaml.safe_load((ROOT / "tests" / "mutants.yml").read_text())


def test_every_measure_has_mutants():
    measures = (
        path.relative_to(ROOT)
        for path in (ROOT / "helpers" / "measures").glob("*.py")
        if path.stem != "__init__"
    )
    assert {str(path) for path in measures} <= TABLE.keys()


@pytest.mark.parametrize("path", TABLE)
def test_modules_tests_and_excused_lines_exist(path):
    entry, lines = TABLE[path], [line.strip() for line in (ROOT / path).read_text().splitlines()]
    assert entry.keys() <= {"tests", "options", "then", "excused"} and entry["tests"]
    assert [file for file in entry["tests"] if not (ROOT / file).exists()] == []
    for excuse in entry.get("excused", []):
        assert excuse.keys() == {"line", "becomes", "reason"} and excuse["becomes"]
        assert excuse["line"] in lines


EXCUSED = [{"line": "x = a + b", "becomes": ["x = a - b", "x = a * b"], "reason": "b is zero"}]


@pytest.mark.parametrize(
    "mutants, survivors, counts, well",
    [
        (42, ["x = a - b", "x = a*b"], [42, 40, 2, 0], True),
        (42, ["x = a - b", "x = a * b", "x = b", "x = a"], [42, 38, 2, 2], True),  # 95 % of 40
        (42, ["x = a - b", "x = a * b", "x = b", "x = a", "x = 0"], [42, 37, 2, 3], False),
        (42, ["x = a - b"], [42, 41, 1, 0], False),  # an excuse for nothing
    ],
)
def test_the_verdict_counts_what_is_not_excused(mutants, survivors, counts, well):
    verdict = pytest.importorskip("mutants", reason="cosmic-ray is not installed").verdict
    lines, good = verdict(
        "module", mutants, [(3, "Operator", "    x = a + b", line) for line in survivors], EXCUSED
    )
    assert good is well and [int(number) for number in lines[0].split()[1:5]] == counts
    assert sum("module:3 Operator" in line for line in lines) == counts[3]
    assert any("no survivor" in line for line in lines) == (counts[2] < 2)


@pytest.mark.parametrize(
    "operator, before, after",
    [
        ("SwapReduction", "np.median(x)", ["np.mean(x)"]),
        (
            "SwapReduction",
            "flat.all(1) and max(sum)",
            ["flat.any(1) and max(sum)", "flat.all(1) and min(sum)"],
        ),
        (
            "MoveNumber",
            "x[0] + 2 + 0.5 - -1",
            ["x[1] + 2 + 0.5 - -1", "x[0] + 1 + 0.5 - -1", "x[0] + 2 + 1.0 - -1"],
        ),
        (
            "Untrue",
            "f(True, strict=True, frozen=True, centred=True)",
            [
                "f(False, strict=True, frozen=True, centred=True)",
                "f(True, strict=True, frozen=True, centred=False)",
            ],
        ),
        ("Untrue", "any(True for x in y)", ["any(False for x in y)"]),
        ("NegateCondition", "a if b else c", ["a if not b else c"]),
        ("NegateCondition", "a if b < 2 else c", []),
    ],
)
def test_operators(operator, before, after):
    module = pytest.importorskip("mutants", reason="cosmic-ray is not installed")
    mutate = pytest.importorskip("cosmic_ray.mutating").mutate_code
    made = (mutate(before, getattr(module, operator)(), i) for i in range(len(after) + 1))
    assert list(made) == [*after, None]
