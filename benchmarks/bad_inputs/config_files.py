"""Config files, their arguments, and the values of keys."""

from benchmarks.bad_inputs.case import Case

CLASSIFY = "train --config=jtx.configs.classify:tiny --workdir=w"


def own(name: str, text: str, sentence: str, edits: str = "") -> Case:
  """A config file of one's own."""
  return Case(name, f"train --config=mine.py --workdir=w {edits}", sentence, {"mine.py": text})


def edited(name: str, line: str, sentence: str) -> Case:
  """A shipped config with one line more."""
  return own(name, "from jtx.configs import classify\n\ndef get_config():\n"
             f"  c = classify.get_config('tiny')\n  {line}\n  return c\n", sentence)


def flagged(name: str, flag: str, sentence: str) -> Case:
  return Case(name, f"{CLASSIFY} --config.{flag}", sentence)


CASES = [
    Case("no such file", "train --config=nowhere.py --workdir=w", "there is no config file"),
    Case("no such module", "train --config=jtx.configs.clasify --workdir=w",
         "there is no config file jtx.configs.clasify"),
    own("nothing in it", "", "mine.py has no function get_config"),
    own("a mistake of syntax", "def get_config(:\n", "mine.py, line 1: SyntaxError"),
    own("an exception", "def get_config():\n  return 1 / 0\n", "mine.py, line 2: ZeroDivision"),
    own("an import that is not there", "import nowhere\n", "mine.py, line 1: ModuleNotFound"),
    own("no config", "def get_config():\n  return None\n", "returned NoneType, not a ConfigDict"),
    own("the program's end", "import sys\nsys.exit(0)\n", "mine.py ends the program"),
    own("the program's end, later", "def get_config():\n  raise SystemExit('bye')\n",
        "mine.py ends the program"),
    own("bytes that are no text", "def get_config():\n  return '\\udcff'.encode()\n", "mine.py"),
    own("an empty config", "from ml_collections import ConfigDict\n\ndef get_config():\n"
        "  return ConfigDict()\n", "config.*must be set"),
    own("the keys of every run alone", "from jtx.configs import common\n\ndef get_config():\n"
        "  return common.get_config()\n", "config.model must be set"),
    edited("a teacher of nothing", "c.distill.teacher = 'nowhere'", "teaches nothing"),
    flagged("a stretch without an end", "optim.frozen=((\\'embed\\',0.5),)", "optim.frozen: .* is"),
    Case("losses and no teacher", "train --config=jtx.configs.distil:tiny,losses=soft --workdir=w",
         "losses=soft is of a teacher"),
    Case("a student and no teacher", "train --config=jtx.configs.distilbert:corpus=jsonl:none.jsonl"
         " --workdir=w", "objective.teacher is unset"),
    Case("an argument of a config without", "train --config=mine.py:big --workdir=w",
         "takes no arguments", {"mine.py": "def get_config():\n  pass\n"}),
    edited("a new key", "c.sed = 3", "config.sed: unknown key; did you mean 'seed'"),
    edited("a new key in a section", "c.optim.ir = 3.0", "config.optim.ir: unknown key"),
    edited("a section that is a number", "c.optim = 3", "optim"),
    edited("a name that is none", "c.model.name = 'encodr'", "config.model.name: unknown name"),
    edited("an op that is none", "c.data.ops[0].name = 'encde'", "data.ops.0..name: unknown name"),
    edited("an op that is a word", "c.data.ops = ('encode',)", "config.data.ops.0. must be a"),
    edited("an evaluation that is a word", "c.evals = {'val': 'loss'}", "config.evals.val must be"),
    edited("a key that is gone", "del c.steps", "config.steps must be set"),
    edited("a module that is none", "c.imports = ('no_such_module',)", "no_such_module"),
    Case("a module that ends the program", f"{CLASSIFY} --config.imports=leaves",
         "leaves.py, line 2: SystemExit: 0; a module that",
         {"leaves.py": "import sys\nsys.exit(0)\n"}),
    edited("a tracker that is none", "c.trackers = ('wandbb',)", "wandbb"),
    edited("no layout", "c.data.ops = c.data.ops[:2]", "needs one layout"),
    edited("two layouts", "c.data.ops = (*c.data.ops, c.data.ops[-1])", "layout"),
    edited("no data", "c.data.train = ()", "data.train"),
    flagged("a key that is none", "optim.larning_rate=1", "unknown config key"),
    flagged("a word for a number", "steps=many", "--config.steps: 'many' is not an int"),
    flagged("a fraction for a number", "steps=1.5", "--config.steps: '1.5' is not an int"),
    flagged("a word for yes or no", "model.mlm=perhaps", "not true or false"),
    flagged("a section for a number", "optim=3", "--config.optim"),
    flagged("brackets that do not close", "optim.lr_mults=((1,", "brackets"),
    flagged("a multiplier that is no pair", "optim.lr_mults=\"(('a',1.0,2),)\"", "lr_mults"),
    flagged("a multiplier of nothing", "optim.lr_mults=\"(('zzz',2.0),)\"", "'zzz' matches no"),
    flagged("a bad regular expression", "optim.lr_mults=\"(('[',2.0),)\"", "lr_mults"),
    flagged("a best of no form", "checkpoint.best=accuracy", "checkpoint.best"),
    flagged("a best of no metric", "checkpoint.best=max:val/none", "none"),
    flagged("patience without a best", "checkpoint.patience=3", "checkpoint.patience"),
    flagged("a mesh of other devices", "mesh.tensor=7", "config.mesh"),
    flagged("a batch that does not divide", "optim.accumulate=3", "accumulate=3 does not divide"),
    flagged("phases that do not add up", "phases=((0.5,16,8),)", "config.phases"),
    flagged("phases and epochs", "phases=((1.0,16,8),) --config.epochs=2.0", "epochs"),
    flagged("a trace that ends first", "profile=(9,5)", "config.profile"),
    flagged("heads that do not divide", "model.stack.block.attention.num_heads=5", "num_heads"),
    flagged("an activation that is none", "model.stack.block.ffn.activation=rely", "rely"),
    flagged("a norm that is none", "model.stack.block.norm.kind=layrnorm", "layrnorm"),
    flagged("a kernel that is none", "model.stack.block.attention.kernel=flsh", "flsh"),
    flagged("a layer kind that is none", "model.stack.pattern=globl,", "globl"),
    flagged("a dtype that is none", "model.dtype=float8", "float8"),
    flagged("an objective of another head", "objective=\"{'name':'mlm'}\"", "mlm"),
    Case("a cell that is none", "train --config=jtx.configs.rnn:tiny,cell=lstn --workdir=w",
         "cell.kind='lstn'"),
    Case("a bridge between unlike layers", "train --config=jtx.configs.rnn:tiny --workdir=w"
         " --config.model.bridge=copy", "bridge='copy' needs an encoder of one direction"),
    Case("a language model of no words", "train --config=jtx.configs.elmo:tiny --workdir=w"
         " --config.model.bilm=False", "set config.model.bilm=True"),
    Case("an argument that is none", "train --config=jtx.configs.classify:tny=1 --workdir=w",
         "config argument 'tny=1'; did you mean 'tiny'|'tny=1': did you mean 'tiny'"),
    Case("a size that is none", "train --config=jtx.configs.bert:lrge --workdir=w", "lrge"),
    Case("an argument of another type", "train --config=jtx.configs.classify:batch=big"
         " --workdir=w", "big"),
]
