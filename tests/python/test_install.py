"""The installed library serves applications that know only find_package(tersor); one of them is the README's example."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(build_dir, tmp_path_factory):
    """A prefix with the installed project, and the consumers built against it in PREFIX/consumers."""
    prefix = tmp_path_factory.mktemp("prefix")
    run("cmake", "--install", build_dir, "--prefix", prefix)
    shutil.copytree(ROOT / "tests/consumer", prefix / "source")
    run("cmake", "-S", prefix / "source", "-B", prefix / "consumers", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", prefix / "consumers")
    return prefix


def test_an_application_attends_over_a_compressed_cache(installed):
    assert "turboquant:4: 100 tokens" in run(installed / "consumers/attention")


def test_the_readme_example_generates_text(installed, smollm2):
    assert run(installed / "consumers/generate", smollm2).strip()


def test_the_installed_command_runs(installed):
    assert "tersor" in run(installed / "bin/tersor", "--version")


def test_the_readme_shows_the_example_as_it_is():
    (shown,) = re.findall(r"```cpp\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert shown == (ROOT / "tests/consumer/generate.cpp").read_text(encoding="utf-8")
