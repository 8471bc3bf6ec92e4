"""Which of its cells' reasons stands for a row without a number."""

from reproductions.spec import statuses

TEXT = statuses.of_record("no data", "for the row's corpus c4-train: could not fetch dataset allenai/c4")
RACE = statuses.of_record("no data", "could not fetch dataset EleutherAI/race")


def test_of_several_reasons_the_one_of_most_cells_stands_for_the_row():
    """Seven tasks lack the row's calibration text, one lacks its items: the shorter reason is not the row's."""
    assert statuses.of_row([RACE, *[TEXT] * 7]) == TEXT
    assert statuses.of_row([TEXT, RACE]) == RACE  # of as many cells the shorter one
    assert statuses.of_row([TEXT, TEXT, statuses.NOT_RUN]) == statuses.NOT_RUN
    assert statuses.of_row([]) == statuses.MEASURED
