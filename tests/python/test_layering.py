"""The rooms: who may include whom, where MLX may be used, and what a kernel never does. See docs/architecture.md."""

import re
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Room -> rooms whose headers it may include besides its own. kernels stands for every backend in src/kernels.
MAY_INCLUDE = {
    "base": set(),
    "codec": {"base"},
    "kernels": {"base", "codec"},
    "text": {"base"},
    "ops": {"base", "codec", "kernels"},
    "cache": {"base", "codec", "kernels", "ops"},
    "model": {"base", "codec", "text", "ops", "cache"},  # codes and SIMD are not its business
    "cli": {"base", "codec", "text", "kernels", "ops", "cache", "model"},
    "python": {"base", "codec", "text", "kernels", "ops", "cache", "model"},
}
MAY_USE_MLX = {"ops", "cache", "model", "cli", "python"}
# Picks the instruction set once, when the program starts; runs no kernel.
KERNEL_SETUP = {"simd_target"}
UMBRELLA = "tersor/tersor.h"  # every public header in one, for applications; no room includes it

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">]+)[">]', re.MULTILINE)
COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.DOTALL)
NOT_IN_KERNELS = [
    (re.compile(r"\bthrow\b"), "throws"),
    (re.compile(r"\bnew\b"), "allocates with new"),
    (re.compile(r"\b(?:malloc|calloc|realloc|aligned_alloc|posix_memalign)\s*\("), "allocates"),
    (re.compile(r"\bmake_(?:unique|shared)\b"), "allocates"),
    (re.compile(r"\bstd::(?:vector|string|deque|list|map|set|unordered_map|unordered_set|function)\b"), "uses a type that allocates"),
    (re.compile(r"\.(?:push_back|emplace_back|resize|reserve)\s*\("), "grows a container"),
]


def room_of_file(path):
    """The room a source file belongs to, from its place under the checkout's root; None for the umbrella header."""
    parts = path.parts
    if parts[0] == "src":
        return parts[1]
    return None if "/".join(parts[1:]) == UMBRELLA else path.stem


def room_of_include(name, room):
    """The room an include names, or None when it is a system or third-party header."""
    parts = name.split("/")
    if parts[0] == "tersor":
        return "(umbrella)" if name == UMBRELLA else Path(name).stem
    if len(parts) == 1:
        return None
    return parts[0] if parts[0] in MAY_INCLUDE else None


def without_comments(text):
    """Comments become blanks and strings empty, so that words in them do not count; lines stay where they are."""
    return COMMENT_OR_STRING.sub(lambda m: '""' if m[0][0] in "\"'" else "\n" * m[0].count("\n") + " ", text)


def include_faults(path, room, text):
    for match in INCLUDE.finditer(text):
        name = match[1]
        where = f"{path}:{text.count(chr(10), 0, match.start()) + 1}"
        if ".." in name.split("/"):
            yield f"{where}: include by path from src/, not {name}"
        if name.split("/")[0] == "mlx" and room not in MAY_USE_MLX:
            yield f"{where}: room {room} may not use MLX ({name})"
        other = room_of_include(name, room)
        if other and other != room and other not in MAY_INCLUDE[room]:
            yield f"{where}: room {room} may not include {name} of {other}"


def kernel_faults(path, text):
    for number, line in enumerate(without_comments(text).splitlines(), 1):
        if line.lstrip().startswith("#"):
            continue
        for pattern, what in NOT_IN_KERNELS:
            if pattern.search(line):
                yield f"{path}:{number}: a kernel {what}: {line.strip()}"


def sources(root):
    for folder in ("src", "include"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".h", ".cpp", ".cu", ".cuh", ".metal"):
                yield path


