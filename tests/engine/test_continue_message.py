"""Going on with a chat's last message ends where transformers ends it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from streamrunner.engine.chat_template import ChatTemplates, cut_at_mark, mark_end
from streamrunner.engine.errors import EngineError

TEMPLATES = {
    "as is": "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>\n{% endfor %}",
    "trimmed": "{% for m in messages %}[{{ m.role }}] {{ m.content | trim }} </s>{% endfor %}",
    "parts": "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}|{% endfor %}",
}
USER = {"role": "user", "content": "Say yes, yes"}
LAST: list[Any] = ["yes", " yes ", "yes,\n", "<b>1</b> yes", "日本 🙂 ", [{"type": "text", "text": "yes "}]]

_RENDER = """
import json, sys
from transformers.utils.chat_template_utils import render_jinja_template
def render(template, chat):
    return render_jinja_template(conversations=[chat], chat_template=template, continue_final_message=True)[0][0]
print(json.dumps([render(*one) for one in json.load(sys.stdin)]))
"""


def test_equal_to_transformers() -> None:
    chats = [[USER, {"role": "assistant", "content": content}] for content in LAST]
    given = [
        (template, chat) for name, template in TEMPLATES.items() for chat in chats[: None if name == "parts" else -1]
    ]
    command = [sys.executable, "-P", "-c", _RENDER]
    done = subprocess.run(command, input=json.dumps(given).encode(), capture_output=True, check=True)
    for (template, chat), expected in zip(given, json.loads(done.stdout), strict=True):
        templates = ChatTemplates({"default": template}, {})
        rendered = templates.render(mark_end(chat), None, None, add_generation_prompt=False, variables={})
        assert cut_at_mark(rendered) == expected


@pytest.mark.parametrize("content", [None, " \n", "", [{"type": "image"}], []])
def test_what_has_no_text_cannot_be_continued(content: Any) -> None:
    with pytest.raises(EngineError, match="no text to continue") as caught:
        mark_end([USER, {"role": "assistant", "content": content}])
    assert caught.value.code == "chat_template_error"


def test_a_chat_without_messages_cannot_be_continued() -> None:
    with pytest.raises(EngineError, match="no messages"):
        mark_end([])


def test_a_template_that_drops_the_text_is_told() -> None:
    with pytest.raises(EngineError, match="does not show the text") as caught:
        cut_at_mark("<user>Say yes</s>")
    assert caught.value.code == "chat_template_error"


def test_the_callers_messages_stay_as_they_are() -> None:
    chat = [USER, {"role": "assistant", "content": [{"type": "text", "text": "yes"}]}]
    assert mark_end(chat) != chat
    assert chat[1]["content"] == [{"type": "text", "text": "yes"}]
