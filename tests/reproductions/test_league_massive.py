"""Windows that keep the layer which writes massive activations: the league's rows, and one option more."""

from reproductions import registry, settings
from reproductions.league import massive, rows

SMOLLM = settings.of_model("smollm2-135m-instruct")


def test_rows_differ_in_the_choice_alone_and_those_of_the_league_are_its_own():
    league = {row.recipe.hash: (row.sparsity, row.method) for row in registry.get("league").rows(SMOLLM)}
    found = {(row.sparsity, row.method): row.recipe for row in registry.get("league-massive").rows(SMOLLM)}
    assert len(found) == 1 + 2 * 2 * 5
    for (sparsity, method), made in found.items():
        if sparsity == "9/30" and method.startswith("[L],"):
            assert league[made.hash] == (sparsity, method)
        if method.startswith(massive.KEEPING):
            usual = found[sparsity, method.replace(massive.KEEPING, "[L]")]
            assert made.selection == usual.selection | {"keep_massive": True} and made.repair == usual.repair
    on_standin = registry.get("league-massive").rows(settings.STANDIN)
    assert not any(row.method.startswith(massive.KEEPING) for row in on_standin) and len(on_standin) == 11
    assert rows.name(massive.KEEPING, rows.NONE) == "[L] without massive layers (ours), none"
