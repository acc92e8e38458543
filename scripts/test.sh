#!/usr/bin/env bash
# Runs the tests of a build and prints "N passed, N failed" at the end: scripts/test.sh [PRESET]
# C++ tests through CTest; with the preset release (the default) also tests/python through pytest.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

preset=${1:-release}
folder=build-$preset
[ "$preset" = release ] && folder=build
results=$root/$folder/test-results
rm -rf "$results"
mkdir -p "$results"

status=0
# Each GoogleTest program leaves its own report in the folder, so that its cases can be counted one by one.
GTEST_OUTPUT=json:$results/ ctest --test-dir "$folder" --output-on-failure --no-tests=error --output-junit "$results/ctest.xml" ||
  status=$?

reports=("$results/ctest.xml")
if [ "$preset" = release ]; then
  reports+=("$results/pytest.xml")
  # -qq: the closing line is ours.
  TERSOR_BUILD=$root/$folder .venv/bin/python -m pytest tests/python -qq -p no:cacheprovider --junitxml="$results/pytest.xml" ||
    status=$?
fi
python3 scripts/test_summary.py "${reports[@]}" || status=1
[ $status = 0 ]
