"""Lines for `crontab`, one for each job. A run that overlaps with the previous one ends by itself.

A percent sign ends a command in a crontab, so it is escaped. Errors are mailed: commands are quiet.
"""

from __future__ import annotations

import shlex

from jsbackup.cli.schedules.jobs import Job, Plan, ScheduleFile

__all__ = ["cron_files"]


def cron_files(plan: Plan) -> list[ScheduleFile]:
    needs = [f"# The profile takes from the environment, to be set here: {' '.join(plan.variables)}"]
    lines = [
        f"# jsbackup, profile {plan.profile}. Install as the user who owns the repository and its keys:",
        f"#   crontab -l | cat - {_name(plan)} | crontab -",
        *(needs if plan.variables else []),
        *(f"{job.when.cron} {_command(plan, job)}" for job in plan.jobs),
    ]
    return [ScheduleFile(_name(plan), "\n".join([*lines, ""]))]


def _name(plan: Plan) -> str:
    return f"jsbackup-{plan.profile}.cron"


def _command(plan: Plan, job: Job) -> str:
    words = [*plan.program, *job.arguments, "--config", str(plan.config), "--profile", plan.profile, "--quiet"]
    return shlex.join(words).replace("%", "\\%")
