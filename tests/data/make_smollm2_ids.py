"""Writes smollm2_llamacpp_ids.json: the ids that llama.cpp gives for a fixed corpus with SmolLM2's GGUF.

Needs llama-cpp-python; run as `python make_smollm2_ids.py MODEL.gguf`. Each record is [text, ids without specials, ids with specials].
"""

import json
import pathlib
import random
import sys
import unicodedata

HAND_PICKED = [
    "",
    " ",
    "  ",
    "\n",
    "\r\n",
    "\t\t",
    " \n ",
    "\u00a0",
    "\u3000 a",
    "a\u00a0b",
    "Hello, world!",
    "don't I'LL we've HE'D it's IT'S 'S 's",
    "2024",
    "1,234.5 \u00bd \u00b2 \u2167 \u0663\u0664\u0665",
    "x<|im_end|>y",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|",
    "<|endoftext|><|endoftext|>",
    " <repo_name> a <file_sep> ",
    "e\u0301 \u00e9 \u212b \ufb01",
    "\u65e5\u672c\u8a9e\u3001\u4e2d\u6587\u3002\ud55c\uad6d\uc5b4",
    "\u0627\u0644\u0639\u0631\u0628\u064a\u0629 \u0661\u0662\u0663",
    "\u05e9\u05dc\u05d5\u05dd",
    "\u0928\u092e\u0938\u094d\u0924\u0947",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f3f3\ufe0f\u200d\U0001f308 \U0001f1e9\U0001f1ea",
    "\U0001f389" * 50,
    "a" * 500,
    " " * 500,
    "\n" * 300,
    " \n" * 100,
    "1" * 300,
    "def f(x):\n    return x  # comment\n\n\n",
    "\tif (a)\r\n\t\tb();\r\n",
    "http://example.com/?a=b&c=d",
    '{"k": [1, 2]}',
    "\x01\x04\x7f",
    "\ufffd",
    "trailing   ",
    "   leading",
    "a  b   c    d",
    "...!!!???",
    "-- --- ----",
    "CamelCaseAndUPPER",
    "snake_case_name",
    "na\u00efve caf\u00e9",
    "\u200b\u200d\ufeff",
    "\u2028\u2029",
    "\x85",
]
PIECES = [
    "'s",
    "'LL",
    "'ve",
    "'",
    " ",
    "  ",
    "\n",
    "\r\n",
    "\t",
    "\u00a0",
    "\u2003",
    "\u200d",
    "the",
    " quick",
    "Don",
    "1",
    "23",
    "456",
    "\u0663",
    "\u00bd",
    "\u65e5",
    "\u672c\u8a9e",
    "\u0627",
    "\u00e9",
    "e\u0301",
    "\u0323",
    "\U0001f469",
    "\u200d\U0001f467",
    "\U0001f3fd",
    "\ufe0f",
    "<|im_start|>",
    "<|im_end|>",
    "<repo_name>",
    "<",
    "|>",
    "!",
    "?!",
    "_",
    "$",
    "\uff21",
    "\u0e44\u0e17\u0e22",
    "\u0939\u093f",
    "\uac01",
    ".",
    ",",
]


def strings():
    rng = random.Random(2)
    yield from HAND_PICKED
    for _ in range(400):
        yield "".join(rng.choice(PIECES) for _ in range(rng.randint(1, 12)))
    planes = [
        (0x20, 0x7F),
        (0x80, 0x250),
        (0x250, 0x900),
        (0x900, 0x3000),
        (0x3000, 0xD800),
        (0xF900, 0x10000),
        (0x10000, 0x20000),
        (0x20000, 0x2A6DE),
    ]
    for _ in range(250):
        codes = [rng.randrange(*rng.choice(planes)) for _ in range(rng.randint(1, 10))]
        yield "".join(chr(c) for c in codes if unicodedata.category(chr(c)) not in ("Cn", "Co"))


def main():
    from llama_cpp import Llama

    model = Llama(sys.argv[1], vocab_only=True, verbose=False)
    records = [
        [s, model.tokenize(s.encode(), add_bos=False, special=False), model.tokenize(s.encode(), add_bos=False, special=True)]
        for s in strings()
    ]
    target = pathlib.Path(__file__).with_name("smollm2_llamacpp_ids.json")
    target.write_text("[\n" + ",\n".join(json.dumps(r, separators=(",", ":")) for r in records) + "\n]\n")


if __name__ == "__main__":
    main()
