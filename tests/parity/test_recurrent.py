"""LSTM and GRU layers beside PyTorch's, of two layers and both directions, on rows with padding."""

import jax
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from jtx.nn.recurrent import CellConfig, RecurrentConfig, RecurrentStack

D, H, P = 5, 6, 4
LENGTHS = [7, 3]
CASES = {
    "lstm": (torch.nn.LSTM, CellConfig(), {}),
    "projected lstm": (torch.nn.LSTM, CellConfig(projection=P), {"proj_size": P}),
    "gru": (torch.nn.GRU, CellConfig(kind="gru"), {}),
}


def params_of(peer, config):
  """Of each layer and direction; the two biases of PyTorch are one, but for that of a GRU's n."""
  G, params = config.gates, {}
  for i in range(2):
    for way, suffix in (("forward", ""), ("backward", "_reverse")):
      w = {key: getattr(peer, f"{key}_l{i}{suffix}").detach().numpy() for key in (
          "weight_ih", "weight_hh", "bias_ih", "bias_hh")}
      kernel = w["weight_ih"].T
      inner, keep = w["bias_hh"].reshape(G, H), np.ones((G, 1))
      own = {"recurrent": w["weight_hh"].T}
      if config.kind == "gru":
        own["reset_bias"], keep[2] = inner[2], 0
      if config.projection:
        own["projection"] = getattr(peer, f"weight_hr_l{i}{suffix}").detach().numpy().T
      params[f"{way}_{i}"] = own | {"input": {
          "kernel": kernel.reshape(len(kernel), G, H),
          "bias": w["bias_ih"].reshape(G, H) + keep * inner}}
  return params


@pytest.mark.parametrize("name", CASES)
def test_layers_are_those_of_pytorch(name):
  make, cell, more = CASES[name]
  torch.manual_seed(0)
  peer = make(D, H, num_layers=2, bidirectional=True, batch_first=True, **more)
  for tensor in peer.parameters():
    torch.nn.init.normal_(tensor, std=0.7)
  x = np.random.default_rng(0).normal(size=(2, 7, D)).astype(np.float32)
  packed = torch.nn.utils.rnn.pack_padded_sequence(torch.tensor(x), LENGTHS, batch_first=True)
  theirs, _ = torch.nn.utils.rnn.pad_packed_sequence(peer(packed)[0], batch_first=True)
  stack = RecurrentStack(RecurrentConfig(cell=cell, dim=H, num_layers=2, bidirectional=True), D)
  segments = (np.arange(7) < np.array(LENGTHS)[:, None]).astype(int)
  params = params_of(peer, cell)
  (_, ours), _ = jax.jit(lambda: stack.apply({"params": params}, x, segments))()
  for row, n in enumerate(LENGTHS):
    expected = theirs.detach().numpy()[row, :n]
    np.testing.assert_allclose(ours[row, :n], expected, atol=5e-6 * np.abs(expected).max())
