"""Markdown, notebooks and source files of the repository as pages; links between files become links between pages."""

from __future__ import annotations

import ast
import base64
import json
import posixpath
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from latex2mathml.converter import convert
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup, escape
from mdit_py_plugins.anchors import anchors_plugin

from common.records.results import ROOT
from reproductions.site import views

PACKAGES = ("common", "papers", "extensions", "reproductions", "figures")


@cache
def sources() -> dict[str, tuple[str, int]]:
    """Dotted name of every module, class, function and method -> (file, line)."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if path.name.endswith(".nb.py"):
                continue
            file = path.relative_to(ROOT).as_posix()
            module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            found[module] = file, 1
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.FunctionDef | ast.ClassDef):
                    found[f"{module}.{node.name}"] = file, node.lineno
                for inner in getattr(node, "body", []) if isinstance(node, ast.ClassDef) else []:
                    if isinstance(inner, ast.FunctionDef):
                        found[f"{module}.{node.name}.{inner.name}"] = file, inner.lineno
    return found


def place(name: str, package: str) -> tuple[str, int] | None:
    """Return (file, line) of a name in a text about a package: dotted, or short where it is unique.

    ``method.select(variant="S")``, ``common.pruning.selection.best_window`` and ``figures/style.py`` are such names.
    """
    name = name.partition("(")[0].strip()
    if name.endswith(".py"):
        return (name, 1) if (ROOT / name).is_file() else None
    if not re.fullmatch(r"[A-Za-z_][\w.]*", name):
        return None
    for dotted in (name, f"{package}.{name}"):
        if dotted in sources():
            return sources()[dotted]
    ends = [
        where for dotted, where in sources().items() if dotted.startswith(f"{package}.") and dotted.endswith(f".{name}")
    ]
    if not ends and name.count(".") and name.startswith("common."):
        last = name.rpartition(".")[2]
        ends = [
            where for dotted, where in sources().items() if dotted.endswith(f".{last}") and dotted.startswith("common.")
        ]
    return ends[0] if len(set(ends)) == 1 else None


class Prose:
    """Turns files of the repository into HTML; notes which source files and figures the pages then need.

    root: the way from the page back to the site's first folder.
    """

    def __init__(self) -> None:
        self.code: set[str] = set()
        self.figures: set[str] = set()
        self._markdown = MarkdownIt("commonmark").enable("table").use(anchors_plugin, max_level=3)

    def code_page(self, file: str, line: int = 1) -> str:
        """Return the address of a source file's page, from the site's first folder."""
        self.code.add(file)
        return f"code/{file.removesuffix('.py').replace('/', '.')}.html" + (f"#L{line}" if line > 1 else "")

    def markdown(self, text: str, file: str, root: str, package: str = "", code: bool = True) -> Markup:
        """HTML of a Markdown text that stands in `file` (from the repository's root).

        Its first heading is left out; the others have the anchors that GitHub gives them.

        package: where short names of code are looked up. code: whether names of code become links.
        """
        text = re.sub(r"\A\s*# [^\n]*\n", "", text)
        tokens = self._markdown.parse(text)
        for token in tokens:
            if token.type == "inline" and token.children:
                token.children = self._linked(token.children, file, root, package if code else None)
        html = self._markdown.renderer.render(tokens, self._markdown.options, {})
        html = re.sub(r"<th(?=[ >])", '<th scope="col"', html)
        html = html.replace("<table>", '<div class="wide" role="region" aria-label="Table" tabindex="0"><table>')
        return Markup(html.replace("</table>", "</table></div>"))  # noqa: S704 - texts of this repository

    def page(self, file: str, href: str, root: str) -> str | None:
        """Return where a link to another file leads on the site; None: nowhere."""
        if re.match(r"[a-z]+:", href) or href.startswith("#"):
            return href
        path, _, anchor = href.partition("#")
        target = posixpath.normpath(posixpath.join(posixpath.dirname(file), path))
        if readme := re.fullmatch(r"papers/(\w+)(/README\.md)?", target):
            return f"{root}papers/{readme[1]}.html" if (ROOT / f"papers/{readme[1]}/README.md").is_file() else None
        if book := re.fullmatch(r"papers/\w+/(\w+)\.ipynb", target):
            return f"{root}notebooks/{book[1]}.html"
        if guide := re.fullmatch(r"docs/([\w-]+)\.md", target):
            return f"{root}guides/{guide[1]}.html"
        if picture := re.fullmatch(r"figures/rendered/([\w.-]+)\.svg", target):
            self.figures.add(f"{picture[1]}.svg")
            return f"{root}figures/{picture[1]}.svg"
        if target.endswith(".py") and (ROOT / target).is_file():
            return root + self.code_page(target)
        known = {"papers/AUDIT.md": "audit.html", "README.md": "index.html"}
        return root + known[target] if target in known else None

    def _linked(self, tokens: list[Token], file: str, root: str, package: str | None) -> list[Token]:
        found, open_links = [], []
        for token in tokens:
            if token.type == "link_open":
                href = self.page(file, token.attrGet("href") or "", root)
                open_links.append(href)
                if href is None:
                    continue
                token.attrSet("href", href)
            elif token.type == "link_close" and open_links.pop() is None:
                continue
            elif token.type == "image":
                token.attrSet("src", self.page(file, token.attrGet("src") or "", root) or "")
                token.attrSet("loading", "lazy")
            elif token.type == "code_inline" and package is not None and not open_links:
                where = place(token.content, package)
                if where:
                    content = f'<a href="{root}{self.code_page(*where)}"><code>{escape(token.content)}</code></a>'
                    token = Token("html_inline", "", 0, content=content)
            found.append(token)
        return found

    def notebook(self, path: Path, root: str, put: Callable[[str, bytes], None]) -> Markup:
        """Return a notebook's cells and stored outputs; its pictures are given to `put` by name."""
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        file, parts, pictures = path.relative_to(ROOT).as_posix(), [], 0
        for cell in cells:
            text = "".join(cell["source"])
            if cell["cell_type"] == "markdown":
                without, formulas = _set_apart(text)
                parts.append(_put_back(self.markdown(without, file, root, code=False), formulas))
                continue
            parts.append(_block(text, "in"))
            for output in cell.get("outputs", []):
                data = output.get("data", {})
                if "image/png" in data:
                    pictures += 1
                    name = f"{path.stem}-{pictures}.png"
                    put(name, base64.b64decode("".join(data["image/png"])))
                    words = escape(_seen(text, sources_of(cells)) or f"Output {pictures} of the notebook")
                    parts.append(f'<p><img src="{name}" alt="{words}" loading="lazy"></p>')
                elif "text/markdown" in data:
                    parts.append(str(self.markdown("".join(data["text/markdown"]), file, root, code=False)))
                else:
                    parts.append(_block("".join(output.get("text", data.get("text/plain", ""))), "out"))
        return Markup("\n".join(parts))  # noqa: S704


def sources_of(cells: list[dict]) -> dict[str, str]:
    """Return which module of figures a notebook calls by which name."""
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    names = re.findall(r"^from figures import (\w+)(?: as (\w+))?", code, re.M)
    return {short or name: f"figures.{name}" for name, short in names}


def _seen(code: str, modules: Mapping[str, str]) -> str:
    """Return what is seen in the picture that a cell of a notebook draws, in a sentence.

    '' where the cell does not tell.
    """
    called = next((found for found in re.finditer(r"\b(\w+)\.(\w+)\(", code) if found[1] in modules), None)
    if called:
        return views.words(f"{modules[called[1]]}:{called[2]}")
    labels = [re.search(rf'{axis}label=f?"([^"]+)"', code) for axis in "yx"]
    return " against ".join(re.sub(r"\{\w+\}", "n", label[1]) for label in labels) if all(labels) else ""


def formula(tex: str, display: str = "inline") -> Markup:
    """Return a TeX formula as MathML, which browsers draw by themselves. display: ``inline`` or ``block``."""
    return Markup(convert(tex, display=display))  # noqa: S704 - texts of this repository


def _set_apart(text: str) -> tuple[str, dict[str, Markup]]:
    """Replace each formula by a word, since Markdown would read its signs, and return the text and the formulas."""
    found: dict[str, Markup] = {}

    def word(match: re.Match) -> str:
        name = f"formula{len(found)}end"
        found[name] = formula(match[1], "block") if match[0].startswith("$$") else formula(match[2])
        return name

    return re.sub(r"\$\$(.+?)\$\$|\$([^$]+?)\$", word, text, flags=re.S), found


def _put_back(html: str, formulas: Mapping[str, Markup]) -> str:
    """Return the formulas in their places; one that is a paragraph of its own may be wider than a narrow window."""
    for name, found in formulas.items():
        frame = f'<div class="wide formula" role="region" aria-label="Formula" tabindex="0">{found}</div>'
        html = str(html).replace(f"<p>{name}</p>", frame).replace(name, str(found))
    return html


def _block(text: str, kind: str) -> str:
    if not text.strip():
        return ""
    about = {"in": "Code", "out": "Output"}[kind]
    frame = f'<div class="wide {kind}" role="region" aria-label="{about}" tabindex="0">'
    return f"{frame}<pre><code>{escape(text)}</code></pre></div>"
