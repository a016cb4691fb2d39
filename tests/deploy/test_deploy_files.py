"""The files of deploy/ have the shape that its readers expect, and go with the broker of this checkout."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from malamute.cli.root import cli
from malamute.config import Config
from malamute.gateway.app import ENDPOINTS
from malamute.protocol.limits import Limits

DEPLOY = Path(__file__).parents[2] / "deploy"
MONITORING = DEPLOY.parent / "docs" / "operations" / "monitoring.md"
RULES = DEPLOY / "prometheus" / "malamute-rules.yaml"
MANIFESTS = sorted(path for path in (DEPLOY / "kubernetes").glob("*.yaml") if path.stem != "kustomization")
KUBERNETES = "1.31"
PLAIN_PORTS = re.compile(r"127\.0\.0\.1:\d+:\d+")


def _yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def _alerts() -> list[dict[str, Any]]:
    return [rule for group in _yaml(RULES)["groups"] for rule in group["rules"]]


def _panels() -> list[dict[str, Any]]:
    dashboard = json.loads((DEPLOY / "grafana" / "malamute.json").read_text(encoding="utf-8"))
    panels = list(dashboard["panels"])
    assert panels
    return panels


def _services() -> dict[str, Any]:
    """Services of a start with both files of compose; for a service of both, the second one comes on top."""
    services: dict[str, Any] = {}
    for name in ("compose.yaml", "compose.monitoring.yaml"):
        for service, fields in _yaml(DEPLOY / name)["services"].items():
            before = services.get(service, {})
            environment = {**before.get("environment", {}), **fields.get("environment", {})}
            volumes = [*before.get("volumes", []), *fields.get("volumes", [])]
            services[service] = {**before, **fields, "environment": environment, "volumes": volumes}
    return services


def _manifest(kind: str) -> Any:
    [found] = [found for found in map(_yaml, MANIFESTS) if found["kind"] == kind]
    return found


def _containers() -> dict[str, Any]:
    pod = _manifest("StatefulSet")["spec"]["template"]["spec"]
    return {container["name"]: container for container in (*pod["initContainers"], *pod["containers"])}


def _image_environment() -> dict[str, str]:
    """The settings of the image."""
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    return dict(re.findall(r"^(?:ENV|   ) ?(MALAMUTE_\w+)=(\S+)", text, re.MULTILINE))


def _check(*command: str) -> None:
    """Run a checker of others, where it is installed."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def _commands() -> list[list[str]]:
    return [
        _services()["gateway"]["command"],
        *(_containers()[name]["args"] for name in ("broker", "gateway")),
    ]


def test_each_alert_is_one_of_its_name_and_says_what_is_wrong() -> None:
    alerts = _alerts()
    assert max(Counter(alert["alert"] for alert in alerts).values()) == 1
    for alert in alerts:
        assert alert["labels"]["severity"] in {"critical", "warning", "info"}, alert
        assert alert["annotations"]["summary"].endswith("."), alert


def test_each_alert_is_in_the_documentation() -> None:
    rows = re.findall(r"^\| `(Malamute\w+)` ", MONITORING.read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == [alert["alert"] for alert in _alerts()]


def test_prometheus_reads_the_rules_that_are_there() -> None:
    config = _yaml(DEPLOY / "prometheus" / "prometheus.yaml")
    assert [(DEPLOY / "prometheus" / name) for name in config["rule_files"]] == [RULES]
    [job] = config["scrape_configs"]
    assert job["metrics_path"] in {endpoint.path for endpoint in ENDPOINTS}
    assert f'job="{job["job_name"]}"' in RULES.read_text(encoding="utf-8")


def test_panels_have_a_place_of_their_own() -> None:
    panels = _panels()
    assert max(Counter(panel["id"] for panel in panels).values()) == 1
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        assert (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        ), (one, other)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)


def test_a_panel_says_what_it_shows_and_asks_the_chosen_source() -> None:
    for panel in _panels():
        if panel["type"] == "row":
            continue
        assert panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${source}"
            assert 'instance=~"$instance"' in target["expr"]


def test_what_compose_mounts_is_there() -> None:
    declared = (
        _yaml(DEPLOY / "compose.yaml")["volumes"] | _yaml(DEPLOY / "compose.monitoring.yaml")["volumes"]
    )
    for name, service in _services().items():
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            assert (DEPLOY / source).exists() if source.startswith(".") else source in declared, (
                name,
                volume,
            )


def test_compose_publishes_to_this_machine_alone() -> None:
    for name, service in _services().items():
        assert all(PLAIN_PORTS.fullmatch(port) for port in service.get("ports", [])), name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name


START_SECONDS_EACH = 30e-6
"""The time of a start for a queued message on a machine that is busy; 6 µs on one that is not."""


def test_a_start_with_as_many_messages_as_may_be_queued_is_waited_for() -> None:
    longest = Limits().queues_messages * START_SECONDS_EACH
    [period] = re.findall(r"--start-period=(\d+)s", (DEPLOY / "Dockerfile").read_text(encoding="utf-8"))
    probe = _containers()["broker"]["startupProbe"]
    [unit] = re.findall(
        r"^TimeoutStartSec=(\d+)$", (DEPLOY / "malamute.service").read_text(encoding="utf-8"), re.MULTILINE
    )
    for seconds in (int(period), probe["periodSeconds"] * probe["failureThreshold"], int(unit)):
        assert seconds >= longest


