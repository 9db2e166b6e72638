"""configs/text2text.py: its tasks, by name and of files."""

import json

import jax
import numpy as np
import pytest

from configs import classify, common, glue, squad, text2text
import jtx
from jtx.data.dataset import Dataset
from jtx.data.ops.template import Template
from jtx.data.tokenizers.files import save_tokenizers
from jtx.errors import ConfigError
from jtx.saved.workdir import write_config
from jtx.train import loop
from tests.helpers import run_command

TASK = {"train": "a.tsv", "dev": "b.jsonl", "input": "a: {x.y} {z}", "target": "{label}"}


def config(tmp_path, tasks, more=""):
  path = tmp_path / "tasks.json"
  path.write_text(tasks if isinstance(tasks, str) else json.dumps(tasks))
  return text2text.get_config(f"{path}{more}")


def test_a_task_of_ones_own(tmp_path):
  c = config(tmp_path, {"mine": TASK | {"references": "all", "scores": ["rougeL", "bleu"]}})
  assert c.data.train == ("table:a.tsv",) and c.evals.mine.source == ("jsonl:b.jsonl",)
  assert c.data.ops[0].tasks == (("mine", "a: {x.y} {z}", "{label}"),)
  assert c.data.ops[0].keep == ("all",) and c.evals.mine.references == "all"
  assert c.evals.mine.scores == ("rougeL", "bleu")


def rates(config):
  return config.optim.optimizer.name, config.optim.schedule.name, config.optim.lr


def test_fresh_parameters_have_rates_of_their_own():
  assert rates(text2text.get_config("cola")) == ("adamw", "cosine", 0.02)
  assert rates(text2text.get_config("cola,lr=0.1")) == ("adamw", "cosine", 0.1)


def test_one_task_of_a_file(tmp_path):
  both = {"mine": TASK, "too": TASK | {"input": "too: {z}"}}
  alone = config(tmp_path, {"too": both["too"]}).to_dict()
  assert config(tmp_path, both, "/too").to_dict() == alone
  with pytest.raises(ConfigError, match=r"tasks.json: task 'to': did you mean 'too'\?"):
    config(tmp_path, both, "/to")


def test_several_tasks_say_which_they_are(tmp_path):
  c = config(tmp_path, {"mine": TASK | {"references": "all"}, "too": TASK}, "+sst2,limit=9")
  columns = ":columns[task='{}'+x+z+label{}]".format
  assert c.data.train == (f"table:a.tsv{columns('mine', '+all')}",
                          f"table:a.tsv{columns('too', '')}",
                          "tfds:glue/sst2:train:columns[task='sst2'+sentence+label]")
  assert c.evals.too.source == (f"jsonl:b.jsonl{columns('too', '')}",)
  assert c.data.size_limit == 9 and c.data.smoothing is None
  assert text2text.get_config("cola,temperature=4.0").data.smoothing == 0.25


@pytest.mark.parametrize("files", [False, True])
@pytest.mark.parametrize("name", glue.TASKS)
def test_tasks_of_glue_are_those_of_the_paper(name, files):
  c = text2text.get_config(f"{name},files={files}")
  task, columns = glue.TASKS[name], glue.TASKS[name].columns
  names = columns if files else (*task.texts, "label")
  example = {"id": 0, **dict(zip(names, ("A", "B") if len(task.texts) == 2 else "A")),
             names[-1]: "1" if task.names else "2.7"}
  source, target = Template(c.data.ops[0].tasks).written(example)
  if name == "mnli":  # appendix D.3
    assert source == "mnli hypothesis: B premise: A"
  else:
    texts = [f"{text}: {value}" for text, value in zip(task.texts, "AB")]
    assert source == " ".join([name, *texts])
  assert target == (task.names[1] if task.names else "2.8")
  assert len(c.evals[name].source) == len(task.files) and c.evals[name].labels == task.names
  named = dict(example) | {names[-1]: task.names[0]} if task.names else None
  assert named is None or Template(c.data.ops[0].tasks).written(named)[1] == task.names[0]


@pytest.mark.parametrize("tasks, said", [
    ("[]", "has no object of tasks by name"),
    ("{", "can't be read as JSON"),
    ({"a": {"train": "x"}}, "task 'a': needs train, dev, input, target"),
    ({"a": TASK | {"score": ["f1"]}}, "task 'a': did you mean 'scores'?"),
    ({"a": TASK | {"scores": "f1"}}, "task 'a': scores is 'f1', and not a list of texts"),
    ({"a": TASK | {"train": ["a"]}}, "task 'a': train is ['a'], and not a text"),
    ({"a": TASK | {"dev": []}}, "task 'a': dev is [], and not a text or a list of texts"),
    ({"a": TASK | {"input": "{"}, "b": TASK}, "of the task 'a' '{'"),
])
def test_files_that_have_no_tasks(tmp_path, tasks, said):
  with pytest.raises(ConfigError) as e:
    config(tmp_path, tasks)
  assert said in str(e.value)


