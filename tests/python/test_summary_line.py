"""scripts/test_summary.py counts what really ran: cases, crashes, missing reports."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/test_summary.py"


def summary(*reports):
    done = subprocess.run([sys.executable, SCRIPT, *reports], capture_output=True, text=True, check=False)
    return done.stdout.strip().splitlines()[-1], done.returncode


def junit(path, *cases):
    path.write_text("<testsuite>" + "".join(cases) + "</testsuite>", encoding="utf-8")
    return path


def gtest(path, *cases):
    path.write_text(json.dumps({"testsuites": [{"testsuite": list(cases)}]}), encoding="utf-8")


PASSED = {"status": "RUN", "result": "COMPLETED"}
FAILED = {"status": "RUN", "result": "COMPLETED", "failures": [{"failure": "x"}]}
SKIPPED = {"status": "RUN", "result": "SKIPPED"}
DISABLED = {"status": "NOTRUN", "result": "SUPPRESSED"}


def test_cases_of_programs_are_counted_one_by_one(tmp_path):
    ctest = junit(tmp_path / "ctest.xml", '<testcase name="codec" status="run"/>', '<testcase name="driver" status="run"/>')
    gtest(tmp_path / "test_codec.json", PASSED, PASSED, SKIPPED, DISABLED)
    python = junit(tmp_path / "pytest.xml", '<testcase name="a"/>', '<testcase name="b"><skipped/></testcase>')
    assert summary(ctest, python) == ("4 passed, 0 failed, 3 skipped", 0)


def test_failures_of_every_kind_are_counted(tmp_path):
    fail = '<testcase name="{}" status="fail"><failure/></testcase>'
    ctest = junit(tmp_path / "ctest.xml", *(fail.format(name) for name in ("codec", "cache", "ops")))
    gtest(tmp_path / "test_codec.json", PASSED, FAILED, FAILED)
    gtest(tmp_path / "test_cache.json", PASSED, PASSED)  # all cases passed, then the program died
    python = junit(tmp_path / "pytest.xml", '<testcase name="a"><error/></testcase>')
    assert summary(ctest, python) == ("3 passed, 5 failed", 1)


def test_a_program_that_was_not_built_is_a_failure(tmp_path):
    missing = '<testcase name="ops" status="notrun"><skipped message="Unable to find executable: test_ops"/></testcase>'
    skipped = '<testcase name="gpu" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/></testcase>'
    assert summary(junit(tmp_path / "ctest.xml", '<testcase name="base" status="run"/>', missing, skipped)) == (
        "1 passed, 1 failed, 1 skipped",
        1,
    )


def test_a_missing_or_empty_report_is_a_failure(tmp_path):
    assert summary(tmp_path / "none.xml") == ("0 passed, 1 failed", 1)
    assert summary(junit(tmp_path / "empty.xml")) == ("0 passed, 1 failed", 1)
