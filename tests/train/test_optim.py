"""Optimisers on stacks against separate layers, schedules against closed forms, masks, freezing."""

from flax.traverse_util import flatten_dict, unflatten_dict
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
import numpy as np
import optax
from optax import contrib
import pytest

from jtx.config import build, fields_section, section
from jtx.errors import ConfigError
from jtx.parallel import sharding
from jtx.train import optim, optimizers, schedules
from jtx.train.keys import OptimKeys
from jtx.train.optimizers import OPTIMIZERS
from jtx.train.paths import layer_path

LAYERS = 3
D, N, H, F, V = 8, 2, 4, 12, 10

# path -> logical axes
AXES = {
    "embed/embedding": ("vocab", "embed"),
    "encoder/layers/attention/query/kernel": ("layers", "embed", "heads", "kv"),
    "encoder/layers/attention/out/kernel": ("layers", "heads", "kv", "embed"),
    "encoder/layers/mlp/kernel": ("layers", "embed", "mlp"),
    "encoder/layers/mlp/bias": ("layers", "mlp"),
    "encoder/layers/norm/scale": ("layers", "norm"),
    "encoder/final_norm/scale": ("norm",),
    "output/kernel": ("embed", "vocab"),
}
SIZES = {"layers": LAYERS, "embed": D, "heads": N, "kv": H, "mlp": F, "vocab": V, "norm": D}
STACKED = {path for path, names in AXES.items() if names[0] == "layers"}

# Options that make an optimiser do all that it can on parameters this small.
OPTIONS = {
    "adafactor": {"min_dim_to_factor": 4, "momentum": 0.9, "weight_decay": 0.1},
    "sgd": {"nesterov": True, "weight_decay": 0.1},
}


def tree(seed):
  """Parameters whose layers have different sizes, so that their norms matter."""
  rng = np.random.default_rng(seed)
  flat = {}
  for path, names in AXES.items():
    x = rng.normal(size=[SIZES[n] for n in names])
    if names[0] == "layers":
      x *= 4.0 ** np.arange(LAYERS).reshape(-1, *(1,) * (x.ndim - 1))
    flat[path] = jnp.array(x, jnp.float32)
  return unflatten_dict(flat, sep="/")


def separate(stacked_tree):
  """The same parameters with every layer a subtree of its own, and no stack."""
  flat = {}
  for path, x in flatten_dict(stacked_tree, sep="/").items():
    if path in STACKED:
      flat |= {layer_path(path, i).replace("layers/", "block"): x[i] for i in range(LAYERS)}
    else:
      flat[path] = x
  return unflatten_dict(flat, sep="/")


def separate_axes():
  flat = {}
  for path, names in AXES.items():
    if path in STACKED:
      flat |= {layer_path(path, i).replace("layers/", "block"): names[1:]
               for i in range(LAYERS)}
    else:
      flat[path] = names
  return flat


def nested(flat):
  return unflatten_dict(flat, sep="/")


def config(optimizer="sgd", schedule="constant", **edits):
  """An `optim` section; lr 1 and no momentum unless edited."""
  cfg = fields_section(OptimKeys)
  options = {"momentum": 0.0} if optimizer == "sgd" else {}
  cfg.optimizer = section(OPTIMIZERS, optimizer, **options)
  cfg.schedule = section(schedules.SCHEDULES, schedule)
  cfg.lr = 1.0
  for key, value in edits.items():
    cfg[key] = value
  return cfg


def make(cfg, params=None):
  return optim.make(cfg, 100, tree(0) if params is None else params, nested(AXES))


def jit(fn):
  # The arrays are tiny: what takes time is XLA's optimisation of the program.
  return jax.jit(fn, compiler_options={"xla_backend_optimization_level": 0})


