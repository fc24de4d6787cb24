"""Chats are rendered to the same characters as transformers' `apply_chat_template` renders them."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from streamrunner.engine.chat_template import ChatTemplates
from streamrunner.engine.errors import EngineError

if TYPE_CHECKING:
    from pathlib import Path

    from streamrunner.engine.tokenizer import Tokenizer

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
USER = {"role": "user", "content": 'What is 1 < 2 & "3"?\n\n  Say it in 日本語 🙂  '}
ASSISTANT = {"role": "assistant", "content": "Yes."}
SYSTEM = {"role": "system", "content": "Be brief."}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather", "description": "It's <b>here</b>", "parameters": {"type": "object", "properties": {"ü": {}}},
    },
}  # fmt: skip
CALL = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "weather", "arguments": {"ü": 1}}}]}
PARTS = {"role": "user", "content": [{"type": "text", "text": "Look:"}, {"type": "text", "text": "there"}]}
CHATS: list[list[dict[str, Any]]] = [
    [USER],
    [SYSTEM, USER],
    [USER, ASSISTANT, USER],
    [SYSTEM, USER, ASSISTANT],
    [USER, CALL, {"role": "tool", "name": "weather", "content": "sunny"}],
    [PARTS],
    [USER, {**ASSISTANT, "reasoning": "Let me think."}],
    [USER, {**ASSISTANT, "name": None}],
]
# What templates in the wild do: blocks on lines of their own, loop controls, macros, namespaces, JSON, the clock.
TEMPLATES = {
    "blocks": """{{- bos_token }}
{%- set ns = namespace(count=0) %}
{% for m in messages %}
    {% if m.role == 'system' %}
        {% continue %}
    {% endif %}
    {% set ns.count = ns.count + 1 %}
  [{{ m['role'] }}] {% if m.content is string %}{{ m.content | trim }}{% elif m.content %}
    {% for p in m.content %}{{ p.text }}|{% endfor %}{% endif %}

    {% if ns.count > 2 %}{% break %}{% endif %}
{% endfor %}
{% if add_generation_prompt %}<|assistant|>{% else %}{{ eos_token }}{% endif %}
""",
    "tools": """{% if tools %}{{ tools | tojson }}
{{ tools[0] | tojson(indent=2) }}{{ tools | length }}{% endif %}
{% for m in messages %}{{ m | tojson }}{% if 'content' not in m %}<none>{% endif %}
{{ m.tool_calls | tojson if m.tool_calls }}
{% endfor %}""",
    "generation": """{% macro say(m) %}<{{ m.role }}>{{ m.content }}{% endmacro %}
{% for m in messages %}{% if m.role == 'assistant' %}
  {% generation %}{{ say(m) }}{{ m.reasoning_content }}{{ m.thinking }}{{ eos_token }}{% endgeneration %}
{% else %}{{ say(m) }}{% endif %}{% endfor %}{{ pad_token }}{{ unk_token is defined }}{{ dict(a=1) }}""",
    # In the manner of models that think: what was thought before the last question is left out again.
    "thinking": """{%- set ns = namespace(last=messages|length - 1, found=false) %}
{%- for m in messages[::-1] %}{% set at = messages|length - 1 - loop.index0 %}
{%- if not ns.found and m.role == 'user' %}{% set ns.last = at %}{% set ns.found = true %}{% endif %}{% endfor %}
{%- if tools %}# Tools{% for tool in tools %}{{ "\n" }}{{ tool | tojson }}{% endfor %}{% endif %}
{%- for m in messages %}{%- set content = m.content if m.content is string else '' %}
{%- if m.role == 'tool' %}{% if loop.first or loop.previtem.role != 'tool' %}<user>{% endif %}<result>
{{- content }}</result>
{%- if loop.last or loop.nextitem.role != 'tool' %}</user>{% endif %}
{%- else %}<{{ m.role }}>{% if m.reasoning_content is defined and loop.index0 > ns.last %}<think>
{{ m.reasoning_content.strip('\n') }}</think>{% endif %}{{ content.split('</think>')[-1].lstrip('\n') }}
{%- for call in m.tool_calls or [] %}{% set f = call.function or call %}<call>
{"{{ f.name }}": {{ f.arguments | tojson }}}{% endfor %}
{%- endif %}{% endfor %}
{%- if add_generation_prompt %}<assistant>
{%- if enable_thinking is defined and enable_thinking is false %}<think></think>
{%- endif %}{% endif %}""",
    # In the manner of models that take turns only, and know no system.
    "turns": """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set first = messages[0]['content'] + '\n\n' %}
{%- set rest = messages[1:] %}{% else %}{% set first = '' %}{% set rest = messages %}{% endif %}
{%- for m in rest %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Roles must alternate user/assistant') }}{% endif %}
{%- set role = 'model' if m['role'] == 'assistant' else m['role'] %}<turn>{{ role }}
{{ first if loop.first }}{% if m['content'] is string %}{{ m['content'] | trim }}{% elif m['content'] is iterable %}
{%- for item in m['content'] %}{% if item['type'] == 'image' %}<image>{% else %}
{{- item['text'] | trim }}{% endif %}{% endfor %}
{%- endif %}</turn>
{% endfor %}""",
    "clock": "{{ strftime_now('%Y') }}{{ documents | tojson }}{{ style }}{{ messages[0].role[:2] }}",
}  # fmt: skip
DOCUMENTS = [{"title": "T", "text": "Some <text>"}]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What transformers renders, from a process of its own: it needs seconds to import and changes global state."""
    job = tmp_path_factory.mktemp("render") / "job.json"
    job.write_text(json.dumps([TEMPLATES, CHATS, TOOL, DOCUMENTS, SPECIAL]), "utf-8")
    done = subprocess.run([sys.executable, "-P", "-c", _RENDER, str(job)], check=True, capture_output=True)
    rendered: dict[str, str] = json.loads(done.stdout)
    return rendered


_RENDER = """
import json, sys
from transformers.utils.chat_template_utils import _normalize_chat_messages, render_jinja_template
templates, chats, tool, documents, special = json.load(open(sys.argv[1], encoding="utf-8"))
rendered = {}
for name, template in templates.items():
    for number, chat in enumerate(chats):
        for prompt in (False, True):
            for tools in (None, [tool]):
                try:
                    text = render_jinja_template(
                        conversations=[_normalize_chat_messages(chat)], tools=tools, documents=documents,
                        chat_template=template, add_generation_prompt=prompt, style="plain",
                        enable_thinking=False, **special)[0][0]
                except Exception as error:
                    text = "error: " + str(error)
                rendered[f"{name} {number} {prompt} {tools is not None}"] = text
print(json.dumps(rendered))
"""


@pytest.mark.parametrize("tools", [None, [TOOL]], ids=["plain", "tools"])
@pytest.mark.parametrize("prompt", [False, True], ids=["closed", "open"])
@pytest.mark.parametrize("number", range(len(CHATS)))
@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_equal_to_transformers(
    expected: dict[str, str], name: str, number: int, prompt: bool, tools: list[dict[str, Any]] | None
) -> None:
    templates = ChatTemplates({"default": TEMPLATES[name]}, SPECIAL)
    try:
        text = templates.render(
            CHATS[number],
            tools,
            DOCUMENTS,
            add_generation_prompt=prompt,
            variables={"style": "plain", "enable_thinking": False},
        )
    except EngineError as error:
        text = "error: " + error.message.partition("refuses this chat: ")[2]
    theirs = expected[f"{name} {number} {prompt} {tools is not None}"]
    # The one difference: parts that transformers prints as a Python list.
    assert text == theirs.replace(str(PARTS["content"]), "Look:\nthere")


@pytest.mark.model
def test_the_real_model_gets_the_tokens_that_transformers_gives_it(smollm2: Path, smollm2_tokenizer: Tokenizer) -> None:
    chats = [chat for chat in CHATS if all(isinstance(message.get("content"), str) for message in chat)]
    command = [sys.executable, "-P", "-c", _TOKENISE, str(smollm2)]
    done = subprocess.run(command, input=json.dumps(chats).encode(), check=True, capture_output=True)
    rendered = [smollm2_tokenizer.apply_chat_template(chat) for chat in chats]
    assert [smollm2_tokenizer.encode(text, add_special_tokens=False) for text in rendered] == json.loads(done.stdout)


_TOKENISE = """
import json, sys
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
chats = json.load(sys.stdin)
print(json.dumps([tokenizer.apply_chat_template(c, add_generation_prompt=True)["input_ids"] for c in chats]))
"""


# ── refusals ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def render(template: str, messages: list[dict[str, Any]] | None = None) -> str:
    templates = ChatTemplates({"default": template}, SPECIAL)
    return templates.render(
        [USER] if messages is None else messages, None, None, add_generation_prompt=True, variables={}
    )


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].missing.deeper }}", "has no attribute 'missing'"),
        ("{{ messages[0].content + 1 }}", "str"),
        ("{% for m in messages %}", "endfor|end of template"),
        ("{{ messages.append(1) }}", "not safely callable|unsafe|attribute"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ 1 // 0 }}", "zero"),
    ],
)
def test_what_a_template_refuses_is_an_error_with_its_words(template: str, words: str) -> None:
    with pytest.raises(EngineError, match=words) as caught:
        render(template)
    assert caught.value.code == "chat_template_error"
    assert caught.value.param == "messages"


