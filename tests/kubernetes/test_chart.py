"""What the chart renders, without installing it: shut, least, and in one piece with what the backend itself says."""

import json
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deploy.schema import SCHEMA, updated
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.cluster.processes import run
from tests.kubernetes.deployment import CHART

from orchard.core.errors import MachineUnfit
from orchard.sandbox.kubernetes import Ingress, KubernetesSettings, load_settings, manifests
from orchard.sandbox.kubernetes.capacity import quantity
from orchard.sandbox.kubernetes.policies import EVERY, network_policies
from orchard.sandbox.kubernetes.rights import Right, reaper_rights, rights

NAMESPACE, SANDBOXES = "home", "home-sandboxes"
ALL = {
    "settings": {"pull_secrets": ["login"], "ingress": {"namespaces": ["ci", "home"], "cidrs": ["10.1.0.0/16"]}},
    "autoscaling": {"enabled": True},
    "serviceMonitor": {"enabled": True},
    "sandboxes": {"quota": {"pods": 50}},
    "images": {"registry": "registry.test/orchard"},
}
COMMITS = {"commit_repository": "registry.test/made", "push_secrets": ["push", "login"], "pull_secrets": ["login"]}


@pytest.fixture
def render(cluster: Cluster, tmp_path: Path) -> Any:
    """Renders the chart with values; returns its objects."""

    def rendered(*words: str, **values: Any) -> list[dict[str, Any]]:
        file = tmp_path / "values.json"
        file.write_text(json.dumps({"images": ALL["images"], **values}))
        flags = ("--kube-version", "1.34.4", "-f", str(file), *words)
        text = cluster.helm("template", "orchard", CHART, "-n", NAMESPACE, *flags)
        listed = run(
            cluster.programs / "kubectl", f"--kubeconfig={cluster.kubeconfig}", "create", "--dry-run=client",
            "--validate=false", "-f", "-", "-o", "json", stdin=_without_foreign(text),
        )  # fmt: skip
        return [item for one in _documents(listed) for item in one.get("items", [one])]

    return rendered


def _without_foreign(text: str) -> str:
    """Leave out kinds that this cluster does not serve: kubectl would not read them."""
    return "\n---\n".join(one for one in text.split("\n---\n") if "kind: ServiceMonitor" not in one)


def _documents(text: str) -> Iterator[dict[str, Any]]:
    decoder, place = json.JSONDecoder(), 0
    while place < len(text.rstrip()):
        document, place = decoder.raw_decode(text, place)
        place += len(text[place:]) - len(text[place:].lstrip())
        yield document