def train(tx, params, gradients):
  """The parameters after every update."""
  @jit
  def step(params, state, gradient):
    updates, state = tx.update(gradient, state, params)
    return optax.apply_updates(params, updates), state

  state, after = jit(tx.init)(params), []
  for gradient in gradients:
    params, state = step(params, state, gradient)
    after.append(params)
  return after


def one_update(cfg, params, gradient):
  tx, _ = make(cfg, params)
  return flatten_dict(first_update(tx, params, gradient), sep="/")


def first_update(tx, params, gradient):
  return jit(lambda g, p: tx.update(g, tx.init(p), p)[0])(gradient, params)


def assert_trees_close(a, b, rtol=1e-6):
  a, b = flatten_dict(a, sep="/"), flatten_dict(b, sep="/")
  assert a.keys() == b.keys()
  for path in a:
    scale = np.abs(b[path]).max()
    np.testing.assert_allclose(a[path], b[path], rtol=rtol, atol=rtol * scale, err_msg=path)


# ---- Stacked layers ----


# All of them, the costly ones in the slow set.
COSTLY = ("adafactor", "lamb", "muon")
ALL = [pytest.param(name, marks=[pytest.mark.slow] * (name in COSTLY)) for name in OPTIMIZERS]


@pytest.mark.parametrize("name", ALL)
def test_a_stack_is_updated_as_separate_layers(name):
  cfg = section(OPTIMIZERS, name, **OPTIONS.get(name, {}))
  layer_axes = {path: names[1:] if path in STACKED else names for path, names in AXES.items()}
  per_layer = optim.per_layer(build(OPTIMIZERS, cfg, layer_axes), STACKED)
  plain = build(OPTIMIZERS, cfg, separate_axes())
  params, gradients = tree(0), [tree(i) for i in (1, 2, 3)]
  got = train(optax.chain(per_layer, optax.scale(-0.1)), params, gradients)
  want = train(optax.chain(plain, optax.scale(-0.1)), separate(params),
               [separate(g) for g in gradients])
  for step in (0, 2):
    assert_trees_close(separate(got[step]), want[step])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lamb", "adafactor"])
def test_a_stack_as_one_parameter_differs(name):
  cfg = section(OPTIMIZERS, name, **OPTIONS.get(name, {}))
  tx = build(OPTIMIZERS, cfg, AXES)
  params, gradient = tree(0), tree(1)
  naive = first_update(tx, params, gradient)
  layered = first_update(optim.per_layer(tx, STACKED), params, gradient)
  path = "encoder/layers/mlp/kernel"
  naive, layered = (flatten_dict(t, sep="/")[path] for t in (naive, layered))
  assert np.linalg.norm(naive - layered) > 0.1 * np.linalg.norm(layered)


@pytest.mark.slow
def test_a_stack_as_one_matrix_differs_for_muon():
  path = "encoder/layers/mlp/kernel"
  gradient = flatten_dict(tree(1), sep="/")[path]
  params = nested({path: gradient})
  tx = optim.per_layer(optimizers.muon({path: ("embed", "mlp")}, weight_decay=0.0), {path})
  layered = first_update(tx, params, params)
  layered = flatten_dict(layered, sep="/")[path]
  tx = optimizers.muon({"kernel": ("embed", "mlp")}, weight_decay=0.0)
  flat = {"kernel": gradient.reshape(LAYERS * D, F)}
  naive = first_update(tx, flat, flat)["kernel"].reshape(LAYERS, D, F)
  assert np.linalg.norm(naive - layered) > 0.1 * np.linalg.norm(layered)


def test_stacks_of_different_depths():
  axes = {"encoder/layers/kernel": ("layers", "embed", "mlp"),
          "decoder/layers_0/kernel": ("layers", "embed", "mlp"),
          "decoder/layers_1/kernel": ("layers", "embed", "mlp")}
  rng = np.random.default_rng(0)
  depths = dict(zip(axes, (2, 3, 2)))
  params = nested({p: jnp.array(rng.normal(size=(depths[p], D, F)), jnp.float32) for p in axes})
  tx, _ = optim.make(config("lamb"), 100, params, nested(axes))
  updates = first_update(tx, params, params)
  for path, u in flatten_dict(updates, sep="/").items():
    x = flatten_dict(params, sep="/")[path]
    norms = lambda y: np.linalg.norm(np.reshape(y, (len(y), -1)), axis=1)
    np.testing.assert_allclose(norms(u), norms(x), rtol=1e-5)  # lamb's update has the norm of x


