"""Mutation tests: change one detail of a module at a time, and see whether its tests notice.

    python tests/mutants.py [MODULE ...]    all of tests/mutants.yml unless named, as in
    `measures.norms`

cosmic-ray makes the mutants and keeps what became of them under _build/mutants, so that an
interrupted run goes on; a module is run anew once it or its tests change. Only a temporary copy of
the tracked files is mutated. The tests of each mutant run in a fork of this process, which has
imported everything but the project.
"""

import gc
import importlib
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import pytest
import yaml
from cosmic_ray import plugins
from cosmic_ray.commands.init import init
from cosmic_ray.mutating import use_mutation
from cosmic_ray.operators.boolean_replacer import AddNot, ReplaceTrueWithFalse
from cosmic_ray.operators.number_replacer import NumberReplacer
from cosmic_ray.work_db import use_db
from cosmic_ray.work_item import TestOutcome, WorkerOutcome, WorkResult

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "_build" / "mutants"
IMPORTED = Path("imported.txt")  # in the copy
LEAST = 0.95  # share of the mutants to kill, of those that are not excused
# Without conftest.py, which imports most of the project: a third of the time.
OPTIONS = [
    "-x",
    "-q",
    "--no-header",
    "--disable-warnings",
    "--noconftest",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:xdist",
]
# One replacement for each arithmetic operator; for each comparison its neighbour and its opposite.
ARITHMETIC = "Add_Sub Sub_Add Mul_Div Div_Mul FloorDiv_Mul Mod_FloorDiv Pow_Mul BitAnd_BitOr"
COMPARISONS = "Lt_LtE Lt_GtE LtE_Lt LtE_Gt Gt_GtE Gt_LtE GtE_Gt GtE_Lt Eq_NotEq NotEq_Eq"
CORE = {
    *(f"ReplaceBinaryOperator_{name}" for name in ARITHMETIC.split()),
    *(f"ReplaceComparisonOperator_{name}" for name in COMPARISONS.split()),
    *(f"ReplaceUnaryOperator_Delete_{name}" for name in ("USub", "Invert", "Not")),
    *(
        "ReplaceFalseWithTrue",
        "ReplaceAndWithOr",
        "ReplaceOrWithAnd",
        "ReplaceBreakWithContinue",
        "ReplaceContinueWithBreak",
    ),
    "ZeroIterationForLoop",
}
PAIRS = [
    ("median", "mean"),
    ("all", "any"),
    ("min", "max"),
    ("minimum", "maximum"),
    ("argmin", "argmax"),
    ("amin", "amax"),
]
OTHER = dict([*PAIRS, *(pair[::-1] for pair in PAIRS), ("sum", "mean")])


class SwapReduction(NumberReplacer):
    """A mean in the place of a median or sum, `any` in that of `all`, and so on."""

    def mutation_positions(self, node):
        if node.type == "name" and node.value in OTHER:
            if node.get_next_leaf().value == "(" or node.get_previous_leaf().value == ".":
                yield node.start_pos, node.end_pos

    def mutate(self, node, index):
        node.value = OTHER[node.value]
        return node


class MoveNumber(NumberReplacer):
    """A whole number one lower, 1 in the place of 0, and twice any other; a sign is deleted
    instead."""

    def mutation_positions(self, node):
        if node.type == "number" and node.parent.type != "factor":
            yield node.start_pos, node.end_pos

    def mutate(self, node, index):
        number = eval(node.value)
        node.value = str(
            1 if number == 0 else number - 1 if isinstance(number, int) else 2 * number
        )
        return node


class Untrue(ReplaceTrueWithFalse):
    """False in the place of True, except in `strict=True` and `frozen=True`, which only guard
    against mistakes."""

    def mutation_positions(self, node):
        guard = (
            node.parent
            and node.parent.type == "argument"
            and node.parent.get_first_leaf().value in ("strict", "frozen")
        )
        return [] if guard else super().mutation_positions(node)


class NegateCondition(AddNot):
    """`not` before a condition, unless it is a comparison."""

    def mutation_positions(self, node):
        condition = getattr(node, "children", [])[1:3]
        return (
            []
            if "comparison" in [part.type for part in condition]
            else super().mutation_positions(node)
        )


def tested(options, warm):
    """Run pytest in a fork; `warm` leaves behind what it has compiled, and a list of what it
    imported from elsewhere."""
    sys.dont_write_bytecode = not warm
    if not warm:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    code = pytest.main([*OPTIONS, *options])
    if warm:
        here = str(Path.cwd())
        elsewhere = [
            name
            for name, m in sys.modules.items()
            if not (getattr(m, "__file__", None) or here).startswith(here)
        ]
        IMPORTED.write_text("\n".join(elsewhere))
    os._exit(code)


def passes(options, limit=None, warm=False):
    process = multiprocessing.get_context("fork").Process(target=tested, args=(options, warm))
    process.start()
    process.join(limit)
    process.kill()
    process.join()
    return process.exitcode == 0


