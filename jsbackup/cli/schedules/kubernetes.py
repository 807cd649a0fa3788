"""A ConfigMap with the profile and a CronJob for each job, with minimal rights.

    secret jsbackup-NAME       its files are those that the profile names, mounted under /etc/jsbackup/secrets
    secret jsbackup-NAME-env   its keys become variables: those that the profile names, credentials of S3
    claim jsbackup-NAME        the volume of a repository in a folder, mounted where the profile says

These three are not printed: the user provides them. Secrets in the profile itself are replaced by variables.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from jsbackup.cli.schedules.jobs import Job, Plan, ScheduleFile
from jsbackup.formats.yaml_text import to_yaml

__all__ = ["SECRETS_FOLDER", "kubernetes_files", "toml_text"]

SECRETS_FOLDER: Final = "/etc/jsbackup/secrets"
_CONFIG: Final = "/etc/jsbackup/config.toml"
_NOBODY: Final = 65532
# A CronJob's name has at most 52 characters, including `jsbackup-` and `-backup`.
_MAX_NAME: Final = 36

Tables = Mapping[str, Mapping[str, Any]]


def kubernetes_files(plan: Plan, image: str, config: str, withheld: Sequence[str]) -> list[ScheduleFile]:
    """Return the files. `config` is the profile as TOML without secrets, `withheld` the variables that replace some."""
    name = _name(plan.profile)
    files = dict.fromkeys(one for job in plan.jobs for one in job.credentials)
    remarks = [
        f"# jsbackup, profile {plan.profile}: kubectl apply -f jsbackup-{plan.profile}.yaml",
        "# Before that, and in the same namespace, by someone who has the secrets:",
        *_secret(name, [shlex.quote(f"--from-file={one.name}={one.path}") for one in files]),
        *_secret(f"{name}-env", [f"--from-literal={variable}=…" for variable in (*plan.variables, *withheld)]),
    ]
    if plan.in_s3:
        remarks.append(f"# Credentials of S3, unless the pod has a role: AWS_ACCESS_KEY_ID … in the secret {name}-env")
    if any(job.repo for job in plan.jobs):
        remarks.append(f"# The repository is in a folder: make a PersistentVolumeClaim {name} for it")
    labels = {"app.kubernetes.io/name": "jsbackup", "app.kubernetes.io/instance": name}
    documents: list[Mapping[str, Any]] = [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "labels": labels},
            "data": {"config.toml": config},
        },
        *(_cron_job(plan, job, name, image, labels=labels, with_files=bool(files)) for job in plan.jobs),
    ]
    text = "\n".join([*remarks, ""]) + "".join(f"---\n{to_yaml(document)}" for document in documents)
    return [ScheduleFile(f"jsbackup-{plan.profile}.yaml", text)]


def toml_text(tables: Tables) -> str:
    """Encode tables of texts, numbers, booleans and lists of texts as TOML."""
    lines: list[str] = []
    for name, table in tables.items():
        lines += [f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in table.items()), ""]
    return "\n".join(lines)


def _toml(value: Any) -> str:
    # JSON's texts are TOML's, but for DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _secret(name: str, parts: Iterable[str]) -> list[str]:
    words = list(parts)
    return [f"#   kubectl create secret generic {name} {' '.join(words)}"] if words else []


def _name(profile: str) -> str:
    """Return the profile's name for an object: lower case, digits and hyphens (RFC 1123), and a hash if that changes
    it.
    """
    plain = re.sub(r"[^a-z0-9-]", "-", profile.lower()).strip("-")
    if plain != profile or len(plain) > _MAX_NAME:
        plain = f"{plain[: _MAX_NAME - 7]}-{hashlib.sha256(profile.encode()).hexdigest()[:6]}"
    return f"jsbackup-{plain}"


def _cron_job(
    plan: Plan, job: Job, name: str, image: str, *, labels: Mapping[str, str], with_files: bool
) -> Mapping[str, Any]:
    config = {"name": "config", "mountPath": _CONFIG, "subPath": "config.toml", "readOnly": True}
    mounts: list[Mapping[str, Any]] = [config, {"name": "tmp", "mountPath": "/tmp"}]
    volumes: list[Mapping[str, Any]] = [
        {"name": "config", "configMap": {"name": name}},
        {"name": "tmp", "emptyDir": {}},
    ]
    if with_files:
        mounts.append({"name": "secrets", "mountPath": SECRETS_FOLDER, "readOnly": True})
        # 0440: only for the group of the pod (fsGroup).
        volumes.append({"name": "secrets", "secret": {"secretName": name, "defaultMode": 0o440}})
    if job.repo is not None:
        mounts.append({"name": "repository", "mountPath": str(job.repo)})
        volumes.append({"name": "repository", "persistentVolumeClaim": {"claimName": name}})
    for number, folder in enumerate(job.outputs):  # the root is read-only
        mounts.append({"name": f"output-{number}", "mountPath": str(folder)})
        volumes.append({"name": f"output-{number}", "emptyDir": {}})
    container = {
        "name": "jsbackup",
        "image": image,
        "command": ["jsbackup"],
        "args": [*job.arguments, "--config", _CONFIG, "--profile", plan.profile, "--no-progress", "--log-format=json"],
        "env": [{"name": "HOME", "value": "/tmp"}],
        "envFrom": [{"secretRef": {"name": f"{name}-env", "optional": True}}],
        "resources": {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"memory": "2Gi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": mounts,
    }
    pod = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _NOBODY,
            "runAsGroup": _NOBODY,
            "fsGroup": _NOBODY,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": volumes,
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": f"{name}-{job.name}", "labels": labels},
        "spec": {
            "schedule": job.when.cron,
            "timeZone": "Etc/UTC",
            "concurrencyPolicy": "Forbid",
            "startingDeadlineSeconds": plan.every_minutes * 30,
            "successfulJobsHistoryLimit": 1,
            "failedJobsHistoryLimit": 3,
            "jobTemplate": {
                "spec": {"backoffLimit": 0, "template": {"metadata": {"labels": labels}, "spec": pod}},
            },
        },
    }
