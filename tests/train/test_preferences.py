"""Instructions on files of one's own, then preferences against what was learnt."""

import json

import jax
import pytest

from configs import common, dpo, instruct
import jtx
from jtx.errors import DataError
from jtx.saved.folder import open_saved
from jtx.train import loop
from tests.helpers import run_command

pytestmark = pytest.mark.slow

TEMPLATE = "{% for m in messages %}{{ m.role }}|{{ m.content }}{{ eos_token }}{% endfor %}" \
    "{% if add_generation_prompt %}assistant|{% endif %}"
TINY = {"model.stack": common.TINY_STACK, "batch_size": 4, "log_every": 1, "checkpoint.every": 2,
        "epochs": 2.0, "data.window": 64}


def lines(path, objects):
  path.write_text("".join(json.dumps(x) + "\n" for x in objects))


def logged(workdir, name):
  with open(f"{workdir}/metrics.jsonl", encoding="utf-8") as f:
    return [x[name] for x in map(json.loads, f) if name in x]


@pytest.fixture(scope="module")
def instructed(tmp_path_factory):
  """A folder with files, and the run that learnt their conversations by a template of its own."""
  folder = tmp_path_factory.mktemp("files")
  turn = lambda role, content: {"role": role, "content": content}
  talk = lambda i: {"messages": [turn("user", f"is {i} even"),
                                 turn("assistant", "no" if i % 2 else "yes")]}
  pair = lambda i: {"prompt": talk(i)["messages"][:1], "chosen": talk(i)["messages"][1:],
                    "rejected": talk(i + 1)["messages"][1:]}
  for name, numbers in (("train", range(40)), ("dev", range(40, 52))):
    lines(folder / f"{name}.jsonl", map(talk, numbers))
    lines(folder / f"pairs_{name}.jsonl", map(pair, numbers))
  (folder / "template.jinja").write_text(TEMPLATE)
  config = instruct.get_config(f"template={folder / 'template.jinja'},max_length=64,lr=3e-3")
  common.apply(config, {**TINY, "data.path": str(folder)})
  workdir = str(tmp_path_factory.mktemp("runs") / "instructed")
  loop.run(config.lock(), workdir, jax.devices()[:1])
  return folder, workdir


def test_conversations_by_a_template_of_ones_own(instructed, capsys):
  folder, workdir = instructed
  assert open_saved(workdir).config.data.ops[0].template == TEMPLATE
  run_command("evaluate", f"--workdir={workdir}", f"--output={folder / 'replies.jsonl'}")
  result = json.loads(capsys.readouterr().out.splitlines()[-1])
  assert result["dev/examples"] == 12 and 0 <= result["dev/exact_match"] <= 1
  rows = [json.loads(line) for line in (folder / "replies.jsonl").read_text().splitlines()]
  replies = [row for row in rows if row["split"] == "dev"]
  assert [row["gold"] for row in replies] == ["yes", "no"] * 6
  assert sum(row["correct"] for row in replies) / 12 == result["dev/exact_match"]


def test_answers_to_conversations(instructed, tmp_path, capsys):
  folder, workdir = instructed
  asked = [{"role": "user", "content": "is 41 even"}]
  path = tmp_path / "asked.jsonl"
  lines(path, [{"messages": asked, "id": 7}])
  run_command("generate", f"--workdir={workdir}", f"--input={path}", "--max_new_tokens=8")
  found = json.loads(capsys.readouterr().out)
  generate = jtx.Generator(workdir, max_new_tokens=8)
  assert found["id"] == 7 and generate.chat([asked]) == [found["text"]]
  made = str(tmp_path / "made")
  run_command("convert", f"--workdir={workdir}", "--to=jtx", f"--output={made}")
  assert jtx.Generator(made, max_new_tokens=8).chat([asked]) == [found["text"]]
  prompt = generate.generator.of_messages(generate.template(), asked)
  tokenizer = generate.trained.tokenizer
  assert tokenizer.tokens(prompt)[-len("assistant|"):] == list("assistant|")
  assert tokenizer.eos_id in prompt
  lines(path, [{"messages": asked}, {"messages": [{"role": "bot", "content": "x"}]}])
  with pytest.raises(DataError, match="asked.jsonl:2 .*bot"):
    run_command("generate", f"--workdir={workdir}", f"--input={path}")


def test_preferences_begin_at_the_reference(instructed, tmp_path, capsys):
  folder, reference = instructed
  template = f"template={folder / 'template.jinja'}"
  config = dpo.get_config(f"init={reference},{template},max_length=64,lr=1e-3,"
                          "train=pairs_train.jsonl,dev=pairs_dev.jsonl,beta=0.5")
  common.apply(config, {**TINY, "model.stack": {}, "data.path": str(folder)})
  workdir = str(tmp_path / "preferred")
  loop.run(config.lock(), workdir, jax.devices()[:1])
  losses = logged(workdir, "loss")
  assert losses[0] == pytest.approx(0.693147, abs=1e-5) and losses[-1] < losses[0]
  assert logged(workdir, "kl")[0] == pytest.approx(0, abs=1e-5)
  assert logged(workdir, "kl")[-1] > 0
  run_command("evaluate", f"--workdir={workdir}")
  result = json.loads(capsys.readouterr().out.splitlines()[-1])
  trained = logged(workdir, "dev/loss")[-1]
  assert result["dev/loss"] == pytest.approx(trained, abs=1e-6)
  assert {"dev/accuracy", "dev/kl", "dev/margin"} <= set(result)
