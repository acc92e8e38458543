"""Adds up JUnit reports of CTest and pytest and prints one line: N passed, N failed[, N skipped].

A CTest entry that is a GoogleTest program counts with its cases, taken from the JSON report test_NAME.json beside the JUnit file.
Exit status 1 when anything failed, when a report is missing, or when nothing ran.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree


@dataclass
class Count:
    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped


def gtest_cases(report):
    """Counts the cases of one GoogleTest JSON report."""
    count = Count()
    for suite in json.loads(report.read_text(encoding="utf-8"))["testsuites"]:
        for case in suite["testsuite"]:
            if case.get("failures"):
                count.failed += 1
            elif case.get("status") == "NOTRUN" or case.get("result") in ("SKIPPED", "SUPPRESSED"):
                count.skipped += 1
            else:
                count.passed += 1
    return count


def entry(case, folder):
    """Counts one <testcase> of a JUnit report."""
    skip = case.find("skipped")
    skipped = skip is not None or case.get("status") == "disabled"
    # CTest calls a program that it cannot find "notrun" and "skipped"; a test that skips itself names SKIP_RETURN_CODE or the like.
    unstarted = case.get("status") == "notrun" and (skip is None or not skip.get("message", "").startswith("SKIP_"))
    failed = unstarted or case.find("failure") is not None or case.find("error") is not None or case.get("status") == "fail"
    program = folder / f"test_{case.get('name')}.json"
    if program.exists():
        count = gtest_cases(program)
        if failed and count.failed == 0:  # died after or outside its cases: a crash at exit, a sanitizer's report
            count.failed = 1
        return count
    if failed:
        return Count(failed=1)
    return Count(skipped=1) if skipped else Count(passed=1)


def count_report(path):
    if not path.exists():
        print(f"{path}: there is no such report: its tests did not run to the end", file=sys.stderr)
        return Count(failed=1)
    count = Count()
    cases = list(ElementTree.parse(path).getroot().iter("testcase"))
    for case in cases:
        count.add(entry(case, path.parent))
    if not cases:
        print(f"{path}: no test ran", file=sys.stderr)
        count.failed += 1
    return count


def main(paths):
    total = Count()
    for path in paths:
        total.add(count_report(Path(path)))
    skipped = f", {total.skipped} skipped" if total.skipped else ""
    print(f"{total.passed} passed, {total.failed} failed{skipped}")
    return 1 if total.failed or not total.passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
