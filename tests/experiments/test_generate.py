"""The command generate: prompts of files, texts, seeds, streams, and what it refuses."""

import io
import json

import numpy as np
import pytest

from experiments.errors import UsageError, sentence
from jtx.errors import ConfigError, DataError
import jtx
from tests.helpers import run_command
from tests.inference.test_continuations import MODEL, PARAMS, TOKENIZER


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  path = str(tmp_path_factory.mktemp("saved") / "model")
  jtx.save_pretrained(path, MODEL, PARAMS, TOKENIZER, format="jtx")
  return path


def generated(capsys, folder, *argv):
  run_command("generate", f"--workdir={folder}", "--max_new_tokens=6", *argv)
  return capsys.readouterr().out


def test_a_line_in_an_object_out(folder, tmp_path, capsys):
  path = tmp_path / "prompts.txt"
  path.write_text("Once upon\na\n")
  found = [json.loads(line) for line in generated(capsys, folder, f"--input={path}").splitlines()]
  assert [x["prompt"] for x in found] == ["Once upon", "a"]
  generate = jtx.Generator(folder, max_new_tokens=6)
  assert [x["text"] for x in found] == generate(["Once upon", "a"])
  scores = [best[0].score for best in generate.continuations(["Once upon", "a"])]
  np.testing.assert_allclose([x["score"] for x in found], scores, atol=1e-4)
  # Streamed: the texts themselves.
  text = generated(capsys, folder, f"--input={path}", "--stream")
  assert text == "".join(x["text"] + "\n" for x in found)


def test_objects_keep_their_keys_and_draw_by_their_seeds(folder, tmp_path, capsys):
  path = tmp_path / "prompts.jsonl"
  lines = [{"prompt": "b", "id": 1, "seed": 4}, {"prompt": "b"}, {"prompt": "b", "seed": 4}]
  path.write_text("".join(json.dumps(line) + "\n" for line in lines))
  argv = [f"--input={path}", "--temperature=1.5", "--n_best=2"]
  found = [json.loads(line) for line in generated(capsys, folder, *argv).splitlines()]
  assert found[0]["id"] == 1 and len(found[0]["texts"]) == 2
  assert found[0]["texts"] == found[2]["texts"] != found[1]["texts"]


def test_prompts_of_standard_input_go_to_a_file(folder, tmp_path, monkeypatch, capsys):
  stdin = io.TextIOWrapper(io.BytesIO(b'{"prompt": "c"}\n'))
  monkeypatch.setattr("sys.stdin", stdin)
  path = tmp_path / "out.jsonl"
  assert generated(capsys, folder, "--jsonl", f"--output={path}") == ""
  assert json.loads(path.read_text())["prompt"] == "c"


@pytest.mark.parametrize("line, message", [
    ('{"prompt: "a"}', "p.jsonl:2: not JSON: "),
    ('["a"]', 'p.jsonl:2: a prompt is an object such as {"prompt": "Once upon a time"}'),
    ('{"text": "a"}', "p.jsonl:2: a prompt is an object such as"),
    ('{"prompt": ""}', "p.jsonl:2 is empty: there is nothing to go on from"),
    ('{"prompt": "a", "seed": -1}', "p.jsonl:2: seed=-1: valid are whole numbers from 0 to 4294"),
    ('{"prompt": "a", "seed": true}', "p.jsonl:2: seed=True: valid are"),
])
def test_prompts_that_are_refused(folder, tmp_path, line, message):
  path, output = tmp_path / "p.jsonl", tmp_path / "out.jsonl"
  path.write_text('{"prompt": "fine"}\n' + line + "\n")
  with pytest.raises(DataError) as error:
    run_command("generate", f"--workdir={folder}", f"--input={path}", f"--output={output}")
  assert message in sentence(error.value)
  assert not output.exists()


@pytest.mark.parametrize("argv, message", [
    (["--beam=2", "--temperature=0.5"], "method.temperature: unknown key"),
    (["--top_p=1.5"], "top_p"),
    (["--stream", "--temperature=1", "--n_best=2"], "a stream has one continuation"),
    (["--stop="], "stop=''"),
    (["--stream", "--output=out.txt"], "--stream and --output=out.txt exclude each other"),
])
def test_options_that_are_refused(folder, tmp_path, monkeypatch, argv, message):
  monkeypatch.chdir(tmp_path)
  path = tmp_path / "p.txt"
  path.write_text("a\n")
  with pytest.raises((ConfigError, UsageError), match=message):
    run_command("generate", f"--workdir={folder}", f"--input={path}", *argv)
  assert list(tmp_path.iterdir()) == [path]
