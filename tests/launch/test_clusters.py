"""Scripts and manifests of clusters: right by their own checkers, and run where that can be."""

import json
import os
import subprocess
import sys

import jsonschema
import pytest

from configs import common
from experiments import cli
from jtx.errors import ConfigError
from jtx.launch import clusters
from jtx.sweeps import arrays, report, sweep
from tests.helpers import command, losses, run_command

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
COMMAND = ("python", "-m", "experiments.train", "--config=c.py:a,b", "--workdir=/w/it's mine")
ENV = {"JAX_COMPILATION_CACHE_DIR": "/c d"}
SHELLCHECK = os.path.join(os.path.dirname(sys.executable), "shellcheck")
SLURM = dict(name="jtx", nodes=2, tasks_per_node=4, log="jtx-%j.log", folder="/a b", env=ENV)


def slurm(**options):
  return clusters.slurm_script(COMMAND, **SLURM | options)


def check_shell(script, tmp_path):
  path = tmp_path / "script.sh"
  path.write_text(script)
  done = subprocess.run([SHELLCHECK, str(path)], capture_output=True,
                        text=True)
  assert done.returncode == 0, done.stdout


def launched(launcher, *args, env=None):
  command = [sys.executable, "-m", f"experiments.launch.{launcher}", *args]
  return subprocess.run(command, cwd=ROOT, capture_output=True, text=True,
                        env={**os.environ, **(env or {})})


def launch(launcher, *argv):
  """The same in this process: the status; errors are raised."""
  at = argv.index("--")
  with command(f"launch.{launcher}") as module:
    module.common.ARGUMENTS[:] = argv[at + 1:]
    cli.parse([launcher, *argv[:at]])
    return module.main()


