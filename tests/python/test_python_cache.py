"""The caches of the Python package as mlx_lm's tools use them. Tests named test_oNN_… are cases of users, wrong elsewhere."""

import copy
import gc
import os
import subprocess
import sys
import time
from pathlib import Path

import mlx.core as mx
import mlx_lm
import numpy as np
import pytest
from mlx_lm.generate import generate_step, speculative_generate_step
from mlx_lm.models.cache import load_prompt_cache, make_prompt_cache, save_prompt_cache, trim_prompt_cache

import tersor as ts
from tersor import attention

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import family_configs  # noqa: E402

SDPA = mx.fast.scaled_dot_product_attention


@pytest.fixture(autouse=True)
def nothing_stays_patched():
    yield
    gc.collect()
    assert mx.fast.scaled_dot_product_attention is SDPA
    assert not attention.installed()


@pytest.fixture(scope="module")
def llama():
    return family_configs.build("llama")


def ids(n, seed=3):
    return [(7 * i + seed) % 100 for i in range(n)]


def step(model, tokens, cache):
    return model(mx.array(tokens)[None], cache=cache)[0].astype(mx.float32)


def run(model, tokens, cache, chunk):
    """The last row of every chunk."""
    return mx.stack([step(model, tokens[i : i + chunk], cache)[-1] for i in range(0, len(tokens), chunk)])


def far(a, b):
    return float(mx.abs(a - b).max() / mx.std(b))


def held(cache):
    return sum(c.nbytes for c in cache)


# Attaching and restoring.


def test_restore_puts_back_the_very_same_attributes(llama):
    tokens = ids(30)
    before = run(llama, tokens, make_prompt_cache(llama), 10)
    attributes = dict(vars(llama))
    for _ in range(2):
        report = ts.attach(llama, "turboquant:4")
        assert report and ts.attached(llama) is report
        during = run(llama, tokens, make_prompt_cache(llama), 10)
        assert far(during, before) > 1e-4
        report.restore()
        report.restore()
        assert not report and vars(llama).keys() == attributes.keys()
        assert all(vars(llama)[name] is value for name, value in attributes.items())
        assert mx.fast.scaled_dot_product_attention is SDPA
    assert mx.array_equal(run(llama, tokens, make_prompt_cache(llama), 10), before)


def test_two_models_of_one_family_restore_in_any_order(llama):
    other = family_configs.build("llama")
    for first in (0, 1):
        reports = [ts.attach(llama, "affine:8"), ts.attach(other, "turboquant:2")]
        reports[first].restore()
        rest = (other, llama)[first]
        cache = make_prompt_cache(rest)
        step(rest, ids(5), cache)
        assert isinstance(cache[0], ts.TersorKVCache)
        assert not isinstance(make_prompt_cache((llama, other)[first])[0], ts.TersorKVCache)
        reports[1 - first].restore()


def test_restores_after_an_exception_and_keeps_an_own_make_cache(llama):
    own = lambda: make_prompt_cache(family_configs.build("llama"))  # noqa: E731
    llama.make_cache = own
    try:
        with pytest.raises(ZeroDivisionError), ts.attach(llama, "affine:8"):
            1 / 0
        assert llama.make_cache is own
    finally:
        del llama.make_cache


def test_attaching_twice_is_an_error(llama):
    with ts.attach(llama, "affine:8"):
        with pytest.raises(ts.Error, match="attached already"):
            ts.attach(llama, "affine:8")
        with pytest.raises(ts.Error, match="attached already"):
            ts.make_cache(llama, "affine:8")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (dict(kv="turbo:4"), "turbo:4"),
        (dict(kv="full"), "full precision"),
        (dict(kv="affine:8", keys="affine:4"), "either"),
        (dict(keys="affine:4"), "values= is missing"),
        (dict(kv=4), "a string"),
        (dict(kv="affine:8", window=-1), "window="),
        (dict(kv="affine:8", skip=[9]), "layer 9"),
        (dict(kv="affine:8", kernels="fast"), "kernels="),
        (dict(kv="affine:8", precision="int4"), "precision="),
        (dict(kv="vecinfer:2,sub=4"), "calibration"),
        (dict(kv="affine:4,axis=channel"), "axis=channel is for keys"),
    ],
)
def test_bad_arguments_are_one_line_and_change_nothing(llama, arguments, message):
    with pytest.raises(ts.Error, match=message) as caught:
        ts.attach(llama, **arguments)
    assert "\n" not in str(caught.value)
    assert ts.attached(llama) is None