def faults(root):
    found = []
    for path in sources(root):
        place = path.relative_to(root)
        room = room_of_file(place)
        if room is None:
            continue
        if room not in MAY_INCLUDE:
            found.append(f"{place}: {room} is not a room; add it to {Path(__file__).name} with the rooms it may include")
            continue
        text = path.read_text(encoding="utf-8")
        found += include_faults(place, room, text)
        if room == "kernels" and place.stem not in KERNEL_SETUP:
            found += kernel_faults(place, text)
    return found


def test_rooms_include_only_rooms_below_them():
    assert not faults(ROOT), "\n" + "\n".join(faults(ROOT))


def test_no_room_depends_on_itself_through_others():
    assert all(room not in MAY_INCLUDE[below] for room, rooms in MAY_INCLUDE.items() for below in rooms)


PLANTED = [
    ("src/base/planted.cpp", '#include "codec/layout.h"\n', "room base may not include codec/layout.h of codec"),
    ("src/codec/planted.cpp", '#include "tersor/ops.h"\n', "room codec may not include tersor/ops.h of ops"),
    ("src/codec/planted.cpp", "#include <mlx/array.h>\n", "room codec may not use MLX"),
    ("src/text/planted.h", '  #  include "mlx/mlx.h"\n', "room text may not use MLX"),
    ("src/text/planted.h", '#include "tersor/codec.h"\n', "room text may not include tersor/codec.h of codec"),
    ("src/kernels/cpu/planted.h", '#include "tersor/cache.h"\n', "room kernels may not include tersor/cache.h of cache"),
    ("src/ops/planted.cpp", '#include "cache/layer_state.h"\n', "room ops may not include cache/layer_state.h of cache"),
    ("src/cache/planted.cpp", '#include "tersor/model.h"\n', "room cache may not include tersor/model.h of model"),
    ("src/model/planted.cpp", '#include "kernels/cpu/x.h"\n', "room model may not include kernels/cpu/x.h of kernels"),
    ("src/model/planted.cpp", '#include "cli/command.h"\n', "room model may not include cli/command.h of cli"),
    ("src/model/planted.cpp", '#include "../cache/x.h"\n', "include by path from src/"),
    ("src/model/planted.cpp", '#include "tersor/tersor.h"\n', "room model may not include tersor/tersor.h"),
    ("include/tersor/codec.h", "#include <mlx/array.h>\n", "room codec may not use MLX"),
    ("include/tersor/cache.h", '#include "tersor/model.h"\n', "room cache may not include tersor/model.h of model"),
    ("src/attic/planted.cpp", "int x;\n", "attic is not a room"),
    ("src/kernels/cpu/planted.cpp", "void f() { throw 1; }\n", "a kernel throws"),
    ("src/kernels/cpu/planted.cpp", "float* f() { return new float[4]; }\n", "a kernel allocates with new"),
    ("src/kernels/cuda/planted.cu", "void* f() { return malloc(4); }\n", "a kernel allocates"),
    ("src/kernels/cpu/planted.cpp", "static std::vector<float> v;\n", "a kernel uses a type that allocates"),
    ("src/kernels/cpu/planted.cpp", "void f(auto& v) { v.push_back(1); }\n", "a kernel grows a container"),
]


@pytest.fixture
def copy(tmp_path):
    for folder in ("src", "include"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    return tmp_path


@pytest.mark.parametrize("place, text, message", PLANTED)
def test_planted_violation_is_caught(copy, place, text, message):
    path = copy / place
    path.parent.mkdir(parents=True, exist_ok=True)
    before = set(faults(copy))
    path.write_text((path.read_text(encoding="utf-8") if path.exists() else "") + text, encoding="utf-8")
    new = set(faults(copy)) - before
    assert any(message in fault and place in fault for fault in new), new


def test_words_in_comments_and_strings_are_no_violations(copy):
    path = copy / "src/kernels/cpu/planted.cpp"
    path.write_text('// never throw, no new memory\n/* std::vector\n malloc( */ const char* s = "throw new";\n', encoding="utf-8")
    assert not [fault for fault in faults(copy) if "planted" in fault]
