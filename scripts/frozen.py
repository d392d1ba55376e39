"""Judge every published result by today's registry, and compare with `scripts/frozen.csv`.

Verdicts, reasons, first verdicts, statuses and calibrations are compared letter by letter, values
and what a status rests on by a digest. `python scripts/frozen.py --write` makes the table anew:
where a criterion changes or a result is run again, and only then.
"""

import csv
import sys
from collections.abc import Iterator
from pathlib import Path

from helpers.claims import history
from helpers.claims.project import CONTROLS, Project
from helpers.claims.result import Result, judge, read_result
from helpers.files import digest_of_json

TABLE = Path(__file__).with_suffix(".csv")
HEAD = ["run", "claim", "model", "what", "text"]
Row = tuple[str, str, str, str, str]


def rows(project: Project) -> Iterator[Row]:
    """What is said of each published result, a row a fact."""
    log = history.load(project.root)
    for path in project.results():
        run, id = path.parent.name, path.stem
        if run == CONTROLS:
            continue
        data, claim = read_result(path), project.registry[id]
        stored = Result.from_json(claim, data)
        today = judge(claim, stored.values, stored.sources, stored.not_run)
        facts = {
            "verdict": today.verdict,
            "shown": today.shown[""],
            "reason": today.reason,
            "stored verdict": stored.verdict,
            "first verdict": history.first_verdict(log[id], stored),
            "mark": history.mark(log[id], data["parameters"]),
            "status": today.compared.status,
            "status, why": digest_of_json(today.compared.reason)[:16],
            "calibration": today.calibration(),
            "not run": today.not_run,
        }
        for what, text in facts.items():
            yield run, id, "", what, str(text)
        for one in today.verdicts:
            model = one["model"]
            yield run, id, model, "verdict", f"{today.shown[model]}: {one['reason']}"
        for model, values in today.by_model.items():
            texts = [[name, str(value), value.to_json()] for name, value in values.items()]
            yield run, id, model, "values", f"{len(texts)}: {digest_of_json(texts)[:16]}"


def main() -> int:
    """Write the table with --write, else compare: 1 where something differs."""
    found = list(rows(Project()))
    if "--write" in sys.argv[1:]:
        with TABLE.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([HEAD, *found])
        return 0
    with TABLE.open(newline="", encoding="utf-8") as file:
        frozen = {tuple(row[:4]): row[4] for row in csv.reader(file)}
    del frozen[tuple(HEAD[:4])]
    now = {row[:4]: row[4] for row in found}
    differing = [key for key in {**frozen, **now} if frozen.get(key) != now.get(key)]
    for key in differing:
        print(*key, sep=", ")
        print(f"  frozen: {frozen.get(key)}\n  now:    {now.get(key)}")
    results = len({key[:2] for key in frozen})
    print(f"{results} results, {len(frozen)} facts, {len(differing)} differ")
    return int(bool(differing))


if __name__ == "__main__":
    raise SystemExit(main())
