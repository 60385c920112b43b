"""From a specification to a Pod, and back to what is told of it."""

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from orchard.core.errors import InvalidArgument, Unsupported
from orchard.sandbox.kubernetes import KubernetesSettings, load_settings
from orchard.sandbox.kubernetes.capacity import quantity
from orchard.sandbox.kubernetes.identity import Identity, ServiceKey, new_sandbox_id, pod_name
from orchard.sandbox.kubernetes.pod import CONFIG_ENV, ImageFacts, Plan, check, manifest, spec_hash
from orchard.sandbox.kubernetes.record import info_of, progress_of
from orchard.sandbox.kubernetes.toolvolumes import check_kept, check_tools
from orchard.sandbox.types import SandboxSpec, State

KEY = ServiceKey(b"k" * 32)
SETTINGS = KubernetesSettings(daemon_image="registry.example/sandboxd:1")
FACTS = ImageFacts("registry.example/x@sha256:" + "0" * 64, "sha256:" + "0" * 64, "app", "/srv", {"A": "1"}, ("/e",))
NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


def plan(facts: ImageFacts | None = None, tenant: str = "", **given: Any) -> Plan:
    spec = SandboxSpec(**{"image": "registry.example/x:1", **given})
    name = pod_name(tenant, "key")
    who = Identity("boxes", name, new_sandbox_id(name), tenant)
    return Plan(spec, who, KEY.mac(who), KEY.token_sha256(who.id), NOW, facts)


def config_of(pod: dict[str, Any]) -> dict[str, Any]:
    (variable,) = pod["spec"]["containers"][0]["env"]
    assert variable["name"] == CONFIG_ENV
    assert "$" not in variable["value"]  # the cluster would expand it
    return json.loads(variable["value"])


def test_the_pod_has_no_rights_no_restarts_and_no_links() -> None:
    body = manifest(plan(), SETTINGS)["spec"]
    assert (body["restartPolicy"], body["automountServiceAccountToken"], body["enableServiceLinks"]) == (
        "Never", False, False,
    )  # fmt: skip
    assert body["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in (*body["containers"], *body["initContainers"]):
        assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]


def test_tools_are_image_volumes_behind_the_path_of_the_image() -> None:
    tools = [f"{name}@sha256:{digit * 64}" for name, digit in (("node", "0"), ("codex", "1"))]
    settings = replace(SETTINGS, tools_repository="registry.example:5000/tools")
    pod = manifest(plan(tools=tools), settings)
    asked = [each["image"]["reference"] for each in pod["spec"]["volumes"] if "image" in each]
    assert asked == [f"registry.example:5000/tools/{tool}" for tool in tools]
    names = {each["name"] for each in pod["spec"]["volumes"] if "image" in each}
    mounts = [each for each in pod["spec"]["containers"][0]["volumeMounts"] if each["name"] in names]
    assert [each["mountPath"] for each in mounts] == ["/opt/orchard/tools/node", "/opt/orchard/tools/codex"]
    assert all(each["readOnly"] for each in mounts)
    assert config_of(pod)["path_append"] == ["/opt/orchard/tools/node/bin", "/opt/orchard/tools/codex/bin"]
    with pytest.raises(Unsupported, match="tools_repository"):
        check_tools(tools, SETTINGS)
    check_kept(pod, tools)
    pod["spec"]["volumes"] = [each for each in pod["spec"]["volumes"] if "image" not in each]
    with pytest.raises(Unsupported, match="no image volumes"):  # as an API server without them answers
        check_kept(pod, tools)