# ---- Each optimiser ----


def test_adamw_against_float64():
  b1, b2, eps, decay, lr = 0.8, 0.9, 1e-6, 0.1, 0.01
  cfg = config("adamw", lr=lr)
  cfg.optimizer.update({"b1": b1, "b2": b2, "eps": eps, "weight_decay": decay})
  params, gradients = tree(0), [tree(i + 1) for i in range(3)]
  tx, _ = make(cfg)
  got = flatten_dict(train(tx, params, gradients)[-1], sep="/")
  for path, x in flatten_dict(params, sep="/").items():
    x = np.asarray(x, np.float64)
    m = v = np.zeros_like(x)
    for n, gradient in enumerate(gradients, 1):
      g = np.asarray(flatten_dict(gradient, sep="/")[path], np.float64)
      m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
      u = m / (1 - b1**n) / (np.sqrt(v / (1 - b2**n)) + eps)
      x = x - lr * (u + (decay * x if path.endswith(("kernel", "embedding")) else 0))
    np.testing.assert_allclose(got[path], x, rtol=2e-5, atol=1e-6, err_msg=path)


def test_adamw_relative_to_the_size_of_each_layers_matrix():
  cfg = config("adamw", lr=0.01)
  cfg.optimizer.update({"weight_decay": 0.1})
  params, gradient = tree(0), tree(1)
  after = lambda: flatten_dict(train(make(cfg)[0], params, [gradient])[-1], sep="/")
  plain = after()
  cfg.optimizer.scale_by_rms = True
  relative = after()
  for path, x in flatten_dict(params, sep="/").items():
    x = np.asarray(x, np.float64)
    decayed = x - 0.01 * (0.1 * x if path.endswith(("kernel", "embedding")) else 0)
    rms = np.sqrt(np.mean(x**2, axis=tuple(range(path in STACKED, x.ndim)), keepdims=True))
    np.testing.assert_allclose(relative[path], decayed + np.maximum(rms, 1e-3) * (
        np.asarray(plain[path], np.float64) - decayed), rtol=1e-5, atol=1e-6, err_msg=path)


@pytest.mark.parametrize("name,theirs", [
    ("adam", lambda: optax.adam(0.1)),
    ("adamw", lambda: optax.adamw(0.1, weight_decay=0.01)),
    ("lamb", lambda: optax.lamb(0.1, weight_decay=0.01)),
    ("lion", lambda: optax.lion(0.1, weight_decay=0.1)),
    ("sgd", lambda: optax.chain(optax.add_decayed_weights(0.1), optax.sgd(0.1, momentum=0.9))),
    # Optax's adafactor multiplies the learning rate in before the momentum; without one it's ours.
    ("adafactor", lambda: optax.adafactor(0.1, min_dim_size_to_factor=128)),
    ("muon", lambda: contrib.muon(0.1, weight_decay=0.1, consistent_rms=0.2)),
])
def test_on_a_matrix_equals_optax(name, theirs):
  params = {"kernel": jnp.array(np.random.default_rng(0).normal(size=(D, F)), jnp.float32)}
  gradients = [jax.tree.map(lambda x, i=i: jnp.roll(x, i, 1), params) for i in (1, 2, 3)]
  cfg = section(OPTIMIZERS, name, **({"weight_decay": 0.1} if name == "sgd" else {}))
  tx = build(OPTIMIZERS, cfg, {"kernel": ("embed", "mlp")})
  got = train(optax.chain(tx, optax.scale(-0.1)), params, gradients)
  assert_trees_close(got[-1], train(theirs(), params, gradients)[-1])


