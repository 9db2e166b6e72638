"""Launchers of training commands on clusters: Slurm scripts, a TPU pod's command, a JobSet.

All of it is text that a person can read before it runs. A command that exits with status 75 was
told to stop and is started again.
"""

from collections.abc import Mapping, Sequence
import json
import re
import shlex
from typing import Any

from jtx.errors import RESTART, ConfigError


def slurm_script(command: Sequence[str], *, name: str, nodes: int, tasks_per_node: int, log: str,
                 folder: str, env: Mapping[str, str], notice: int = 120,
                 options: Sequence[str] = ()) -> str:
  """A batch script for sbatch. The tasks find each other by what srun tells them.

  Args:
    command: of each task.
    name: of the job.
    nodes: number of them.
    tasks_per_node: processes on each.
    log: file of the output; %j is the number of the job.
    folder: to run in.
    env: variables to set.
    notice: seconds before the time limit at which Slurm sends SIGTERM.
    options: of sbatch, such as --partition=gpu, which are added.

  Raises:
    ConfigError: an option that is not one, or a name or log that would be more than that.
  """
  for flag, value in (("name", name), ("log", log)):
    if not re.fullmatch(r"[\w.%/][\w.%/+:=@,-]*", value):
      raise ConfigError(f"--{flag}={value!r}: it stands in a line of a script, and has letters,"
                        " digits and ._%/+:=@,- only")
  header = [f"--job-name={name}", f"--nodes={nodes}", f"--ntasks-per-node={tasks_per_node}",
            f"--signal=TERM@{notice}", "--requeue", "--open-mode=append", f"--output={log}"]
  return _batch_script(header, options, folder, env, [
      f"srun --kill-on-bad-exit=1 {shlex.join(command)}",
      "status=$?",
      f'if [ "$status" -eq {RESTART} ]; then',
      '  scontrol requeue "$SLURM_JOB_ID"',
      "fi"])


def slurm_array(tasks: Mapping[int, tuple[str, Sequence[str]]], *, name: str, log: str,
                status: str, folder: str, env: Mapping[str, str], at_once: int | None = None,
                options: Sequence[str] = ()) -> str:
  """A batch script for sbatch whose tasks are commands that need nothing of each other.

  A task that was told to stop is put back into the queue, alone. Any other leaves its exit status
  in its folder.

  Args:
    tasks: a folder and a command by the number of the task, which is 0 at least.
    name: of the job; what Slurm takes in no name is replaced.
    log: file of a task's output, in its folder.
    status: file, in its folder, of a task's exit status and of the size of the log before it.
    folder: to run in.
    env: variables to set.
    at_once: how many tasks run at a time at most; None is all.
    options: of sbatch, such as --partition=gpu or --nodes=2, in the place of the script's own.

  Raises:
    ConfigError: an option that is not one, or that says what the tasks are.
  """
  for option in options:
    if option.startswith(("--array", "--output")):
      raise ConfigError(f"--sbatch={option}: which runs are tasks, and their output, follow from"
                        " the sweep")
  limit = f"%{at_once}" if at_once else ""
  safe = re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip("-")
  header = [f"--job-name={safe or 'jtx'}",
            f"--array={_ranges(sorted(tasks))}{limit}", "--nodes=1", "--ntasks-per-node=1",
            "--signal=TERM@120", "--requeue", "--open-mode=append", "--output=slurm-%A_%a.log"]
  quote, log, status = shlex.quote, shlex.quote(log), shlex.quote(status)
  return _batch_script(header, options, folder, env, [
      'case "$SLURM_ARRAY_TASK_ID" in',
      *(f"{number}) folder={quote(place)} command=({shlex.join(command)}) ;;"
        for number, (place, command) in sorted(tasks.items())),
      "*) exit 1 ;;",
      "esac",
      'mkdir -p "$folder" || exit 1',
      f'log="$folder"/{log} ended="$folder"/{status}',
      'rm -f "$ended"',
      'touch "$log" && before=$(wc -c <"$log")',
      'srun --kill-on-bad-exit=1 "${command[@]}" >>"$log" 2>&1',
      "status=$?",
      f'if [ "$status" -eq {RESTART} ]; then',
      # The number of one of the tasks is the array's, too: this names the task in any case.
      '  scontrol requeue "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"',
      "else",
      '  echo "$status $before" >"$ended"',
      "fi"])


def _batch_script(header: Sequence[str], options: Sequence[str], folder: str,
                  env: Mapping[str, str], body: Sequence[str]) -> str:
  """A script of sbatch that ends with the `status` of its body; `options` replace the header's."""
  for option in options:
    if not re.fullmatch(r"--[\w-]+(=\S+)?", option):
      raise ConfigError(f"--sbatch={option}: is no option of sbatch, such as --partition=gpu")
  name = lambda option: option.partition("=")[0]
  given = set(map(name, options))
  return "\n".join([
      "#!/bin/bash",
      *(f"#SBATCH {option}" for option in header if name(option) not in given),
      *(f"#SBATCH {option}" for option in options),
      "",
      f"cd {shlex.quote(folder)} || exit 1",
      *(f"export {key}={shlex.quote(value)}" for key, value in env.items()),
      *body,
      'exit "$status"',
      ""])


