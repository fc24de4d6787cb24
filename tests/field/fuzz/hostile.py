"""Makes files that hold every kind of row that broke a runner somewhere, and knows which rows can run.

Rows are drawn by a seed. A job over them (`task: completion`) must end with one result a row: completed for `GOOD`,
failed for the others, at submit's look at the structure (`MALFORMED`) or when the row is admitted (`REFUSED`).
"""

from __future__ import annotations

import gzip
import io
import json
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Make = Callable[[random.Random, str], bytes]

GOOD, MALFORMED, REFUSED = "good", "malformed", "refused"
URL = "/v1/completions"


@dataclass
class Expected:
    """What must become of the rows, by their number."""

    verdicts: list[str] = field(default_factory=list)

    def count(self, verdict: str) -> int:
        return self.verdicts.count(verdict)


def batch(custom_id: Any, body: Any, **others: Any) -> bytes:
    line = {"custom_id": custom_id, "method": "POST", "url": URL, "body": body} | others
    return json.dumps({name: value for name, value in line.items() if value is not ...}, ensure_ascii=False).encode()


def with_body(**body: Any) -> Make:
    return lambda _random, name: batch(name, {"prompt": "x", **body})


def with_line(**line: Any) -> Make:
    return lambda _random, name: batch(**{"custom_id": name, "body": {"prompt": "x"}, **line})


def raw(text: bytes) -> Make:
    return lambda _random, _name: text


def odd_text(random: random.Random, name: str) -> bytes:
    texts = [
        "\u2028\u2029\x85",
        "\ufeff",
        "🌊👩‍👩‍👧",
        "日本語",
        "a\r\nb\tc",
        "\0",
        '"\\',
        "\u202eabc",
        "e\u0301" * 9,
        " ",
    ]
    return batch(name, {"prompt": random.choice(texts)})


def chat(_random: random.Random, name: str) -> bytes:
    return batch(name, {"messages": [{"role": "user", "content": "x"}]}, url="/v1/chat/completions")


JSON_ROWS: dict[str, list[Make]] = {
    GOOD: [
        odd_text,
        with_body(),
        with_body(max_tokens=1, temperature=0, stop=None, user="x" * 300_000),
        with_body(stop=["\n"] * 3, seed=2**63 - 1, metadata={"a": [{"b": None}] * 9}),
        with_body(model=None, stream=False, logprobs=2, n=2),
        lambda _random, name: batch(f"{name} \u2028\n\"'🌊", {"prompt": "x"}),
        lambda _random, name: json.dumps({"prompt": "x", "custom_id": name}).encode(),
        lambda _random, name: b" \t" + batch(name, {"prompt": "x"}) + b" \r",
        lambda _random, name: b'{"custom_id":"%s","prompt":"\\u00e9\\ud83c\\udf0a"}' % name.encode(),
        lambda _random, _name: b'{"prompt": "no id"}',
        lambda _random, _name: b'{"prompt": "the same text"}',
    ],
    MALFORMED: [
        *map(raw, (
            b"{oops", b"[]", b'"text"', b"123", b"null", b"{}", b"true", b"NaN", b'{"prompt": NaN}',
            b'{"prompt": "x",}',
            b"{'prompt': 'x'}", b'{"prompt": "x"} {"prompt": "y"}', b"<html>", b'{"prompt": "x", "prompt": "y"}',
            b'{"prompt": "\\ud800"}', b'{"prompt": "\xff\xfe"}', b'{"prompt": "caf\xe9"}', b"\0" * 40, b'\0["a","b"]',
            b'{"prompt": "tab\x01"}', b'{"prompt": "x"', b'{"prompt": 1e999}', b'{"a":' * 300 + b"1" + b"}" * 300,
            b"[" * 100_000, b"\xef\xbb\xbf\xef\xbb\xbf{}", b"x" * 200_000, b'{"prompt": 123}', b'{"prompt": null}',
            b'{"prompt": ""}', b'{"prompt": ["x"]}', b'{"prompt": "x", "messages": []}', b'{"promt": "x"}',
            b'{"prompt": "x", "__class__": 1}', b'{"prompt": "x", "max_tokens": ' + b"9" * 400 + b"}",
        )),
        chat,
        *(with_line(**one) for one in (
            {"url": "/v1/embeddings"}, {"url": "/x/score"}, {"url": ...}, {"url": 7}, {"method": "GET"}, {"body": ...},
            {"body": "x"}, {"body": {}}, {"body": []}, {"custom_id": ...}, {"custom_id": ""}, {"custom_id": 7},
            {"custom_id": "x" * 600}, {"custom_id": None},
        )),
        *(with_body(**one) for one in (
            {"temperature": "hot"}, {"temprature": 1}, {"max_tokens": 1.5}, {"max_tokens": True}, {"stop": 1},
            {"stop": [1]}, {"stream": True}, {"logit_bias": {"x": 1}}, {"tool_choice": "any"},
            {"best_of": 3},
            {"logprobs": "yes"}, {"response_format": {"type": "yaml"}}, {"echo": True}, {"n": "many"},
        )),
    ],
    REFUSED: [
        with_body(temperature=-1), with_body(top_p=2), with_body(max_tokens=-5), with_body(n=0),
        with_body(min_tokens=9, max_tokens=2), with_body(logprobs=500), with_body(prompt="long " * 400),
        with_body(stop=[""]), with_body(n=1 << 62, max_tokens=1 << 62),
    ],
}  # fmt: skip