@pytest.mark.parametrize("name", [n for n in OPTIMIZERS if n != "adam"])
def test_weight_decay_is_for_kernels_and_embeddings(name):
  params, gradient = tree(0), tree(1)
  updates = []
  for decay in (0.0, 0.5):
    cfg = config(name)
    cfg.optimizer.weight_decay = decay
    updates.append(one_update(cfg, params, gradient))
  for path in AXES:
    same = np.array_equal(updates[0][path], updates[1][path])
    assert same == path.endswith(("bias", "scale")), path
    if not same and name != "lamb":  # lamb rescales what it has decayed
      np.testing.assert_allclose(
          updates[1][path] - updates[0][path], -0.5 * flatten_dict(params, sep="/")[path],
          rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("path,decayed", [
    ("a/kernel", True), ("a/embedding", True), ("position_embedding", True),
    ("a/bias", False), ("kernel/bias", False), ("a/scale", False), ("position_bias", False)])
def test_decays(path, decayed):
  assert optimizers.decays(path) == decayed


@pytest.mark.parametrize("path,shape,names,matrix", [
    ("query/kernel", (D, N, H), ("embed", "heads", "kv"), (D, N * H)),
    ("out/kernel", (N, H, D), ("heads", "kv", "embed"), (N * H, D)),
])
@pytest.mark.parametrize("rms", [0.0, 0.2])
def test_muon_sees_an_attention_kernel_as_a_matrix(path, shape, names, matrix, rms):
  with jax.enable_x64():  # its iterations enlarge what rounding makes different
    g = jnp.array(np.random.default_rng(0).normal(size=shape))
    tx = optimizers.muon({path: names}, rms=rms)
    got = first_update(tx, nested({path: g}), nested({path: g}))
    tx, flat = optimizers.muon({"kernel": ("embed", "mlp")}, rms=rms), {"kernel": g.reshape(matrix)}
    want = first_update(tx, flat, flat)
  np.testing.assert_allclose(
      flatten_dict(got, sep="/")[path], want["kernel"].reshape(shape), rtol=1e-10, atol=1e-12)


def test_muon_updates_are_nearly_orthogonal():
  g = {"kernel": jnp.array(np.random.default_rng(0).normal(size=(D, F)), jnp.float32)}
  tx = optimizers.muon({"kernel": ("embed", "mlp")}, rms=0.0, weight_decay=0.0)
  u = first_update(tx, g, g)
  values = np.linalg.svd(u["kernel"], compute_uv=False) / (F / D)**0.5
  assert values.min() > 0.5 and values.max() < 1.3  # Newton-Schulz's own range (Jordan 2024)


def test_muon_leaves_the_rest_to_adamw():
  params, gradient = tree(0), tree(1)
  cfg = config("muon")
  adamw = config("adamw")
  adamw.optimizer.weight_decay = cfg.optimizer.weight_decay
  by_muon, by_adamw = one_update(cfg, params, gradient), one_update(adamw, params, gradient)
  matrices = {p for p in AXES if not np.allclose(by_muon[p], by_adamw[p], rtol=1e-5, atol=1e-6)}
  assert matrices == {p for p in AXES if p.startswith("encoder/layers/") and p.endswith("kernel")}


# ---- Schedules ----


def values(name, lr, total, steps, width=512, **options):
  chosen = section(schedules.SCHEDULES, name, **options)
  schedule = build(schedules.SCHEDULES, chosen, lr, total, width)
  return [float(schedule(s)) for s in steps]


def test_noam():
  got = values("noam", 2.0, 10, [0, 1, 3999, 4000, 99_999], width=512)
  want = [2 * 512**-0.5 * min(n**-0.5, n * 4000**-1.5) for n in (1, 2, 4000, 4001, 100_000)]
  np.testing.assert_allclose(got, want, rtol=1e-6)


def test_rsqrt():
  got = values("rsqrt", 2.0, 10, [0, 99, 100, 399], width=None, hold=100)
  np.testing.assert_allclose(got, [0.2, 0.2, 2 / np.sqrt(101), 0.1], rtol=1e-6)


def test_noam_has_the_width_of_the_model():
  assert values("noam", 1.0, 10, [7], width=4) == [2 * v for v in values("noam", 1.0, 10, [7], 16)]
  with pytest.raises(ConfigError, match="width: unknown key"):
    section(schedules.SCHEDULES, "noam", width=8)
  with pytest.raises(ConfigError, match="'noam' takes the width of the model's layers"):
    values("noam", 1.0, 10, [0], width=None)


@pytest.mark.parametrize("name,options", [
    ("constant", {}), ("linear", {}), ("cosine", {}), ("wsd", {"decay": 0.2}), ("step", {})])
def test_warmup_is_linear_from_the_first_update(name, options):
  got = values(name, 0.5, 100, range(10), warmup=10, **options)
  np.testing.assert_allclose(got, 0.5 * np.arange(1, 11) / 10, rtol=1e-6)


@pytest.mark.parametrize("name,options,want", [
    ("constant", {"warmup": 10}, [2, 2, 2, 2, 2]),
    ("linear", {"warmup": 10}, [2, 1.5, 1, 2 / 90, 0]),
    ("linear", {"warmup": 10, "end": 0.1}, [2, 1.55, 1.1, 0.2 + 1.8 / 90, 0.2]),
    ("cosine", {"warmup": 10}, [2, 1 + np.cos(np.pi / 4), 1, 1 - np.cos(np.pi / 90), 0]),
    ("cosine", {"warmup": 10, "end": 0.1},
     [2, 1.1 + 0.9 * np.cos(np.pi / 4), 1.1, 1.1 - 0.9 * np.cos(np.pi / 90), 0.2]),
    ("wsd", {"warmup": 10, "decay": 0.6}, [2, 2, 2 * 45 / 60, 2 / 60, 0]),
    ("wsd", {"warmup": 10, "decay": 0.6, "end": 0.1}, [2, 2, 1.55, 0.2 + 1.8 / 60, 0.2]),
    ("wsd", {"warmup": 10, "decay": 0.0}, [2, 2, 2, 2, 2]),
    ("step", {"warmup": 10, "drops": (0.5,)}, [2, 2, 0.2, 0.2, 0.2]),
    ("step", {"drops": (0.32, 0.55, 0.9), "factor": 0.5}, [2, 1, 0.5, 0.25, 0.25]),
])
def test_after_warmup(name, options, want):
  # 100 is past the last update, 99.
  got = values(name, 2.0, 100, [10, 32.5, 55, 99, 100], **options)
  np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["linear", "cosine", "wsd"])
