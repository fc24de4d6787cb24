"""A model folder's tokeniser: what ends a text, what never shows, and what tokenizer.json says of prompts."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from streamrunner.engine.errors import EngineError
from streamrunner.engine.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NAMES = ["<s>", "</s>", "<|im_end|>", "Hello", "world", "Ġ"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """tokenizer.json of a tokeniser that begins texts with `<s>` and would cut and pad them."""
    backend = tokenizers.Tokenizer(models.BPE({name: number for number, name in enumerate(NAMES)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>"])
    backend.add_tokens(["<|im_end|>", "Hello", "world"])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    backend.enable_truncation(2)
    backend.enable_padding(length=9)
    backend.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


@pytest.fixture
def load(folder: Path) -> Callable[..., Tokenizer]:
    """Loads the folder with these contents of its config files."""

    def loaded(**files: Any) -> Tokenizer:
        for name, content in files.items():
            (folder / f"{name}.json").write_text(json.dumps(content), "utf-8")
        return Tokenizer.load(folder)

    return loaded


def test_a_prompt_begins_as_tokenizer_json_says_and_is_neither_cut_nor_padded(load: Callable[..., Tokenizer]) -> None:
    tokenizer = load()
    assert tokenizer.encode("Hello world") == [0, 3, 5, 4]
    assert tokenizer.encode("Hello world", add_special_tokens=False) == [3, 5, 4]
    assert tokenizer.vocab_size == len(NAMES)


def test_end_of_text_of_the_generation_config_comes_first(load: Callable[..., Tokenizer]) -> None:
    assert load(config={"eos_token_id": 1}).eos_token_ids == (1,)
    assert load(generation_config={"eos_token_id": [2, 1]}).eos_token_ids == (2, 1)


def test_the_tokenizers_own_end_of_text_counts_too(load: Callable[..., Tokenizer]) -> None:
    """Fine-tuned chat models often change this one alone."""
    own = {"eos_token": {"content": "<|im_end|>", "lstrip": False}}
    assert load(tokenizer_config=own, generation_config={"eos_token_id": 1}).eos_token_ids == (1, 2)


def test_a_model_may_have_no_end_of_text(load: Callable[..., Tokenizer]) -> None:
    assert load().eos_token_ids == ()


def test_a_named_token_never_shows_even_if_tokenizer_json_calls_it_plain(load: Callable[..., Tokenizer]) -> None:
    assert load().decode([3, 2]) == "Hello<|im_end|>"
    named = load(special_tokens_map={"eos_token": "<|im_end|>"})
    assert named.decode([3, 2]) == "Hello"
    assert named.encode("Hello<|im_end|>", add_special_tokens=False) == [3, 2]
    assert named.vocab_size == len(NAMES)


def test_a_name_that_is_no_token_is_passed_over(load: Callable[..., Tokenizer]) -> None:
    assert load(tokenizer_config={"eos_token": "<none>", "pad_token": None}).eos_token_ids == ()


def test_templates_know_the_named_tokens(load: Callable[..., Tokenizer]) -> None:
    tokenizer = load(tokenizer_config={"bos_token": "<s>", "chat_template": "{{ bos_token }}{{ messages[0].content }}"})
    text = tokenizer.apply_chat_template([{"role": "user", "content": "Hello"}])
    assert text == "<s>Hello"
    assert tokenizer.encode(text, add_special_tokens=False) == [0, 3], "begin-of-text once, not twice"


def test_half_a_character_is_named_with_its_place(load: Callable[..., Tokenizer]) -> None:
    with pytest.raises(EngineError, match=r"lone surrogate\) at 2") as caught:
        load().encode("ab\ud800")
    assert caught.value.code == "invalid_prompt"


def test_a_folder_without_tokenizer_json_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="fast tokenizer") as caught:
        Tokenizer.load(tmp_path)
    assert caught.value.code == "model_unsupported"


def test_a_broken_config_file_is_named(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text("{", "utf-8")
    with pytest.raises(EngineError, match=r"tokenizer_config\.json is no JSON"):
        Tokenizer.load(folder)


@pytest.mark.model
def test_the_real_model(smollm2_tokenizer: Tokenizer) -> None:
    assert smollm2_tokenizer.eos_token_ids == (2,)
    assert smollm2_tokenizer.vocab_size == 49152
    assert smollm2_tokenizer.decode(smollm2_tokenizer.encode("Grüße, 世界 🙂")) == "Grüße, 世界 🙂"


@pytest.mark.model
def test_loading_needs_neither_torch_nor_transformers(smollm2: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from streamrunner.engine.tokenizer import Tokenizer; "
        "from streamrunner.engine.output import OutputProcessor; OutputProcessor(Tokenizer.load(Path(sys.argv[1]))); "
        "sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-P", "-c", code, str(smollm2)], check=False).returncode == 0
