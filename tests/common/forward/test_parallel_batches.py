"""Batches side by side: in order, with one core each, and the answers of one after the other."""

import threading
import time

import pytest
import torch

from common.evaluation.windowed_perplexity import token_nlls
from common.forward import prefix_cache
from common.forward.hidden_state_files import StateFiles
from common.forward.parallel_batches import MOST, side_by_side
from common.models.surgery import remove_layers

CPU = torch.device("cpu")


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("cores", [2, 3, 2 * MOST])
def test_items_meet_in_order_with_a_share_of_the_cores(threads, cores):
    threads(cores)
    together = threading.Barrier(min(cores, MOST), timeout=30)  # opens only if so many run at once

    def work(item):
        together.wait()
        return item, torch.get_num_threads()

    with side_by_side(work, range(2 * MOST * 3), CPU) as results:
        assert list(results) == [(item, max(1, cores // MOST)) for item in range(2 * MOST * 3)]
    assert torch.get_num_threads() == cores


@pytest.mark.parametrize(("cores", "items"), [(1, 5), (4, 1)])
def test_one_core_or_one_item_needs_no_thread(threads, cores, items):
    threads(cores)
    with side_by_side(lambda _: (threading.current_thread(), torch.get_num_threads()), range(items), CPU) as results:
        assert list(results) == [(threading.main_thread(), cores)] * items


def test_an_error_drops_what_has_not_begun_and_gives_the_cores_back(threads):
    threads(2)
    begun = []

    def work(item):
        begun.append(item)
        if item == 1:
            raise ValueError("no")
        time.sleep(0.05)

    with pytest.raises(ValueError, match="no"), side_by_side(work, range(300), CPU) as results:
        list(results)
    assert len(begun) < 300 and torch.get_num_threads() == 2


def test_threads_that_share_states_answer_like_one(make_tiny, threads, monkeypatch, tmp_path):
    monkeypatch.setenv("LAYERLAB_CACHE", str(tmp_path))
    sequences = torch.randint(3, 320, (24, 11), generator=torch.Generator().manual_seed(4))
    dense, pruned = make_tiny("llama"), make_tiny("llama")
    remove_layers(pruned, [3])
    answers = {}
    for cores in (1, 4):
        threads(cores)
        monkeypatch.setattr(prefix_cache, "STORE", StateFiles())
        answers[cores] = [token_nlls(model, sequences, max_tokens=11) for model in (dense, pruned)]
        assert prefix_cache.STORE.hits == 24
    for alone, together in zip(answers[1], answers[4], strict=True):
        torch.testing.assert_close(alone, together, atol=1e-5, rtol=0)
