from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrunner.runner.errors import RunnerError
from streamrunner.runner.template import check_template, render


def refused(source: str, **columns: Any) -> str:
    with pytest.raises(RunnerError) as caught:
        render(check_template(source), columns)
    assert caught.value.code == "template_error"
    return caught.value.message


def test_columns_fill_the_prompt_and_nothing_is_escaped_or_trimmed() -> None:
    assert render("Translate: {{ text }}\n", {"text": "<Haus> & 'Hof'\u2028"}) == "Translate: <Haus> & 'Hof'\u2028\n"
    assert render("{% for w in words %}{{ w|upper }} {% endfor %}", {"words": ["a", "b"]}) == "A B "
    assert render("no columns", {}) == "no columns"


def test_a_missing_column_is_named_beside_those_there_are() -> None:
    message = refused("{{ textt }}", text="x", language="de")
    assert "'textt' is undefined" in message
    assert message.endswith("language, text")
    assert "none" in refused("{{ text }}")
    assert "no attribute 'name'" in refused("{{ text.name }}", text="x")


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{{ text", "line 1"),
        ("one\n{% if %}", "line 2"),
        ("{{ text|nofilter }}", "nofilter"),
        ("{% for x in y %}", "endfor"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "nested too deep"),
        ("{% for a in b %}" * 30 + "{% endfor %}" * 30, "nested too deep"),
        ("{% if a %}" * 150 + "{% endif %}" * 150, "nested too deep"),
    ],
)
def test_a_template_that_is_none_is_told_before_any_row(source: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        check_template(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ 1 / 0 }}",
        "{{ text + 1 }}",
        "{{ text|xmlattr }}",
        "{{ cycler().next() }}",
        "{{ [].pop() }}",
        "{{ '%d' % text }}",
        "{{ {}|dictsort(by=3) }}",
        "{{ self() }}",
        "{{ text() }}",
        "{% include 'other' %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_whatever_a_template_raises_fails_its_row_alone(source: str) -> None:
    assert refused(source, text="x").startswith("input.prompt")


@pytest.mark.parametrize(
    "source",
    [
        "{{ text.__class__.__mro__[1].__subclasses__() }}",
        "{{ ''['__class__'] }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ '{0.__class__}'.format(text) }}",
        "{{ words.append(1) }}",
        "{{ range(10 ** 9)|list }}",
    ],
)
def test_a_template_cannot_reach_out_of_its_sandbox(source: str) -> None:
    assert refused(source, text="x", words=[])


def test_an_endless_prompt_is_cut_short() -> None:
    loop = "{% for i in range(99999) %}{{ text }}{% endfor %}"
    assert "more than 16 MiB" in refused(loop, text="x" * 1000)


@given(st.text(alphabet="{}%|().[]'\"ab1+-~# \n", max_size=20))
def test_any_source_is_checked_and_rendered_or_refused(source: str) -> None:
    try:
        render(check_template(source), {"a": "x", "b": [1]})
    except (ValueError, RunnerError):
        return