def _ranges(numbers: Sequence[int]) -> str:
  """ "1-3,5" of ascending numbers."""
  pieces: list[list[int]] = []
  for number in numbers:
    if pieces and number == pieces[-1][1] + 1:
      pieces[-1][1] = number
    else:
      pieces.append([number, number])
  return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in pieces)


def until_done(command: Sequence[str], *, folder: str, env: Mapping[str, str]) -> str:
  """A line of shell that runs a command, and again as long as it was told to stop."""
  exports = " ".join(f"{key}={shlex.quote(value)}" for key, value in env.items())
  return (f"cd {shlex.quote(folder)} && export {exports} && while :; do {shlex.join(command)};"
          f' status=$?; [ "$status" -eq {RESTART} ] || exit "$status"; done')


def tpu_command(line: str, *, name: str, zone: str, project: str = "") -> list[str]:
  """The gcloud command that runs a line of shell on all hosts of a TPU slice.

  Raises:
    ConfigError: a name that Google Cloud does not take.
  """
  for flag, value in (("name", name), ("zone", zone), ("project", project or "none")):
    if not re.fullmatch(r"[a-z][a-z0-9:.-]*", value):
      raise ConfigError(f"--{flag}={value!r}: Google Cloud has lower-case letters, digits and"
                        " hyphens, from a letter on")
  return ["gcloud", "compute", "tpus", "tpu-vm", "ssh", name, f"--zone={zone}",
          *([f"--project={project}"] if project else []), "--worker=all", f"--command={line}"]


# Chips of a host and the name of the accelerator on GKE.
GKE = {"v4": ("tpu-v4-podslice", 4), "v5e": ("tpu-v5-lite-podslice", 4),
       "v5p": ("tpu-v5p-slice", 4), "v6e": ("tpu-v6e-slice", 4)}


def jobset(command: Sequence[str], *, name: str, image: str, topology: str, slices: int,
           env: Mapping[str, str], restarts: int) -> dict[str, Any]:
  """A JobSet for GKE, to be applied as JSON: a job of each slice, a pod on each of its hosts.

  A pod that exits with status 75 restarts the whole set, which is not counted; other failures
  restart it up to `restarts` times.

  Args:
    command: of each pod.
    name: of the set.
    image: of the container, in which the command's folder is the working directory.
    topology: chip and shape, such as v5e:4x4.
    slices: of that shape.
    env: variables to set.
    restarts: after failures.

  Raises:
    ConfigError: an unknown chip, or a name that Kubernetes does not take.
  """
  kind, _, shape = topology.partition(":")
  if kind not in GKE or not re.fullmatch(r"\d+(x\d+){1,2}", shape):
    raise ConfigError(f"--topology={topology}: a chip and its shape, such as v5e:4x4; chips are"
                      f" {', '.join(GKE)}")
  if not re.fullmatch(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?", name):
    raise ConfigError(f"--name={name}: Kubernetes takes up to 40 lower-case letters, digits and"
                      " hyphens, from a letter on")
  accelerator, per_host = GKE[kind]
  chips = 1
  for side in shape.split("x"):
    chips *= int(side)
  hosts, per_host = max(chips // per_host, 1), min(per_host, chips)
  container = {
      "name": "train", "image": image, "command": list(map(_unexpanded, command)),
      "env": [{"name": key, "value": _unexpanded(value)} for key, value in env.items()],
      "ports": [{"containerPort": 8471}, {"containerPort": 8080}],
      "resources": {"limits": {"google.com/tpu": per_host}}}
  told_to_stop = {"action": "FailJob", "onExitCodes": {
      "containerName": "train", "operator": "In", "values": [RESTART]}}
  job = {
      "parallelism": hosts, "completions": hosts, "backoffLimit": 0,
      "podFailurePolicy": {"rules": [told_to_stop]},
      "template": {"spec": {
          "restartPolicy": "Never", "terminationGracePeriodSeconds": 120,
          "nodeSelector": {"cloud.google.com/gke-tpu-accelerator": accelerator,
                           "cloud.google.com/gke-tpu-topology": shape},
          "containers": [container]}}}
  return {
      "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
      "metadata": {"name": name, "annotations": {
          "alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"}},
      "spec": {
          "failurePolicy": {"maxRestarts": restarts, "rules": [
              {"action": "RestartJobSetAndIgnoreMaxRestarts",
               "onJobFailureReasons": ["PodFailurePolicy"]}]},
          "replicatedJobs": [{"name": "slice", "replicas": slices, "template": {"spec": job}}]}}


def _unexpanded(text: str) -> str:
  """A text in which Kubernetes puts no variable in the place of $(NAME)."""
  return text.replace("$(", "$$(")


def manifest(value: Mapping[str, Any]) -> str:
  """As text that kubectl takes."""
  return json.dumps(value, indent=2) + "\n"
