"""Generated tokens beside those of `transformers.generate`, prompts of many lengths at a time."""

import numpy as np
import pytest

from configs import nmt_multi30k
import jtx
from jtx.data.tokenizers.utf8 import Bytes
from jtx.inference.continuations import Limits, TextGenerator
from jtx.inference.decode import Beam, Sample
from jtx.saved.pretrained import load_pretrained
from jtx.train import loop

torch = pytest.importorskip(
    "torch", reason="PyTorch is not installed: make test-parity installs it")
transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed: see make test-parity")

TOKENIZER = Bytes()
V, NEW, NUMBER = TOKENIZER.vocab_size, 16, 200
IDS = dict(vocab_size=V, pad_token_id=0, bos_token_id=1, eos_token_id=2)
SIZE = IDS | dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                  num_key_value_heads=2, head_dim=8)
PEERS = {
    "GPT2": IDS | dict(n_positions=96, n_embd=32, n_layer=2, n_head=4),
    "Llama": SIZE,
    "Mistral": SIZE | dict(sliding_window=5),
    "Gemma2": SIZE | dict(sliding_window=6, final_logit_softcapping=8.0),
    "Bloom": IDS | dict(hidden_size=32, n_layer=2, n_head=4),
}


@pytest.fixture(scope="module", params=PEERS)
def both(request, tmp_path_factory):
  """A model of `transformers` with random weights, and the same of ours."""
  torch.manual_seed(0)
  kind = request.param
  config = getattr(transformers, f"{kind}Config")(**PEERS[kind], attn_implementation="eager")
  peer = getattr(transformers, f"{kind}{'LMHeadModel' if kind == 'GPT2' else 'ForCausalLM'}")(
      config).eval()
  for p in peer.parameters():
    if p.ndim > 1:
      torch.nn.init.normal_(p, std=0.3)  # so that no two tokens are nearly as likely
  folder = str(tmp_path_factory.mktemp(kind) / "model")
  peer.save_pretrained(folder)
  return peer, load_pretrained(folder)


def prompts():
  random = np.random.default_rng(0)
  return [random.integers(3, V, random.integers(1, 60)).astype(np.int32) for _ in range(NUMBER)]


def theirs(peer, tokens, **options):
  """The tokens behind each prompt, which are padded on their left, up to the end token."""
  longest = max(map(len, tokens))
  ids = torch.tensor([[0] * (longest - len(t)) + t.tolist() for t in tokens])
  mask = torch.tensor([[0] * (longest - len(t)) + [1] * len(t) for t in tokens])
  out = peer.generate(ids, attention_mask=mask, max_new_tokens=NEW, **options)[:, longest:].tolist()
  return [row[:row.index(2)] if 2 in row else row for row in out]


def ours(model, params, tokens, method):
  run = TextGenerator(model, params, TOKENIZER, method=method, batch_size=64,
                      limits=Limits(max_new_tokens=NEW, end_ids=(2,)))
  return [list(best[0].tokens) for best in run(tokens)]


@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_greedy_search(both, penalty):
  peer, (model, params) = both
  tokens = prompts()
  expected = theirs(peer, tokens, do_sample=False, repetition_penalty=penalty)
  found = ours(model, params, tokens, Sample(temperature=0.0, repetition_penalty=penalty))
  assert found == expected
  assert len({tuple(row) for row in found}) > NUMBER // 2


def test_beam_search(both):
  peer, (model, params) = both
  tokens = prompts()[:40]
  expected = theirs(peer, tokens, do_sample=False, num_beams=3, length_penalty=0.0)
  found = ours(model, params, tokens, Beam(beam=3, alpha=0.0))
  # Where the room ends, `generate` lets hypotheses without an end compete with those that have one.
  same = [(a, b) for a, b in zip(found, expected) if (len(a) < NEW) == (len(b) < NEW)]
  assert len(same) >= 30 and all(a == b for a, b in same)


def test_a_translator_of_a_run_is_exported_with_its_ways(tmp_path):
  """Special tokens of sources, the start of targets, their length and the search."""
  c = nmt_multi30k.get_config("form=bart,tiny")
  c.evals, c.decode.max_target_length = {}, 12
  workdir, folder = str(tmp_path / "run"), str(tmp_path / "folder")
  loop.run(c.lock(), workdir)
  model, params = jtx.load_pretrained(workdir)
  jtx.save_pretrained(folder, model, params, like=workdir)
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  theirs = transformers.BartForConditionalGeneration.from_pretrained(folder).eval()
  ours, of_run = jtx.Translator(folder), jtx.Translator(workdir)
  for text in ("half past one", "ten to four"):
    ids = tokenizer(text)["input_ids"]
    (expected, _), = of_run.translator.encoded("src", [text], 50)
    assert ids == expected.tolist()
    with torch.no_grad():
      found = theirs.generate(input_ids=torch.tensor([ids]))[0].tolist()
    tokens = ours.hypotheses([text])[0][0].tokens
    assert found[1:len(tokens) + 1] == list(tokens) and len(tokens) <= 12