def test_restricted_drops_everything_and_takes_a_number_for_a_user() -> None:
    settings = replace(SETTINGS, profile="restricted")
    for facts, user, uid in (
        (None, "1234:5", 1234), (replace(FACTS, user="77"), None, 77), (FACTS, None, None), (None, "\u00b2", None),
        (None, "0", None), (None, "4294967296", None), (None, "9" * 5000, None),
    ):  # fmt: skip
        pod = manifest(plan(facts, user=user), settings)
        for container in (*pod["spec"]["containers"], *pod["spec"]["initContainers"]):
            context = container["securityContext"]
            assert "add" not in context["capabilities"]
            assert context["runAsNonRoot"]
            assert not context["allowPrivilegeEscalation"]
            assert context.get("runAsUser") == uid
        assert config_of(pod)["user"] == ""


def test_the_daemon_is_root_where_it_can_run_commands_as_the_images_user() -> None:
    known = manifest(plan(FACTS), SETTINGS)
    assert known["spec"]["containers"][0]["securityContext"]["runAsUser"] == 0
    assert config_of(known)["user"] == "app"
    unknown = manifest(plan(), SETTINGS)
    assert "runAsUser" not in unknown["spec"]["containers"][0]["securityContext"]
    assert config_of(unknown)["user"] == ""


def test_what_is_asked_for_is_what_the_daemon_is_told() -> None:
    env = {"PLAIN": "a $(HOME) $$ \u20ac", "Q": '"'}
    pod = manifest(plan(env=env, ttl=20, max_ttl=60, idle=5.5, heartbeat=30, workdir="/w", entrypoint=["a"]), SETTINGS)
    config = config_of(pod)
    assert config["env"] == env
    assert config["lease"] == {"ttl_s": 20, "max_ttl_s": 60, "idle_s": 5.5, "heartbeat_s": 30}
    assert config["workdir"] == "/w"
    assert "workingDir" not in pod["spec"]["containers"][0], "a runtime would make the folder where it is missing"
    assert config["entrypoint"] == ["a"]
    assert pod["spec"]["activeDeadlineSeconds"] >= 60 + SETTINGS.pull_timeout  # the cluster counts the pull too


