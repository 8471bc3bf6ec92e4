"""Options for runs that nobody watches: a share of the parameters, a bound on perplexity, JSON, the hub."""

import json
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import HfHubHTTPError
from safetensors import safe_open
from tools import method_of

from common.cli import bounded, main, push
from common.cli.job import Job
from common.models import checkpoint
from common.models.files import hub
from tests.tools import TOOLS, paragraphs


@pytest.fixture
def source(tmp_path, write_checkpoint, short):
    (tmp_path / "text.txt").write_text(paragraphs(200))
    return write_checkpoint(tmp_path / "tiny")


@pytest.fixture
def tool(source, tmp_path):
    def run(paper, *options):
        fixed = ["--model", str(source), "--out", str(tmp_path / "out"), "--text", str(tmp_path / "text.txt")]
        fixed += ["--samples", "4", "--length", "32", "--windows", "4"]
        if paper == "reassessing":
            fixed += ["--finetune", "none"]
        return main(method_of(paper), [*fixed, *options])

    return run


def parameters(path):
    with safe_open(path / "model.safetensors", "pt") as file:
        return sum(torch.Size(file.get_slice(name).get_shape()).numel() for name in file.keys())  # noqa: SIM118


@pytest.mark.parametrize("ratio", ["10%", "0.3", "45%"])
def test_a_share_of_the_parameters_takes_the_fewest_layers_that_hold_it(ratio, tool, source, tmp_path):
    assert tool("reassessing", "--target-ratio", ratio, "--no-evaluation") == 0
    report = json.loads((tmp_path / "out" / "pruning.json").read_text())
    removed, whole = len(report["facts"]["removed"]), parameters(source)
    layer = (whole - parameters(tmp_path / "out")) / removed
    share = float(ratio.removesuffix("%")) / (100 if "%" in ratio else 1)
    assert removed * layer / whole >= share > (removed - 1) * layer / whole
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"--target-ratio {share}" in card and "--remove" not in card


@pytest.mark.parametrize("paper", TOOLS)
def test_a_bound_takes_the_most_layers_that_stay_below_it(paper, tool, tmp_path, monkeypatch):
    """Against every number of layers tried in turn, with the perplexity of each made up."""
    rises, read = {0: 0.0, 1: 0.02, 2: 0.08, 3: 0.3, 4: 0.9}, []

    def perplexity(job):
        read.append(job.decoder.num_layers)
        return 20 * (1 + rises[6 - job.decoder.num_layers])

    monkeypatch.setattr(bounded, "_perplexity", perplexity)
    assert tool(paper, "--max-perplexity-increase", "10%", "--no-evaluation") == 0
    report = json.loads((tmp_path / "out" / "pruning.json").read_text())
    assert len(report["facts"]["removed"]) == 2 and report["layers"]["after"] == 4
    increases = {trial["removed"]: round(trial["increase"], 6) for trial in report["bound"]["tried"]}
    assert increases == {count: rises[count] for count in increases} and {2, 3} <= set(increases)
    assert read[0] == 6 and len(read) <= 4  # the original, and three by halving
    assert "2 layers is the most that keeps perplexity within 10.0%" in " ".join(report["notes"])


