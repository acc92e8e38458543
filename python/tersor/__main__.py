"""python -m tersor COMMAND: mlx_lm's own commands with compressed caches, and what belongs to them."""

from __future__ import annotations

import argparse
import importlib
import json
import socket
import sys
from pathlib import Path

from . import __version__
from ._native import Error

_USAGE = """python -m tersor COMMAND ...

  generate  mlx_lm.generate with compressed caches
  chat      mlx_lm.chat with compressed caches
  serve     mlx_lm.server with compressed caches
  eval      how far compressed caches move a model's logits on a text
  convert   GGUF FOLDER: a GGUF file as a folder that mlx_lm loads

generate, chat and serve take mlx_lm's own options and --kv SETTING, --kv-keys CODEC, --kv-values CODEC, --kv-window N, --kv-sinks N,
--kv-skip LAYERS (0,-1), --kv-kernels auto|require|forbid, --kv-precision int16|exact, --kv-calibration FILE, --kv-fallback.
"""


def _kv_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument(
        "--kv", action="append", help="what keys and values are stored as, e.g. turboquant:4; the recommended setting unless given"
    )
    parser.add_argument("--kv-keys", metavar="CODEC")
    parser.add_argument("--kv-values", metavar="CODEC")
    parser.add_argument("--kv-window", type=int, metavar="N", help="recent tokens kept in full precision")
    parser.add_argument("--kv-sinks", type=int, metavar="N", help="first tokens kept in full precision")
    parser.add_argument("--kv-skip", metavar="LAYERS", help="attention layers kept in full precision, e.g. 0,-1")
    parser.add_argument("--kv-kernels", default="auto", metavar="POLICY")
    parser.add_argument("--kv-precision", default="int16", metavar="PRECISION")
    parser.add_argument("--kv-calibration", metavar="FILE")
    parser.add_argument("--kv-fallback", action="store_true", help="run even if nothing can be compressed")
    return parser


def _layers(text):
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise Error(f"--kv-skip is {text!r}; give layer numbers separated by commas, like 0,-1") from None


def _options(args: argparse.Namespace) -> dict:
    if args.kv and len(args.kv) > 1:
        raise Error("--kv is given more than once; name one setting (python -m tersor eval compares several)")
    return {
        "kv": args.kv[0] if args.kv else None,
        "keys": args.kv_keys,
        "values": args.kv_values,
        "window": args.kv_window,
        "sinks": args.kv_sinks,
        "skip": _layers(args.kv_skip),
        "kernels": args.kv_kernels,
        "precision": args.kv_precision,
        "calibration": args.kv_calibration,
    }


def _refuse(rest, names, why: str) -> None:
    for name in names:
        if any(argument == name or argument.startswith(name + "=") for argument in rest):
            raise Error(f"{name} {why}")


def _loaded(load, *positional, **named):
    """What mlx_lm loads; whatever goes wrong there is one line."""
    try:
        return load(*positional, **named)
    except Exception as error:
        name = positional[0] if positional else named.get("path_or_hf_repo", "")
        lines = str(error).strip().splitlines()
        where = "mlx_lm cannot load it" if Path(name).exists() else "there is no such folder, and mlx_lm cannot fetch it as a name"
        raise Error(f"--model {name}: {where} ({type(error).__name__}: {lines[0] if lines else 'no message'})") from error


def _check_address(rest) -> None:
    """mlx_lm's server waits for ever when it cannot have its port."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", default="8080")
    address, _ = parser.parse_known_args(rest)
    if not address.port.isdecimal() or not 0 < int(address.port) < 65536:
        raise Error(f"--port {address.port}: give a number from 1 to 65535")
    try:
        family = socket.getaddrinfo(address.host, int(address.port), type=socket.SOCK_STREAM)[0]
        with socket.socket(family[0], family[1]) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(family[4])
    except OSError as error:
        raise Error(f"--host {address.host} --port {address.port}: cannot be served at ({error.strerror}); name another port") from error


def _run_mlx_lm(module_name: str, arguments) -> int:
    """One of mlx_lm's commands, every model that it loads being attached first."""
    args, rest = _kv_parser().parse_known_args(arguments)
    options = _options(args)
    _refuse(rest, ["--kv-bits", "--kv-group-size", "--quantized-kv-start"], "is mlx_lm's own cache quantisation; use --kv")
    _refuse(rest, ["--max-kv-size"], "makes mlx_lm's sliding cache, which is not compressed; leave it out")
    if module_name == "mlx_lm.server":
        _check_address(rest)
    from .attachment import attach, explain
    from .settings import Settings

    Settings.make(options["kv"], **{k: v for k, v in options.items() if k != "kv"})  # bad options show before a model is loaded
    module = importlib.import_module(module_name)
    native_load = module.load

    def load(*positional, **named):
        loaded = _loaded(native_load, *positional, **named)
        report = attach(loaded[0], **options, fallback=args.kv_fallback)
        print(explain(report), file=sys.stderr)
        return loaded

    module.load = load
    before = sys.argv
    sys.argv = [f"{module_name.replace('.', ' ')}", *rest]
    try:
        module.main()
    finally:
        sys.argv, module.load = before, native_load
    return 0


def _eval(arguments) -> int:
    parser = argparse.ArgumentParser(prog="python -m tersor eval", parents=[_kv_parser()], allow_abbrev=False)
    parser.add_argument("--model", required=True, help="a folder or a Hugging Face name, as mlx_lm takes it")
    parser.add_argument("--text", required=True, type=Path, help="a UTF-8 file")
    parser.add_argument("--limit", type=int, help="at most so many tokens")
    parser.add_argument("--chunk", type=int, default=256)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(arguments)
    try:
        text = args.text.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Error(f"--text {args.text}: cannot be read as UTF-8 text ({error})") from error
    settings, args.kv = args.kv, None
    options = {k: v for k, v in _options(args).items() if k != "kv"}
    import mlx_lm

    from .fidelity import evaluate

    model, tokenizer = _loaded(mlx_lm.load, args.model)
    results = evaluate(model, tokenizer, text, settings, limit=args.limit, chunk=args.chunk, fallback=args.kv_fallback, **options)
    for result in results:
        print(json.dumps(result.as_dict()) if args.json else result)
    return 0


def _convert(arguments) -> int:
    parser = argparse.ArgumentParser(prog="python -m tersor convert")
    parser.add_argument("gguf", metavar="GGUF")
    parser.add_argument("folder", metavar="FOLDER")
    parser.add_argument("--dtype", help="of everything that is not a code: float16, bfloat16 or float32 (which is fastest on a CPU)")
    args = parser.parse_args(arguments)
    from .gguf import convert

    print(convert(args.gguf, args.folder, args.dtype))
    return 0


_COMMANDS = {
    "generate": lambda rest: _run_mlx_lm("mlx_lm.generate", rest),
    "chat": lambda rest: _run_mlx_lm("mlx_lm.chat", rest),
    "serve": lambda rest: _run_mlx_lm("mlx_lm.server", rest),
    "eval": _eval,
    "convert": _convert,
}


def main(arguments=None) -> int:
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_USAGE, end="")
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print(f"tersor {__version__}")
        return 0
    command, rest = arguments[0], arguments[1:]
    if command not in _COMMANDS:
        print(f"tersor: no command {command!r}; there are {', '.join(_COMMANDS)}", file=sys.stderr)
        return 2
    try:
        return _COMMANDS[command](rest)
    except Error as error:
        print(f"tersor {command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
