"""Prompts and parameters that broke other engines, as their users reported them; here they must not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tokenizers import processors

from streamrunner.engine import LLM, RequestOutput, SamplingParams
from tiny_model import save_byte_tokenizer, save_tiny_model

if TYPE_CHECKING:
    from pathlib import Path

SHORT = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
STRICT = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate user/assistant') }}{% endif %}{{ m.content }}{% endfor %}"
)
USER = {"role": "user", "content": "hi"}


def code(output: RequestOutput) -> str | None:
    return None if output.error is None else output.error.code


def test_an_empty_prompt_without_begin_of_text_harms_nobody(llm: LLM) -> None:
    """vllm-project/vllm#7632, #7283, #7746, #1130: the engine died, and every later request failed."""
    assert [code(output) for output in llm.generate(["a", "", "b"], SHORT)] == [None, "empty_prompt", None]
    assert [code(output) for output in llm.generate(["", ""], SHORT)] == ["empty_prompt"] * 2
    assert code(llm.generate("later", SHORT)[0]) is None


@pytest.mark.parametrize(("given", "codes"), [("", ["empty_prompt"]), ([], []), ({}, ["invalid_prompt"])])
def test_nothing_as_a_prompt_is_told_at_the_edge(llm: LLM, given: Any, codes: list[str]) -> None:
    """InternLM/lmdeploy#4803: an opaque TypeError from deep inside."""
    assert [code(output) for output in llm.generate(given, SHORT)] == codes


@pytest.mark.parametrize("length", [256, 257, 5000])
def test_one_prompt_longer_than_the_context_fails_alone_and_outputs_equal_inputs(llm: LLM, length: int) -> None:
    """ray-project/ray#59194, vllm-project/vllm#16732, #10777: the run died. #1655: two prompts, three outputs."""
    outputs = llm.generate(["a", "x" * length, "b"], SHORT)
    assert [code(output) for output in outputs] == [None, "context_length_exceeded", None]
    assert [output.prompt for output in outputs] == ["a", "x" * length, "b"]
    assert str(length) in str(outputs[1].error)
    assert "256" in str(outputs[1].error)


def test_the_longest_prompt_that_fits_gets_its_one_token(llm: LLM) -> None:
    [output] = llm.generate("x" * 255, SHORT)
    assert len(output.outputs[0].token_ids) == 1
    assert output.outputs[0].finish_reason == "length"


def test_no_prompt_is_ever_cut_silently_on_any_path(llm: LLM) -> None:
    """vllm-project/vllm#27642: truncation was honoured for prompts and ignored for chats."""
    chat = [{"role": "user", "content": "x" * 300}]
    found = [llm.generate("x" * 300, SHORT)[0], llm.chat(chat, SHORT)[0], llm.generate([[1] * 300], SHORT)[0]]
    assert {code(output) for output in found} == {"context_length_exceeded"}
    assert [len(output.prompt_token_ids) for output in found] == [300, 300 + len("<user></><assistant>"), 300]


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 7, 40])
def test_exactly_as_many_tokens_as_asked_for(llm: LLM, max_tokens: int) -> None:
    """vllm-project/vllm#28172: sometimes one more or one less."""
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, n=3)
    for output in llm.generate(["a", "bb", "ccc"] * 4, params):
        assert [len(choice.token_ids) for choice in output.outputs] == [max_tokens] * 3


def test_a_prompt_can_be_scored_without_generating(llm: LLM) -> None:
    """vllm-project/vllm#9336, #1535, ml-explore/mlx-lm#1689: `max_tokens: 0` was refused, or crashed."""
    [output] = llm.generate("abc", SamplingParams(max_tokens=0, prompt_logprobs=1))
    assert output.error is None
    assert (output.outputs[0].text, output.outputs[0].token_ids) == ("", [])
    assert output.outputs[0].finish_reason == "length"
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    scored = zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
    assert all(place is not None and token_id in place for token_id, place in scored)