def test_compose_has_options_of_the_broker() -> None:
    config = Config.load(None, {**_image_environment(), **_services()["broker"]["environment"]})
    assert config.listen.endpoints == ("tcp://*:9999", "plain+tcp://*:9998")


def test_the_pod_has_nothing_that_can_be_reached_without_credentials() -> None:
    pod = {one["name"]: one["value"] for one in _containers()["broker"]["env"] if "value" in one}
    config = Config.load(DEPLOY / "kubernetes" / "malamute.toml", {**_image_environment(), **pod})
    assert config.listen.endpoints == ("curve+tcp://*:9999", "plain+tcp://127.0.0.1:9998")
    assert not config.listen.insecure
    assert config.storage.directory == Path("/data/broker")
    assert not config.access.rules


@pytest.mark.parametrize("arguments", _commands(), ids=["compose", "pod-broker", "pod-gateway"])
def test_commands_are_those_of_the_command_line(arguments: list[str]) -> None:
    group, command, *options = arguments
    with click.Context(cli) as context:
        commands = cli.get_command(context, group)
        assert isinstance(commands, click.Group)
        found = commands.get_command(context, command)
        assert found is not None
        parser = found.make_parser(context)
        _, left, _ = parser.parse_args([*options])
    assert not left


def test_each_manifest_has_its_place_in_the_kustomization() -> None:
    kustomization = _yaml(DEPLOY / "kubernetes" / "kustomization.yaml")
    assert sorted(kustomization["resources"]) == [path.name for path in MANIFESTS]
    assert {(found["kind"], found["metadata"]["name"]) for found in map(_yaml, MANIFESTS)} == {
        ("StatefulSet", "malamute"),
        ("Service", "malamute"),
        ("NetworkPolicy", "malamute"),
    }
    [config] = kustomization["configMapGenerator"]
    assert config["files"] == ["malamute.toml"]


def test_the_pod_has_no_privileges() -> None:
    pod = _manifest("StatefulSet")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert f"--uid {pod['securityContext']['runAsUser']} " in (DEPLOY / "Dockerfile").read_text(
        encoding="utf-8"
    )
    assert pod["automountServiceAccountToken"] is False
    for name, container in _containers().items():
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }, name
        assert "memory" in container["resources"]["limits"], name


def test_the_pod_is_probed_where_the_gateway_answers() -> None:
    gateway = _containers()["gateway"]
    paths = {endpoint.path for endpoint in ENDPOINTS}
    probes = {name: gateway[name]["httpGet"] for name in ("livenessProbe", "readinessProbe")}
    assert {name: probe["path"] for name, probe in probes.items()} == {
        "livenessProbe": "/live",
        "readinessProbe": "/ready",
    }
    assert paths > {"/live", "/ready"}
    assert {probe["port"] for probe in probes.values()} == {port["name"] for port in gateway["ports"]}


def test_ports_volumes_and_labels_of_the_manifests_agree() -> None:
    stateful = _manifest("StatefulSet")["spec"]
    labels = stateful["template"]["metadata"]["labels"]
    assert stateful["selector"]["matchLabels"] == labels
    assert _manifest("Service")["spec"]["selector"] == labels
    assert _manifest("NetworkPolicy")["spec"]["podSelector"]["matchLabels"] == labels
    assert stateful["serviceName"] == _manifest("Service")["metadata"]["name"]
    ports = {port["name"] for container in _containers().values() for port in container.get("ports", [])}
    assert {port["targetPort"] for port in _manifest("Service")["spec"]["ports"]} == ports
    allowed = _manifest("NetworkPolicy")["spec"]["ingress"]
    assert {port["port"] for rule in allowed for port in rule["ports"]} == ports
    volumes = {volume["name"] for volume in stateful["template"]["spec"]["volumes"]}
    volumes |= {claim["metadata"]["name"] for claim in stateful["volumeClaimTemplates"]}
    mounted = {mount["name"] for container in _containers().values() for mount in container["volumeMounts"]}
    assert mounted == volumes


def test_promtool_takes_rules_and_scrape_configuration() -> None:
    _check("promtool", "check", "rules", str(RULES))
    # The file of the password is that of a container.
    _check("promtool", "check", "config", "--syntax-only", str(DEPLOY / "prometheus" / "prometheus.yaml"))


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_a_manifest_is_what_the_published_schema_of_its_kind_says(path: Path) -> None:
    import kubernetes_validate  # takes long, in each process of a run

    assert kubernetes_validate.validate(_yaml(path), KUBERNETES, strict=True) == KUBERNETES


def test_a_field_that_the_published_schema_does_not_have_is_noticed() -> None:
    import kubernetes_validate

    manifest = _manifest("StatefulSet")
    manifest["spec"]["replica"] = 2
    with pytest.raises(kubernetes_validate.ValidationError, match="replica"):
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


def test_a_reload_by_systemd_fails_where_the_file_cannot_be_used() -> None:
    unit = (DEPLOY / "malamute.service").read_text(encoding="utf-8")
    (start,) = re.findall(r"^ExecStart=(\S+) broker run --config (\S+)$", unit, re.MULTILINE)
    checked, signalled = re.findall(r"^ExecReload=(.*)$", unit, re.MULTILINE)
    assert checked == f"{start[0]} config check {start[1]}"
    assert signalled == "/bin/kill -HUP $MAINPID"