def test_no_warmup_and_a_run_of_one_update(name):
  assert values(name, 3.0, 1, [0], warmup=0) == [3.0]


@pytest.mark.parametrize("name", ["linear", "cosine", "wsd"])
def test_a_run_shorter_than_its_warmup_only_warms_up(name):
  options = {"decay": 0.0} if name == "wsd" else {}
  np.testing.assert_allclose(values(name, 1.0, 4, range(4), warmup=8, **options),
                             np.arange(1, 5) / 8, rtol=1e-6)


def test_schedules_trace():
  schedule = schedules.cosine(1.0, 100, warmup=10)
  np.testing.assert_allclose(jax.jit(schedule)(jnp.int32(40)), schedule(40), rtol=1e-6)


def test_the_update_follows_the_schedule():
  cfg = config("sgd", "linear", lr=0.5)
  cfg.schedule.warmup = 4
  params, gradient = tree(0), tree(1)
  tx, schedule = make(cfg)
  state = tx.init(params)
  update = jit(tx.update)
  for step in range(6):
    updates, state = update(gradient, state, params)
    lr = float(schedule(step))
    assert_trees_close(updates, jax.tree.map(lambda g, lr=lr: -lr * g, gradient))


# ---- Clipping, multipliers, freezing ----


@pytest.mark.parametrize("clip_norm", [0.5, 1e6])
def test_clipping_is_by_the_norm_of_all_gradients(clip_norm):
  params, gradient = tree(0), tree(1)
  norm = np.sqrt(sum(np.sum(np.square(g, dtype=np.float64)) for g in jax.tree.leaves(gradient)))
  updates = one_update(config(clip_norm=clip_norm), params, gradient)
  for path, g in flatten_dict(gradient, sep="/").items():
    np.testing.assert_allclose(updates[path], -g * min(1, clip_norm / norm), rtol=1e-5)


