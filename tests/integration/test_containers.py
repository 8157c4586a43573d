"""The container files, tested without containers: schema, lint, commands, health checks. The deployment and kill tests
run the server, worker and Dask commands.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from driftline.flows.config.driftline_toml import load_config
from driftline.flows.runs.executors import SPAWN_VARIABLES, WORKER_VARIABLES
from tests.servers.compose import BIN, FILE, compose_command, services
from tests.servers.ports import free_port
from tests.servers.prefect_server import PrefectServer, answers, started, wait_until

ROOT = FILE.parents[1]
DOCKERFILE = FILE.with_name("Dockerfile")
KUBERNETES = FILE.with_name("kubernetes")


def run(*command: object, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in command]
    return subprocess.run(words, capture_output=True, text=True, check=False, env=environment)


def test_the_compose_file_is_valid() -> None:
    files = FILE, FILE.parent / "web" / "compose.yaml"
    done = run(BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", *files)
    assert done.returncode == 0, done.stdout + done.stderr
    names = set(services())
    for service in services().values():
        assert set(service.get("depends_on", ())) <= names


def test_the_dockerfile_passes_its_linter() -> None:
    done = run(BIN / "hadolint", DOCKERFILE)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dockerfile_copies_the_whole_package() -> None:
    copied = set(re.findall(r"^COPY (?!--)(.+) \S+$", DOCKERFILE.read_text(), re.MULTILINE))
    for name in " ".join(copied).split():
        assert (ROOT / name).exists(), name
    expected = {"deployments/prefect.yaml", "flows", "tasks", "storage", "requirements.lock", "pyproject.toml"}
    assert expected <= set(" ".join(copied).split())
    # Not root, and numeric so Kubernetes can check it.
    assert re.findall(r"^USER (.+)$", DOCKERFILE.read_text(), re.MULTILINE) == ["1000"]


def test_every_service_is_watched_or_said_to_end() -> None:
    for name, service in services().items():
        assert service["restart"] in ("unless-stopped", "no"), name
        assert "healthcheck" in service or name in ("bucket", "deploy", "worker", "dask-worker"), name


@pytest.mark.xdist_group("prefect")
def test_deploy_reads_the_example(prefect_server: PrefectServer, tmp_path: Path) -> None:
    example = FILE.with_name("driftline.example.toml")
    command = compose_command("deploy", {})
    prefixed = [*command, "--pool", "compose", "--prefix", "compose:"]
    done = run(*prefixed, environment=prefect_server.environment | {"DRIFTLINE_CONFIG": str(example)})
    assert done.returncode == 0, done.stderr
    deployed = prefect_server.get("deployments/name/driftline-index/compose:web")
    assert deployed["parameters"]["executor"] == "tcp://dask-scheduler:8786"
    assert deployed["parameters"]["workspace"] == "s3://driftline/workspace"
    prefect_server.call("DELETE", f"deployments/{deployed['id']}")


@pytest.mark.xdist_group("prefect")
def test_the_health_check_of_the_server_reports_whether_it_answers(prefect_server: PrefectServer) -> None:
    port = prefect_server.url.split(":")[2].partition("/")[0]
    _, _, option, program = services()["prefect"]["healthcheck"]["test"]
    assert "4200" in program
    assert run(BIN / "python", option, program.replace("4200", port)).returncode == 0
    assert run(BIN / "python", option, program.replace("4200", str(free_port()))).returncode != 0


def test_the_store_accepts_a_workspace_only_with_its_password(tmp_path: Path) -> None:
    port = free_port()
    replaced = {
        "-dir=/data": f"-dir={tmp_path}",
        "-s3.port=8333": f"-s3.port={port}",
        "-ip.bind=0.0.0.0": "-ip.bind=127.0.0.1",
    }
    names = [
        "s3.port.grpc",
        *(f"{part}.port{kind}" for part in ("master", "volume", "filer") for kind in ("", ".grpc")),
    ]
    ports = [f"-{name}={free_port()}" for name in names]
    fixed = ("-s3.port.iceberg=0", "-s3.port.lance=0")  # the same in every test run
    command = [*compose_command("s3", replaced, "weed"), "-ip=127.0.0.1", *fixed, *ports]
    environment = os.environ | {"AWS_ACCESS_KEY_ID": "compose", "AWS_SECRET_ACCESS_KEY": "password"}
    with started(command, tmp_path / "weed.log", environment, tmp_path) as process:
        address = f"http://127.0.0.1:{port}"
        wait_until(lambda: answers(f"{address}/healthz"), process, tmp_path / "weed.log")
        (tmp_path / "web").mkdir()
        (tmp_path / "web" / "a.txt").write_text("import argparse\n")
        index = [BIN / "driftline", "index", tmp_path / "web", "--workspace", "s3://driftline/workspace"]
        environment |= {"AWS_ENDPOINT_URL": address, "AWS_REGION": "us-east-1"}
        for _ in range(2):
            done = run(*compose_command("bucket", {}), environment=environment)
            assert done.returncode == 0, done.stderr
        done = run(*index, environment=environment)
        assert done.returncode == 0, done.stderr
        done = run(*index, environment=environment | {"AWS_SECRET_ACCESS_KEY": "wrong"})
        assert done.returncode == 2, done.stderr
        process.kill()  # a graceful stop takes 10 s


def manifests(kind: str) -> dict[str, dict[str, Any]]:
    """Return the objects of a kind that ``kubectl apply --kustomize`` creates, by name."""
    kustomization = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())
    keys = {"apiVersion", "kind", "namespace", "resources", "images", "configMapGenerator"}
    assert set(kustomization) == keys, "kubectl would refuse another one"
    named = kustomization["images"] + kustomization["configMapGenerator"]
    assert [set(each) for each in named] == [{"name", "newName", "newTag"}, {"name", "files"}]
    files = kustomization["resources"]
    assert {path.name for path in KUBERNETES.iterdir()} == {"kustomization.yaml", "driftline.toml", *files}
    found = [each for name in files for each in yaml.safe_load_all((KUBERNETES / name).read_text())]
    return {each["metadata"]["name"]: each for each in found if each["kind"] == kind}


def containers() -> dict[str, dict[str, Any]]:
    """Return the containers of all pods, by deployment and name."""
    return {
        f"{name}/{container['name']}": container
        for name, deployment in manifests("Deployment").items()
        for spec in (deployment["spec"]["template"]["spec"],)
        for container in (*spec.get("initContainers", ()), *spec["containers"])
    }


def test_pods_run_the_commands_of_the_compose_file() -> None:
    found = containers()
    same = {
        "dask-scheduler/scheduler": "dask-scheduler",
        "dask-worker/worker": "dask-worker",
        "prefect/server": "prefect",
    }
    same["prefect-worker/deploy"] = "deploy"
    for name, service in same.items():
        assert found[name]["args"] == services()[service]["command"], name
    saving_memory = {**WORKER_VARIABLES, **SPAWN_VARIABLES}
    set_in_pods = {each["name"]: each.get("value") for each in found["dask-worker/worker"]["env"]}
    for given in (set_in_pods, services()["dask-worker"]["environment"]):
        assert saving_memory.items() <= given.items()
    worker = found["prefect-worker/worker"]["args"]
    assert worker[: len(services()["worker"]["command"])] == services()["worker"]["command"]
    options = run(BIN / "prefect", "worker", "start", "--help").stdout
    assert set(re.findall(r"--[a-z-]+", " ".join(worker))) <= set(re.findall(r"--[a-z-]+", options))


def test_objects_of_kubernetes_refer_to_what_exists() -> None:
    deployments, services_of = manifests("Deployment"), manifests("Service")
    described = (KUBERNETES / "kustomization.yaml").read_text()
    for deployment in deployments.values():
        pod = deployment["spec"]["template"]
        assert deployment["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
        volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
        for container in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]):
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
            for secret in re.findall(r"'secret(?:Key)?Ref': {'name': '([^']+)'", str(container)):
                assert f"create {secret} " in described
            for host, port in re.findall(r"(?:http|tcp)://([a-z-]+):(\d+)", str(container)):
                assert services_of[host]["spec"]["ports"][0]["port"] == int(port)
    for service in services_of.values():
        (pod,) = (each for each in deployments.values() if each["metadata"]["labels"] == service["spec"]["selector"])
        ports = {port["name"] for port in pod["spec"]["template"]["spec"]["containers"][0]["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    for budget in manifests("PodDisruptionBudget").values():
        labels = budget["spec"]["selector"]["matchLabels"]
        (pod,) = (each for each in deployments.values() if each["metadata"]["labels"] == labels)
        assert budget["spec"]["minAvailable"] < pod["spec"]["replicas"]


def test_the_web_servers_read_the_configuration_of_the_worker() -> None:
    service = yaml.safe_load((FILE.parent / "web" / "compose.yaml").read_text())["services"]["web"]
    assert f"./driftline.toml:{service['environment']['DRIFTLINE_CONFIG']}:ro" in service["volumes"]
    assert service["environment"]["PREFECT_API_URL"] == "http://prefect:4200/api"
    worker, web = containers()["prefect-worker/worker"], containers()["driftline-web/web"]
    for name in ("DRIFTLINE_CONFIG", "PREFECT_API_URL", "PREFECT_HOME"):  # the home folder is read-only
        values = [each["value"] for container in (worker, web) for each in container["env"] if each["name"] == name]
        assert values == [values[0]] * 2
    mounts = [{mount["mountPath"] for mount in container["volumeMounts"]} for container in (worker, web)]
    assert "/etc/driftline" in mounts[0] & mounts[1]


def test_pods_have_no_privileges() -> None:
    for name, container in containers().items():
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }, name
    for name, deployment in manifests("Deployment").items():
        pod = deployment["spec"]["template"]["spec"]
        for resources in (container["resources"] for container in pod["containers"]):  # the schema accepts any name
            assert {*resources["requests"], *resources.get("limits", ())} <= {"cpu", "memory", "ephemeral-storage"}, (
                name
            )
        assert (pod["securityContext"]["runAsNonRoot"], pod["automountServiceAccountToken"]) == (True, False), name


def test_the_configuration_for_kubernetes_names_sources_that_every_pod_reaches() -> None:
    config = load_config(KUBERNETES / "driftline.toml")
    assert all("://" in source.uri for source in config.sources)
