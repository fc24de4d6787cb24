"""The real `runner` command on a tiny random model, on both kinds of server."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from streamrunner.runner.inputs import scan_input
from streamrunner.runner.job import JobContext
from streamrunner.runner.spec import JobSpec
from streamrunner.sinks.directory import JobDirectory
from streamrunner.sinks.keys import JobKeys
from streamrunner.sinks.log import Flush, JobLog, Terminal, WorkerLease, claimed_range

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from streamrunner.sinks.server import LogServer

sys.path.insert(0, str(Path(__file__).parent))

RUNNER = Path(sys.executable).with_name("runner")
SAMPLING = {"temperature": 0.8, "seed": 7, "max_tokens": 24, "ignore_eos": True}


@dataclass
class Bench:
    """A folder with a job, a data dir, and the command."""

    folder: Path
    data_dir: Path
    model: Path
    redis_url: str | None = None
    spec: dict[str, Any] = field(default_factory=dict)
    running: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def env(self) -> dict[str, str]:
        env = {**os.environ, "RUNNER_DATA_DIR": str(self.data_dir), "PYTHONSAFEPATH": "1", "COLUMNS": "200"}
        env.pop("RUNNER_REDIS_URL", None)
        if self.redis_url:
            env["RUNNER_REDIS_URL"] = self.redis_url
        return env

    @property
    def job(self) -> Path:
        return self.folder / "job.yaml"

    @property
    def output(self) -> Path:
        return self.folder / "out" / "results.jsonl"

    def write_rows(self, lines: list[str]) -> None:
        (self.folder / "rows.jsonl").write_text("".join(line + "\n" for line in lines), "utf-8")

    def write_job(self, **sections: Any) -> None:
        self.spec = {
            "name": "t", "model": str(self.model), "input": {"path": "rows.jsonl"}, "sampling": dict(SAMPLING),
            "engine": {"max_model_len": 512}, "outputs": [{"type": "jsonl", "path": "out/results.jsonl"}], **sections,
        }  # fmt: skip
        self.job.write_text(json.dumps(self.spec), "utf-8")

    def use_example(self, name: str) -> None:
        """Copy an example's files here, as a user would."""
        for file in (Path(__file__).parents[2] / "examples" / name).glob("*.*"):
            if file.is_file():
                shutil.copy(file, self.folder)

    def run(self, *args: str, timeout: float = 90.0) -> subprocess.CompletedProcess[str]:
        command = [str(RUNNER), *args]
        return subprocess.run(command, env=self.env, cwd=self.folder, capture_output=True, text=True, timeout=timeout)

    def start(self, *args: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [str(RUNNER), *args],
            env=self.env,
            cwd=self.folder,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.running.append(process)
        return process

    def submit(self, *args: str) -> subprocess.CompletedProcess[str]:
        return self.run("submit", "job.yaml", *args)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.output.read_bytes().split(b"\n") if line]

    def texts(self) -> dict[str, list[str]]:
        """custom_id → the text of each choice."""
        return {
            line["custom_id"]: [choice["message"]["content"] for choice in line["response"]["body"]["choices"]]
            for line in self.lines()
            if line["response"]
        }

    def events(self) -> list[dict[str, Any]]:
        shown = self.run("events", "last", "--json")
        assert shown.returncode == 0, shown.stderr
        return [json.loads(line) for line in shown.stdout.split("\n") if line]

    def stop_all(self) -> None:
        for process in self.running:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.communicate()


ROW_ERROR = {"code": "context_length_exceeded", "message": "too long", "param": None}


class LogJob:
    """A job in a real log without an engine: its worker has claimed all rows and ends them as a test says."""

    def __init__(self, server: LogServer, folder: Path, num_rows: int, outputs: Sequence[dict[str, Any]] = ()) -> None:
        rows = [json.dumps({"custom_id": f"c{i}", "prompt": "x"}) for i in range(num_rows - 1)] + ["{oops"]
        (folder / "rows.jsonl").write_text("".join(row + "\n" for row in rows))
        self.server, self.folder, self.num_rows, self.num_flushes = server, folder, num_rows, 0
        plain = {"name": "t", "model": "m", "input": {"path": "rows.jsonl"}, "outputs": outputs}
        self.spec = JobSpec.model_validate(plain)
        self.context = JobContext("job_log", JobKeys("job_log"), self.spec, 7, folder, 1700)
        self.client: Any = server.client()
        self.log = JobLog(server, self.context.keys, "test", patience_s=5)
        scan = scan_input(self.spec, folder, folder)
        spec = self.spec.model_dump(mode="json", exclude_none=True)
        data = {"name": "t", "rows": scan.rows, "spec": spec, "seed": 7, "base": str(folder)}
        self.log.submit(data, scan.rows, [asdict(one) for one in scan.ranges])
        JobDirectory(self.client, "sr").announce(self.context.job_id, "t")
        reply = self.log.join("a", "token", {"host": "h", "pid": 1, "fingerprint": {}})
        self.lease = WorkerLease("a", reply["epoch"], "token")
        self.claims: list[Any] = []
        for _ in scan.ranges:
            self.claims.append(claimed_range(self.log.claim(self.lease, [one.id for one in self.claims])))

    def finish(self, *rows: int, failed: bool = False, attempt: int = 1, text: str = "text of {}") -> None:
        """End rows in one flush, each with its number in its text."""
        self.num_flushes += 1
        terminals = [self._terminal(row, failed, attempt, text.replace("{}", str(row))) for row in rows]
        assert self.log.flush(self.lease, Flush(self.num_flushes, b"", "", (), terminals))["s"] == "OK"

    def _terminal(self, row: int, failed: bool, attempt: int, text: str) -> Terminal:
        [held] = [one for one in self.claims if 0 <= row - one.spec["first"] < one.spec["count"]]
        data = {"row": row, "custom_id": f"c{row}", "attempt": attempt, "range": held.id, "claim": held.claim}
        usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
        data |= {"error": ROW_ERROR} if failed else {"finish_reasons": ["stop"], "usage": usage}
        choice = {"index": 0, "text": text, "finish_reason": "stop"}
        body = {"error": ROW_ERROR} if failed else {"choices": [choice], "usage": usage}
        kind = "request.failed" if failed else "request.completed"
        return Terminal(row, held.id, held.claim, kind, data, json.dumps(body).encode(), 1, 2)

    def cancel(self) -> None:
        self.log.control("cmd", "cancel")
        self.log.end("cancelled")


