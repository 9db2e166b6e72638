"""Networks of convolutions on meshes whose devices share the places of what they make."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jtx.models.backbone import Backbone, BackboneConfig
from jtx.models.resnet import Resnet, ResnetConfig
from jtx.nn.shapes import shapes_of
from jtx.parallel import sharding
from tests.helpers import one_fast_row

NETS = {"basic": Backbone(BackboneConfig(stages=(1, 1), width=8, stem="strided", kind="basic",
                                         groups=4)),
        "bottleneck": Backbone(BackboneConfig(stages=(1, 1), width=8)),
        "hybrid": Resnet(ResnetConfig(stages=(1, 1), width=8, groups=4))}
MESHES = {"all": dict(data=2, tensor=2, context=2), "context": dict(data=2, context=4)}


@pytest.mark.parametrize("net, mesh", one_fast_row(
    ("hybrid", "context"), ("basic", "all"), ("hybrid", "all"), ("bottleneck", "all")))
def test_gradients_are_those_of_one_device(net, mesh):
  net, sizes = NETS[net], MESHES[mesh]
  image = jnp.asarray(np.random.default_rng(0).normal(size=(4, 16, 16, 3)), jnp.float32)
  leaves, tree = jax.tree.flatten(sharding.unbox(shapes_of(
      net.init, jax.random.key(0), image))["params"])
  params = tree.unflatten([jnp.float32(np.random.default_rng(i).normal(size=x.shape) / 3)
                           for i, x in enumerate(leaves)])

  def loss(params, image):
    y = net.apply({"params": params}, image)
    rows = y.reshape(len(y), -1, y.shape[-1])  # as a stack has them
    return jnp.sin(sharding.constrain(rows, "batch", "length", None)).sum()

  alone = jax.jit(jax.grad(loss))(params, image)
  m = sharding.make_mesh(dict.fromkeys(sharding.AXES, 1) | sizes)
  whole = jax.sharding.NamedSharding(m, jax.sharding.PartitionSpec())
  with jax.set_mesh(m):
    found = jax.jit(jax.grad(loss), out_shardings=whole)(
        jax.device_put(params, whole), jax.device_put(image, sharding.batch_sharding(m)))
  for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(alone), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4 * np.abs(b).max())