@pytest.mark.parametrize("template", ["{{ messages[0].content }}.", "{{ messages[0].content + '.' }}"])
def test_parts_reach_a_template_that_knows_only_text_as_text(template: str) -> None:
    parts = [{"type": "text", "text": "It's"}, {"type": "text", "text": "here"}]
    assert render(template, [{"role": "user", "content": parts}]) == "It's\nhere."


@pytest.mark.parametrize("kind", ["image", "image_url", "input_audio", "video", "file"])
def test_parts_that_are_no_text_are_refused_by_name(kind: str) -> None:
    parts = [{"type": "text", "text": "Look:"}, {"type": kind, kind: {"url": "x"}}]
    with pytest.raises(EngineError, match=rf"messages\[1\] has an {kind} part: the engine reads text only") as caught:
        render("{{ messages[1].content[0].text }}", [SYSTEM, {"role": "user", "content": parts}])
    assert (caught.value.code, caught.value.param) == ("chat_template_error", "messages")


def test_a_chat_without_messages_is_refused() -> None:
    with pytest.raises(EngineError, match="no messages"):
        render("{{ bos_token }}", [])


def test_a_model_without_template_says_what_to_do() -> None:
    with pytest.raises(EngineError, match=r"`prompt`, or add chat_template\.jinja"):
        ChatTemplates({}, {}).render([USER], None, None, add_generation_prompt=True, variables={})


