"""The pinned bytes that the C++ tests compare the codecs with are still what MLX makes."""

import importlib.util
import json
from pathlib import Path

DATA = Path(__file__).resolve().parents[1] / "data"


def test_the_pinned_bytes_are_mlx_s():
    spec = importlib.util.spec_from_file_location("make_mlx_quantised", DATA / "make_mlx_quantised.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    pinned = json.loads((DATA / "mlx_quantised.json").read_text(encoding="utf-8"))
    fresh = json.loads(json.dumps(module.document()))
    assert pinned["columns"] == fresh["columns"]
    for old, new in zip(pinned["inputs"], fresh["inputs"], strict=True):
        assert old == new, old["dtype"]