def test_the_bound_reads_text_that_neither_calibration_nor_test_reads(source, tool, tmp_path, monkeypatch):
    windows_by_use = {}

    def search(job):
        windows_by_use["job"] = job
        job.options.remove = 1

    monkeypatch.setattr(bounded, "search", search)
    assert tool("linearpatch", "--max-perplexity-increase", "5%", "--no-evaluation") == 0
    job: Job = windows_by_use["job"]
    ids = job.tokenizer((tmp_path / "text.txt").read_text())["input_ids"]
    first, end = int(0.9 * int(0.9 * len(ids))), int(0.9 * len(ids))
    assert job.held_out_windows.flatten().tolist() == ids[first:end][: job.held_out_windows.numel()]
    assert job.test_windows.flatten().tolist() == ids[end:][: job.test_windows.numel()]
    starts = job.crops(500)[:, 0]
    places = {tuple(ids[place : place + 32]) for place in range(first - 32)}
    assert len(starts) == 500 and all(tuple(crop.tolist()) in places for crop in job.crops(500))
    pieces = job.documents(3)
    assert len(job.tokenizer("\n\n".join(pieces))["input_ids"]) <= first


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--target-ratio", "25"], "'25' is not a share. Write it as in --target-ratio 10%"),
        (
            ["--target-ratio", "a quarter"],
            "--target-ratio 'a quarter' is not a share. Write it as in --target-ratio 10%",
        ),
        (["--target-ratio", "97%"], "4 of 6 layers can be removed, which hold"),
        (["--target-ratio", "20%", "--remove", "2"], "--remove and --target-ratio contradict each other"),
        (
            ["--max-perplexity-increase=-1%"],
            "--max-perplexity-increase -0.01: a share is written 10% or 0.1; use 0 to 10",
        ),
        (["--max-perplexity-increase", "nan"], "--max-perplexity-increase nan: a share is written"),
        (["--max-perplexity-increase", "5%", "--stream"], "--max-perplexity-increase reads the model again"),
        (
            ["--max-perplexity-increase", "5%", "--length", "2000"],
            "the part that is held out for --max-perplexity-increase",
        ),
        (["--sweep", "1-2", "--push-to-hub", "me/it"], "--sweep writes none. Leave one of the two out"),
        (["--remove", "2", "--push-to-hub", "me/it"], "HF_HUB_OFFLINE is set. Connect to the hub"),
    ],
)
def test_what_cannot_be_met_is_one_line(options, message, tool, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert tool("linearpatch", *options) == 2
    printed = capsys.readouterr()
    assert message in printed.err.splitlines()[-1] and printed.out == "" and not (tmp_path / "out").exists()


def test_a_bound_below_every_number_says_what_the_smallest_costs(tool, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(bounded, "_perplexity", lambda job: 20.0 + 7 * (6 - job.decoder.num_layers))
    assert tool("prunecomp", "--max-perplexity-increase", "10%") == 2
    assert "removing 1 layer gives perplexity +35.0% on held-out" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("more", [["--remove", "2"], ["--sweep", "1-2"], ["--remove", "2", "--plan"]])
def test_json_is_all_of_standard_output_and_progress_is_not(more, tool, tmp_path, capsys):
    assert tool("linearpatch", *more, "--json") == 0
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert report["status"] == 0 and report["out"] == str(tmp_path / "out")
    if more == ["--remove", "2"]:
        saved = json.loads((tmp_path / "out" / "pruning.json").read_text())
        assert report["evaluation"]["after"] == saved["evaluation"]["after"] and report["layers"] == saved["layers"]
        assert "saved to" in printed.err


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


def test_the_result_goes_to_a_private_repository(tool, tmp_path, logged_in, monkeypatch, capsys):
    client = Hub()
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: client)
    assert tool("linearpatch", "--remove", "2", "--push-to-hub", "small", "--no-evaluation") == 0
    created, uploaded = client.asked
    assert created == ("small", {"private": True, "exist_ok": True})
    assert uploaded["repo_id"] == "me/small" and uploaded["folder_path"] == tmp_path / "out"
    assert "pushed to" in capsys.readouterr().out


def test_a_plan_says_where_it_would_go_and_asks_no_hub(tool, monkeypatch, capsys):
    monkeypatch.setattr(push, "check", lambda repo: pytest.fail("the hub was asked"))
    assert tool("linearpatch", "--remove", "2", "--push-to-hub", "me/small", "--plan") == 0
    assert "would upload the result to me/small, a private repository if it is new" in capsys.readouterr().out


def test_a_push_that_fails_leaves_the_result_and_says_how_to_go_on(tool, tmp_path, logged_in, monkeypatch, capsys):
    response = SimpleNamespace(headers={}, request=None, status_code=403, text="")
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: Hub(HfHubHTTPError("403 Forbidden", response=response)))
    assert tool("linearpatch", "--remove", "2", "--push-to-hub", "them/small", "--no-evaluation") == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert "cannot push to them/small: 403 Forbidden" in error and f"`hf upload them/small {tmp_path / 'out'}`" in error
    assert checkpoint.load(tmp_path / "out")[0].config.num_hidden_layers == 4


def test_without_a_token_nothing_is_begun(tool, tmp_path, logged_in, monkeypatch, capsys):
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    assert tool("linearpatch", "--remove", "2", "--push-to-hub", "me/small") == 2
    assert "there is no access token. Log in with `hf auth login`" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
