"""Add results that were measured here to the published ones: ``python -m reproductions.publish`` (``make publish``).

A result is published if it has a value, was measured by committed code, and stands behind a row of some table of a published
model. All else stays where it is, and the command says why. A killed run leaves the published results readable; the next run
continues.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from common.console.command_line import answering, parse
from common.pruning.recipe import Recipe
from common.records.record_json import Unreadable
from common.records.results import NOWHERE, PUBLISHED, Record, Store, mark, publish, user_folder
from common.utils.errors import UserError, first_of, plural, quiet_logging
from reproductions.render import cells_parquet
from reproductions.render.evidence import known
from reproductions.spec import registry
from reproductions.spec import subjects as settings

UNCHANGED = "already published"


@dataclass(frozen=True)
class Outcome:
    """Outcome of publishing one result.

    verdict: ``added``, ``replaced``, or why it is left out. refused: left out though it has a value that a table shows.
    """

    record: Record
    verdict: str
    refused: bool = False

    @property
    def goes(self) -> bool:
        """Return whether the result is published."""
        return self.verdict in ("added", "replaced")


def shown_recipes() -> set[str]:
    """Return the hashes of the recipes behind the rows of all tables, for each model whose results are published."""
    subjects = [*settings.PROFILES.values(), *map(settings.of_model, settings.PUBLISHED_MODELS)]
    return {
        recipe.hash
        for table in registry.targets().values()
        for subject in subjects
        for row in table.rows(subject)
        for recipe in (row.recipe, row.shapes)
        if recipe is not None
    }


def measured(folder: Path) -> Iterator[tuple[Record, Recipe]]:
    """Yield the results in a user's folder, by model, recipe and benchmark."""
    store = Store(folder, None)
    for path in sorted(folder.glob("*/*/*/**/*.json")):  # a model's name may have slashes
        if (record := store.read_file(path)) is not None and known(record):
            yield record, Recipe(**record.recipe)


def judge(record: Record, recipe: Recipe, earlier: Record | None, shown: set[str]) -> Outcome:
    """Decide whether a result is published, by the earlier published one and the recipes that tables show."""
    code = record.provenance
    if record.status != "ok":
        return Outcome(record, "without a value")
    if recipe.limit is not None:
        return Outcome(record, "a quick look (LIMIT=)")
    if recipe.hash not in shown:
        return Outcome(record, "of a row or a model that no table publishes")
    if earlier is not None and mark(earlier) == mark(record):
        return Outcome(record, UNCHANGED)
    if earlier is not None and earlier.provenance.get("measured_at", "") > code.get("measured_at", ""):
        return Outcome(record, "older than the published one")  # another clone may have measured it again
    if code.get("commit") is None or code.get("dirty") is not False:
        why = "local changes" if code.get("dirty") else "no known commit"
        return Outcome(record, f"measured by code with {why}", refused=True)
    return Outcome(record, "added" if earlier is None else "replaced")


def run(folder: Path, published: Path = PUBLISHED) -> list[Outcome]:
    """Publish the new results in a user's folder; return the outcome of each result there.

    Raises:
        UserError: The published results cannot be written, or one of their files is damaged.
    """
    before, user, shown = Store(NOWHERE, published), Store(folder, None), shown_recipes()
    outcomes = [
        judge(record, recipe, before.get(recipe, record.benchmark), shown) for record, recipe in measured(folder)
    ]
    new = [outcome.record for outcome in outcomes if outcome.goes]
    if new:
        try:
            publish(published, ((record, user.items(Recipe(**record.recipe), record.benchmark)) for record in new))
        except OSError as error:
            raise UserError(
                f"cannot write to {published}: {error.strerror}. What was published before is still readable. "
                "Free space or permit writing, then run the same command again"
            ) from error
        except Unreadable as error:
            raise UserError(
                f"a published file is damaged: {error}. Resolve the conflict in it, or restore that file with git, then run "
                "the same command again"
            ) from error
    return outcomes


def summary(outcomes: list[Outcome]) -> str:
    """Summarise the outcomes in lines: counts by model, then what was left out and why."""
    lines = []
    for verb in ("added", "replaced"):
        by_model = Counter(outcome.record.recipe["model"] for outcome in outcomes if outcome.verdict == verb)
        lines += [f"{verb}: {plural(n, 'result')} of {model}" for model, n in by_model.items()]
    for verdict, number in Counter(outcome.verdict for outcome in outcomes if not outcome.goes).items():
        lines.append(f"left out: {plural(number, 'result')}, {verdict}")
    refused = [outcome for outcome in outcomes if outcome.refused]
    if refused:
        names = [f"{outcome.record.recipe_hash}/{outcome.record.benchmark}" for outcome in refused]
        lines.append(f"refused: {first_of(names, 3)}. Commit the code, then measure them again with FORCE=1")
    return "\n".join(lines or ["there are no results of yours to publish"])


@dataclass(kw_only=True)
class PublishCommand:
    """Publish the results that were measured here."""


@answering
def main(arguments: list[str] | None = None) -> int:
    """Run the command; return the exit status: 1 if a result was refused, 2 if nothing could be written."""
    parse(PublishCommand, arguments, prog="python -m reproductions.publish")
    quiet_logging(False)
    outcomes = run(user_folder())
    print(summary(outcomes))
    cells_parquet.write(list(cells_parquet.rows(Store(NOWHERE))))
    return 1 if any(outcome.refused for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
