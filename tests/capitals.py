"""Print what targets come to, as JSON; with ``--capitals`` every label is in capitals before any row is declared.

It fails where a declaration, a table or a figure loads a library of models: `show` has to start quickly.
Run by tests/reproductions/test_labels.py in a process of its own: a declaration that reads a label is made at import.
"""

import json
import sys

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot  # noqa: E402

from common.evaluation import significance  # noqa: E402
from common.records.results import PUBLISHED  # noqa: E402
from reproductions.render import show, tables  # noqa: E402
from reproductions.render.evidence import Loaded  # noqa: E402
from reproductions.spec import columns, registry, statuses, subjects  # noqa: E402

LABELS = {
    registry.Claim: ["text"],
    registry.Column: ["label"],
    registry.Row: ["name", "label"],
    registry.Table: ["title", "note"],
    statuses.Status: ["label", "reason"],
    subjects.Subject: ["label"],
}


def in_capitals() -> None:
    """Make all labels upper case: those that there are, and those that any declaration will make."""

    def shout(thing: object, fields: list[str]) -> None:
        for field in fields:
            object.__setattr__(thing, field, getattr(thing, field).upper())

    def shouting(kind: type, fields: list[str]) -> None:
        plain = kind.__init__

        def init(self, *args, **named):
            plain(self, *args, **named)
            shout(self, fields)

        kind.__init__ = init

    for kind, fields in LABELS.items():
        shouting(kind, fields)
    known = [value for module in (columns, statuses, subjects) for value in vars(module).values()]
    for value in known:
        if type(value) in LABELS:
            shout(value, LABELS[type(value)])
    from extensions.league import rows as league
    from reproductions.laco import recipes as laco
    from reproductions.linearpatch import patch_ablation, trained
    from reproductions.linearpatch import rows as linearpatch
    from reproductions.prunecomp import grid
    from reproductions.reassessing import specs

    named = (league.SELECTIONS, league.LABELS, league.TEXTS, laco.NAMES, trained.NAMES, linearpatch.NAMES)
    for labels in (*named, patch_ablation.NAMES, grid.LABELS):
        labels.update({key: label.upper() for key, label in labels.items()})
    for kind in (specs.Arm, specs.ArmSpec):
        plain = kind.label.fget
        kind.label = property(lambda self, plain=plain: plain(self).upper())


def drawn(table: registry.Table, store: Loaded, subject: subjects.Subject) -> list:
    """The lines and bars of a figure, by axes; [] where there is nothing to draw."""
    import importlib

    module, _, function = table.draw.partition(":")
    entries = show.entries(table, store, subject, table.rows(subject))
    figure = getattr(importlib.import_module(module), function)(entries, subject.profile) if entries else None
    content = [
        [
            [line.get_xydata().tolist() for line in axes.lines],
            [[bar.get_x(), bar.get_height()] for bar in axes.patches if hasattr(bar, "get_height")],
            [text.get_text() for text in (*axes.texts, *axes.get_yticklabels())],
        ]
        for axes in (figure.axes if figure else ())
    ]
    pyplot.close("all")
    return content


def main(targets: list[str]) -> None:
    """Print target -> its JSON form, its text and its figures."""
    store, shown_of = Loaded(None, PUBLISHED), {}
    significance.REPLICATES = 50  # two runs are compared, whose replicates are the same
    for target in targets or registry.targets():
        table = registry.get(target)
        shown = [*show.published(table, store), subjects.PAPER]
        content = show.build(table, store, shown)
        figures = {subject.name: drawn(table, store, subject) for subject in shown if table.draw}
        shown_of[target] = [content, tables.render(content, "md"), figures]
    loaded = {"torch", "transformers", "datasets", "lm_eval"} & set(sys.modules)
    assert not loaded, f"showing tables imports {loaded}"
    json.dump(shown_of, sys.stdout)


if __name__ == "__main__":
    names = sys.argv[1:]
    if "--capitals" in names:
        names.remove("--capitals")
        in_capitals()
    main(names)