@pytest.mark.parametrize("given", [{"env": {"A": "x" * 200_000}}, {"entrypoint": ["x" * 200_000]}])
def test_what_no_variable_holds_is_refused_by_name(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        manifest(plan(**given), SETTINGS)
    assert caught.value.field in given


def test_limits_of_the_caller_count_and_overcommit_lowers_what_is_set_aside() -> None:
    settings = replace(SETTINGS, overcommit=4.0, limits={"cpu": "9", "memory": "9Gi"})
    for container in ("containers", "initContainers"):
        asked = manifest(plan(cpu=1.5, memory=1 << 30, disk=1 << 30), settings)["spec"][container][0]["resources"]
        assert asked["limits"]["cpu"] == "1500m"
        assert asked["limits"]["memory"] == str(1 << 30)
        assert asked["requests"] == {"cpu": "375m", "memory": str(1 << 28), "ephemeral-storage": str(1 << 30)}
        plain = manifest(plan(), settings)["spec"][container][0]["resources"]
        assert plain == {"limits": {"cpu": "9", "memory": "9Gi"}, "requests": dict(settings.requests)}


@pytest.mark.parametrize("most", [1e308, 10**400])
def test_a_size_beyond_any_machine_is_one_that_no_node_has(most: float) -> None:
    """And not one that no number holds, or that a scheduler's sum does not."""
    given: Any = {"cpu": most, "memory": int(most), "disk": int(most)}
    asked = manifest(plan(**given), SETTINGS)["spec"]["containers"][0]["resources"]
    for name, size in asked["requests"].items():
        assert 1 << 40 < quantity(size) <= quantity(asked["limits"][name]) < 1 << 60


def test_where_pods_go_and_what_they_run_on_is_as_set() -> None:
    spot = {"key": "spot", "operator": "Exists"}
    settings = replace(
        SETTINGS, runtime_class="kata", priority_class="low", node_selector={"pool": "boxes"}, tolerations=[spot],
        pull_secrets=["login"],
    )  # fmt: skip
    body = manifest(plan(), settings)["spec"]
    assert (body["runtimeClassName"], body["priorityClassName"]) == ("kata", "low")
    assert body["nodeSelector"] == {"kubernetes.io/os": "linux", "pool": "boxes"}
    assert body["imagePullSecrets"] == [{"name": "login"}]
    assert spot in body["tolerations"]
    assert not {"runtimeClassName", "priorityClassName"} & manifest(plan(), SETTINGS)["spec"].keys()


def test_no_number_of_a_pod_has_a_fraction(tmp_path: Path) -> None:
    """The API server takes whole numbers only, and Helm writes those of a values file with a point."""
    path = tmp_path / "settings.toml"
    path.write_text(
        'daemon_image = "x"\nnode_lost_after = 60.0\nrun_as = 1000.0\nspool_bytes = 4.294967296e+09\n'
        'pull_timeout = 60.5\n[[tolerations]]\nkey = "spot"\ntolerationSeconds = 300.0\n'
    )
    written = json.dumps(manifest(plan(FACTS), load_settings(path))["spec"])
    assert '"tolerationSeconds": 300}' in written
    assert not re.search(r": -?[0-9]+(\.[0-9]|e\+)", written)


def test_an_image_volume_needs_no_init_container() -> None:
    pod = manifest(plan(), replace(SETTINGS, injection="image-volume"))
    assert pod["spec"]["initContainers"] == []
    assert {"reference": SETTINGS.daemon_image, "pullPolicy": "IfNotPresent"} in [
        each.get("image") for each in pod["spec"]["volumes"]
    ]


def test_a_sandbox_without_network_waits_for_the_question_as_long_as_its_create_does() -> None:
    assert config_of(manifest(plan(network="open"), SETTINGS))["seal"] is None
    told = config_of(manifest(plan(network="none", create_timeout=77.0), SETTINGS))["seal"]
    assert told["timeout_s"] < told["asked_within_s"] == 77.0


def test_without_network_names_are_refused_at_once() -> None:
    assert manifest(plan(network="none"), SETTINGS)["spec"]["dnsPolicy"] == "None"
    assert manifest(plan(network="open"), SETTINGS)["spec"]["dnsPolicy"] == "ClusterFirst"


def test_labels_of_callers_match_no_selector_of_others_and_come_back() -> None:
    mine = {"app": "web", "a.b/c": "d", "orchard/tenant": "t", "orchard/sandbox": "no"}
    made = plan(tenant="t", labels=mine)
    pod = manifest(made, SETTINGS)
    labels = pod["metadata"]["labels"]
    assert not {"app", "a.b/c"} & set(labels)
    assert (labels["orchard/sandbox"], labels["orchard/network"], labels["orchard/tenant"]) == ("1", "none", "t")
    assert info_of(pod, made.who).labels == mine


def test_a_label_prefix_that_leaves_no_room_is_refused() -> None:
    with pytest.raises(InvalidArgument) as caught:
        manifest(plan(labels={"a" * 250 + "/x": "y"}), SETTINGS)
    assert caught.value.field == "labels"


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"pids": 10}, Unsupported),
        ({"memory": 8 << 20}, InvalidArgument),
        ({"image": "host"}, InvalidArgument),
        ({"image": "oci:/x:1"}, InvalidArgument),
    ],
)
def test_what_a_pod_cannot_have_is_refused_by_name(given: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match="|".join(map(str, given)) or "image"):
        check(SandboxSpec(**{"image": "x", **given}))


def test_an_entrypoint_that_nobody_knows_is_refused() -> None:
    assert config_of(manifest(plan(FACTS, entrypoint=True), SETTINGS))["entrypoint"] == ["/e"]
    with pytest.raises(Unsupported):
        manifest(plan(entrypoint=True), SETTINGS)


def test_the_hash_tells_specifications_apart() -> None:
    one = SandboxSpec("x", env={"A": "1", "B": "2"})
    assert spec_hash(one) == spec_hash(SandboxSpec("x", env={"B": "2", "A": "1"}))
    assert spec_hash(one) != spec_hash(replace(one, ttl=7))


