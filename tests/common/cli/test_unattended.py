"""Options for runs that nobody watches: a share of the parameters, a bound on perplexity, JSON, the hub."""

import json
import os
import sys
from types import SimpleNamespace

import httpx2
import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import HfHubHTTPError
from safetensors import safe_open

from common.cli import bounded, push
from common.cli import run as run_module
from common.models.files import hub
from tests.tools import TOOLS, main, method_of

pytestmark = pytest.mark.usefixtures("short")
PARAGRAPHS = 200  # with room for a part that is held out


def parameters(path):
    with safe_open(path / "model.safetensors", "pt") as file:
        return sum(torch.Size(file.get_slice(name).get_shape()).numel() for name in file.keys())  # noqa: SIM118


@pytest.mark.parametrize("ratio", ["10%", "0.3", "45%"])
def test_a_share_of_the_parameters_takes_the_fewest_layers_that_hold_it(ratio, tool, model):
    run = tool("reassessing", "--target-ratio", ratio, "--no-evaluation")
    removed, whole = len(run.report["facts"]["removed"]), parameters(model)
    layer = (whole - parameters(run.out)) / removed
    share = float(ratio.removesuffix("%")) / (100 if "%" in ratio else 1)
    assert removed * layer / whole >= share > (removed - 1) * layer / whole
    assert f"--target-ratio {100 * share:g}%" in run.card and "--remove" not in run.card


@pytest.mark.parametrize("paper", TOOLS)
def test_a_bound_takes_the_most_layers_that_stay_below_it(paper, tool, monkeypatch):
    """Against every number of layers tried in turn, with the perplexity of each made up."""
    rises, read = {0: 0.0, 1: 0.02, 2: 0.08, 3: 0.3, 4: 0.9}, []

    def perplexity(job):
        read.append(job.decoder.num_layers)
        return 20 * (1 + rises[6 - job.decoder.num_layers])

    monkeypatch.setattr(bounded, "_perplexity", perplexity)
    report = tool(paper, "--max-perplexity-increase", "10%", "--no-evaluation").report
    assert len(report["facts"]["removed"]) == 2 and report["layers"]["after"] == 4
    increases = {trial["removed"]: round(trial["increase"], 6) for trial in report["bound"]["tried"]}
    assert increases == {count: rises[count] for count in increases} and {2, 3} <= set(increases)
    assert read[0] == 6 and len(read) <= 4  # the original, and three by halving
    assert "2 layers is the most that bisection found to keep perplexity within 10.0%" in " ".join(report["notes"])