def test_the_slurm_script(tmp_path):
  script = slurm(options=("--partition=gpu", "--exclusive"))
  check_shell(script, tmp_path)
  lines = script.splitlines()
  assert lines[0] == "#!/bin/bash"
  asked = {line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH")}
  assert {"--nodes=2", "--ntasks-per-node=4", "--requeue", "--signal=TERM@120", "--partition=gpu",
          "--exclusive"} <= asked
  with pytest.raises(ConfigError, match="--sbatch=-p gpu: is no option"):
    slurm(options=("-p gpu",))


@pytest.mark.parametrize("edit", [{"name": "a\n#SBATCH --wrap=b"}, {"log": "a\ntouch b"},
                                  {"name": "a b"}, {"log": ""}])
def test_a_name_is_no_line_of_the_script(edit):
  with pytest.raises(ConfigError, match=f"--{next(iter(edit))}=.*it stands in a line of a script"):
    slurm(**edit)


def test_a_name_is_no_option_of_gcloud():
  for edit in ({"name": "--flags-file=a"}, {"zone": "-z"}, {"project": "--impersonate"}):
    with pytest.raises(ConfigError, match=f"--{next(iter(edit))}="):
      clusters.tpu_command("ls", **{"name": "pod", "zone": "z"} | edit)


@pytest.mark.parametrize("statuses,requeued", [((0,), 0), ((75, 75, 3), 2)])
def test_slurm_requeues_what_was_told_to_stop(statuses, requeued, tmp_path):
  """The script by itself, with commands that stand in for Slurm's."""
  (tmp_path / "statuses").write_text("\n".join(map(str, statuses)) + "\n")
  stand_in(tmp_path, "srun", f"""
cd {tmp_path}
status=$(head -n 1 statuses); sed -i 1d statuses
echo "$@" >>srun.txt
exit "$status"
""")
  stand_in(tmp_path, "scontrol", f'echo "$@" >>{tmp_path}/scontrol.txt')
  script = slurm(folder=str(tmp_path))
  for status in statuses:
    assert run_script(script, tmp_path) == status
  runs = (tmp_path / "srun.txt").read_text().splitlines()
  assert runs == ["--kill-on-bad-exit=1 " + " ".join(COMMAND)] * len(statuses)
  asked = tmp_path / "scontrol.txt"
  assert (asked.read_text().splitlines() if asked.exists() else []) == ["requeue 7"] * requeued


def stand_in(tmp_path, name, body):
  (tmp_path / "bin").mkdir(exist_ok=True)
  path = tmp_path / "bin" / name
  path.write_text(f"#!/bin/bash\n{body}\n")
  path.chmod(0o755)


def path_of(tmp_path):
  return {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}


def run_script(script, tmp_path):
  env = {**os.environ, **path_of(tmp_path), "SLURM_JOB_ID": "7"}
  return subprocess.run(["bash"], input=script, text=True, env=env).returncode


def test_a_pod_runs_until_it_is_done(tmp_path):
  line = clusters.until_done(["./work", "it's"], folder=str(tmp_path), env={"A": "b c"})
  check_shell(f"#!/bin/bash\n{line}\n", tmp_path)
  (tmp_path / "work").write_text(
      '#!/bin/bash\necho "$A $1" >>log\n[ "$(wc -l <log)" -lt 3 ] && exit 75\nexit 4\n')
  (tmp_path / "work").chmod(0o755)
  assert subprocess.run(["bash", "-c", line]).returncode == 4
  assert (tmp_path / "log").read_text() == "b c it's\n" * 3
  command = clusters.tpu_command(line, name="pod", zone="z", project="p")
  assert command[:6] == ["gcloud", "compute", "tpus", "tpu-vm", "ssh", "pod"]
  assert {"--zone=z", "--project=p", "--worker=all", f"--command={line}"} == set(command[6:])


# Of JobSet v1alpha2 and batch/v1, what the manifest uses; other keys are refused.
def closed(required, **properties):
  return {"type": "object", "additionalProperties": False, "required": required,
          "properties": properties}


TEXT, COUNT = {"type": "string", "minLength": 1}, {"type": "integer", "minimum": 0}
TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
LIST = lambda items: {"type": "array", "minItems": 1, "items": items}
CONTAINER = closed(
    ["name", "image"], name=TEXT, image=TEXT, command=LIST(TEXT),
    env=LIST(closed(["name"], name=TEXT, value={"type": "string"})),
    ports=LIST(closed(["containerPort"], containerPort={"type": "integer", "maximum": 65535})),
    resources=closed([], limits={"type": "object"}))
POD = closed(["containers"], restartPolicy={"enum": ["Never", "OnFailure"]}, nodeSelector=TEXTS,
             terminationGracePeriodSeconds=COUNT, containers=LIST(CONTAINER))
JOB = closed(
    ["template"], parallelism=COUNT, completions=COUNT, backoffLimit=COUNT,
    podFailurePolicy=closed(["rules"], rules=LIST(closed(
        ["action"], action={"enum": ["FailJob", "FailIndex", "Count", "Ignore"]},
        onExitCodes=closed(["operator", "values"], containerName=TEXT,
                           operator={"enum": ["In", "NotIn"]}, values=LIST(COUNT))))),
    template=closed(["spec"], spec=POD))
ACTIONS = ["FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"]
JOBSET = closed(
    ["apiVersion", "kind", "metadata", "spec"], apiVersion={"const": "jobset.x-k8s.io/v1alpha2"},
    kind={"const": "JobSet"}, metadata=closed(["name"], name=TEXT, annotations=TEXTS),
    spec=closed(
        ["replicatedJobs"],
        failurePolicy=closed([], maxRestarts=COUNT, rules=LIST(closed(
            ["action"], action={"enum": ACTIONS},
            onJobFailureReasons=LIST({"enum": ["BackoffLimitExceeded", "DeadlineExceeded",
                                               "PodFailurePolicy"]})))),
        replicatedJobs=LIST(closed(["name", "template"], name=TEXT, replicas=COUNT,
                                   template=closed(["spec"], spec=JOB)))))


@pytest.mark.parametrize("topology,hosts,chips", [("v5e:4x4", 4, 4), ("v5p:4x4x4", 16, 4),
                                                  ("v6e:1x1", 1, 1)])
def test_the_jobset(topology, hosts, chips):
  value = clusters.jobset(COMMAND, name="run-1", image="i", topology=topology, slices=2, env=ENV,
                          restarts=3)
  jsonschema.validate(json.loads(clusters.manifest(value)), JOBSET)
  (group,) = value["spec"]["replicatedJobs"]
  assert group["replicas"] == 2
  job = group["template"]["spec"]
  assert job["parallelism"] == job["completions"] == hosts
  (container,) = job["template"]["spec"]["containers"]
  assert container["resources"] == {"limits": {"google.com/tpu": chips}}
  assert tuple(container["command"]) == COMMAND


def test_kubernetes_expands_nothing():
  value = clusters.jobset(("echo", "$(A)"), name="run", image="i", topology="v5e:4x4", slices=1,
                          env={"B": "$(A) $A"}, restarts=0)
  (group,) = value["spec"]["replicatedJobs"]
  (container,) = group["template"]["spec"]["template"]["spec"]["containers"]
  assert container["command"] == ["echo", "$$(A)"]
  assert container["env"] == [{"name": "B", "value": "$$(A) $A"}]


@pytest.mark.parametrize("edits,message", [
    ({"topology": "v9:4x4"}, "chips are v4, v5e"), ({"topology": "v5e"}, "a chip and its shape"),
    ({"name": "My Run"}, "lower-case"), ({"name": "a" * 41}, "up to 40"),
])
def test_what_the_jobset_refuses(edits, message):
  options = dict(name="run", image="i", topology="v5e:4x4", slices=1, env={}, restarts=0) | edits
  with pytest.raises(ConfigError, match=message):
    clusters.jobset(COMMAND, **options)


TRAIN = ("--config=configs/nmt_numbers.py:tiny", "--workdir=w")


@pytest.mark.parametrize("launcher,flags,found", [
    ("slurm", ("--nodes=2",), "srun --kill-on-bad-exit=1 "),
    ("tpu", ("--name=pod", "--zone=z"), "gcloud compute tpus tpu-vm ssh pod --zone=z"),
    ("gke", ("--name=run", "--image=i", "--topology=v5e:4x4"), '"kind": "JobSet"'),
])
def test_dry_runs(launcher, flags, found, capsys):
  assert launch(launcher, *flags, "--dry_run", "--", *TRAIN) == 0
  assert found in capsys.readouterr().out
  with pytest.raises(cli.UsageError, match=r"^--workdir=\.\.\. must be given behind `--`"):
    launch(launcher, *flags, "--dry_run", "--", TRAIN[0])


def test_a_config_that_is_wrong_is_not_submitted():
  with pytest.raises(cli.UsageError, match="config.steps"):
    launch("slurm", "--nodes=1", "--", *TRAIN, "--config.stesp=3")


def test_what_is_not_installed(monkeypatch):
  monkeypatch.setenv("PATH", "")
  with pytest.raises(cli.UsageError, match="^kubectl is not installed here; --dry_run prints"):
    launch("gke", "--name=run", "--image=i", "--topology=v5e:4x4", "--", *TRAIN)


SRUN = f"""#!{sys.executable}
import os, subprocess, sys
processes = []
for i in range(2):
  env = {{"SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "2", "SLURM_PROCID": str(i),
         "SLURM_LOCALID": str(i)}}
  processes.append(subprocess.Popen(sys.argv[2:], env=os.environ | env))
sys.exit(max(p.wait() for p in processes))
"""


CONFIG = """
from configs import nmt_numbers

def get_config():
  c = nmt_numbers.get_config("tiny")
  c.evals = {}
  c.log_every = 1
  c.steps = 12
  return c
"""


@pytest.mark.slow
@pytest.mark.long
def test_a_job_of_slurm_that_runs_out_of_time(tmp_path):
  """Two tasks that find each other by Slurm's variables; sbatch stands in for the queue."""
  stand_in(tmp_path, "sbatch", f'cat >{tmp_path}/script; SLURM_JOB_ID=7 bash {tmp_path}/script')
  stand_in(tmp_path, "scontrol", f'echo "$@" >>{tmp_path}/scontrol.txt')
  (tmp_path / "bin" / "srun").write_text(SRUN)
  (tmp_path / "bin" / "srun").chmod(0o755)
  env = path_of(tmp_path) | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
  config, workdir = tmp_path / "translator.py", tmp_path / "run"
  config.write_text(CONFIG)
  train = (f"--config={config}", f"--workdir={workdir}")
  done = launched("slurm", "--nodes=1", "--tasks_per_node=2", "--", *train, "--max_seconds=0.001",
                  env=env)
  assert done.returncode == 75, done.stderr
  assert (tmp_path / "scontrol.txt").read_text() == "requeue 7\n"
  stopped = len(losses(workdir))  # all tasks agree on a step that none has made yet
  assert 1 <= stopped < 12
  done = launched("slurm", "--nodes=1", "--tasks_per_node=2", "--", *train, env=env)
  assert done.returncode == 0, done.stderr
  assert [step for step, _ in losses(workdir)] == list(range(1, 13))
  assert f"step {stopped} of" in done.stderr
  assert json.loads((workdir / "environment.json").read_text())["processes"] == 2


# -------------------------------------------------------------------------------- arrays

# Numbers of tasks are read off the script, as Slurm does; each runs until it is not requeued.
SBATCH = """
cat >script
echo called >>../sbatch.txt
python - <<'EOF'
import os, pathlib, re, subprocess
tasks, limit = re.search(r"^#SBATCH --array=([\\d,-]+)(%\\d+)?$",
                         pathlib.Path("script").read_text(), re.M).groups()
for task in tasks.split(","):
  first, _, last = task.partition("-")
  for number in range(int(first), int(last or first) + 1):
    env = os.environ | {"SLURM_ARRAY_TASK_ID": str(number), "SLURM_ARRAY_JOB_ID": "7",
                        "SLURM_JOB_ID": "7"}
    requeued = pathlib.Path(f"../requeue 7_{number}")
    while subprocess.run(["bash", "script"], env=env).returncode == 75 and requeued.exists():
      requeued.unlink()
EOF
echo 7
"""


def array_items(workdir, *bodies):
  config = common.get_config()
  return [sweep.Item(f"run={i}", {}, {"run": i}, config,
                     [sys.executable, "-c", body.format(folder=f"{workdir}/run={i}")])
          for i, body in enumerate(bodies)]


def test_an_array_of_six_of_which_two_are_preempted_and_one_fails(tmp_path, monkeypatch):
  """Commands that stand in for Slurm's run the tasks, and bodies of Python for training."""
  workdir = tmp_path / "it's w"
  done = ("import os, pathlib; folder = pathlib.Path({folder!r}); print('done', flush=True)\n"
          "(folder / 'config.json').write_text(os.environ['CONFIG'])\n"
          "(folder / 'results.json').write_text('{{\"val/loss\": 1.0}}')\n")
  preempted = ("import pathlib, sys; mark = pathlib.Path({folder!r}) / 'mark'\n"
               "if not mark.exists(): mark.touch(); print('told to stop'); sys.exit(75)\n") + done
  mended = tmp_path / "mended"
  failing = (f"import pathlib, sys\nif not pathlib.Path({str(mended)!r}).exists():\n"
             "  print('error: no data'); sys.exit(1)\n") + done
  items = array_items(workdir, done, preempted, failing, done, preempted, done)
  monkeypatch.setenv("CONFIG", items[0].config.to_json())
  stand_in(tmp_path, "sbatch", SBATCH)
  stand_in(tmp_path, "srun", 'shift; exec "$@"')
  stand_in(tmp_path, "scontrol", f'touch "{tmp_path}/$*"')
  stand_in(tmp_path, "squeue", f'cat "{tmp_path}/queue"')
  monkeypatch.setenv("PATH", path_of(tmp_path)["PATH"])

  def submit():
    names = arrays.unfinished(items, str(workdir))
    text = arrays.script(items, names, str(workdir), folder=str(tmp_path), at_once=2,
                         options=["--partition=gpu", "--nodes=2"])
    check_shell(text, tmp_path)
    return names, text, arrays.submit(items, names, str(workdir), text)

  names, text, number = submit()
  assert names == [item.name for item in items] and number == "7"
  asked = [line.removeprefix("#SBATCH ") for line in text.splitlines() if "#SBATCH" in line]
  assert {"--array=1-6%2", "--partition=gpu", "--nodes=2", "--requeue", "--job-name=it-s-w"
          } <= set(asked) and "--nodes=1" not in asked
  log = lambda i: (workdir / f"run={i}" / "log.txt").read_text()
  assert [log(i) for i in (0, 1, 4)] == ["done\n", *["told to stop\ndone\n"] * 2]
  failed = {"run=2": f"exit status 1: error: no data ({workdir}/run=2/log.txt)"}
  assert arrays.failures(items, str(workdir)) == failed
  assert "| 2 | failed |" in report.report(str(workdir))
  (tmp_path / "queue").write_text("7 3\n7 [1-2]\n8 1\n")
  assert arrays.in_queue(str(workdir)) == {"run=2"}  # of which another command submits nothing

  mended.touch()
  names, text, _ = submit()
  assert names == ["run=2"] and "#SBATCH --array=3%2\n" in text
  assert arrays.unfinished(items, str(workdir)) == [] == list(arrays.failures(items, str(workdir)))
  assert log(2) == "error: no data\ndone\n" and log(0) == "done\n"
  (tmp_path / "queue").unlink()
  with pytest.raises(ConfigError, match="squeue failed with 1: cat: .*queue"):
    arrays.in_queue(str(workdir))


def test_the_command_submits_what_is_not_in_the_queue(tmp_path, monkeypatch, capsys):
  args = (TRAIN[0], f"--workdir={tmp_path}/w", "--grid=seed=0,1", "--launcher=slurm", "--jobs=1")
  monkeypatch.setenv("PATH", "")
  with pytest.raises(ConfigError, match="^sbatch is not installed here; --dry_run prints"):
    run_command("sweep", *args)
  stand_in(tmp_path, "sbatch", f"cd {tmp_path}; cat >script; echo >>n; echo $((8 + $(wc -l <n)))")
  stand_in(tmp_path, "squeue", f"cat {tmp_path}/queue")
  monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
  run_command("sweep", *args)
  assert capsys.readouterr().out.startswith("submitted 2 of 2 runs as array 9;")
  script = (tmp_path / "script").read_text()
  assert "#SBATCH --array=1-2%1\n" in script
  assert f"--config.seed=1 --workdir={tmp_path}/w/seed=1) ;;\n" in script
  (tmp_path / "queue").write_text("9 1\n")
  run_command("sweep", *args)
  assert capsys.readouterr().out.startswith("submitted 1 of 2 runs as array 10;")
  (tmp_path / "queue").write_text("9 1\n10 2\n")
  run_command("sweep", *args)
  assert capsys.readouterr().out == "0 of 2 runs are finished, the others in the queue\n"


def test_an_array_says_itself_which_tasks_it_has():
  with pytest.raises(ConfigError, match="--sbatch=--array=1-9: which runs are tasks"):
    clusters.slurm_array({1: ("a", ["b"])}, name="n", log="l", status="s", folder="f", env={},
                         options=["--array=1-9"])
