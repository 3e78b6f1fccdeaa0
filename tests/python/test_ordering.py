"""Groups of Inductor's kernels, which its scheduler makes only on a GPU. Stubs replace its nodes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("headroom._C", reason="the Python package is not built")

from headroom.exec.inductor import ordering  # noqa: E402
from torch._inductor.dependencies import WeakDep  # noqa: E402


class Node:
    """One kernel, or a group of them."""

    def __init__(
        self, scheduler: SimpleNamespace, name: str, reads: list[str], parts: list[Node] | None = None
    ) -> None:
        self.scheduler, self.name = scheduler, name
        self.parts = parts or [self]
        self.unmet_dependencies = {WeakDep(f"buffer of {read}", mutating_buf="") for read in reads}
        if parts is None:
            scheduler.name_to_buf[f"buffer of {name}"] = SimpleNamespace(defining_op=self)

    def get_name(self) -> str:
        return self.name

    def get_nodes(self) -> list[Node]:
        return self.parts

    def get_operation_names(self) -> set[str]:
        return {part.name for part in self.parts}

    def get_buffer_names(self) -> list[str]:
        return [f"buffer of {part.name}" for part in self.parts]

    def add_fake_dep(self, dependency: WeakDep) -> None:
        self.unmet_dependencies.add(dependency)


def test_ancestors_of_groups_are_those_of_their_parts() -> None:
    scheduler = SimpleNamespace(name_to_buf={})
    first = Node(scheduler, "first", [])
    second = Node(scheduler, "second", ["first"])
    copies = [Node(scheduler, "copy of first", ["first"]), Node(scheduler, "copy of second", ["second"])]
    group = Node(scheduler, "copies", ["first", "second"], copies)
    reader = Node(scheduler, "reader", ["copy of second"])
    ordering._compute_ancestors([first, second, group, reader])
    assert set(group.ancestors) == {"first", "second"}
    assert set(reader.ancestors) == {"first", "second", "copy of second"}
    assert [node.min_order for node in (first, second, group, reader)] == [0, 1, 2, 3]


def test_a_group_waits_for_what_its_parts_are_to_wait_for() -> None:
    scheduler = SimpleNamespace(name_to_buf={})
    first = Node(scheduler, "first", [])
    parts = [Node(scheduler, name, []) for name in ("one", "other")]
    group = Node(scheduler, "group", [], parts)
    ordering._depend(group, first)
    for node in (group, *parts):
        assert [dependency.name for dependency in node.unmet_dependencies] == ["buffer of first"]
    ordering._compute_ancestors([first, group])
    assert set(group.ancestors) == {"first"}