def test_a_model_that_computes_with_its_keys_is_told_so():
    with pytest.raises(ts.NothingCompressed, match="computes with fetched keys and values itself instead of handing them to attention"):
        ts.attach(family_configs.build("gemma2"), "affine:8")


@pytest.mark.parametrize("command", [["generate", "--prompt", "x"], ["eval", "--text", __file__]])
def test_a_model_that_is_not_there_is_one_line(build_dir, command):
    run = [sys.executable, "-m", "tersor", *command, "--model", "/nowhere/at all"]
    environment = {**os.environ, "PYTHONPATH": str(build_dir / "python"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(run, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 2 and done.stdout == ""
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"tersor {command[0]}: --model /nowhere/at all: there is no such folder") and "Traceback" not in done.stderr


def test_what_is_no_model_is_refused():
    for thing in (None, object()):
        with pytest.raises(ts.Error, match="no language model"):
            ts.attach(thing, "affine:8")


def test_caches_of_a_restored_model_say_so(llama):
    with ts.attach(llama, "affine:8"):
        cache = make_prompt_cache(llama)
    with pytest.raises(ts.Error, match="restored"):
        step(llama, ids(3), cache)


def test_copies_outlive_the_caches_they_are_of(llama):
    def after(make):
        """Logits of a step of what is made of a prompt's caches, which are gone by then."""
        cache = ts.make_cache(llama, "affine:8")
        step(llama, ids(6), cache)
        made = make(cache)
        del cache
        gc.collect()
        return step(llama, ids(1), made)

    expected = after(lambda cache: cache)
    for make in (
        copy.deepcopy,
        lambda cache: [c.merge([c]) for c in cache],
        lambda cache: [c.merge([c]).extract(0) for c in cache],
        lambda cache: copy.deepcopy([c.merge([c]) for c in cache]),
    ):
        assert mx.array_equal(after(make), expected)


def test_a_report_that_nobody_keeps_lives_with_the_model(llama):
    ts.attach(llama, "affine:8")
    gc.collect()
    assert len(ts.attached(llama).replaced) == 4
    with pytest.raises(ts.Error, match="attached already"):
        ts.attach(llama, "affine:4")
    ts.attached(llama).restore()
    assert not isinstance(make_prompt_cache(llama)[0], ts.TersorKVCache)


def test_a_batch_without_sequences_is_empty(llama):
    batch = ts.TersorBatchKVCache.merge([ts.make_cache(llama, "affine:8")[0]])
    batch.filter([])
    assert batch.empty() and batch.size() == 0 and batch.nbytes == 0


def test_compiled_callers_are_refused(llama):
    cache = ts.make_cache(llama, "affine:8")
    with pytest.raises(ts.Error, match="mx.compile"):
        mx.compile(lambda x: llama(x, cache=cache))(mx.array([[1, 2]]))


def test_kernels_forbid_gives_the_same(llama):
    tokens = ids(40)
    fast = run(llama, tokens, ts.make_cache(llama, "turboquant:4", precision="exact"), 13)
    plain = ts.make_cache(llama, "turboquant:4", kernels="forbid")
    assert far(fast, run(llama, tokens, plain, 13)) < 1e-2
    assert not any(choice.fast for choice in plain[0].choices())


# Users' cases.


def test_o02_a_model_that_bypasses_its_cache_is_no_silent_success(llama):
    class Bypassing(type(llama)):
        def __call__(self, inputs, cache=None):
            return super().__call__(inputs, cache=None if cache is None else [None] * len(cache))

    model = family_configs.build("llama")
    model.__class__ = Bypassing
    with pytest.raises(ts.NothingCompressed, match="does not put keys into this cache"):
        ts.attach(model, "turboquant:4")
    report = ts.attach(model, "turboquant:4", fallback=True)
    assert not report and len(report.declined) == 4


def test_o02_a_cache_left_behind_is_detected(llama):
    cache = ts.make_cache(llama, "affine:8")
    step(llama, ids(4), cache)
    cache[2].trim(1)
    with pytest.raises(ts.BypassedCache, match="layer 2"):
        step(llama, ids(1), cache)


def test_o02_a_batch_left_behind_is_detected(llama):
    prompts = [ts.make_cache(llama, "affine:8") for _ in range(2)]
    for cache in prompts:
        step(llama, ids(4), cache)
    for _ in range(2):  # a prompt may go into several batches
        batch = [row[0].merge(list(row)) for row in zip(*prompts)]
        llama(mx.array([[1], [2]]), cache=batch)
    for entry in batch:  # what belongs together changes together
        entry.filter([1, 0])
    llama(mx.array([[1], [2]]), cache=batch)
    twin = copy.deepcopy(batch)
    batch[2].trim(1)
    with pytest.raises(ts.BypassedCache, match="layer 2"):
        llama(mx.array([[1], [2]]), cache=batch)
    llama(mx.array([[1], [2]]), cache=twin)


def test_o03_bytes_are_what_the_allocator_holds(llama):
    for tokens in (1, 255, 256, 257, 1500):
        gc.collect()
        mx.clear_cache()
        before = mx.get_active_memory()
        cache = ts.make_cache(llama, "turboquant:4")
        mx.eval(step(llama, ids(tokens), cache)[-1], [c.state for c in cache])
        gc.collect()
        grown = mx.get_active_memory() - before
        assert held(cache) <= grown <= 1.1 * held(cache) + 4 * 16384, (tokens, grown, held(cache))
        assert tokens < 1000 or held(cache) < 0.35 * tokens * 4 * 2 * 2 * 32 * 4
        del cache


def test_o04_peak_of_a_long_prefill_stays_below_the_uncompressed_one():
    model = family_configs.build("llama")

    def peak(cache):
        gc.collect()
        mx.clear_cache()
        mx.reset_peak_memory()
        for begin in range(0, 4096, 512):
            model(mx.array([ids(512, begin)]), cache=cache)
            mx.eval([c.state for c in cache])
        return mx.get_peak_memory()

    full, compressed = peak(make_prompt_cache(model)), peak(ts.make_cache(model, "turboquant:4"))
    assert compressed <= full + 512 * 4096 * 4


def test_o05_sliding_windows_stay_and_the_other_layers_are_compressed():
    for name in ("gemma3_text", "gpt_oss"):
        model = family_configs.build(name)
        with ts.attach(model, "affine:8,group=32") as report:
            assert {d.native for d in report.declined} == {"RotatingKVCache"} and len(report.replaced) == 2
            cache = make_prompt_cache(model)
            run(model, ids(200), cache, 20)
            for decision, entry in zip(report.decisions, cache):
                held_tokens = entry.size()
                assert held_tokens == 200 if decision.compressed else held_tokens <= 16


def test_o07_latent_attention_is_declined_by_name():
    model = family_configs.build("deepseek_v3")
    with pytest.raises(ts.NothingCompressed, match="attention is all that can be done"):
        ts.attach(model, "turboquant:4")
    report = ts.attach(model, "turboquant:4", fallback=True)
    assert not report and len(report.declined) == 4
    run(model, ids(40), make_prompt_cache(model), 16)


def test_o08_recurrent_states_are_left_alone():
    for name in ("qwen3_next", "falcon_h1", "nemotron_h"):
        model = family_configs.build(name)
        with ts.attach(model, "affine:8,group=32") as report:
            assert report.replaced and all("recurrent" in d.reason for d in report.declined)


def test_o09_borrowed_caches_are_one_and_the_same():
    for name in ("gemma3n", "gemma4_text", "afm7"):
        model = family_configs.build(name)
        expected = run(model, ids(12), make_prompt_cache(model), 4)
        with ts.attach(model, "affine:8,group=32") as report:
            assert report.replaced
            assert far(run(model, ids(12), make_prompt_cache(model), 4), expected) < 0.2


@pytest.mark.parametrize("size", [32, 64, 72, 80, 96, 100, 112, 128, 192, 256])
def test_o10_head_sizes_work_or_are_refused_up_front(size):
    x = mx.random.normal((1, 2, 50, size))
    # Bounds: 1.2 of the relative error at 128.
    for name, bound in (("turboquant:4", 0.115), ("affine:8,group=32", 0.006), ("turboquant-prod:4", 0.265), ("mxfp8", 0.033)):
        try:
            codec = ts.Codec(name, size, "values")
        except ts.Error as error:
            assert "\n" not in str(error) and size not in (64, 128, 256)
            continue
        y = codec.decode(codec.encode(x))
        assert float(mx.sqrt(mx.square(y - x).sum() / mx.square(x).sum())) < bound, name


def batch_logits(model, prompts, kv, steps, events):
    """Rows of a batch through merge, filter and extend; {prompt index: logits of every step}."""
    caches = [make_prompt_cache(model) if kv is None else ts.make_cache(model, kv) for _ in prompts]

    def start(rows):
        batch = [caches[rows[0]][i].merge([caches[r][i] for r in rows]) for i in range(len(caches[0]))]
        lengths = [len(prompts[r]) for r in rows]
        for c in batch:
            c.prepare(lengths=lengths, right_padding=[max(lengths) - n for n in lengths])
        padded = [prompts[r] + [0] * (max(lengths) - len(prompts[r])) for r in rows]
        for begin in range(0, max(lengths), 16):
            model(mx.array([p[begin : begin + 16] for p in padded]), cache=batch)
        for c in batch:
            c.finalize()
        return batch

    rows, batch, out = list(range(len(prompts) - 1)), None, {i: [] for i in range(len(prompts))}
    batch = start(rows)
    for i in range(steps):
        if i == events:  # the first row leaves, a new one comes
            for c in batch:
                c.filter(list(range(1, len(rows))))
            late = start([len(prompts) - 1])
            for c, d in zip(batch, late):
                c.extend(d)
            rows = rows[1:] + [len(prompts) - 1]
        logits = model(mx.array([[9 + i]] * len(rows)), cache=batch)[:, -1].astype(mx.float32)
        for row, value in zip(rows, logits):
            out[row].append(value)
    return out


def test_o12_rows_of_a_batch_equal_rows_alone(llama):
    prompts = [ids(n, n) for n in (3, 17, 64, 65, 11)]
    for kv in ("turboquant:4", "turboquant:4,window=16,sinks=4", "affine:8,group=32"):
        together = batch_logits(llama, prompts, kv, 8, 4)
        for row, values in together.items():
            cache = ts.make_cache(llama, kv)
            for begin in range(0, len(prompts[row]), 16):
                step(llama, prompts[row][begin : begin + 16], cache)
            first = 4 if row == len(prompts) - 1 else 0
            alone = [step(llama, [9 + i], cache)[-1] for i in range(first, first + len(values))]
            assert far(mx.stack(values), mx.stack(alone)) < 2e-3, (kv, row)


def test_o12_left_padding_and_masks_as_arrays(llama):
    cache = ts.TersorBatchKVCache.merge([c[0] for c in (ts.make_cache(llama, "affine:8,group=32") for _ in range(2))])
    cache.prepare(left_padding=[2, 0])
    x = mx.random.normal((2, 2, 5, 32))
    q = mx.random.normal((2, 4, 5, 32))
    assert cache.offset.tolist() == [-2, 0]
    mask = cache.make_mask(5, return_array=True)
    attention.acquire()
    try:
        _, v = cache.update_and_fetch(x, x)
        by_name = cache.attend(q, v, scale=0.2, mask="causal")
        by_array = cache.attend(q, v, scale=0.2, mask=mask)
    finally:
        attention.release()
    assert cache.offset.tolist() == [3, 5]
    assert mx.allclose(by_name, by_array, atol=1e-5)
    alone = mx.fast.scaled_dot_product_attention(q[:1, :, 2:], x[:1, :, 2:], x[:1, :, 2:], scale=0.2, mask="causal")
    assert mx.allclose(by_name[:1, :, 2:], alone, atol=0.03)


@pytest.mark.parametrize("prefix", [0, 1, 63, 64, 65])
@pytest.mark.parametrize("rows", [1, 2, 8, 9, 33])
def test_o13_masks_meet_a_warm_cache(llama, prefix, rows):
    mx.random.seed(prefix * 100 + rows)
    total = prefix + rows
    k, v, q = mx.random.normal((1, 2, total, 32)), mx.random.normal((1, 2, total, 32)), mx.random.normal((1, 6, rows, 32))
    cache = ts.make_cache(llama, "affine:8,group=32")[0]
    if prefix:
        cache.update_and_fetch(k[:, :, :prefix], v[:, :, :prefix])
    _, handle = cache.update_and_fetch(k[:, :, prefix:], v[:, :, prefix:])
    causal = mx.arange(total)[None] <= mx.arange(prefix, total)[:, None]
    additive = mx.where(mx.random.uniform(shape=(1, 6, rows, total)) < 0.3, -1e9, mx.random.normal((1, 6, rows, total)))
    for mask in ("causal", causal, causal[None, None], mx.where(causal, 0.0, -mx.inf), additive, None):
        expected = SDPA(q, k, v, scale=0.2, mask=mask)
        assert mx.abs(cache.attend(q, handle, scale=0.2, mask=mask) - expected).max() < 0.05
    with pytest.raises(ValueError, match="mask"):
        cache.attend(q, handle, scale=0.2, mask=mx.zeros((rows, total + 1)))


def test_o06_learned_sinks_take_a_column(llama):
    k, v, q = mx.random.normal((1, 2, 20, 32)), mx.random.normal((1, 2, 20, 32)), mx.random.normal((1, 4, 3, 32))
    cache = ts.make_cache(llama, "full/affine:8,group=32")[0]
    _, handle = cache.update_and_fetch(k, v)
    for sinks in (mx.array([-30.0, 0, 3, 30]), None):
        expected = SDPA(q, k, v, scale=0.2, mask="causal", sinks=sinks)
        assert mx.abs(cache.attend(q, handle, scale=0.2, mask="causal", sinks=sinks) - expected).max() < 0.03


@pytest.mark.parametrize("k", [1, 20, 31, 32, 33, 63, 64, 65, 255, 256, 300, 301])
def test_o14_trimming_equals_never_having_seen(llama, k):
    tokens, more = ids(320), ids(5, 50)
    for kv, bound in (("turboquant:4", 2e-3), ("turboquant:4,window=24,sinks=4", 0.3)):
        cache, fresh = ts.make_cache(llama, kv), ts.make_cache(llama, kv)
        run(llama, tokens[:300], cache, 300)
        run(llama, tokens[300:], cache, 1)
        assert trim_prompt_cache(cache, k) == k and {c.offset for c in cache} == {320 - k}
        run(llama, tokens[: 320 - k], fresh, 300)
        assert far(run(llama, more, cache, 5), run(llama, more, fresh, 5)) < bound


def test_o14_more_than_there_is(llama):
    cache = ts.make_cache(llama, "affine:8")
    step(llama, ids(7), cache)
    assert trim_prompt_cache(cache, 100) == 7 and cache[0].empty()


def test_o15_saving_gives_the_same_bytes_every_time(llama, tmp_path):
    cache = ts.make_cache(llama, "turboquant:4,window=16,sinks=4", skip=[-1])
    run(llama, ids(90), cache, 40)
    save_prompt_cache(str(tmp_path / "0.safetensors"), cache, {"model": "tiny"})
    first = (tmp_path / "0.safetensors").read_bytes()
    for _ in range(20):
        cache, meta = load_prompt_cache(str(tmp_path / "0.safetensors"), return_metadata=True)
        save_prompt_cache(str(tmp_path / "0.safetensors"), cache, meta)
        assert (tmp_path / "0.safetensors").read_bytes() == first
    again = ts.make_cache(llama, "turboquant:4,window=16,sinks=4", skip=[-1])
    run(llama, ids(90), again, 40)
    assert mx.array_equal(run(llama, ids(6), cache, 1), run(llama, ids(6), again, 1))


def test_o15_a_loaded_cache_belongs_to_no_attachment(llama, tmp_path):
    with ts.attach(llama, "affine:8"):
        cache = make_prompt_cache(llama)
        step(llama, ids(9), cache)
        save_prompt_cache(str(tmp_path / "c.safetensors"), cache)
        loaded = load_prompt_cache(str(tmp_path / "c.safetensors"))
        expected = step(llama, ids(1), cache)
    assert mx.array_equal(step(llama, ids(1), loaded), expected)


def test_o15_a_foreign_cache_is_refused_by_what_differs(llama, tmp_path):
    model = family_configs.build("qwen2")
    model.layers[0].self_attn.n_kv_heads  # the same sizes, so that heads are what differs below
    cache = ts.make_cache(llama, "affine:8,group=32")
    step(llama, ids(5), cache)
    save_prompt_cache(str(tmp_path / "c.safetensors"), cache)
    loaded, *_rest = load_prompt_cache(str(tmp_path / "c.safetensors"))
    with pytest.raises(ts.Error, match="2 KV heads of size 32/32, the model brings 1 of 3 of size 64/64"):
        loaded.update_and_fetch(mx.zeros((1, 3, 1, 64)), mx.zeros((1, 3, 1, 64)))
    state = cache[0].state
    for broken in (["{}", *state[1:]], ["not json"], [], [state[0]], [state[0], mx.zeros((3,))]):
        with pytest.raises(ts.Error):
            ts.TersorKVCache.from_state(broken)


def test_deep_copies_share_nothing(llama):
    cache = ts.make_cache(llama, "turboquant:4,window=16")
    run(llama, ids(30), cache, 30)
    twin = copy.deepcopy(cache)
    one, two = run(llama, ids(9, 1), cache, 1), run(llama, ids(9, 2), twin, 1)
    fresh = ts.make_cache(llama, "turboquant:4,window=16")
    run(llama, ids(30), fresh, 30)
    assert mx.array_equal(run(llama, ids(9, 2), fresh, 1), two) and not mx.array_equal(one, two)


@pytest.mark.parametrize("draft_tokens", [1, 2, 3, 7])
def test_o16_a_model_that_drafts_for_itself_is_always_right(llama, draft_tokens):
    draft = family_configs.build("llama")
    prompt = mx.array(ids(20))
    for kv in ("turboquant:4", "turboquant:4,window=16"):
        plain = [t for t, _ in generate_step(prompt, llama, max_tokens=256, prompt_cache=ts.make_cache(llama, kv))]
        both = ts.make_cache(llama, kv) + ts.make_cache(draft, kv)
        tokens = list(speculative_generate_step(prompt, llama, draft, num_draft_tokens=draft_tokens, max_tokens=256, prompt_cache=both))
        assert [int(t) for t, *_ in tokens] == [int(t) for t in plain]
        accepted = [bool(from_draft) for *_, from_draft in tokens]
        assert sum(accepted) >= 256 * draft_tokens // (draft_tokens + 1), kv  # but one of every round comes from the draft


def test_steps_ahead_copy_nothing(llama):
    cache = ts.make_cache(llama, "turboquant:4")
    cache[0]._cache  # made by the first step
    y = mx.argmax(step(llama, ids(600), cache)[-1:], axis=-1)
    mx.eval(y)
    mx.reset_peak_memory()
    start = mx.get_active_memory()
    for _ in range(60):
        y = mx.argmax(llama(y[None], cache=cache)[0, -1:], axis=-1)
        mx.async_eval(y)
    mx.eval(y)
    assert mx.get_peak_memory() - start < held(cache)


def test_generate_stream_and_batch_generate_run_unchanged(smollm2, tmp_path):
    model, tokenizer = mlx_lm.load(str(ts.convert(smollm2, tmp_path / "m")))
    prompts = ["A lighthouse is", "One, two, three, four,"]
    with ts.attach(model, "affine:8"):
        single = [mlx_lm.generate(model, tokenizer, prompt=p, max_tokens=6) for p in prompts]
        streamed = "".join(r.text for r in mlx_lm.stream_generate(model, tokenizer, prompt=prompts[0], max_tokens=6))
        together = mlx_lm.batch_generate(model, tokenizer, prompts=[tokenizer.encode(p) for p in prompts], max_tokens=6).texts
    assert streamed == single[0] and [text.strip() for text in together] == [text.strip() for text in single]


def test_another_library_s_quick_start_runs_with_the_import_changed(llama):
    from tersor import KVCacheBuilder, KVCacheConfig

    config = KVCacheConfig(method="turboquant_rvq", bit_width_inlier=1, seed=42)
    caches = KVCacheBuilder.for_model(llama, config)
    llama.make_cache = lambda *_a, **_k: caches
    try:
        run(llama, ids(20), make_prompt_cache(llama), 5)
        assert all(c.offset == 20 and "turboquant-rvq:1+1" in c.label for c in caches)
    finally:
        del llama.make_cache
    assert KVCacheConfig(method="turboquant_prod", bit_width_inlier=3).settings()["kv"] == "turboquant-prod:3"
    assert KVCacheConfig(method="qjl", head_dim=64, use_metal_kernels=False).settings()["kernels"] == "forbid"
    for bad in (dict(method="snapkv"), dict(method="qjl"), dict(use_metal_kernels="yes")):
        with pytest.raises(ts.Error):
            KVCacheConfig(**bad)


@pytest.mark.parametrize("example", ["generate.py", "batch.py", "save_resume.py", "long_document.py", "evaluate.py"])
def test_examples_run(example, build_dir, smollm2, tmp_path):
    model = ts.convert(smollm2, tmp_path / "m")
    text = tmp_path / "text.txt"
    text.write_text("A lighthouse stands where the river meets the sea. " * 3)
    more = {"save_resume.py": [tmp_path / "c.safetensors"], "long_document.py": [text, 30], "evaluate.py": [text, 30]}.get(example, [])
    done = subprocess.run(
        [sys.executable, Path(__file__).resolve().parents[2] / "examples" / example, model, *map(str, more)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(build_dir / "python"), "MLX_DISABLE_COMPILE": "1"},
        timeout=300,
    )
    assert done.returncode == 0 and done.stdout.strip(), done.stderr


def attention_seconds(cache, k, v, q, steps=12):
    """The fastest of some decode steps over a filled cache."""
    cache.update_and_fetch(k, v)
    mx.eval(cache.state)
    best = float("inf")
    for _ in range(steps):
        begin = time.perf_counter()
        keys, values = cache.update_and_fetch(k[:, :, :1], v[:, :, :1])
        mx.eval(mx.fast.scaled_dot_product_attention(q, keys, values, scale=0.125, mask=None))
        best = min(best, time.perf_counter() - begin)
    return best


def test_o01_a_smaller_cache_is_attended_faster(llama):
    k, v, q = (mx.random.normal((1, heads, length, 64)) for heads, length in ((3, 4096), (3, 4096), (9, 1)))
    mx.eval(k, v, q)
    plain = attention_seconds(make_prompt_cache(llama)[0], k, v, q)
    for kv in ("turboquant:2", "turboquant:3", "turboquant:4", "affine:4", "affine:8"):
        assert attention_seconds(ts.make_cache(llama, kv)[0], k, v, q) < plain, kv


def test_o11_memory_of_large_heads_grows_with_the_context_alone(llama):
    peaks = []
    for length in (1024, 2048, 4096):
        k, q = mx.random.normal((1, 2, length, 256)), mx.random.normal((1, 8, 256, 256))
        cache = ts.make_cache(llama, "turboquant:4")[0]
        _, v = cache.update_and_fetch(k, k)
        mx.eval(cache.state, q)
        start = mx.get_active_memory()
        mx.reset_peak_memory()
        mx.eval(cache.attend(q, v, scale=0.06, mask="causal"))
        peaks.append(mx.get_peak_memory() - start)
    assert peaks[2] <= 2 * peaks[0] + (1 << 20)  # scores of 8 heads x 256 rows x 4096 columns would be 33 MB