def test_an_optimiser_is_given_what_is_clipped():
  params, gradient = tree(0), tree(1)
  norm = np.sqrt(sum(np.sum(np.square(g, dtype=np.float64)) for g in jax.tree.leaves(gradient)))
  cfg = config("adam", clip_norm=1e-6)
  cfg.optimizer.eps = 1e-6  # beside which the clipped gradient is small, and the other is not
  for path, update in one_update(cfg, params, gradient).items():
    g = np.asarray(flatten_dict(gradient, sep="/")[path], np.float64) * 1e-6 / norm
    np.testing.assert_allclose(update, -g / (np.abs(g) + 1e-6), rtol=1e-4)


def test_layer_path():
  assert layer_path("encoder/layers/mlp/kernel", 3) == "encoder/layers/3/mlp/kernel"
  assert layer_path("layers_12/kernel", 0) == "layers_12/0/kernel"
  with pytest.raises(ValueError, match="encoder/blocks/kernel"):
    layer_path("encoder/blocks/kernel", 0)


def test_the_first_matching_multiplier_wins():
  mults = (("layers/1/.*bias", 3.0), ("layers/1/", 0.5), ("embedding$", 2.0), ("bias", 5.0))
  params, gradient = tree(0), tree(1)
  updates = one_update(config(lr_mults=mults), params, gradient)
  for path, g in flatten_dict(gradient, sep="/").items():
    factor = 1.0
    if path == "embed/embedding":
      factor = 2.0
    elif path in STACKED:
      factor = np.array([5.0, 3.0, 5.0] if path.endswith("bias") else [1.0, 0.5, 1.0])
      factor = factor.reshape(-1, *(1,) * (g.ndim - 1))
    np.testing.assert_allclose(updates[path], -factor * g, rtol=1e-6, err_msg=path)


@pytest.mark.parametrize("name", ALL)
def test_frozen_parameters_do_not_move_and_the_others_move_as_before(name):
  params, gradients = tree(0), [tree(1), tree(2)]
  free = flatten_dict(train(make(config(name))[0], params, gradients)[-1], sep="/")
  cfg = config(name, lr_mults=(("embed/", 0.0), ("layers/[02]/", 0.0)))
  got = flatten_dict(train(make(cfg)[0], params, gradients)[-1], sep="/")
  for path, x in flatten_dict(params, sep="/").items():
    if path == "embed/embedding":
      assert np.array_equal(got[path], x)
    elif path in STACKED:
      assert np.array_equal(got[path][::2], x[::2]), path
      assert not np.array_equal(got[path][1], x[1]), path
      np.testing.assert_allclose(got[path][1], free[path][1], rtol=1e-5, atol=1e-5)
    else:
      np.testing.assert_allclose(got[path], free[path], rtol=1e-5, atol=1e-5)