def test_without_a_limit_a_text_may_fill_the_context(llm: LLM) -> None:
    """huggingface/lighteval#570, runpod-workers/worker-vllm#74: cut after 16 tokens."""
    params = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
    [output] = llm.generate("a prompt of 23 tokens !", params)
    assert len(output.prompt_token_ids) + len(output.outputs[0].token_ids) == 256


@pytest.fixture(scope="module")
def with_bos(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    """A model whose tokenizer writes `<s>` before texts, and whose chat template writes it too."""
    import tokenizers

    folder = save_tiny_model(tmp_path_factory.mktemp("bos"))
    save_byte_tokenizer(folder, "{{ bos_token }}" + STRICT)
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 256)])
    backend.save(str(folder / "tokenizer.json"))
    return LLM(folder, dtype="float32", kv_cache_memory_bytes=1 << 20)


def test_begin_of_text_comes_once_on_every_path(with_bos: LLM) -> None:
    """vllm-project/vllm#9519, #27486, #55288: twice, where a rendered chat was given as a prompt."""
    chat = [USER, {"role": "assistant", "content": "ho"}]
    [by_chat] = with_bos.chat(chat, SHORT)
    rendered = with_bos.get_tokenizer().apply_chat_template(chat)
    [by_text], [plain] = with_bos.generate(rendered, SHORT), with_bos.generate("hiho", SHORT)
    assert rendered == "<s>hiho"
    assert by_chat.prompt_token_ids == by_text.prompt_token_ids == plain.prompt_token_ids
    assert plain.prompt_token_ids.count(256) == 1


def test_a_chat_that_the_template_refuses_fails_alone_in_the_templates_words(with_bos: LLM) -> None:
    """vllm-project/vllm#6862: user after user on a strict template."""
    good, bad = with_bos.chat([[USER], [USER, USER]], SHORT)
    assert code(good) is None
    assert code(bad) == "chat_template_error"
    assert "roles must alternate user/assistant" in str(bad.error)


@pytest.mark.parametrize("arguments", ['{"city": "Rome"}', {"city": "Rome"}, "null", None])
def test_calls_without_content_and_any_arguments_are_chats(llm: LLM, arguments: Any) -> None:
    """vllm-project/vllm#43851, cubist38/mlx-openai-server#205: a crash, or a turn that was lost."""
    call = {"type": "function", "function": {"name": "weather", "arguments": arguments}}
    answer = {"role": "tool", "content": "sunny"}
    for content in ({"content": None}, {}):
        chat = [USER, {"role": "assistant", "tool_calls": [call], **content}, answer]
        [output] = llm.chat(chat, SHORT)
        assert code(output) is None
        assert output.prompt == "<user>hi</><assistant></><tool>sunny</><assistant>"


@pytest.mark.parametrize("form", ["text", "chat"])
def test_half_a_character_fails_its_prompt_alone_and_is_found(llm: LLM, form: str) -> None:
    """raullenchai/Rapid-MLX#730, openai/tiktoken#82: a TypeError, or internals in the stream."""
    text = "ab\ud800c"
    bad: Any = text if form == "text" else [{"role": "user", "content": text}]
    good, failed = llm.generate(["fine", bad], SHORT)
    assert code(good) is None
    assert code(failed) == "invalid_prompt"
    assert f"at {2 if form == 'text' else 8}" in str(failed.error)


def test_llm_and_job_give_a_chat_the_same_tokens(llm: LLM, tmp_path: Path) -> None:
    """vllm-project/vllm#26224, #27486: offline was not what the server did."""
    from streamrunner.runner.request import prepare_request
    from streamrunner.runner.rows import Row
    from streamrunner.runner.spec import JobSpec

    spec = JobSpec.model_validate({"name": "j", "model": "m", "requests": [{"prompt": "x"}]})
    chat = [USER, {"role": "assistant", "content": "ho", "reasoning_content": "why?"}, USER]
    row = Row(0, "c", "chat", messages=tuple(chat))
    prepared = prepare_request(row, spec, 7, llm.get_tokenizer(), 256)
    assert llm.chat(chat, SHORT)[0].prompt_token_ids == prepared.prompt_token_ids
