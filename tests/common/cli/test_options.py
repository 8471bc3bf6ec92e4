"""Most mistakes in a tool's command line are refused before torch is loaded; what is right passes."""

import importlib
import json
import subprocess
import sys
from dataclasses import MISSING, fields
from typing import get_type_hints

import pytest

from common.calibration.statistics import COSINES, ESTIMATORS
from common.cli.options import GROUPS, parsed, tool_parser, tools
from common.training.finetuning import Settings
from common.utils.paths import ROOT
from extensions.refit.method import FOLLOWING
from papers.laco.algorithm import CollapseSettings
from papers.laco.merge import RULES
from papers.linearpatch.patch import KINDS
from papers.linearpatch.steps import LinearPatchRepair

TOOLS = {kind.TOOL: kind for kind in tools()}
MODEL = ["--model", "./nowhere", "--remove", "2", "--out", "out"]


def test_an_option_of_another_tool_names_it(capsys):
    for tool, option, owner in (
        ("papers.laco", "--distill", "extensions.refit, papers.linearpatch"),
        ("extensions.refit", "--finetune", "papers.reassessing"),
    ):
        with pytest.raises(SystemExit):
            parsed(TOOLS[tool], [*MODEL, option, "4"])
        assert f"there is no option {option} here. It belongs to {owner}" in capsys.readouterr().err


def test_what_is_right_passes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps({"num_hidden_layers": 6}))
    (tmp_path / "text.txt").write_text("a text")
    refit = parsed(TOOLS["extensions.refit"], ["--model", "model", "--layers", "2-3", "--out", "out", "--no-graft"])
    assert (refit.layers, refit.no_graft, refit.ridge) == ("2-3", True, None)
    laco = parsed(TOOLS["papers.laco"], ["--model", "model", "--threshold", "0.5", "--out", "out"])
    assert (laco.threshold, laco.remove, laco.samples) == (0.5, None, 10)
    parsed(TOOLS["papers.laco"], ["--model", "model", "--remove=2", "--out=out", "--text", "text.txt"])
    assert capsys.readouterr().err == "" and not (tmp_path / "out").exists()


def test_choices_and_defaults_are_those_of_the_methods():
    def of(tool, name):
        return next(field for field in fields(TOOLS[tool]) if field.name == name)

    def choices(tool, name):
        return set(of(tool, name).metadata["option"].choices)

    for tool in ("extensions.refit", "papers.linearpatch"):
        assert choices(tool, "cosine") == set(COSINES)
    assert choices("papers.linearpatch", "estimator") == set(ESTIMATORS)
    assert choices("papers.linearpatch", "patch") == set(KINDS) - {"rotated"}  # the same map, kept for training
    assert choices("papers.laco", "merge") == set(RULES)
    assert of("papers.linearpatch", "patch").default == LinearPatchRepair().kind
    assert of("papers.laco", "interval").default == CollapseSettings(C=2).I
    assert of("extensions.refit", "following").default == FOLLOWING
    for name in ("last", "epochs"):
        assert of("papers.reassessing", name).default == getattr(Settings, name)


@pytest.mark.parametrize("tool", TOOLS)
def test_help_fits_two_screens_and_every_option_has_its_group_and_help(tool, monkeypatch):
    monkeypatch.setenv("COLUMNS", "112")
    shown = tool_parser(TOOLS[tool]).format_help()
    assert len(shown.splitlines()) <= 2 * 40
    assert [line[:-1] for line in shown.splitlines() if line[:-1] in GROUPS] == list(GROUPS)
    for field in fields(TOOLS[tool]):
        about = field.metadata["option"]
        assert about.group in GROUPS and about.help, field.name
    for name in ("text", "samples", "seed", "device", "dtype", "out", "remove", "layers"):
        assert f"--{name}" in shown


def test_options_of_one_name_mean_the_same_in_every_tool():
    """The name has one type, one group and one unit; a tool may change the default."""
    facts_by_name = {}
    for kind in TOOLS.values():
        types = get_type_hints(kind)
        for field in fields(kind):
            meant = types[field.name], field.metadata["option"].group
            assert facts_by_name.setdefault(field.name, meant) == meant, field.name
            assert field.default is not MISSING or field.name == "model"


@pytest.mark.parametrize(
    "arguments, status, message",
    [
        (["extensions.refit", "--model", "smollm2-135m", "--remove", "29", "--out", "out"], 2, "choose 1..28"),
        (["papers.laco", "--remvoe", "2"], 2, "Did you mean --remove?"),
        (["papers.linearpatch", "--remove", "2"], 2, "--model is missing"),
        (["papers.reassessing", "--help"], 0, "what to remove (give one):"),
        (["papers.laco.posttrain", "--help"], 0, "--checkpoint MODEL"),
        (["common.toy.train", "--help"], 0, "--out OUT"),
        (["extensions.refit", "--help"], 0, "usage: python -m extensions.refit --model MODEL [options]"),
        (["papers"], 0, "python -m papers.prunecomp"),
        (["extensions"], 0, "python -m extensions.refit"),
    ],
)
def test_torch_is_not_loaded_for_it(arguments, status, message, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['torch'] = sys.modules['transformers'] = None")
    environment = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    printed = done.stdout if status == 0 else done.stderr
    assert done.returncode == status and message in printed, done.stderr
    assert status == 0 or len(done.stderr.splitlines()) == 1


def test_every_tool_has_its_method():
    papers = [f"papers.{name}" for name in ("laco", "linearpatch", "prunecomp", "reassessing")]
    assert sorted(TOOLS) == ["extensions.refit", *papers]
    for tool, kind in TOOLS.items():
        method = importlib.import_module(f"{tool}.tool").METHOD
        assert method.options is kind and f"{method.package}.{method.paper}" == tool