def test_layers_are_frozen_in_a_stretch_of_the_run():
  frozen = (("layers/1/", 0.0, 0.03), ("embed/", 0.01, 0.02))  # of 100 steps
  params, gradient = tree(0), tree(1)
  tx, _ = make(config(frozen=frozen))
  state = tx.init(params)
  for step in range(4):
    updates, state = tx.update(gradient, state, params)
    got = flatten_dict(updates, sep="/")
    for path, g in flatten_dict(gradient, sep="/").items():
      expected = -np.asarray(g)
      if path in STACKED and step < 3:
        expected = expected * np.array([1, 0, 1]).reshape(-1, *(1,) * (g.ndim - 1))
      if path == "embed/embedding" and step == 1:
        expected = 0 * expected
      np.testing.assert_allclose(got[path], expected, rtol=1e-6, err_msg=f"{path} {step}")


@pytest.mark.parametrize("edits, whole", [
    ({}, set()),
    (dict(lr_mults=(("embed/", 0.0), ("layers/[02]/", 0.0))), {"embed/embedding"}),
    (dict(lr_mults=(("layers/", 0.0),)), STACKED),
    (dict(lr_mults=(("layers/", 0.5),), frozen=(("embed/", 0.0, 1.0), ("layers/", 0.0, 0.9))),
     {"embed/embedding"}),
    (dict(lr_mults=(("layers/[02]/", 0.0),), frozen=(("layers/1/", 0.0, 1.0),)), STACKED),
    (dict(frozen=(("embed/", 0.1, 1.0),)), set()),
])
def test_what_no_update_of_the_run_changes(edits, whole):
  found = flatten_dict(optim.untrained(config(**edits), tree(0), nested(AXES)), sep="/")
  assert {path for path, still in found.items() if still} == set(whole)
  assert found.keys() == AXES.keys()


@pytest.mark.parametrize("frozen,message", [
    ((("layers/7/", 0.0, 0.5),), "optim.frozen: 'layers/7/' matches no parameter"),
    ((("embed", 0.5, 0.5),), "is not .regex, share of the run, larger share"),
    ((("embed", 0.5),), "is not .regex, share of the run, larger share"),
])
def test_bad_stretches(frozen, message):
  with pytest.raises(ConfigError, match=message):
    make(config(frozen=frozen))


@pytest.mark.parametrize("name, axes", [("position_embedding", ("fixed_positions", "embed")),
                                        ("mean", ("fixed_norm", "embed"))])
def test_parameters_that_are_not_trained_stay(name, axes):
  """Tables of positions, and the constants of batch norms, which weight decay does not reach."""
  params = {name: jnp.ones((3, 4)), "kernel": jnp.ones((4, 5))}
  tx, _ = optim.make(config("adamw"), 100, params, {name: axes, "kernel": ("embed", "mlp")})
  updates, _ = tx.update(params, tx.init(params), params)
  assert not updates[name].any() and (updates["kernel"] != 0).all()


def test_frozen_parameters_are_not_in_the_norm_and_may_have_nan_gradients():
  params, gradient = tree(0), tree(1)
  trained = np.sqrt(np.sum(np.square(gradient["output"]["kernel"], dtype=np.float64)))
  gradient["embed"]["embedding"] = jnp.full((V, D), jnp.nan)
  cfg = config(clip_norm=0.5, lr_mults=(("^(embed|encoder)/", 0.0),))
  updates = one_update(cfg, params, gradient)
  assert not updates["embed/embedding"].any()
  np.testing.assert_allclose(
      updates["output/kernel"], -gradient["output"]["kernel"] * 0.5 / trained, rtol=1e-5)


@pytest.mark.parametrize("mults,message", [
    ((("layers/7/", 0.5),), "'layers/7/' matches no parameter.*encoder/layers/0/"),
    ((("layers/1/", 0.5), ("nothing", 1.0)), "'nothing' matches no parameter"),
    ((("(", 0.5),), "is not a pair"),
    (("embed", 0.5), "is not a pair"),
    ((("embed", -1.0),), "factor of 'embed' is -1.0"),
    ((("embed", float("nan")),), "factor of 'embed' is nan"),
])
def test_bad_multipliers(mults, message):
  with pytest.raises(ConfigError, match=message):
    make(config(lr_mults=mults))


