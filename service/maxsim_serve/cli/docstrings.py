"""A corpus that every Python has: the standard library's own docstrings, read without importing anything."""

import ast
import inspect
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Docstring", "docstrings"]

# Packages end with a slash: all of their modules.
_MODULES = """
    argparse bisect calendar collections/ concurrent/ configparser contextlib copy csv dataclasses datetime
    difflib email/ enum fnmatch fractions functools getpass glob gzip heapq html/ http/ inspect json/ logging/
    multiprocessing/ pathlib pickle pprint queue random secrets shelve shutil smtplib socket statistics string
    subprocess tarfile tempfile textwrap threading timeit traceback unittest/ urllib/ uuid weakref webbrowser
    zipfile
"""
_SHORTEST, _LONGEST = 60, 500  # characters


@dataclass(frozen=True)
class Docstring:
    """`name` is dotted, as one would import it."""

    name: str
    text: str

    @property
    def first_sentence(self) -> str:
        paragraph = " ".join(self.text.split("\n\n")[0].split())
        return paragraph.split(". ")[0].rstrip(".")


def docstrings(most: int) -> list[Docstring]:
    """At most `most` docstrings of public modules, classes, functions and methods: no two alike, the same
    ones in every run, and spread over all modules."""
    root = Path(sysconfig.get_path("stdlib"))
    seen: set[str] = set()
    by_module: list[list[Docstring]] = []
    for module in _MODULES.split():
        found = []
        for path in _files(root, module):
            for docstring in _read(path, _dotted(path.relative_to(root))):
                if docstring.text not in seen:
                    seen.add(docstring.text)
                    found.append(docstring)
        by_module.append(sorted(found, key=lambda docstring: docstring.name.count(".")))  # methods last
    # One of each module in turn, so that no large package crowds out the others.
    longest = max(map(len, by_module), default=0)
    turns = [found[i] for i in range(longest) for found in by_module if i < len(found)]
    return turns[:most]


def _files(root: Path, module: str) -> list[Path]:
    if module.endswith("/"):
        paths = sorted((root / module).rglob("*.py"))
        return [path for path in paths if path.name == "__init__.py" or not path.name.startswith("_")]
    return [path for path in (root / f"{module}.py", root / module / "__init__.py") if path.is_file()]


def _dotted(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _read(path: Path, module: str) -> Iterator[Docstring]:
    tree = ast.parse(path.read_bytes())
    yield from _docstring(tree, module)
    for node in tree.body:
        yield from _members(node, module)


def _members(node: ast.stmt, prefix: str) -> Iterator[Docstring]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith(
        "_"
    ):
        name = f"{prefix}.{node.name}"
        yield from _docstring(node, name)
        if isinstance(node, ast.ClassDef):
            for member in node.body:
                yield from _members(member, name)


def _docstring(
    node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, name: str
) -> Iterator[Docstring]:
    text = ast.get_docstring(node)
    if text is not None and len(text) >= _SHORTEST:
        yield Docstring(name, inspect.cleandoc(text)[:_LONGEST])