def test_the_bound_reads_text_that_neither_calibration_nor_test_reads(tool, text, monkeypatch):
    jobs = []

    def search(job):
        jobs.append(job)
        job.options.remove = 1

    monkeypatch.setattr(bounded, "search", search)
    assert tool("linearpatch", "--max-perplexity-increase", "5%", "--no-evaluation").status == 0
    (job,) = jobs
    ids = job.tokenizer(text.read_text())["input_ids"]
    first, end = int(0.9 * int(0.9 * len(ids))), int(0.9 * len(ids))
    assert job.held_out_sequences.flatten().tolist() == ids[first:end][: job.held_out_sequences.numel()]
    assert job.test_sequences.flatten().tolist() == ids[end:][: job.test_sequences.numel()]
    places = {tuple(ids[place : place + 32]) for place in range(first - 32)}
    crops = job.crops(500)
    assert len(crops) == 500 and all(tuple(crop.tolist()) in places for crop in crops)
    pieces = job.documents(3)
    assert len(job.tokenizer("\n\n".join(pieces))["input_ids"]) <= first


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--max-perplexity-increase 5% --stream", "--max-perplexity-increase reads the model again"),
        ("--max-perplexity-increase 5% --length 2000", "the part that is held out for --max-perplexity-increase"),
        ("--remove 2 --push-to-hub me/it", "HF_HUB_OFFLINE is set. Connect to the hub"),
    ],
)
def test_what_cannot_be_met_is_one_line(options, message, tool, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    run = tool("linearpatch", *options.split())
    assert run.status == 2 and message in run.last_line and run.stdout == "" and not run.out.exists()


def test_a_bound_below_every_number_says_what_the_smallest_costs(tool, monkeypatch):
    monkeypatch.setattr(bounded, "_perplexity", lambda job: 20.0 + 7 * (6 - job.decoder.num_layers))
    run = tool("prunecomp", "--max-perplexity-increase", "10%")
    assert run.status == 2 and "removing 1 layer gives perplexity +35.0% on held-out" in run.stderr
    assert not run.out.exists()


@pytest.mark.parametrize("more", ["--remove 2", "--sweep 1-2", "--remove 2 --plan"])
def test_json_is_all_of_standard_output_and_progress_is_not(more, tool):
    run = tool("linearpatch", *more.split(), "--json")
    printed = json.loads(run.stdout)
    assert run.status == printed["status"] == 0 and printed["out"] == str(run.out)
    if more == "--remove 2":
        assert printed["evaluation"]["after"] == run.report["evaluation"]["after"]
        assert printed["layers"] == run.report["layers"] and "saved to" in run.stderr


def test_a_plan_without_a_place_names_none(model, text, capsys):
    options = {"model": model, "text": text, "remove": 2, "samples": 4, "length": 32, "test-samples": 4}
    arguments = [str(part) for name, value in options.items() for part in (f"--{name}", value)]
    assert main(method_of("linearpatch"), [*arguments, "--plan", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["out"] is None


def test_a_reader_of_json_that_has_gone_costs_nothing(tool, monkeypatch):
    def printed(*_, **more):
        if "file" not in more and sys.stdout is not sys.stderr:
            raise BrokenPipeError

    monkeypatch.setattr(run_module, "print", printed, raising=False)
    monkeypatch.setattr(run_module, "os", SimpleNamespace(**vars(os) | {"dup2": lambda *_: None}))
    monkeypatch.setattr(sys.stdout, "fileno", lambda: 1)
    done = tool("linearpatch", "--remove", 2, "--json", "--no-evaluation")
    assert done.status == 0 and done.model.config.num_hidden_layers == 4


class Hub:
    """The hub's client: what it was asked, and an error in place of an answer."""

    def __init__(self, error=None):
        self.asked, self.error = [], error

    def create_repo(self, repo, **options):
        self.asked.append((repo, options))
        if self.error:
            raise self.error
        return SimpleNamespace(repo_id=f"me/{repo}", __str__=lambda: "url")

    def upload_folder(self, **options):
        self.asked.append(options)


@pytest.fixture
def logged_in(monkeypatch):
    monkeypatch.setattr(hub, "unreachable_because", lambda: None)
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: "hf_token")
    monkeypatch.setattr(huggingface_hub, "whoami", lambda: {"name": "me"})


def test_the_result_goes_to_a_private_repository(tool, logged_in, monkeypatch):
    client = Hub()
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: client)
    run = tool("linearpatch", "--remove", 2, "--push-to-hub", "small", "--no-evaluation")
    created, uploaded = client.asked
    assert created == ("small", {"private": True, "exist_ok": True})
    assert uploaded["repo_id"] == "me/small" and uploaded["folder_path"] == run.out
    assert run.status == 0 and "pushed to" in run.stdout


def test_a_plan_says_where_it_would_go_and_asks_no_hub(tool, monkeypatch):
    monkeypatch.setattr(push, "check", lambda repo: pytest.fail("the hub was asked"))
    run = tool("linearpatch", "--remove", 2, "--push-to-hub", "me/small", "--plan")
    assert run.status == 0
    assert "would upload the result to me/small, a private repository if it is new" in run.stdout


REFUSED = HfHubHTTPError("403 Forbidden", response=SimpleNamespace(headers={}, request=None, status_code=403, text=""))


@pytest.mark.parametrize("error", [REFUSED, httpx2.ConnectError("connection lost")], ids=["refused", "broken"])
def test_a_push_that_fails_leaves_the_result_and_says_how_to_go_on(error, tool, logged_in, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: Hub(error))
    run = tool("linearpatch", "--remove", 2, "--push-to-hub", "them/small", "--no-evaluation")
    assert run.status == 1 and f"cannot push to them/small: {error}" in run.last_line
    assert f"`hf upload them/small {run.out}`" in run.last_line
    assert run.model.config.num_hidden_layers == 4


@pytest.mark.parametrize(
    ("bound", "rise", "shown"),
    [("0.001%", 0.00002, "0.001%|+0.002%"), ("0.05%", 0.0004, "0.05%|+0.04%"), ("20%", 0.0004, "20.0%|+0.2%")],
)
def test_a_tight_bound_is_shown_with_its_digits(bound, rise, shown, tool, monkeypatch):
    monkeypatch.setattr(bounded, "_perplexity", lambda job: 20 * (1 + rise * (6 - job.decoder.num_layers)))
    run = tool("prunecomp", "--max-perplexity-increase", bound, "--no-evaluation")
    text = run.stderr if run.status else " ".join(run.report["notes"])
    assert all(part in text for part in shown.split("|")), text


def test_without_a_token_nothing_is_begun(tool, logged_in, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    run = tool("linearpatch", "--remove", 2, "--push-to-hub", "me/small")
    assert run.status == 2 and "there is no access token. Log in with `hf auth login`" in run.stderr
    assert not run.out.exists()
