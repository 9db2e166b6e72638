"""The command that gives a trained model more tokens or longer texts, and its mistakes."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from configs import adapt
from jtx.data.tokenizers.kinds import wordpiece
from jtx.nn.positions import Learned
from jtx.nn.rope import Rope
from jtx.saved.pretrained import load_pretrained, load_tokenizer, save_pretrained
from tests.helpers import ROOT, block, encoder, refused
from tests.interop.test_extended import drawn


@pytest.mark.parametrize("argv, sentence", [
    ([], "nothing to do: give --text and --tokens"),
    (["--text=a.txt"], "--text and --tokens go together"),
    (["--window=8"], "--window goes with --max_length"),
    (["--max_length=64"], "--to_hf=NEW or --workdir=NEW goes with"),
    (["--max_length=64", "--to_hf=a", "--workdir=b"], "--to_hf=NEW or --workdir=NEW goes with"),
    (["--compare=tests"], "nowhere")])
def test_mistakes(argv, sentence):
  status, told = refused("extend", "--init=nowhere", *argv)
  assert status and sentence in told


def extend(*argv):
  """What the command tells in its last line."""
  done = subprocess.run(
      [sys.executable, "-m", "experiments.extend", *argv], cwd=ROOT, text=True,
      capture_output=True, env={**os.environ, "JAX_PLATFORMS": "cpu"})
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_a_model_of_jtx_alone_with_more_tokens(tmp_path):
  """Of rotary positions, with post-norm: Hugging Face has no class of this form."""
  tokenizer = wordpiece(iter(["a few words of all kinds"] * 2), vocab_size=60, min_frequency=1,
                        mask=True)
  model = encoder(vocab_size=tokenizer.vocab_size, width=8, num_layers=2, mlm=True,
                  position=Rope(), num_token_types=1,
                  block=block(num_heads=2, ffn_dim=12, norm_position="post"))
  params = drawn(model)
  save_pretrained(str(tmp_path / "old"), model, params, tokenizer, format="jtx")
  (tmp_path / "domain.txt").write_text("wordsof kindsof\n" * 3)
  asked = (f"--init={tmp_path}/old", "--tokens=6", f"--text={tmp_path}/domain.txt")
  status, told = refused("extend", *asked, f"--to_hf={tmp_path}/new")
  assert status and "--workdir=NEW makes a folder that jtx reads" in told
  told = extend(*asked, f"--workdir={tmp_path}/new")
  assert told == {"new_tokens": 3, "vocab_size": tokenizer.vocab_size + 3}
  wider, found = load_pretrained(str(tmp_path / "new"))
  assert wider.vocab_size == tokenizer.vocab_size + 3 and wider.stack == model.stack
  table = found["embed"]["embedding"]
  np.testing.assert_array_equal(table[:-3], params["embed"]["embedding"])
  new = load_tokenizer(str(tmp_path / "new"))
  pieces = tokenizer.encode("wordsof")
  assert len(pieces) > 1 and len(new.encode("wordsof")) == 1
  np.testing.assert_allclose(table[new.encode("wordsof")[0]], table[pieces].mean(0), rtol=1e-5)
  adapted = adapt.get_config(f"init={tmp_path}/new,corpus=text:{tmp_path}/domain.txt")
  assert adapted.model.vocab_size == wider.vocab_size and adapted.init_from == f"{tmp_path}/new"


@pytest.mark.slow
def test_a_model_with_more_tokens_and_longer_texts(tmp_path):
  tokenizer = wordpiece(iter(["a few words of all kinds"] * 2), vocab_size=60, min_frequency=1)
  model = encoder(vocab_size=tokenizer.vocab_size, width=8, num_layers=2, mlm=True,
                  position=Learned(16, first_position=tokenizer.pad_id + 1), num_token_types=1,
                  block=block(num_heads=2, ffn_dim=12, attention_bias=True, activation="gelu",
                              norm_position="post", norm_eps=1e-5))
  save_pretrained(str(tmp_path / "old"), model, drawn(model), tokenizer)
  (tmp_path / "domain.txt").write_text("wordsof kindsof\n" * 3)
  told = extend(f"--init={tmp_path}/old", "--tokens=6", f"--text={tmp_path}/domain.txt",
                "--max_length=40", "--window=8", f"--to_hf={tmp_path}/new",
                f"--compare={tmp_path}/old")
  old, new = (load_tokenizer(str(tmp_path / name)) for name in ("old", "new"))
  plain = len(old.plain_ids())
  # Then each word is one token, and there are no more pairs.
  added = new.tokens(range(old.vocab_size, new.vocab_size))
  assert added[0] == "##of" and sorted(added[1:]) == ["kindsof", "wordsof"]
  assert told == {"new_tokens": 3, "vocab_size": old.vocab_size + 3, "max_length": 40,
                  "tokens": [plain + 3, plain], "shared": plain, "share": 1.0}
  assert len(new.encode("wordsof kindsof")) == 2
  longer, _ = load_pretrained(str(tmp_path / "new"))
  assert (longer.vocab_size, longer.longest, longer.stack.window) == (old.vocab_size + 3, 40, 4)
  assert json.loads((tmp_path / "new" / "config.json").read_text())["model_type"] == "longformer"