def warmed(options):
    """Seconds that the tests take unmutated, once this process has imported what they import."""
    if not passes(options, warm=True):
        sys.exit(f"error: the tests fail unmutated: {' '.join(options)}")
    for name in IMPORTED.read_text().split():
        with suppress(ImportError):  # a part that only its package can import
            importlib.import_module(name)
    gc.freeze()  # pytest collects garbage, and need not look at all that
    start = time.monotonic()
    passes(options)
    return time.monotonic() - start


def run(name, path, stages, database):
    """How many mutants there are, and of each survivor (line number, operator, line, what it
    becomes).

    Each of the `stages` is a list of arguments of pytest; a later one runs on what survives the one
    before.
    """
    with use_db(database) as db:
        if not db.num_work_items:
            init([path], db, {})
        pending = db.pending_work_items
        limits = [10 + 4 * warmed(options) for options in stages] if pending else []
        for cached in path.parent.glob(f"__pycache__/{path.stem}.*"):
            cached.unlink()
        for done, item in enumerate(pending):
            (mutation,) = item.mutations
            operator = plugins.get_operator(mutation.operator_name)()
            with use_mutation(path, operator, mutation.occurrence) as (before, after):
                changed = next(
                    pair
                    for pair in zip(before.splitlines(), after.splitlines(), strict=False)
                    if len({*pair}) > 1
                )
                survived = all(passes(*stage) for stage in zip(stages, limits, strict=True))
                outcome = TestOutcome.SURVIVED if survived else TestOutcome.KILLED
            result = WorkResult(WorkerOutcome.NORMAL, test_outcome=outcome, diff="\n".join(changed))
            db.set_result(item.job_id, result)
            print(f"\r{name}: {done + 1} of {len(pending)}", end="", file=sys.stderr)
        survivors = [
            (item.mutations[0], result.diff)
            for item, result in db.completed_work_items
            if not result.is_killed
        ]
        rows = [
            (m.start_pos[0], m.operator_name.split("/")[1], *diff.split("\n"))
            for m, diff in survivors
        ]
        return db.num_work_items, sorted(rows)


def verdict(name, mutants, survivors, excused):
    """What to print of a module: its counts, survivors without excuse, excuses without survivor;
    and whether all is well."""
    plain = {
        (squeezed(e["line"]), squeezed(becomes)): e for e in excused for becomes in e["becomes"]
    }
    open_ = [row for row in survivors if (squeezed(row[2]), squeezed(row[3])) not in plain]
    needless = plain.keys() - {(squeezed(row[2]), squeezed(row[3])) for row in survivors}
    counted = mutants - (len(survivors) - len(open_))
    score = 1 - len(open_) / counted
    lines = [
        f"{name:24} {mutants:7} {mutants - len(survivors):6} {mutants - counted:7} {len(open_):8} "
        f"{score:8.1%}"
    ]
    for number, operator, before, after in open_:
        lines += [
            f"  {name}:{number} {operator}",
            f"    - {before.strip()}",
            f"    + {after.strip()}",
        ]
    lines += [f"  excused, but no survivor: {plain[key]['line']}  ->  {key[1]}" for key in needless]
    return lines, score >= LEAST and not needless


def squeezed(text):
    return "".join(text.split())


def main(names):
    table = {
        ".".join(Path(path).with_suffix("").parts[1:]): (Path(path), entry)
        for path, entry in yaml.safe_load((ROOT / "tests" / "mutants.yml").read_text()).items()
    }
    if unknown := set(names) - table.keys():
        sys.exit(f"error: no module {', '.join(unknown)}; choose of {', '.join(table)}")
    core = plugins.OPERATOR_PROVIDERS["core"]
    own = {
        operator.__name__: operator
        for operator in (SwapReduction, MoveNumber, Untrue, NegateCondition)
    }
    plugins.OPERATOR_PROVIDERS = {"core": {name: core[name] for name in CORE}, "own": own}
    KEPT.mkdir(parents=True, exist_ok=True)
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    lines, well = [f"{'module':24} mutants killed excused survived    score"], True
    with tempfile.TemporaryDirectory() as copy:
        for file in filter(None, tracked.split("\0")):
            (Path(copy) / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / file, Path(copy) / file)
        os.chdir(copy)
        sys.path[0] = copy
        for name in names or table:
            path, entry = table[name]
            sources = [Path(__file__), path, *map(Path, entry["tests"])]
            digest = sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]
            stages = [[*entry["tests"], *entry.get("options", [])]]
            stages += [[*entry["tests"], *entry["then"]]] if "then" in entry else []
            mutants, survivors = run(name, path, stages, KEPT / f"{name}-{digest}.sqlite")
            more, good = verdict(name, mutants, survivors, entry.get("excused", []))
            lines, well = [*lines, *more], well and good
        os.chdir(ROOT)
    print("", *lines, sep="\n")
    return 0 if well else 1


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # some libraries that the tests import report at length at the end