def test_nesterov_without_momentum():
  with pytest.raises(ConfigError, match="nesterov=True"):
    optimizers.sgd({}, momentum=0.0, nesterov=True)


# ---- State ----


def test_defaults_make_an_optimiser_of_abstract_parameters():
  params = jax.eval_shape(lambda: tree(0))
  tx, schedule = optim.make(fields_section(OptimKeys), 10_000, params, nested(AXES))
  state = jax.eval_shape(tx.init, params)
  moments = sum(x.size for x in jax.tree.leaves(state) if x.dtype == jnp.float32)
  assert moments == 2 * sum(x.size for x in jax.tree.leaves(params))
  np.testing.assert_allclose(schedule(999), 1e-3, rtol=1e-6)


def test_ema_update():
  ema = optim.ema_update({"a": jnp.array([1.0, 2.0])}, {"a": jnp.array([3.0, 6.0])}, 0.75)
  np.testing.assert_allclose(ema["a"], [1.5, 3.0])


@pytest.mark.parametrize("name", ["adamw", "adafactor", "muon"])
def test_state_is_where_its_parameter_is(name):
  mesh = sharding.make_mesh({"data": 2, "fsdp": 2, "tensor": 2, "context": 1})
  params = tree(0)
  shapes = {path: [SIZES[n] for n in names] for path, names in AXES.items()}
  places = nested({path: NamedSharding(mesh, sharding.spec(names, shapes[path], mesh.shape))
                   for path, names in AXES.items()})
  replicated = NamedSharding(mesh, PartitionSpec())
  cfg = config(name)
  if name == "adafactor":
    cfg.optimizer.min_dim_to_factor = 4
  tx, _ = make(cfg)
  abstract = jax.eval_shape(tx.init, params)
  result = optim.opt_state_shardings(abstract, params, places, replicated)
  state = jax.device_put(jit(tx.init)(params), result)  # a sharding that does not fit raises
  stacks = {tuple(shape): path for path, shape in shapes.items() if len(shape) > 2}
  mirrored = 0
  for x in jax.tree.leaves(state):
    if x.shape in stacks:
      assert x.sharding.spec == flatten_dict(places, sep="/")[stacks[x.shape]].spec
      mirrored += 1
    elif x.ndim < 2:
      assert x.sharding.is_fully_replicated or x.shape in {(D,), (LAYERS,)}
  expected = {"adamw": 6, "muon": 3, "adafactor": 0}  # of the three stacked kernels
  assert mirrored >= expected[name]


def test_a_path_that_ends_another():
  params = {"kernel": jnp.zeros((2, 3)), "a": {"kernel": jnp.zeros((2, 3))}}
  state = {"mu": params, "count": jnp.zeros([]), "factored": {"kernel": jnp.zeros(2)}}
  result = optim.opt_state_shardings(state, params, {"kernel": 1, "a": {"kernel": 2}}, 0)
  assert result == {"mu": {"kernel": 1, "a": {"kernel": 2}}, "count": 0, "factored": {"kernel": 0}}


@pytest.mark.parametrize("name", ["constant", "linear", "cosine", "step", "wsd"])
def test_a_warm_up_below_1_is_a_share_of_the_run(name):
  schedule = schedules.SCHEDULES[name]
  share, updates = schedule(2.0, 50, warmup=0.1), schedule(2.0, 50, warmup=5)
  for step in range(50):
    assert float(share(step)) == float(updates(step))
  assert float(share(0)) == pytest.approx(0.4)


def test_a_warm_up_of_part_of_an_update():
  with pytest.raises(ConfigError, match=r"schedule\.warmup=10\.5: must be a number of updates"):
    schedules.linear(1.0, 100, warmup=10.5)
