"""What a repair is calibrated on: the same layers go, and rows differ in what the repair reads alone."""

from reproductions import registry, settings
from reproductions.league import rows, texts

SMOLLM = settings.of_model("smollm2-135m-instruct")


def test_rows_differ_in_what_the_repair_reads():
    league = {row.recipe.hash: (row.sparsity, row.method) for row in registry.get("league").rows(SMOLLM)}
    every = registry.get("league-texts").rows(SMOLLM)
    own = {row.recipe.hash: (row.sparsity, row.method) for row in every if row.method not in (texts.ASKING, texts.BOTH)}
    assert own.items() <= league.items() and len(own) == 5
    for sparsity in ("7/30", "9/30"):
        plain, *others = (
            next(row.recipe for row in every if (row.sparsity, row.method) == (sparsity, method))
            for method in (texts.PLAIN, texts.ASKING, texts.BOTH)
        )
        read = (texts.TASK_TEXT, f"{SMOLLM.text}+{texts.TASK_TEXT}")
        for other, corpus in zip(others, read, strict=True):
            assert other.repair == plain.repair and other.calibration == plain.calibration | {"corpus": corpus}
            assert other.selection == plain.selection | {"calibration": plain.calibration}
    assert registry.get("league-texts").rows(settings.PAPER) == []


def test_no_task_of_the_average_is_read_and_each_is_asked_whole():
    columns = {column.label: column for column in registry.get("league-texts").columns_for(SMOLLM)}
    assert columns[texts.AVERAGE].of == texts.UNREAD and not set(texts.READ) & set(texts.UNREAD)
    assert not any("@" in columns[task].benchmark for task in texts.UNREAD)
    standin = registry.get("league-texts")
    assert {row.method for row in standin.rows(settings.STANDIN)} == {"Dense", texts.NONE, texts.PLAIN}
    assert rows.name("[L]", rows.NONE) == texts.NONE
