"""The tools: `python -m <module of a method>`."""

import importlib


def module_of(name: str) -> str:
    return f"{'extensions' if name == 'refit' else 'papers'}.{name}"


def method_of(name: str):
    return importlib.import_module(f"{module_of(name)}.__main__").METHOD
