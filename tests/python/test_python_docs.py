"""The examples of docs/python.md run, one after the other, as they are shown."""

from __future__ import annotations

import re

import pytest
from headroom_command import ROOT

torch = pytest.importorskip("torch")
pytest.importorskip("headroom._C", reason="the Python package is not built")

EXAMPLES = re.findall(r"```python\n((?:.*\n)*?)```", (ROOT / "docs" / "python.md").read_text())


@pytest.mark.usefixtures("alone")
@pytest.mark.filterwarnings("ignore:headroom")
def test_examples_run(monkeypatch: pytest.MonkeyPatch) -> None:
    import headroom

    backends = torch._dynamo.backends.registry
    if "headroom" not in backends._BACKENDS:  # The package is not installed, so there is no entry point.
        monkeypatch.setitem(backends._COMPILER_FNS, "headroom", headroom.backend)
        monkeypatch.setitem(backends._BACKENDS, "headroom", None)
    names: dict[str, object] = {}
    torch.manual_seed(0)
    for example in EXAMPLES:
        exec(example, names)
    assert len(EXAMPLES) == 7
    assert names["half"].peak < names["plan"].peak
    assert 1 < names["batch"] < 1024
