"""Model cards: the README.md of a folder, made of a run's config, data, scores and code.

The Hugging Face Hub shows it as the page of a model.
"""

import json
import os
from typing import Any, Mapping, NamedTuple, Sequence

import jax

from jtx import storage
from jtx.config import ConfigDict
from jtx.models.heads import only_pools
from jtx.saved.workdir import RESULTS_FILE

CARD = "README.md"
# What the Hub sorts models by, by the end of the architecture's name; the first that fits.
TAGS = {
    "ForSequenceClassification": "text-classification",
    "ForNextSentencePrediction": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForQuestionAnsweringSimple": "question-answering",
    "ForMultipleChoice": "multiple-choice",
    "ForMaskedLM": "fill-mask",
    "AlbertForPreTraining": "fill-mask",
    "BertForPreTraining": "fill-mask",
    "ForCausalLM": "text-generation",
    "LMHeadModel": "text-generation",
    "MarianMTModel": "translation",
    "ForConditionalGeneration": "text2text-generation",
    "ForImageClassification": "image-classification",
    "ForImageClassificationWithTeacher": "image-classification",
    "ForObjectDetection": "object-detection",
    "CLIPModel": "zero-shot-image-classification",
    "SiglipModel": "zero-shot-image-classification"}
# Those that are pipelines of transformers too, where the class is the one that a pipeline takes.
PIPELINES = frozenset((
    "text-classification", "token-classification", "fill-mask", "text-generation",
    "image-classification", "object-detection", "zero-shot-image-classification",
    "feature-extraction", "image-feature-extraction"))
OF_CLASS = ("ForNextSentencePrediction", "EncoderModel", "WithProjection", "DoubleHeadsModel",
            "ElectraForPreTraining", "ViTMAEForPreTraining", "SiglipTextModel")
HEAD = """---
library_name: {library}
pipeline_tag: {tag}
tags:
- jtx
---

# {name}

{architecture} of {number:,} parameters, trained with jtx. `{library}` loads it:

```python
{usage}
```
"""
PREDICT = """from transformers import pipeline

predict = pipeline("{tag}", "{name}")"""
LOAD = """from transformers import {architecture}

model = {architecture}.from_pretrained("{name}")"""
EMBED = """from sentence_transformers import SentenceTransformer

vectors = SentenceTransformer("{name}").encode(["a text", "another"])"""


class Told(NamedTuple):
  """Where a model is from, as its run tells."""
  config: ConfigDict
  step: int  # of the checkpoint
  scores: Mapping[str, float]  # of that checkpoint, by split/name
  environment: Mapping[str, Any]  # versions and revision of the code


def told(directory: str, config: ConfigDict, step: int | None,
         average: int | None) -> Told | None:
  """What a run's folder tells of a checkpoint; None where it is not the one that was scored.

  Args:
    directory: of the run.
    config: its.
    step: that was loaded.
    average: how many checkpoints were asked for; None is as the run evaluated.
  """
  results, environment = (_read(os.path.join(directory, name))
                          for name in (RESULTS_FILE, "environment.json"))
  if average is not None or results.get("step") != step:
    return None
  scores = {key: x for key, x in results.items() if "/" in key and isinstance(x, (int, float))}
  return Told(config, step, scores, environment) if scores else None


def _read(path: str) -> dict[str, Any]:
  return json.loads(storage.read_text(path)) if storage.exists(path) else {}


def text(directory: str, hf_config: Mapping[str, Any], params: Any, labels: Sequence[str] | None,
         about: Told) -> str:
  """The card.

  Args:
    directory: where it is written, whose name is the model's.
    hf_config: the content of the directory's config.json.
    params: of the model.
    labels: names of classes or tags.
    about: its run.
  """
  architecture = hf_config["architectures"][0]
  of_images, head = "num_channels" in hf_config, about.config.model.get("head")
  library, (tag, usage) = "transformers", tag_and_usage(architecture, of_images)
  if not of_images and head and only_pools(head):
    library, usage, tag = "sentence-transformers", EMBED, "sentence-similarity"
  name = os.path.basename(os.path.abspath(directory))
  beginning = HEAD.format(
      tag=tag, name=name, library=library,
      usage=usage.format(tag=tag, name=name, architecture=architecture),
      architecture=f"{'An' if architecture[0] in 'AEIOU' else 'A'} {architecture}",
      number=sum(x.size for x in jax.tree.leaves(params)))
  config = json.loads(about.config.to_json())
  parts = [beginning, _scores(about), _data(config, labels), _training(config, about)]
  return "\n".join(parts)


def tag_and_usage(architecture: str, of_images: bool) -> tuple[str, str]:
  """What the Hub sorts an architecture by, and the code that loads it, to be formatted."""
  tag = next((x for end, x in TAGS.items() if architecture.endswith(end)),
             "image-feature-extraction" if of_images else "feature-extraction")
  by_pipeline = tag in PIPELINES and not architecture.endswith(OF_CLASS)
  return tag, PREDICT if by_pipeline else LOAD


def _scores(about: Told) -> str:
  rows = "".join(f"| {key} | {value:.6g} |\n" for key, value in sorted(about.scores.items()))
  return f"## Scores\n\nAt step {about.step:,}.\n\n| score | value |\n| --- | --- |\n{rows}"


def _data(config: Mapping[str, Any], labels: Sequence[str] | None) -> str:
  sources = {"training": config["data"]["train"]}
  sources |= {split: evaluator["source"] for split, evaluator in config["evals"].items()
              if evaluator.get("source")}
  lines = [f"- {split}: {', '.join(f'`{name}`' for name in names)}\n"
           for split, names in sources.items()]
  if labels:
    lines.append(f"- classes or tags: {', '.join(f'`{label}`' for label in labels[:50])}"
                 + (f", and {len(labels) - 50} more" if len(labels) > 50 else "") + "\n")
  return "## Data\n\n" + "".join(lines)


def _training(config: Mapping[str, Any], about: Told) -> str:
  length = "epochs" if config["epochs"] else "steps"
  facts = {length: config[length], "batch": config["batch_size"], "seed": config["seed"],
           "optimizer": config["optim"]["optimizer"]["name"],
           "learning rate": config["optim"]["lr"]}
  if config["init_from"]:
    facts["starts from"] = config["init_from"]
  facts["revision of jtx"] = about.environment.get("git_revision")
  facts |= about.environment.get("versions", {})
  lines = [f"- {key}: {value}\n" for key, value in facts.items() if value is not None]
  return ("## Training\n\n" + "".join(lines) + "\n<details><summary>The config of the run</summary>"
          f"\n\n```json\n{json.dumps(config, indent=1, ensure_ascii=False)}\n```\n\n</details>\n")