CSV_ROWS: dict[str, list[bytes]] = {
    GOOD: [
        b"%s,plain,", b'%s,"a, b",1', b'%s,"two\r\nlines",', b'%s,"say ""x""",', b"%s,\xe2\x80\xa8,", b"%s,1e5,1",
        b'%s,"[1]",', b"%s,   ,\r", b"%s,{{ x }},",
    ],
    MALFORMED: [
        b"%s,one", b"%s,a,1,more", b'%s,"a"b,', b"%s,\xff,", b"%s,,", b"%s,x,many", b"%s,x,1.5", b"%s",
    ],
}  # fmt: skip


def pick(random: random.Random, kinds: dict[str, list[Any]]) -> tuple[str, Any]:
    verdict = random.choice([GOOD, MALFORMED, *kinds])
    return verdict, random.choice(kinds[verdict])


def json_lines(random: random.Random, num_rows: int, first: int, expected: Expected) -> bytes:
    """Rows between blank lines, with every line end that there is."""
    parts = [b"\xef\xbb\xbf\n"]
    every = [(verdict, make) for verdict, makes in JSON_ROWS.items() for make in makes]
    rows = [*every, *(pick(random, JSON_ROWS) for _ in range(num_rows - len(every)))]
    random.shuffle(rows)
    for number, (verdict, make) in enumerate(rows, first):
        parts.append(make(random, f"id-{number}") + random.choice([b"\n", b"\r\n", b"\n\n", b"\n \t\r\n"]))
        expected.verdicts.append(verdict)
    return b"".join(parts).rstrip()


def csv(random: random.Random, num_rows: int, first: int, expected: Expected) -> bytes:
    parts = [b"custom_id,prompt,max_tokens\n"]
    for number in range(first, first + num_rows):
        verdict, line = pick(random, CSV_ROWS)
        parts.append(line % b"id-%d" % number + random.choice([b"\n", b"\r\n", b"\n\n"]))
        expected.verdicts.append(verdict)
    return b"".join(parts)


def text(random: random.Random, num_rows: int, expected: Expected) -> bytes:
    rows = [
        (GOOD, b"a prompt"),
        (GOOD, b"{ no JSON"),
        (GOOD, b'"quoted'),
        (GOOD, b"\xc2\x85 next line"),
        (MALFORMED, b"\xff"),
    ]
    drawn = [(GOOD, b"first"), *(random.choice(rows) for _ in range(num_rows - 1))]
    expected.verdicts += [verdict for verdict, _ in drawn]
    return b"\n \n".join(line for _, line in drawn)


def parquet(random: random.Random, num_rows: int, first: int, expected: Expected) -> bytes:
    rows = [(GOOD, b"text"), (GOOD, "🌊".encode()), (MALFORMED, b"\xff"), (MALFORMED, b""), (MALFORMED, None)]
    drawn = [random.choice(rows) for _ in range(num_rows)]
    expected.verdicts += [verdict for verdict, _ in drawn]
    names = [f"id-{number}" for number in range(first, first + num_rows)]
    file = io.BytesIO()
    pq.write_table(pa.table({"custom_id": names, "prompt": [one for _, one in drawn]}), file, row_group_size=7)
    return file.getvalue()


def make_hostile(folder: Path, seed: int, num_rows: int = 500) -> Expected:
    """Write `folder`/a.jsonl to e.parquet, `num_rows` rows in all (at least 200)."""
    random_ = random.Random(seed)
    expected = Expected()
    share = (num_rows - 160) // 2
    packed = zstandard.ZstdCompressor().compress
    files = {
        "a.jsonl": json_lines(random_, num_rows - 100 - share // 2, 0, expected),
        "b.csv.gz": gzip.compress(csv(random_, share // 2, len(expected.verdicts), expected)),
        "c.csv": csv(random_, 30, len(expected.verdicts), expected),
        "d.txt.zst": packed(text(random_, 30, expected)),
        "e.parquet": parquet(random_, 40, len(expected.verdicts), expected),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    assert len(expected.verdicts) == num_rows
    return expected