def test_values_that_are_no_json_never_reach_the_template() -> None:
    with pytest.raises(EngineError, match="object is no JSON value"):
        render("{{ messages[0].content }}", [{"role": "user", "content": object()}])


def test_the_messages_of_the_caller_stay_as_they_are() -> None:
    message = {"role": "assistant", "content": None, "reasoning": "Hm."}
    assert render("{{ messages[0].reasoning_content }}", [message]) == "Hm."
    assert message == {"role": "assistant", "content": None, "reasoning": "Hm."}


# ── where templates come from ────────────────────────────────────────────────────────────────────────────────────────


def test_a_template_file_comes_before_the_config(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("file", "utf-8")
    templates = ChatTemplates.load(tmp_path, {"chat_template": "config"}, {})
    assert templates.render([USER], None, None, add_generation_prompt=True, variables={}) == "file"


def test_chats_with_tools_take_the_template_for_tools_if_there_is_one(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    templates = ChatTemplates.load(tmp_path, {"chat_template": named}, {})
    assert templates.render([USER], [TOOL], None, add_generation_prompt=True, variables={}) == "tools"
    assert templates.render([USER], None, None, add_generation_prompt=True, variables={}) == "plain"
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("file", "utf-8")
    templates = ChatTemplates.load(tmp_path, {"chat_template": "plain"}, {})
    assert templates.render([USER], [TOOL], None, add_generation_prompt=True, variables={}) == "file"
