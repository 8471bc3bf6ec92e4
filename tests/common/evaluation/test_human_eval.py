"""Generated programs: run only when allowed, and judged by the item's tests."""

import pytest
from hub_mirror import write_rows

from common.evaluation import harness, human_eval
from common.utils.errors import UserError

ITEM = {
    "task_id": "HumanEval/0",
    "prompt": 'def double(x):\n    """Twice x."""\n',
    "canonical_solution": "    return 2 * x\n",
    "test": "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate('a') == 'aa'\n",
    "entry_point": "double",
}


@pytest.fixture
def allowed(monkeypatch):
    monkeypatch.setenv(human_eval.VARIABLE, "1")


def test_nothing_runs_unless_allowed(tiny_llama, tiny_tokenizer, monkeypatch):
    monkeypatch.delenv(human_eval.VARIABLE, raising=False)
    with pytest.raises(UserError, match="runs programs that the model writes; .* LAYERLAB_RUN_CODE=1"):
        harness.evaluate(tiny_llama, tiny_tokenizer, ["humaneval"])
    with pytest.raises(UserError, match="LAYERLAB_RUN_CODE=1"):
        human_eval.passed(ITEM, ["    return 2 * x"])


@pytest.mark.parametrize(
    ("answer", "score"),
    [("    return 2 * x\n", 1), ("    return x + 2\n", 0), ("    return 2 *\n", 0), ("    raise SystemExit(3)\n", 0)],
)
def test_programs_are_judged_by_the_items_tests(allowed, answer, score):
    assert human_eval.passed(ITEM, [answer]) == {"pass_at_1": score}


def test_programs_have_little_room(allowed, tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "x")
    assert human_eval.runs("import os; assert not os.environ.get('SECRET') and os.listdir('.') == ['program.py']")
    assert not human_eval.runs("open('large', 'wb').write(b'0' * (2 << 20))")
    assert not human_eval.runs("b'0' * (8 << 30)")
    monkeypatch.setattr(human_eval, "SECONDS", 1)
    assert not human_eval.runs("while True: pass")


def test_lm_evals_prompts_and_stops_with_our_check(allowed, mirror, tmp_path, tiny_llama, tiny_tokenizer, answering):
    write_rows(tmp_path / "hub", "openai/openai_humaneval", None, "test", [ITEM, ITEM])
    asked = answering("    return 2 * x\n", "    return 3\n")
    scores = harness.evaluate(tiny_llama, tiny_tokenizer, ["humaneval"])["humaneval"]
    assert scores["pass_at_1"] == 0.5 and scores["n"] == 2 and scores["pass_at_1_stderr"] is not None
    prompt, options = asked[0]
    assert prompt == ITEM["prompt"] and "\ndef" in options["until"] and options["max_gen_toks"] == 1024