def test_the_record_is_on_the_pod() -> None:
    made = plan(FACTS, env={"B": "2"}, ttl=100, user="root")
    info = info_of(manifest(made, SETTINGS), made.who)
    assert (info.id, info.image, info.image_digest) == (made.who.id, "registry.example/x:1", FACTS.digest)
    assert (info.created_at, info.expires_at) == (NOW, NOW + timedelta(seconds=100))
    assert (info.env, info.user, info.workdir) == ({"A": "1", "B": "2"}, "root", "/srv")
    assert info.state is State.STARTING


SCHEDULED = {"type": "PodScheduled", "status": "True"}
INSTALLED = [{"name": "sandboxd", "state": {"terminated": {"exitCode": 0}}}]


def waiting(reason: str, message: str = "why") -> list[dict[str, Any]]:
    return [{"name": "sandbox", "state": {"waiting": {"reason": reason, "message": message}}}]


@pytest.mark.parametrize(
    ("status", "state", "address"),
    [
        ({}, State.STARTING, None),
        ({"conditions": [SCHEDULED]}, State.STARTING, None),
        (
            {"containerStatuses": waiting("PodInitializing"), "podIP": "10.0.0.1", "initContainerStatuses": [
                {"name": "sandboxd", "state": {"running": {}}}]},
            State.STARTING, None,
        ),
        (
            {"containerStatuses": waiting("PodInitializing"), "podIP": "10.0.0.1", "initContainerStatuses": INSTALLED},
            State.PULLING, "10.0.0.1",
        ),
        (
            {"containerStatuses": [{"name": "sandbox", "state": {"running": {}}}], "podIP": "fd00::1",
             "initContainerStatuses": INSTALLED},
            State.READY, "[fd00::1]",
        ),
    ],
)  # fmt: skip
def test_how_far_a_pod_is_follows_from_its_status(status: dict[str, Any], state: State, address: str | None) -> None:
    progress = progress_of({**manifest(plan(), SETTINGS), "status": status})
    assert (progress.state, progress.address, progress.failure) == (state, address, None)


@pytest.mark.parametrize(
    ("reason", "told"),
    [("InvalidImageName", "image_invalid"), ("CreateContainerConfigError", "start_failed")],
)
def test_what_does_not_recover_fails_with_the_clusters_words(reason: str, told: str) -> None:
    pod = {**manifest(plan(), SETTINGS), "status": {"containerStatuses": waiting(reason, "the kubelet's words")}}
    failure = progress_of(pod).failure
    assert failure == (told, f"{reason}: the kubelet's words")


def test_of_what_a_mesh_puts_into_a_pod_nothing_is_taken_for_ours() -> None:
    made = manifest(plan(), SETTINGS)
    made["spec"]["initContainers"].insert(0, {"name": "a-proxy"})
    first = {"name": "a-proxy", "state": {"terminated": {"exitCode": 0}}}
    busy = {"name": "sandboxd", "state": {"running": {}}}
    status = {"containerStatuses": [{"name": "a-proxy", "state": {"running": {}}}, *waiting("PodInitializing")]}
    made["status"] = {**status, "podIP": "10.0.0.1", "initContainerStatuses": [first, busy]}
    assert progress_of(made).state is State.STARTING
    made["status"] |= {"initContainerStatuses": [first, *INSTALLED]}
    assert progress_of(made).state is State.PULLING


def test_a_pull_that_is_tried_again_and_a_pod_that_no_node_takes_are_told_but_not_given_up() -> None:
    pod = {**manifest(plan(), SETTINGS), "status": {"containerStatuses": waiting("ImagePullBackOff")}}
    assert (progress_of(pod).pull_trouble, progress_of(pod).failure) == ("ImagePullBackOff: why", None)
    full = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes"}
    pod["status"] = {"conditions": [full]}
    assert (progress_of(pod).unschedulable, progress_of(pod).failure) == ("0/2 nodes", None)
