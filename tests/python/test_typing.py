"""The types that type checkers see."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("headroom._C", reason="the Python package is not built")

from headroom.settings import Options, Settings

import headroom
from headroom import _C

FOLDER = Path(headroom.__file__).parent


def test_the_package_says_that_it_has_types() -> None:
    assert (FOLDER / "py.typed").exists()


def names_in(body: list[ast.stmt]) -> set[str]:
    """Returns the definitions of a stub."""
    defined = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    return defined | {
        node.target.id for node in body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def names_of(thing: object) -> set[str]:
    """Returns the definitions of the extension."""
    return {name for name in vars(thing) if not name.startswith("_")}


def test_stubs_have_the_names_of_the_extension() -> None:
    stub = ast.parse((FOLDER / "_C.pyi").read_text()).body
    assert names_in(stub) == names_of(_C)
    for kind in [node for node in stub if isinstance(node, ast.ClassDef) and node.name != "InvalidInput"]:
        named = {name for name in names_in(kind.body) if not name.startswith("__")}
        assert named == names_of(getattr(_C, kind.name)), kind.name


def test_options_are_the_settings() -> None:
    assert ["budget", *Options.__annotations__] == list(Settings.__dataclass_fields__)


@pytest.mark.parametrize("function", [headroom.plan, headroom.max_batch, headroom.Sequential.__init__])
def test_options_are_typed(function: object) -> None:
    options = inspect.signature(function).parameters["options"]
    assert options.annotation == "Unpack[Options]"


def test_what_is_compiled_has_the_type_of_the_model() -> None:
    signature = inspect.signature(headroom.compile)
    assert signature.parameters["model"].annotation == signature.return_annotation == "Model"
