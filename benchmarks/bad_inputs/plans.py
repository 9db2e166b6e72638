"""Sweeps and launches."""

from benchmarks.bad_inputs.case import Case

SWEEP = "sweep --config=jtx.configs.classify:tiny --workdir=s"
SLURM = "launch slurm --nodes=1"
JOB = "-- --config=jtx.configs.classify:tiny --workdir=/w"

CASES = [
    Case("nothing to vary", SWEEP, "--sweep=NAME or --grid"),
    Case("a grid without values", f"{SWEEP} --grid=optim.lr", "--grid=optim.lr"),
    Case("a grid of no key", f"{SWEEP} --grid=optim.ler=1,2", "optim.ler"),
    Case("a grid of a section", f"{SWEEP} --grid=optim=1,2", "optim is a section"),
    Case("a grid of another type", f"{SWEEP} --grid=steps=1,two", "two"),
    Case("a grid out of range", f"{SWEEP} --grid=optim.ema=0.5,2.0", "optim.ema=2.0: must be"),
    Case("a grid of one value twice", f"{SWEEP} --grid=optim.lr=0.1,0.1", "the same"),
    Case("a key with two grids", f"{SWEEP} --grid=seed=1,2 --grid=seed=3", "--grid"),
    Case("a sweep that is none", f"{SWEEP} --sweep=attenton", "sweep_attenton"),
    Case("jobs that are none", f"{SWEEP} --grid=seed=1,2 --jobs=0", "--jobs"),
    Case("a metric that is none", f"{SWEEP} --grid=seed=1,2 --metrics=val/bleuu", "val/bleuu"),
    Case("a search of nothing", f"{SWEEP} --search=tpe", "--space must be given for a search"),
    Case("a space from its end", f"{SWEEP} --search=tpe --space=optim.lr=2..1 --trials=2"
         " --metrics=dev/loss", "with LOW below HIGH"),
    Case("an option of sbatch without Slurm", f"{SWEEP} --grid=seed=1,2 --sbatch=--mem=1G",
         "--launcher=slurm"),
    Case("a sweep in a bucket", SWEEP.replace("=s", "=gs://b/s") + " --grid=seed=1,2", "gs://"),
    Case("a config that exits in a sweep", "sweep --config=mine.py --workdir=s --grid=seed=1,2",
         "mine.py ends the program", {"mine.py": "raise SystemExit(0)\n"}),
    Case("no processes", f"launch local --processes=0 {JOB}", "--processes"),
    Case("restarts below 0", f"launch local --processes=1 --restarts=-1 {JOB}", "--restarts"),
    Case("nodes that are none", f"launch slurm --nodes=0 {JOB}", "--nodes"),
    Case("a name with a newline", f"{SLURM} --name='a\n#SBATCH --exclusive' {JOB}", "--name"),
    Case("a log with a newline", f"{SLURM} --log='a\nrm x' {JOB}", "--log"),
    Case("a pod whose name is an option", f"launch tpu --name=--help --zone=z {JOB}", "--name"),
    Case("a launch of nothing", SLURM, "--config|train"),
    Case("a launch of a key that is none", f"launch local --processes=1 --"
         " --config=jtx.configs.classify:tiny --workdir=w --config.sed=3", "sed"),
    Case("a pod of no shape", f"launch gke --slices=0 {JOB}", "--"),
]
