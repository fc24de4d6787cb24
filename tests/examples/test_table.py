from __future__ import annotations

from pathlib import Path

from streamrunner.runner.inputs import read_range, scan_input
from streamrunner.runner.rows import Row, parse_row
from streamrunner.runner.spec import load_spec

EXAMPLE = Path(__file__).parents[2] / "examples" / "table"


def test_every_record_of_the_table_makes_a_prompt(tmp_path: Path) -> None:
    spec = load_spec(EXAMPLE / "job.yaml")
    scan = scan_input(spec, EXAMPLE, tmp_path)
    rows = [parse_row(raw.raw, raw.row, raw.line, spec) for one in scan.ranges for raw in read_range(one)]
    assert (scan.rows, scan.num_errors) == (8, 0)
    assert [row.custom_id for row in rows] == [f"r-{number}" for number in range(101, 109)]
    assert isinstance(rows[2], Row)
    [message] = rows[2].messages
    assert message["content"] == (
        "Is this review of a lamp positive or negative? Answer with one word.\n\n"
        "Lovely warm light.\n\nMy daughter reads by it every evening."
    )