@pytest.fixture
def log_job(embedded: LogServer, tmp_path: Path) -> Callable[..., LogJob]:
    """Makes a job of so many rows, the last of which is no JSON: `log_job(70)`, and with `outputs`."""
    return lambda num_rows, outputs=(): LogJob(embedded, tmp_path, num_rows, outputs)


def chat(number: int, **body: Any) -> str:
    """One OpenAI batch line."""
    messages = [{"role": "user", "content": f"Tell me about the number {number}."}]
    request = {
        "custom_id": f"n{number}",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"messages": messages, **body},
    }
    return json.dumps(request)


@pytest.fixture
def chat_row() -> Callable[..., str]:
    return chat


@pytest.fixture
def bench(tmp_path: Path, data_dir: Path, tiny_model: Path) -> Iterator[Bench]:
    """On the private server of a fresh data dir."""
    made = Bench(tmp_path, data_dir, tiny_model)
    yield made
    made.stop_all()


@pytest.fixture(params=["embedded", "debian"])
def any_bench(request: pytest.FixtureRequest, tmp_path: Path, data_dir: Path, tiny_model: Path) -> Iterator[Bench]:
    """On the private server, and on Debian's redis-server 7.0 by RUNNER_REDIS_URL."""
    url = request.getfixturevalue("debian_redis") if request.param == "debian" else None
    made = Bench(tmp_path, data_dir, tiny_model, redis_url=url)
    yield made
    made.stop_all()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random two-layer Llama over byte tokens, with a chat template: loads in no time, says nothing."""
    folder = tmp_path_factory.mktemp("tiny")
    subprocess.run([sys.executable, "-P", "-c", _MAKE_TINY, str(folder)], check=True, env={**os.environ})
    return folder


_MAKE_TINY = """
import json, sys
from pathlib import Path
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

folder = Path(sys.argv[1])
alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
vocab = {"<|im_start|>": 0, "<|im_end|>": 1} | {c: i + 2 for i, c in enumerate(alphabet)}
tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
tokenizer.save(str(folder / "tokenizer.json"))
template = ("{% for m in messages %}<|im_start|>{{ m['role'] }}\\n{{ m['content'] }}<|im_end|>\\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\\n{% endif %}")
(folder / "tokenizer_config.json").write_text(json.dumps(
    {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template, "eos_token": "<|im_end|>"}))
size, hidden, layers, heads, kv_heads = len(vocab), 64, 2, 4, 2
(folder / "config.json").write_text(json.dumps({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": size, "hidden_size": hidden,
    "intermediate_size": 128, "num_hidden_layers": layers, "num_attention_heads": heads,
    "num_key_value_heads": kv_heads,
    "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
    "tie_word_embeddings": True, "eos_token_id": 1, "bos_token_id": 0, "torch_dtype": "float32"}))
torch.manual_seed(0)
head = hidden // heads
weights = {"model.embed_tokens.weight": torch.randn(size, hidden), "model.norm.weight": torch.ones(hidden)}
for i in range(layers):
    at = f"model.layers.{i}."
    shapes = {"self_attn.q_proj": (heads * head, hidden), "self_attn.k_proj": (kv_heads * head, hidden),
              "self_attn.v_proj": (kv_heads * head, hidden), "self_attn.o_proj": (hidden, heads * head),
              "mlp.gate_proj": (128, hidden), "mlp.up_proj": (128, hidden), "mlp.down_proj": (hidden, 128)}
    weights |= {f"{at}{name}.weight": torch.randn(shape) * 0.1 for name, shape in shapes.items()}
    weights |= {f"{at}{name}.weight": torch.ones(hidden) for name in ("input_layernorm", "post_attention_layernorm")}
save_file(weights, folder / "model.safetensors", {"format": "pt"})
"""
