"""The shape of the repository: import direction, one environment in two files, a Makefile that knows its targets."""

import ast
import re
from pathlib import Path

import pytest

from reproductions.spec import registry

ROOT = Path(__file__).resolve().parents[1]
# A package may import those before it (figures reads files only).
ALLOWED = {
    "common": {"common"},
    "papers": {"common", "papers"},
    "extensions": {"common", "papers", "extensions", "reproductions", "figures"},
    "reproductions": {"common", "papers", "extensions", "reproductions", "figures"},
    "figures": {"figures"},
}


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("package", ALLOWED)
def test_imports_go_one_way(package):
    # the annotated notebooks lie with their paper, but show what the whole repository says about it
    files = [path for path in (ROOT / package).rglob("*.py") if not path.name.endswith(".nb.py")]
    assert files
    for path in files:
        ours = {name for name in imports(path) if name.split(".")[0] in ALLOWED}
        assert {name.split(".")[0] for name in ours} <= ALLOWED[package], path
        parts = path.relative_to(ROOT).parts
        if package == "papers" or parts[:-1] and parts[1] in registry.PAPERS:
            own, folders = ".".join(parts[:2]).removesuffix(".py"), [f"{package}.{paper}" for paper in registry.PAPERS]
            others = {name for name in ours if name.startswith(tuple(folders)) and not name.startswith(own)}
            assert not others, f"{path} imports another paper: {others}"


def pins(text: str) -> set[str]:
    return set(re.findall(r"^\s*(?:- )?([A-Za-z0-9_.-]+==[^\s#]+)", text, re.M))


def test_conda_and_pip_users_get_the_same_versions():
    lock, conda = (pins((ROOT / name).read_text()) for name in ("requirements.lock", "environment.yml"))
    assert len(lock) > 50
    assert lock == conda


def test_the_lock_has_what_the_project_asks_for():
    lock = {
        line.split("==")[0].lower().replace("_", "-"): line for line in pins((ROOT / "requirements.lock").read_text())
    }
    project = (ROOT / "pyproject.toml").read_text().split("[project.optional-dependencies]")[0]
    wanted = re.findall(r'^    "([A-Za-z0-9_-]+)((?:==[0-9.]+)?)",$', project, re.M)
    assert len(wanted) > 10
    for name, version in wanted:
        pinned = lock[name.lower().replace("_", "-")]
        assert not version or pinned.split("==")[1] == version.removeprefix("=="), pinned


def test_every_target_has_a_makefile_rule():
    makefile = (ROOT / "Makefile").read_text()
    assert registry.targets()
    for target in registry.targets():
        kind = re.match("table|figure", target)
        rule = kind[0] + "%" if kind else target
        assert re.search(rf"^([a-z%-]+ )*{rule}( [a-z%-]+)*:", makefile, re.M), target


def test_nothing_in_the_repository_names_a_machine_path():
    for path in [*ROOT.glob("*.md"), *ROOT.glob("*/**/*.py"), ROOT / "Makefile"]:
        if ".venv" not in path.parts:
            assert "/" + "work/" not in path.read_text(), path


def spoken(tree: ast.AST) -> list[str]:
    """Every name and string in code: docstrings are citations and do not count."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docstrings = {id(node.body[0].value) for node in ast.walk(tree) if isinstance(node, documented) and node.body
                  and isinstance(node.body[0], ast.Expr)}  # fmt: skip
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            found.append(node.value)
        found += [getattr(node, field) for field in ("id", "attr", "name", "arg") if hasattr(node, field)]
    return [text for text in found if isinstance(text, str)]


def test_what_all_papers_share_names_none():
    names = re.compile("linear.?patch|prune.?&?.?comp|laco|reassessing", re.I)
    for path in (ROOT / "common").rglob("*.py"):
        said = [text for text in spoken(ast.parse(path.read_text())) if names.search(text)]
        assert not said, f"{path} names a paper: {said}"
