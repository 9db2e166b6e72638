"""Model cards of runs with scores."""

import json

import pytest

from configs import clip, embed
from jtx import config_files
from jtx.interop import export
from jtx.saved import card
from jtx.saved.folder import Run
from jtx.saved.pretrained import save_pretrained
from tests.helpers import tiny_config
from tests.interop.samples import BERT, TOKENIZER, random_params

LABELS = tuple("abcd")


@pytest.fixture
def run(tmp_path):
  """The folder of a run of 10 steps that has scores, as far as a card reads it."""
  folder = tmp_path / "run"
  folder.mkdir()
  config_files.save(tiny_config(), str(folder / "config.json"))
  (folder / "results.json").write_text(json.dumps(
      {"step": 10, "val/accuracy": 0.90625, "val/loss": 0.5, "val/bleu_signature": "nrefs:1"}))
  (folder / "environment.json").write_text(json.dumps(
      {"git_revision": "0a1b2c", "versions": {"jax": "9.9"}, "argv": ["--secret"]}))
  return str(folder)


def test_a_card_tells_what_the_run_knows(run, tmp_path):
  config = tiny_config()
  about = card.told(run, config, 10, None)
  params = random_params(BERT)
  text = card.text(str(tmp_path / "mine"), export.hf_config(BERT, TOKENIZER, LABELS), params,
                   LABELS, about)
  head, _, body = text.partition("\n---\n")
  assert head.splitlines() == ["---", "library_name: transformers",
                               "pipeline_tag: text-classification", "tags:", "- jtx"]
  assert "# mine" in body and "A BertForSequenceClassification of " in body
  assert "| val/accuracy | 0.90625 |" in body and "At step 10." in body
  assert "signature" not in body and "--secret" not in body
  assert f"- training: `{config.data.train[0]}`" in body
  assert "- classes or tags: `a`, `b`, `c`, `d`" in body
  assert "- revision of jtx: 0a1b2c" in body and "- jax: 9.9" in body
  written = json.loads(body.partition("```json\n")[2].partition("\n```")[0])
  assert written["batch_size"] == config.batch_size


@pytest.mark.parametrize("architecture, tag, code", [
    ("LlamaForCausalLM", "text-generation", 'pipeline("text-generation", "mine")'),
    ("GPT2LMHeadModel", "text-generation", 'pipeline("text-generation", "mine")'),
    ("T5ForConditionalGeneration", "text2text-generation",
     'T5ForConditionalGeneration.from_pretrained("mine")'),
    ("MarianMTModel", "translation", 'MarianMTModel.from_pretrained("mine")'),
    ("CLIPModel", "zero-shot-image-classification",
     'pipeline("zero-shot-image-classification", "mine")'),
])
def test_a_card_of_a_model_that_writes_or_compares(architecture, tag, code):
  config = clip.get_config("tiny") if architecture == "CLIPModel" else tiny_config(epochs=1.5)
  text = card.text("mine", {"architectures": [architecture]}, {}, None,
                   card.Told(config, 29, {"dev/loss": 0.5}, {}))
  assert f"pipeline_tag: {tag}\n" in text and code in text
  # As the run was told: its config's steps, or the epochs that stand in place of them.
  assert ("- steps: 4\n" if architecture == "CLIPModel" else "- epochs: 1.5\n") in text
  assert "100000" not in text.partition("<details>")[0]


@pytest.mark.parametrize("step, average", [(5, None), (10, 2)])
def test_other_checkpoints_than_the_scored_one_have_no_card(step, average, run):
  assert card.told(run, tiny_config(), step, average) is None


class Scored(Run):
  """A run whose model is there already."""
  step, average = 10, None

  def labels(self):
    return LABELS

  def tokenizers(self):
    return {"text": TOKENIZER}


def test_a_folder_of_a_run_with_scores_has_a_card(run, tmp_path):
  for format in ("hf", "jtx"):
    save_pretrained(str(tmp_path / format), BERT, random_params(BERT), format=format,
                    like=Scored(run))
  assert "| val/loss | 0.5 |" in (tmp_path / "hf" / "README.md").read_text()
  assert not (tmp_path / "jtx" / "README.md").exists()
  Scored.step = 7
  save_pretrained(str(tmp_path / "older"), BERT, random_params(BERT), like=Scored(run))
  assert not (tmp_path / "older" / "README.md").exists()


def test_a_card_of_sentence_embeddings_tells_their_library():
  about = card.Told(embed.get_config("tiny"), 4, {"dev/recall_at_1": 0.5}, {})
  text = card.text("mine", {"architectures": ["BertModel"]}, {}, None, about)
  assert "library_name: sentence-transformers\npipeline_tag: sentence-similarity\n" in text
  assert 'SentenceTransformer("mine").encode(' in text and "import pipeline" not in text
