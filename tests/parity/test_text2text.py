"""Fine-tuning of what `transformers` pretrained reads and writes its texts as it does."""

import json

import jax
import numpy as np
import pytest

import jtx
from configs import common, text2text
from jtx import build
from jtx.data.dataset import Dataset

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TEXT, ANSWER = "ann met bob in rome", "bob is in rome"


def of_bart(folder):
  import tokenizers
  trained = tokenizers.ByteLevelBPETokenizer()
  trained.train_from_iterator([TEXT, ANSWER] * 20, vocab_size=300, special_tokens=[
      "<s>", "<pad>", "</s>", "<unk>", "<mask>"])
  files = trained.save_model(str(folder))
  vocab = json.load(open(files[0]))
  merges = [tuple(line.split()) for line in open(files[1]).read().splitlines()[1:]]
  tokenizer = transformers.BartTokenizer(vocab=vocab, merges=merges)
  config = transformers.BartConfig(
      vocab_size=len(tokenizer), d_model=32, encoder_layers=2, decoder_layers=2,
      encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48,
      max_position_embeddings=64)
  return tokenizer, transformers.BartForConditionalGeneration(config)


def of_t5(folder):
  import tokenizers
  trained = tokenizers.SentencePieceUnigramTokenizer()
  trained.train_from_iterator([TEXT, ANSWER] * 20, vocab_size=60, unk_token="<unk>",
                              special_tokens=["<pad>", "</s>", "<unk>"])
  trained.save(str(folder / "tokenizer.json"))
  tokenizer = transformers.T5TokenizerFast(
      vocab=[(piece, score) for piece, score in json.loads(trained.to_str())["model"]["vocab"]],
      extra_ids=0)
  config = transformers.T5Config(vocab_size=len(tokenizer), d_model=32, d_kv=8, d_ff=48,
                                 num_layers=2, num_heads=4, decoder_start_token_id=0)
  return tokenizer, transformers.T5ForConditionalGeneration(config)


@pytest.mark.parametrize("make, begin, start", [(of_bart, True, "end"), (of_t5, False, "begin")])
def test_the_loss_of_a_text_is_that_of_transformers(make, begin, start, tmp_path):
  torch.manual_seed(0)
  tokenizer, theirs = make(tmp_path)
  for p in theirs.parameters():  # fresh ones are nearly symmetric
    p.data.normal_(0, 0.2)
  theirs.eval()
  folder = tmp_path / "model"
  theirs.save_pretrained(folder)
  tokenizer.save_pretrained(folder)
  (tmp_path / "a.tsv").write_text("x\ty\n" + f"{TEXT}\t{ANSWER}\n" * 8)
  (tmp_path / "tasks.json").write_text(json.dumps({"mine": {
      "train": "a.tsv", "dev": "a.tsv", "input": "{x}", "target": "{y}"}}))

  config = text2text.get_config(f"{tmp_path / 'tasks.json'},init={folder},length=32,target=32,"
                                "batch=2")
  common.apply(config, {"data.path": str(tmp_path)})
  assert (config.data.ops[1].begin, config.data.ops[1].start) == (begin, start)
  dataset = Dataset(config.lock().data, config.tokenizer)
  model, objective = build.make_model(config, dataset.info)
  params = jtx.load_pretrained(str(folder))[1]
  batch = dataset.train_stream(0, 2, range(2)).batch(0)
  batch.pop("ids")
  sums = objective(model, params, jax.tree.map(np.asarray, batch), train=False)
  ours = float(sums["nll"][0] / sums["nll"][1])

  inputs, labels = tokenizer(TEXT, return_tensors="pt"), tokenizer(ANSWER, return_tensors="pt")
  with torch.no_grad():
    expected = float(theirs(**{k: inputs[k] for k in ("input_ids", "attention_mask")},
                            labels=labels["input_ids"]).loss)
  assert ours == pytest.approx(expected, rel=5e-6)
