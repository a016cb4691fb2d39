"""`/metrics` has all that deploy/ asks for: each metric and label, with the rights of who scrapes."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from running_gateway import RunningGateway
from secured_gateway import gateway_before

import malamute
from malamute.config import Config, ListenConfig
from malamute.config.accounts import Account, Accounts, hash_password, save_accounts
from malamute.protocol.admin import StreamPurge

DEPLOY = Path(__file__).parents[2] / "deploy"
MONITOR = ("monitor", "secret")
OF_PROMETHEUS = {"instance", "job"}


def _exported(http: httpx.Client, client: malamute.Client) -> dict[str, set[str]]:
    """The names that a scrape has, with the labels of each, after something of each kind has happened."""
    http.post("/v1/mailboxes/bob/messages", content=b"x").raise_for_status()
    lease = http.post("/v1/mailboxes/bob/leases", params={"wait": 30}).json()["messages"][0]["lease"]
    http.post(f"/v1/mailboxes/bob/leases/{lease}/acknowledge").raise_for_status()
    http.post("/v1/streams/weather/messages?subject=a", content=b"x").raise_for_status()
    client.change(StreamPurge(stream="weather"))
    http.post("/v1/streams/weather/messages?subject=a", content=b"x").raise_for_status()
    assert http.get("/v1/streams/weather/messages", params={"start": "seq:1"}).json()["gaps"]
    assert http.get("/metrics", params={"stream": "none"}).status_code == 404
    text = http.get("/metrics", params={"stream": "weather"}).text
    labels: dict[str, set[str]] = defaultdict(set)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels[sample.name] |= sample.labels.keys()
    return labels


def _asked() -> Iterator[tuple[str, str, str]]:
    """Who asks, what, and in which words the answer is shown."""
    dashboard = json.loads((DEPLOY / "grafana" / "malamute.json").read_text(encoding="utf-8"))
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"], target["legendFormat"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["definition"], ""
    rules = yaml.safe_load((DEPLOY / "prometheus" / "malamute-rules.yaml").read_text(encoding="utf-8"))
    for group in rules["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"], rule["annotations"]["summary"]


def test_dashboard_and_rules_name_what_is_exported(http: httpx.Client, client: malamute.Client) -> None:
    exported = _exported(http, client)
    for who, expression, words in _asked():
        names = set(re.findall(r"\bmalamute_\w+", expression))
        assert names or re.search(r"\bup\b", expression), who
        assert names <= exported.keys(), who
        labels = set[str]().union(OF_PROMETHEUS, *(exported[name] for name in names))
        asked = set(re.findall(r"\b(\w+)=~?\"", expression))
        asked |= set(re.findall(r"{{ ?(?:\$labels\.)?(\w+) ?}}", words))
        for group in re.findall(r"\bby \(([\w, ]+)\)", expression):
            asked |= {*group.split(", ")}
        assert asked <= labels, who


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[RunningGateway]:
    """A broker with the configuration of the pod, and the gateway beside it; accounts are of the test."""
    accounts = tmp_path / "accounts.toml"
    account = Account(MONITOR[0], hash_password(MONITOR[1]), groups=("monitoring",))
    save_accounts(Accounts([account]), accounts)
    config = Config.load(DEPLOY / "kubernetes" / "malamute.toml", {})
    config = replace(
        config,
        storage=replace(config.storage, kind="memory"),
        listen=ListenConfig(endpoints=("plain+tcp://127.0.0.1:*",)),
        access=replace(config.access, key="", accounts=str(accounts)),
    )
    with gateway_before(config, user=MONITOR[0], password=MONITOR[1]) as gateway:
        yield gateway


def test_in_the_pod_the_monitor_scrapes_and_does_nothing_else(pod: RunningGateway) -> None:
    with pod.client(auth=MONITOR) as http:
        assert http.get("/metrics").status_code == 200
        assert http.get("/metrics", params={"stream": "none"}).status_code == 404
        refused = http.post("/v1/streams/weather/messages?subject=a", content=b"x")
        assert (refused.status_code, refused.json()["code"]) == (403, malamute.AccessRefused.code)


def test_in_the_pod_probes_need_no_credentials_and_a_scrape_does(pod: RunningGateway) -> None:
    with pod.client() as http:
        answers = {path: http.get(path).status_code for path in ("/live", "/ready", "/metrics")}
    assert answers == {"/live": 200, "/ready": 200, "/metrics": 401}
