"""The installed library serves an application that knows only find_package(tersor)."""

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_an_application_links_the_installed_library(build_dir, tmp_path):
    prefix = tmp_path / "prefix"
    run("cmake", "--install", build_dir, "--prefix", prefix)
    shutil.copytree(ROOT / "tests/consumer", tmp_path / "consumer")
    run("cmake", "-S", tmp_path / "consumer", "-B", tmp_path / "build", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", tmp_path / "build")
    assert "turboquant:4: 100 tokens" in run(tmp_path / "build/consumer")
    assert "tersor" in run(prefix / "bin/tersor", "--version")
