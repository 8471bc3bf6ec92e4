"""The shape of the repository: import direction, one environment in two files, a Makefile that knows its targets."""

import ast
import graphlib
import re
from collections.abc import Container
from pathlib import Path

import pytest

from reproductions.spec import registry

ROOT = Path(__file__).resolve().parents[1]
# Packages from the bottom to the top: a module imports those of lines above its own, and of its own package.
ORDER = """
common.utils
common.console
common.hadamard
common.toy
common.models common.hooks
common.forward
common.calibration
common.evaluation
common.training
common.pruning
common.records
common.baselines
common.cli
papers
extensions.refit
figures
reproductions.spec
reproductions.linearpatch reproductions.prunecomp reproductions.laco reproductions.reassessing extensions.league
reproductions.audit
reproductions.measurements
reproductions.engine
reproductions.claims
reproductions.render
extensions.documents
reproductions.documents
reproductions.site
reproductions.publish reproductions.command_line
extensions.__main__
reproductions.__main__
"""
LEVELS = {package: level for level, line in enumerate(ORDER.split("\n")) for package in line.split()}
TOGETHER = {"common.models", "common.hooks"}  # a patch is a hook on a layer; surgery and checkpoints move patches
ROOTS = {"common", "papers", "extensions", "reproductions", "figures"}  # their __init__ files import only from below


def sources() -> dict[str, Path]:
    """Every module by its dotted name."""
    files = [path for root in sorted(ROOTS) for path in (ROOT / root).rglob("*.py")]
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in files}


def imports(path: Path, modules: Container[str]) -> set[str]:
    """The modules of ours that a file imports, inside functions too."""
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            imported |= {name if name in modules else node.module for name in names}
    return {name for name in imported if name.split(".")[0] in ROOTS}


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    modules = sources()
    return {name: imports(path, modules) - {name} for name, path in modules.items()}


def package(module: str) -> str | None:
    """The package of ORDER that a module belongs to; None for what only imports from below."""
    parts = module.split(".")
    names = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
    return next((name for name in names if name in LEVELS), None)


def test_every_module_has_its_place(graph):
    assert [name for name in graph if package(name) is None and name not in ROOTS] == []
    assert [name for name in LEVELS if not any(module.startswith(name) for module in graph)] == []


def test_imports_point_down(graph):
    for module, imported in graph.items():
        own = package(module)
        for name in imported if own else ():
            other = package(name)
            allowed = other in (None, own) or LEVELS[other] < LEVELS[own] or {own, other} == TOGETHER
            assert allowed, f"{module} imports {name}, which is above it or beside it"


def test_no_modules_import_one_another_in_a_circle(graph):
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError with the circle


def test_figures_read_records_and_files_alone(graph):
    for module, imported in graph.items():
        if package(module) == "figures":
            assert {name.split(".")[0] for name in imported} <= {"figures"}, module


def test_no_paper_imports_another(graph):
    for module, imported in graph.items():
        if module.startswith("papers."):
            own = module.split(".")[1]
            others = {name for name in imported if name.split(".")[:1] == ["papers"]}
            assert {name.split(".")[1] for name in others if "." in name} <= {own}, module


def pins(text: str) -> set[str]:
    return set(re.findall(r"^\s*(?:- )?([A-Za-z0-9_.-]+==[^\s#]+)", text, re.M))


def test_conda_and_pip_users_get_the_same_versions():
    lock, conda = (pins((ROOT / name).read_text()) for name in ("requirements.lock", "environment.yml"))
    assert len(lock) > 50
    assert lock == conda


def test_the_lock_has_what_the_project_asks_for():
    locked = dict(pin.lower().replace("_", "-").split("==") for pin in pins((ROOT / "requirements.lock").read_text()))
    project = (ROOT / "pyproject.toml").read_text().split("[project.optional-dependencies]")[0]
    requirements = re.findall(r'^    "([A-Za-z0-9_-]+)(?:==([0-9.]+))?",$', project, re.M)
    assert len(requirements) > 10
    for name, version in requirements:
        assert locked[name.lower().replace("_", "-")] == version or not version, name


def test_every_target_has_a_makefile_rule():
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", "")
    unnumbered = re.search("^UNNUMBERED := (.*)", makefile, re.M)[1].split()
    assert "\ntable% figure%:" in makefile
    assert unnumbered == [target for target in registry.targets() if not target.startswith(("table", "figure"))]


def test_no_two_classes_share_a_name():
    places = {}
    for module, path in sources().items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(module)
    assert len(places) > 200
    assert {name: modules for name, modules in places.items() if len(modules) > 1} == {}


def test_nothing_in_the_repository_names_a_machine_path():
    for path in [*ROOT.glob("*.md"), *ROOT.glob("*/**/*.py"), ROOT / "Makefile"]:
        if ".venv" not in path.parts:
            assert "/" + "work/" not in path.read_text(), path


def spoken(tree: ast.AST) -> list[str]:
    """Every name and string in code: docstrings are citations and do not count."""
    documented = [node for node in ast.walk(tree) if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))]
    docstrings = {id(node.body[0].value) for node in documented if node.body and isinstance(node.body[0], ast.Expr)}
    texts = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in docstrings:
            texts.append(node.value)
        texts += [getattr(node, field) for field in ("id", "attr", "name", "arg") if hasattr(node, field)]
    return [text for text in texts if isinstance(text, str)]


def test_what_all_papers_share_names_none():
    names = re.compile("linear.?patch|prune.?&?.?comp|laco|reassessing", re.I)
    for path in (ROOT / "common").rglob("*.py"):
        said = [text for text in spoken(ast.parse(path.read_text())) if names.search(text)]
        assert not said, f"{path} names a paper: {said}"
