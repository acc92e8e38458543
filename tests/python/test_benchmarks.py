"""The scripts in bench/ that compare with other programs."""

import json
import pathlib
import subprocess
import sys

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
# Packages of mlx_lm's that its models do without, made impossible to import.
RUN_WITHOUT = """
import runpy, sys
for name in ("transformers", "tokenizers", "huggingface_hub", "sentencepiece", "jinja2"):
    sys.modules[name] = None
sys.path.insert(0, {folder!r})
sys.argv = {arguments!r}
runpy.run_path({script!r}, run_name="__main__")
"""


def test_versus_mlx_lm(build_dir, tmp_path):
    script, out = str(BENCH / "versus_mlx_lm.py"), tmp_path / "out.json"
    arguments = [script, "--shape", "smollm2-135m", "--depth", "0,40", "--steps", "2", "--rounds", "2", "--prefill", "4"]
    arguments += ["--kv", "full", "--kv", "turboquant:4", "--tersor", str(build_dir / "bin" / "tersor"), "--out", str(out)]
    code = RUN_WITHOUT.format(folder=str(BENCH), arguments=arguments, script=script)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    record = json.loads(out.read_text(encoding="utf-8"))
    assert record["weights"] == "affine:4,group=64" and record["machine"]["backend"] == "cpu" and len(record["rounds"]) == 2
    assert set(record["tables"]) == {"decode 0", "decode 40", "prefill 4"}
    for table in record["tables"].values():
        assert set(table["medians"]) == {"tersor full", "tersor turboquant:4", "mlx_lm"}
        assert table["ratios"]["tersor full / mlx_lm"] > 0
    assert "tersor turboquant:4 / mlx_lm" in done.stdout


def test_versus_mlx_lm_hands_on_what_is_wrong(build_dir):
    command = [sys.executable, str(BENCH / "versus_mlx_lm.py"), "--tersor", str(build_dir / "bin" / "tersor"), "--shape", "llama-9"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1 and "llama-9" in done.stderr