@pytest.mark.parametrize("arg, said", [
    ("sst", "config argument tasks='sst': did you mean 'sst2'?"),
    ("sst2+sst2", "two tasks have the name 'sst2'"),
    ("none.json", "none.json: can't be read as JSON: "),
    ("init=x,model=t5_small", "init and model exclude each other"),
    ("init=x,vocab=500", "init and vocab exclude each other"),
    ("model=t5_smal", "did you mean 't5_small'?"),
])
def test_arguments_that_do_not_fit(arg, said):
  with pytest.raises(ConfigError) as e:
    text2text.get_config(arg)
  assert said in str(e.value)


def test_a_run_goes_on_with_the_tokens_around_its_texts(tmp_path):
  """Those of the run it begins with, and its decoder's start."""
  config = text2text.get_config("tiny")
  dataset = lambda c: Dataset(c.data, c.tokenizer)
  assert dataset(config).info["bos_id"] == dataset(config).tokenizers["tgt"].bos_id
  config.data.ops[1].begin, config.data.ops[1].start = True, "end"
  first = tmp_path / "first"  # of which no step is needed
  first.mkdir()
  write_config(config.lock(), str(first))
  save_tokenizers(dataset(config).tokenizer_texts(), str(first))
  (tmp_path / "a.tsv").write_text("x\ty\n" + "Ann\tsea\n" * 8)
  (tmp_path / "tasks.json").write_text(json.dumps({"mine": {
      "train": "a.tsv", "dev": "a.tsv", "input": "{x}", "target": "{y}"}}))
  more = text2text.get_config(f"{tmp_path / 'tasks.json'},init={tmp_path / 'first'}")
  assert (more.data.ops[1].begin, more.data.ops[1].start) == (True, "end")
  assert rates(more) == ("adafactor", "constant", 0.001)
  more.data.path = str(tmp_path)
  assert dataset(more).info["bos_id"] == dataset(more).tokenizers["tgt"].eos_id


@pytest.mark.slow
def test_a_run_goes_on_from_a_run_and_from_what_transformers_reads(tmp_path):
  """Of 3 steps of 0 change: what a folder has is what is trained."""
  first = str(tmp_path / "first")
  results = loop.run(text2text.get_config("tiny").lock(), first)
  assert {"sea/accuracy", "sea/f1", "town/squad_f1"} <= results.keys()
  run_command("convert", f"--workdir={first}", f"--to_hf={tmp_path / 'hf'}")
  (tmp_path / "a.tsv").write_text("x\tlabel\n" + "Ann met Bob in Rome .\tsea\n" * 40)
  (tmp_path / "tasks.json").write_text(json.dumps({"mine": {
      "train": "a.tsv", "dev": "a.tsv", "input": "sea sentence: {x}", "target": "{label}"}}))
  said = {}
  for init in (first, str(tmp_path / "hf")):
    config = text2text.get_config(f"{tmp_path / 'tasks.json'},init={init},length=32,batch=8")
    common.apply(config, {"optim.lr": 0.0, "data.path": str(tmp_path), "epochs": None, "steps": 3})
    workdir = f"{init}_more"
    loop.run(config.lock(), workdir)
    for ours, theirs in zip(*(jax.tree.leaves(jtx.load_pretrained(folder)[1])
                              for folder in (workdir, first)), strict=True):
      np.testing.assert_array_equal(ours, theirs)
    said[init] = jtx.Translator(workdir)(["sea sentence: Ann met Bob in Rome ."])
  assert len({repr(text) for text in said.values()}) == 1


@pytest.mark.slow
def test_an_encoder_decoder_reads_texts(tmp_path):
  """Fine-tuned on classes from a run; its folder of transformers says the same."""
  first, tuned, folder = (str(tmp_path / name) for name in ("first", "tuned", "hf"))
  config = text2text.get_config("tiny")
  config.evals = {}
  loop.run(config.lock(), first)
  (tmp_path / "a.tsv").write_text("x\ty\n" + "Ann met Bob .\tyes\nKim saw Leo .\tno\n" * 20)
  config = classify.get_config(f"init={first},header,text=x,label=y,train=a.tsv,dev=a.tsv,"
                               "max_length=48,batch=8,epochs=1")
  config.data.path = str(tmp_path)
  loop.run(config.lock(), tuned)
  run_command("convert", f"--workdir={tuned}", f"--to_hf={folder}")
  assert json.loads((tmp_path / "hf" / "config.json").read_text())["architectures"] == [
      "T5ForSequenceClassification"]
  texts = ["Ann met Bob .", "Leo saw Ann in Rome ."]
  ours, theirs = (jtx.Classifier(path)(texts) for path in (tuned, folder))
  for a, b in zip(ours, theirs, strict=True):
    assert a.scores == pytest.approx(b.scores, abs=1e-6)
  head = squad.get_config(f"init={first}").model.head
  assert (head.task, head.pool) == ("span", "none")
  with pytest.raises(ConfigError, match="freeze and decay are of one stack of layers"):
    classify.get_config(f"init={first},freeze=1")
  with pytest.raises(ConfigError, match="features is of encoders, and the model is an encoder-dec"):
    classify.get_config(f"init={first},features=last")
  with pytest.raises(ConfigError, match="tiny is of one stack, and the model of init has two"):
    classify.get_config(f"init={first},tiny")
