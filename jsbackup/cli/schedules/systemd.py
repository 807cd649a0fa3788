"""A service and a timer for each job. Services have minimal rights.

Files with secrets, including the profile, are read by systemd as root and passed to the service (`LoadCredential`,
systemd.exec(5)): they may be readable only by root. A repository in S3 needs no permanent user, one in a folder must
belong to the user. `MemoryDenyWriteExecute` is missing because of Java and Go runtimes that a drill or Spark starts.
"""

from __future__ import annotations

from pathlib import Path

from jsbackup.cli.schedules.jobs import Job, Plan, ScheduleFile
from jsbackup.errors import UsageError

__all__ = ["systemd_files"]

_HARDENING = """\
UMask=0077
NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
ProtectSystem=strict
ProtectHome={home}
PrivateTmp=yes
PrivateDevices=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
"""
_HOMES = ("/home", "/root", "/run/user")


def systemd_files(plan: Plan, user: str | None) -> list[ScheduleFile]:
    """Return the files. `user` runs the services; by default `jsbackup` if folders are written, else a dynamic user."""
    return [file for job in plan.jobs for file in (_service(plan, job, user), _timer(plan, job))]


def _service(plan: Plan, job: Job, user: str | None) -> ScheduleFile:
    lent = [("config.toml", str(plan.config)), *((one.name, one.path) for one in job.credentials)]
    given = [word for one in job.credentials for word in (one.option, f"%d/{one.name}")]
    words = [*map(_escaped, [*plan.program, *job.arguments]), "--config", "%d/config.toml"]
    words += ["--profile", _escaped(plan.profile), *given, "--no-progress"]
    in_home = any(_is_below(Path(path), _HOMES) for path in (*job.folders, Path(plan.program[0])))
    lines = [
        "[Unit]",
        f"Description=jsbackup {job.name}, profile {_escaped(plan.profile)}",
        "Wants=network-online.target",
        "After=network-online.target",
        "",
        "[Service]",
        "Type=oneshot",
        f"ExecStart={' '.join(words)}",
        f"User={user or 'jsbackup'}" if user or job.folders else "DynamicUser=yes",
        *([f"EnvironmentFile=-/etc/jsbackup/{plan.profile}.env"] if plan.variables or plan.in_s3 else []),
        *(f"LoadCredential={name}:{_whole(path)}" for name, path in lent),
        *(f"ReadWritePaths={_quoted(str(folder))}" for folder in job.folders),
        _HARDENING.format(home="read-only" if in_home else "yes").rstrip(),
    ]
    return ScheduleFile(f"{_unit(plan, job)}.service", "\n".join([*lines, ""]))


def _timer(plan: Plan, job: Job) -> ScheduleFile:
    # A tenth of the time between backups, in addition to the spread by the profile's name.
    delay = min(300, plan.every_minutes * 6)
    lines = [
        "[Unit]",
        f"Description=When to run jsbackup {job.name}, profile {_escaped(plan.profile)}",
        "",
        "[Timer]",
        f"OnCalendar={job.when.calendar}",
        f"RandomizedDelaySec={delay}",
        "Persistent=true",
        "",
        "[Install]",
        "WantedBy=timers.target",
        "",
    ]
    return ScheduleFile(f"{_unit(plan, job)}.timer", "\n".join(lines))


def _unit(plan: Plan, job: Job) -> str:
    return f"jsbackup-{plan.profile}-{job.name}"


def _escaped(word: str) -> str:
    """Escape a word of a command: variables are expanded there, so `$` is doubled."""
    return _quoted(word.replace("$", "$$"))


def _quoted(word: str) -> str:
    """Quote a word of a unit file: `%` is special there, and quotes keep spaces."""
    word = word.replace("%", "%%")
    if not word or any(letter in " \t\"'\\;" for letter in word):
        word = '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return word


def _whole(path: str) -> str:
    """Return the rest of a line, in which quotes are literal. Raises UsageError for an end that would not be read."""
    if path.endswith(("\\", " ")):
        raise UsageError(f"no unit can name the file {path!r}", hint="Give it a name that ends with another character.")
    return path.replace("%", "%%")


def _is_below(path: Path, folders: tuple[str, ...]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)
