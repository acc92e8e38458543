"""Rules of layout that a formatter does not keep: no file too long to read, no line too wide, no tabs in C++."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("src", "include", "tests", "bench", "scripts", "cmake", "python")
CXX = {".h", ".cpp", ".cu", ".cuh"}
TEXT = CXX | {".py", ".sh", ".cmake", ".txt"}
MAX_LINES = 1000
MAX_COLUMNS = 140
# The source text of chat templates is test data.
DATA = {"test_chat_templates.py"}


def sources():
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in TEXT and path.is_file() and "local" not in path.parts:
                yield path
    yield ROOT / "CMakeLists.txt"


def faults(path):
    lines = path.read_text(encoding="utf-8").split("\n")
    if len(lines) > MAX_LINES + 1:
        yield f"{path}: {len(lines) - 1} lines; split it (at most {MAX_LINES})"
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_COLUMNS and path.name not in DATA:
            yield f"{path}:{number}: {len(line)} columns (at most {MAX_COLUMNS})"
        if "\t" in line and path.suffix in CXX:
            yield f"{path}:{number}: a tab"
        if line != line.rstrip():
            yield f"{path}:{number}: blanks at the end of the line"


def test_sources_keep_the_layout_rules():
    found = [fault for path in sources() for fault in faults(path)]
    assert not found, "\n" + "\n".join(found)


def test_a_bad_file_is_caught(tmp_path):
    bad = tmp_path / "bad.cpp"
    bad.write_text("\tint x;\n" + "y" * 141 + "\nz \n" + "\n" * 1000, encoding="utf-8")
    text = "\n".join(faults(bad))
    for part in (":1: a tab", ":2: 141 columns", ":3: blanks", "1003 lines"):
        assert part in text
