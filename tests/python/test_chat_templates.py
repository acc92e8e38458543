"""Conversations: ids equal to the template's rendering by Jinja followed by the `tokenizers` library, for the families that are known.

The templates have the essential structure of the public ones (tools left out)."""

import json
import os
import pathlib
import struct
import subprocess

import pytest

tokenizers = pytest.importorskip("tokenizers")
jinja2 = pytest.importorskip("jinja2")
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
DRIVER = pathlib.Path(os.environ.get("TERSOR_BUILD", ROOT / "build")) / "bin" / "text_driver"

SPECIALS = [
    "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]",
]  # fmt: skip

QWEN25 = r"""{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are Qwen, created by Alibaba Cloud. You are a helpful assistant.' }}
    {%- endif %}
    {{- "\n\n# Tools\n\n<tools>" }}
    {{- "\n</tools>\n\n<tool_call>\n</tool_call><|im_end|>\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""

QWEN3 = r"""{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- set content = message.content %}
        {%- set reasoning_content = '' %}
        {%- if '</think>' in message.content %}
            {%- set content = message.content.split('</think>')[-1].lstrip('\n') %}
            {%- set reasoning_content = message.content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\n<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {#- <tool_call> #}
{%- endif %}"""

CHATML = r"""{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

LLAMA30 = r"""{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>

'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>

' }}{% endif %}"""

LLAMA31 = r"""{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{#- This block extracts the system message, so we can slot it into the right place. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{%- if builtin_tools is defined %}
    {{- "Environment: ipython\n" }}
{%- endif %}
{{- "Cutting Knowledge Date: December 2023\n" }}
{{- "Today Date: " + date_string + "\n\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""

MISTRAL_V1 = r"""{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token + ' ' }}{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"""

MISTRAL_HEAD = r"""{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('After the optional system message, conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- if message["role"] == "user" %}
"""

MISTRAL_V2 = MISTRAL_HEAD + r"""        {%- if loop.first and system_message is defined %}
            {{- ' [INST] ' + system_message + '\n\n' + message['content'] + ' [/INST]' }}
        {%- else %}
            {{- ' [INST] ' + message['content'] + ' [/INST]' }}
        {%- endif %}
    {%- elif message['role'] == 'assistant' %}
        {{- ' ' + message['content'] + eos_token}}
    {%- endif %}
{%- endfor %}"""

MISTRAL_V3 = MISTRAL_HEAD + r"""        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\n\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- endif %}
{%- endfor %}"""

NEMO = MISTRAL_HEAD + r"""        {%- if loop.last and system_message is defined %}
            {{- "[INST]" + system_message + "\n\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST]" + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- message["content"] + eos_token}}
    {%- endif %}
{%- endfor %}"""

SMALL = r"""{%- set default_system_message = "You are Mistral Small." %}
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set system_message = default_system_message %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- '[SYSTEM_PROMPT]' + system_message + '[/SYSTEM_PROMPT]' }}
{%- for message in loop_messages %}
    {%- if message['role'] == 'user' %}
        {{- '[INST]' + message['content'] + '[/INST]' }}
    {%- elif message['role'] == 'assistant' %}
        {{- message['content'] + eos_token }}
    {%- endif %}
{%- endfor %}"""

TEMPLATES = {
    "chatml": CHATML, "qwen2.5": QWEN25, "qwen3": QWEN3, "llama3.0": LLAMA30, "llama3.1": LLAMA31, "mistral1": MISTRAL_V1, "mistral2": MISTRAL_V2, "mistral3": MISTRAL_V3, "nemo": NEMO,
    "small": SMALL,
}  # fmt: skip

USER_FIRST = [
    [["user", "Hello"]],
    [["user", "Hi"], ["assistant", "Hello there."], ["user", "More, please?"]],
    [["user", "  spaces \n"], ["assistant", "\n\n reply \n"], ["user", "\n"]],
    [["user", "think"], ["assistant", "<think>\nlet me see\n</think>\n\nDone."], ["user", "and?"]],
    [["user", "q"], ["assistant", "<think>\nwhy\n</think>\n\nA."]],
    [["user", "q"], ["assistant", "plain"]],
    [["user", "\u00e9\u65e5 \U0001f389"]],
]
CONVERSATIONS = USER_FIRST + [[["system", " Be brief.\n"], *c] for c in USER_FIRST]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator([QWEN25, LLAMA31, MISTRAL_V2], trainer)
    tokenizer.add_special_tokens(SPECIALS)
    path = tmp_path_factory.mktemp("chat")
    tokenizer.save(str(path / "tokenizer.json"))
    for name, source in TEMPLATES.items():
        chat_template = [{"name": "tools", "template": "x"}, {"name": "default", "template": source}] if name == "nemo" else source
        config = {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}, "chat_template": chat_template}
        (path / f"{name}.json").write_text(json.dumps(config))
    return path


def chat(folder, name, messages, continuation=False):
    record = json.dumps({"messages": messages, "continuation": continuation}).encode()
    command = [str(DRIVER), str(folder / "tokenizer.json"), str(folder / f"{name}.json"), "chat"]
    done = subprocess.run(command, input=struct.pack("<I", len(record)) + record, capture_output=True, check=True)
    return done.stdout.decode().rstrip("\n")


class Refused(Exception):
    pass


def render(name, messages):
    def refuse(message):
        raise Refused(message)

    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = refuse
    template = environment.from_string(TEMPLATES[name])
    return template.render(
        messages=[{"role": r, "content": c} for r, c in messages], add_generation_prompt=True, bos_token="<s>", eos_token="</s>"
    )


@pytest.mark.parametrize("name", TEMPLATES)
def test_ids_equal_the_rendering(folder, name):
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for messages in CONVERSATIONS:
        line = chat(folder, name, messages)
        try:
            text = render(name, messages)
        except Refused:
            assert line.startswith("! "), messages
            continue
        assert not line.startswith("!"), line
        ids = [int(word) for word in line.split()]
        assert ids == tokenizer.encode(text, add_special_tokens=False).ids, (
            messages,
            text,
            tokenizer.decode(ids, skip_special_tokens=False),
        )


@pytest.mark.parametrize("name", ["chatml", "qwen2.5", "qwen3", "llama3.0", "llama3.1", "mistral1", "mistral2", "nemo", "small"])
def test_continuation_joins_on(folder, name):
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    start = chat(folder, name, [["user", "Hi"]]).split()
    rest = chat(folder, name, [["user", "More"]], continuation=True).split()
    whole = chat(folder, name, [["user", "Hi"], ["assistant", "Hello."], ["user", "More"]]).split()
    reply = " Hello." if name == "mistral2" else "Hello."
    middle = [str(i) for i in tokenizer.encode(reply, add_special_tokens=False).ids]
    assert start + middle + rest == whole


@pytest.mark.parametrize("name", TEMPLATES)
def test_contents_never_become_special(folder, name):
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    special = {tokenizer.token_to_id(s) for s in SPECIALS}
    count = lambda line: sum(int(word) in special for word in line.split())  # noqa: E731
    assert count(chat(folder, name, [["user", "".join(SPECIALS)]])) == count(chat(folder, name, [["user", "harmless"]]))
    assert (
        tokenizer.decode([int(w) for w in chat(folder, name, [["user", "".join(SPECIALS)]]).split()], skip_special_tokens=False).count(
            "<|eot_id|>"
        )
        >= 1
    )


def test_refusals_say_why(folder):
    assert "role" in chat(folder, "chatml", [["tool", "x"]])
    assert "at least one message" in chat(folder, "chatml", [])
    assert "in turn" in chat(folder, "nemo", [["user", "a"], ["user", "b"]])
