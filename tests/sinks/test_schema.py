from __future__ import annotations

import json
from pathlib import Path

import pytest

from streamrunner.sinks.events import EVENT_MODELS
from streamrunner.sinks.schema import ASYNCAPI_FILE, EVENTS_FILE, render

DOCS = Path(__file__).parents[2] / "docs" / "schema"


@pytest.mark.parametrize("name", [EVENTS_FILE, ASYNCAPI_FILE])
def test_the_published_contract_is_what_the_models_say(name: str) -> None:
    assert (DOCS / name).read_text("utf-8") == render()[name], "run `make schema` and commit docs/schema"


def test_every_event_type_is_in_the_published_contract() -> None:
    text = render()[EVENTS_FILE]
    assert all(f'"const": "{kind}"' in text for kind in EVENT_MODELS)


def test_every_stream_has_an_address_an_id_rule_and_a_payload() -> None:
    channels = json.loads(render()[ASYNCAPI_FILE])["channels"]
    assert set(channels) == {"log", "results", "steps"}
    for channel in channels.values():
        assert channel["address"].startswith("sr:{")
        assert channel["x-id"]
        assert all(message["payload"] for message in channel["messages"].values())
