"""Models of the Hugging Face Hub by name: downloaded into its client's cache, and uploaded.

A name is ORG/NAME, or ORG/NAME@REVISION with a branch, tag or commit, where there is no such file
or folder and ORG is none either. The client's own variables rule: HF_HOME is the place of its
cache, HF_HUB_OFFLINE=1 takes what is there, HF_TOKEN opens private models.
"""

import os
import re

from jtx import storage
from jtx.errors import ConfigError

NAME = re.compile(r"(?P<model>(?P<org>\w[\w.-]*)/\w[\w.-]*)(@(?P<revision>\w[\w./-]*))?")
# Of a model: neither pickles nor weights for other libraries, and nothing in folders.
FILES = ("generation_config.json", "preprocessor_config.json", "processor_config.json",
         "model.safetensors", "model.safetensors.index.json", "model-*.safetensors")
# config.json tells that the tokenizer is of a model.
TOKENIZER_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json",
                   "special_tokens_map.json", "added_tokens.json", "chat_template.jinja",
                   "vocab.txt", "spiece.model", "source.spm", "target.spm", "vocab.json")


def is_name(text: str) -> bool:
  """Whether this is a name of the Hub, and not a place on this machine or in a bucket."""
  match = NAME.fullmatch(text)
  return bool(match) and not os.path.exists(match["org"])


def place(text: str) -> str:
  """A name of the Hub as it is; of others the absolute path."""
  return text if is_name(text) else storage.absolute(text)


def folder(text: str) -> str:
  """The folder with the files of a model: that of this name, or the Hub's in the client's cache.

  Raises:
    ConfigError: a name of the Hub that can't be fetched, and why.
  """
  return _fetched(text, FILES + TOKENIZER_FILES)


def tokenizer_folder(text: str) -> str:
  """As `folder`, with the files of the tokenizer alone."""
  return _fetched(text, TOKENIZER_FILES)


def _fetched(text: str, files: tuple[str, ...]) -> str:
  if not is_name(text):
    return text
  import huggingface_hub
  from huggingface_hub import constants, errors
  match = NAME.fullmatch(text)
  try:
    return huggingface_hub.snapshot_download(match["model"], revision=match["revision"],
                                             allow_patterns=list(files))
  except errors.GatedRepoError as e:
    why = "its owner wants its terms accepted first, on its page; then HF_TOKEN or `hf auth login`"
    raise _error(text, why) from e
  except errors.RevisionNotFoundError as e:
    raise _error(text, f"the Hub's model has no revision {match['revision']!r}") from e
  except errors.RepositoryNotFoundError as e:
    raise _error(text, "the Hub has no such model, or it is private: HF_TOKEN or `hf auth login`"
                 " opens it") from e
  except errors.LocalEntryNotFoundError as e:
    offline = constants.is_offline_mode()
    raise _error(text, "it is not in the cache of the Hub's client, and " + (
        "HF_HUB_OFFLINE is set" if offline else "the Hub can't be reached; is there a network?")
        ) from e
  except Exception as e:  # of the client, or of whichever library it asks the network by
    raise _error(text, _said(e)) from e


def _said(error: Exception) -> str:
  return " ".join(str(error).split())[:200] or type(error).__name__


def _error(text: str, why: str) -> ConfigError:
  return ConfigError(f"{text}: is no folder of this machine, and can't be taken from the Hugging"
                     f" Face Hub: {why}")


def push(directory: str, name: str, *, private: bool | None = None,
         message: str = "A model of jtx") -> str:
  """Uploads a folder to the Hub, where its model is made unless there is one.

  Args:
    directory: whose files are uploaded.
    name: ORG/NAME, or ORG/NAME@BRANCH.
    private: of a model that is made; None is what its owner has set.
    message: of the commit.

  Returns:
    The address of the commit.

  Raises:
    ConfigError: a name that is none, or what the Hub does not let one do.
  """
  match = NAME.fullmatch(name)
  if not match:
    raise ConfigError(f"{name!r} is no name of the Hugging Face Hub, which is ORG/NAME or"
                      " ORG/NAME@BRANCH")
  import huggingface_hub
  api = huggingface_hub.HfApi()
  try:
    api.create_repo(match["model"], private=private, exist_ok=True)
    if match["revision"]:
      api.create_branch(match["model"], branch=match["revision"], exist_ok=True)
    done = api.upload_folder(repo_id=match["model"], folder_path=directory,
                             revision=match["revision"], commit_message=message)
  except Exception as e:  # of the client, or of whichever library it asks the network by
    raise ConfigError(f"{directory} can't be uploaded as {name}: {_said(e)}; it takes a network,"
                      " and HF_TOKEN or `hf auth login` to say who you are") from e
  return str(done.commit_url)