def of_kind(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [each for each in objects if each["kind"] == kind]


def granted(objects: list[dict[str, Any]]) -> set[tuple[str, ...]]:
    """Every (verb, resource, group, namespace, name) that the roles grant."""
    return {
        (verb, resource, group, role["metadata"].get("namespace", ""), name)
        for role in [*of_kind(objects, "Role"), *of_kind(objects, "ClusterRole")]
        for rule in role["rules"]
        for verb in rule["verbs"]
        for resource in rule["resources"]
        for group in rule["apiGroups"]
        for name in rule.get("resourceNames", [""])
    }


def as_tuple(right: Right) -> tuple[str, ...]:
    return (right.verb, right.resource, right.group, right.namespace or "", right.name or "")


def test_lint_finds_nothing(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "values.json"
    file.write_text(json.dumps(ALL))
    told = cluster.helm("lint", "--strict", "--kube-version", "1.34.4", "-f", file, CHART)
    assert "0 chart(s) failed" in told
    assert "WARNING" not in told


@pytest.mark.parametrize("settings", [{}, {"pull_secrets": ["login"]}, {"api_servers": ["10.0.0.1:6443"]}, COMMITS])
def test_roles_grant_what_the_backend_uses_and_nothing_else(render: Any, settings: dict[str, Any]) -> None:
    wanted = {as_tuple(right) for right in rights(SANDBOXES, KubernetesSettings(**settings))}
    assert granted(render(settings=settings)) == wanted


def test_the_reaper_is_granted_what_it_uses_and_nothing_else(render: Any) -> None:
    objects = render(settings=COMMITS)
    (job,) = of_kind(objects, "CronJob")
    account = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["serviceAccountName"]
    bound = {
        binding["roleRef"]["name"]
        for binding in [*of_kind(objects, "RoleBinding"), *of_kind(objects, "ClusterRoleBinding")]
        if account in {subject["name"] for subject in binding["subjects"]}
    }
    roles = [role for role in of_kind(objects, "Role") if role["metadata"]["name"] in bound]
    wanted = {as_tuple(right) for right in reaper_rights(SANDBOXES, KubernetesSettings(**COMMITS))}
    assert (bound, granted(roles)) == ({account}, wanted)
    assert not [each for each in render(reap={"enabled": False}) if each["metadata"]["name"] == account]


@pytest.mark.parametrize(
    ("keys", "monitor", "named"),
    [
        ({}, {}, ("orchard-keys", "api-key")),
        ({"existingSecret": "own"}, {}, ("own", "api-key")),
        ({"existingSecret": "own"}, {"secret": "scrape", "secretKey": "key"}, ("scrape", "key")),
    ],
)
def test_metrics_are_read_with_a_key(
    cluster: Cluster, tmp_path: Path, keys: dict[str, str], monitor: dict[str, str], named: tuple[str, str]
) -> None:
    file = tmp_path / "values.json"
    file.write_text(json.dumps({**ALL, "keys": keys, "serviceMonitor": {"enabled": True, **monitor}}))
    only = (
        "--kube-version",
        "1.34.4",
        "--api-versions",
        "monitoring.coreos.com/v1",
        "--show-only",
        "templates/servicemonitor.yaml",
    )
    text = cluster.helm("template", "orchard", CHART, "-n", NAMESPACE, "-f", file, *only)
    assert f"credentials: {{name: {named[0]}, key: {named[1]}}}" in text


def test_no_right_goes_beyond_its_namespaces_where_nodes_are_not_to_be_listed(render: Any) -> None:
    objects = render(nodes={"list": False})
    assert not [each for each in objects if each["kind"].startswith("ClusterRole")]
    kept = {as_tuple(right) for right in rights(SANDBOXES, KubernetesSettings()) if right.namespace}
    assert granted(objects) == kept


@pytest.mark.parametrize("ingress", [{}, {"namespaces": ["ci"]}, {"namespaces": ["home"], "cidrs": ["10.1.0.0/16"]}])
def test_policy_is_the_one_that_the_service_keeps(render: Any, ingress: dict[str, Any]) -> None:
    (policy,) = of_kind(render(settings={"ingress": ingress}), "NetworkPolicy")
    namespaces = [*ingress.get("namespaces", ()), *(() if "home" in ingress.get("namespaces", ()) else ("home",))]
    settings = KubernetesSettings(ingress=Ingress(namespaces, ingress.get("cidrs", ())))
    (kept,) = (each for each in network_policies(SANDBOXES, settings, []) if each["metadata"]["name"] == EVERY)
    assert policy["spec"] == kept["spec"]
    assert policy["metadata"]["labels"] == kept["metadata"]["labels"]


def test_schema_takes_the_settings_of_the_backend() -> None:
    schema = json.loads(SCHEMA.read_text())
    assert schema == updated(schema), "python -m deploy.schema"


def test_unknown_value_is_refused_by_name(render: Any) -> None:
    with pytest.raises(MachineUnfit, match="creats"):
        render(settings={"creats": 3})
    with pytest.raises(MachineUnfit, match=r"images\.registry is needed"):
        render(images={})


def test_settings_arrive_as_they_were_given(render: Any, tmp_path: Path) -> None:
    given = {
        "creates": 7, "spool_bytes": 5 << 30, "overcommit": 1.5, "requests": {"cpu": "10m"}, "pull_secrets": ["login"],
        "node_selector": {"pool": "spot"}, "largest_node": {"cpu": 64, "memory": 256 << 30},
        "tolerations": [{"key": "spot", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}],
        "ingress": {"cidrs": ["10.1.0.0/16"]}, "run_as": 1000, "node_lost_after": 30,
        "commit_bytes": 5 << 30, "commits": 3,
    }  # fmt: skip
    (map_,) = of_kind(render(settings=given, sandboxes={"profile": "restricted"}), "ConfigMap")
    (tmp_path / "settings.toml").write_text(map_["data"]["settings.toml"])
    told = load_settings(tmp_path / "settings.toml")
    assert told.namespace == SANDBOXES
    assert told.daemon_image == "registry.test/orchard/orchard-sandboxd:0.1.0"
    assert told.profile == "restricted"
    assert told.overcommit == 1.5
    for name in ("creates", "spool_bytes", "run_as", "node_lost_after", "commit_bytes", "commits"):
        assert json.dumps(getattr(told, name)) == json.dumps(given[name]), "1000.0 is no number of a Pod"
    assert (dict(told.requests), dict(told.node_selector)) == ({"cpu": "10m"}, {"pool": "spot"})
    assert told.ingress == Ingress(["home"], ["10.1.0.0/16"])
    assert told.largest_node is not None
    assert json.dumps(told.largest_node.memory) == json.dumps(256 << 30)
    assert json.dumps(list(told.tolerations), sort_keys=True) == json.dumps(given["tolerations"], sort_keys=True)


@pytest.mark.parametrize("given", [{}, {"commit_bytes": 16 << 30}, {"commits": 5}, {"commits": 1, "commit_bytes": 1}])
def test_commits_that_the_settings_permit_have_their_disk(render: Any, given: dict[str, Any]) -> None:
    """Each holds its layer twice and two lists of files, beside the kept ones; a node without it gets no Pod."""
    settings = KubernetesSettings(**COMMITS, **given)
    each = 2 * settings.commit_bytes + 2 * manifests._LONGEST
    needed = manifests._KEPT + settings.commits * each
    (service,) = of_kind(render(settings={**COMMITS, **given}), "Deployment")
    pod = service["spec"]["template"]["spec"]
    (room,) = (each["emptyDir"]["sizeLimit"] for each in pod["volumes"] if each["name"] == "tmp")
    assert needed < quantity(room) <= needed + (settings.commits + 1) * (256 << 20)
    requests = pod["containers"][0]["resources"]["requests"]
    assert (requests.pop("ephemeral-storage"), requests) == (room, {"cpu": "250m", "memory": "256Mi"})


def test_without_commits_the_service_needs_little_disk_and_what_it_asks_for_is_as_given(render: Any) -> None:
    (service,) = of_kind(render(settings={"commit_bytes": 16 << 30}), "Deployment")
    pod = service["spec"]["template"]["spec"]
    assert {"name": "tmp", "emptyDir": {"sizeLimit": str(256 << 20)}} in pod["volumes"]
    assert "ephemeral-storage" not in pod["containers"][0]["resources"]["requests"]
    own = {"ephemeral-storage": "1Gi"}
    for given, asked in (({"requests": own}, own), ({"limits": own}, {})):  # one beyond its limit would be refused
        (service,) = of_kind(render(settings=COMMITS, resources=given), "Deployment")
        resources = service["spec"]["template"]["spec"]["containers"][0]["resources"]
        assert resources["requests"] == {"cpu": "250m", "memory": "256Mi", **asked}


OURS = f'[[keys]]\nname = "default"\nsha256 = "{"0" * 64}"\ntenant = "default"\n'
"""What the chart makes."""


@pytest.mark.parametrize(
    ("file", "keys", "expected"),
    [
        (OURS, {}, {}),
        (OURS, {"quota": 50}, {"quota": 50}),
        (OURS, {"quota": 0, "rate": 0.5}, {"quota": 0, "rate": 0.5}),
        (OURS.replace('"default"', '"team-a"') + "rate = 3\n", {"quota": 50}, {"quota": 50, "rate": 3}),
        (OURS + "  'quota'=7 # mine\nrate = 3", {"quota": 50, "rate": 9}, {"quota": 50, "rate": 9}),
        (OURS + "quota = 7\n", {"rate": 2000000}, {"quota": 7, "rate": 2e6}),
        ("# [[keys]] of old\n" + OURS, {"quota": 50}, {"quota": 50}),
        ("# mine\n" + OURS.replace("0", "a") + "[other]\nx = 1\n", {"quota": 50}, {"quota": 50}),
    ],
)
def test_an_upgrade_changes_of_the_only_key_what_the_values_name(
    cluster: Cluster, tmp_path: Path, file: str, keys: dict[str, Any], expected: dict[str, Any]
) -> None:
    """The Secret is its editor's: name, tenant, the key itself and what no value names stay."""
    was, now = (tomllib.loads(each) for each in (file, kept_keys(cluster, tmp_path, file, keys)))
    (key,) = was["keys"]
    assert now == {**was, "keys": [{**key, **expected}]}


@pytest.mark.parametrize("file", [OURS + OURS, "", f"keys = [{{name = 'x', sha256 = '{'0' * 64}', quota = 1}}]\n"])
def test_an_upgrade_leaves_a_file_of_others_as_it_is(cluster: Cluster, tmp_path: Path, file: str) -> None:
    assert kept_keys(cluster, tmp_path, file, {"quota": 50, "rate": 2}) == file


def kept_keys(cluster: Cluster, folder: Path, file: str, keys: dict[str, Any]) -> str:
    """Return what an upgrade with ``keys`` makes of keys.toml; only a cluster would tell the chart what it is."""
    kept = 'include "orchard.keptKeys" (list .Values.global.file .Values.keys)'
    probe = f'{{{{ dict "kind" "ConfigMap" "told" ({kept}) | toJson }}}}'
    shutil.copytree(CHART, folder / "chart")
    (folder / "chart" / "templates" / "probe.yaml").write_text(probe)
    (folder / "values.json").write_text(json.dumps({"images": ALL["images"], "keys": keys, "global": {"file": file}}))
    words = ("--kube-version", "1.34.4", "-f", folder / "values.json", "--show-only", "templates/probe.yaml")
    text = cluster.helm("template", "orchard", folder / "chart", *words)
    return json.loads(text[text.index("{") :])["told"]


def test_every_pod_of_ours_is_restricted(render: Any) -> None:
    objects = render(**ALL)
    (service,) = of_kind(objects, "Deployment")
    (reap,) = of_kind(objects, "CronJob")
    for spec in (service["spec"]["template"]["spec"], reap["spec"]["jobTemplate"]["spec"]["template"]["spec"]):
        assert spec["securityContext"]["runAsNonRoot"]
        (container,) = spec["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"]["memory"]


@pytest.mark.parametrize("chosen", [{}, {"pool": "steady"}])
def test_our_own_pods_go_to_linux_nodes_and_where_they_are_sent(render: Any, chosen: dict[str, str]) -> None:
    objects = render(**ALL, nodeSelector=chosen)
    (service,) = of_kind(objects, "Deployment")
    (reap,) = of_kind(objects, "CronJob")
    for template in (service["spec"]["template"], reap["spec"]["jobTemplate"]["spec"]["template"]):
        assert template["spec"]["nodeSelector"] == {"kubernetes.io/os": "linux", **chosen}


def test_parts_are_there_only_where_asked(render: Any, cluster: Cluster) -> None:
    kinds = {each["kind"] for each in render()}
    assert {"Deployment", "PodDisruptionBudget", "CronJob", "Namespace"} <= kinds
    assert not kinds & {"HorizontalPodAutoscaler", "ResourceQuota"}
    objects = render(**{**ALL, "reap": {"enabled": False}, "disruptionBudget": {"enabled": False}})
    kinds = {each["kind"] for each in objects}
    assert {"HorizontalPodAutoscaler", "ResourceQuota"} <= kinds
    assert not kinds & {"CronJob", "PodDisruptionBudget"}
    (service,) = of_kind(objects, "Deployment")
    assert service["spec"].get("replicas") is None, "the scaler's number stands"
    words = ("template", "orchard", CHART, "--kube-version", "1.34.4", "--set", "images.registry=r")
    wanted = (*words, "--set", "serviceMonitor.enabled=true")
    assert "ServiceMonitor" not in cluster.helm(*wanted), "the cluster does not know the kind"
    assert "kind: ServiceMonitor" in cluster.helm(*wanted, "--api-versions", "monitoring.coreos.com/v1")


def test_namespace_of_sandboxes_is_guarded_or_left_to_its_owner(render: Any) -> None:
    (namespace,) = of_kind(render(sandboxes={"profile": "restricted"}), "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert not of_kind(render(sandboxes={"create": False}), "Namespace")
    assert not of_kind(render(sandboxes={"namespace": NAMESPACE}), "Namespace")


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"disruptionBudget": {"maxUnavailable": 0}}, "disruptionBudget/maxUnavailable"),
        ({"disruptionBudget": {"maxUnavailable": "0%"}}, "disruptionBudget/maxUnavailable"),
        ({"autoscaling": {"enabled": True, "minReplicas": 3, "maxReplicas": 2}}, "maxReplicas is below"),
        ({"autoscaling": {"enabled": True}, "resources": {"requests": {"cpu": None}}}, r"resources\.requests\.cpu"),
    ],
)
def test_budget_that_lets_none_go_and_scaler_without_room_are_refused(
    render: Any, values: dict[str, Any], told: str
) -> None:
    with pytest.raises(MachineUnfit, match=told):
        render(**values)


def test_budget_takes_a_share_and_never_holds_a_node_for_what_does_not_serve(render: Any) -> None:
    (budget,) = of_kind(render(disruptionBudget={"maxUnavailable": "25%"}), "PodDisruptionBudget")
    assert budget["spec"]["maxUnavailable"] == "25%"
    assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
