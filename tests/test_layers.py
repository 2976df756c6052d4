"""The package's layers against torch's own: the same numbers by another way."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from skdeepcluster.networks import layers
from skdeepcluster.networks.layers import (
    Linear,
    MapsToRows,
    RowsToMaps,
    TransposedConvolution,
    masked,
)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def gradients(function, *tensors, seed=1):
    """Output and gradients of a random weighting of it, in the tensors."""
    leaves = [t.detach().clone(memory_format=torch.preserve_format) for t in tensors]
    leaves = [leaf.requires_grad_() for leaf in leaves]
    out = function(*leaves)
    weights = torch.randn(out.shape, generator=generator(seed)).to(out.dtype)
    (out * weights).sum().backward()
    return out.detach(), [leaf.grad for leaf in leaves]


@pytest.mark.parametrize("shape", [(7, 300, 200), (1, 784, 500), (256, 20, 2000), (33, 17, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bias", [True, False])
def test_linear_is_torchs_linear_and_so_are_its_gradients(shape, dtype, bias):
    n, a, b = shape
    draws = [torch.randn(s, generator=generator(), dtype=dtype) for s in ((n, a), (b, a), (b,))]
    draws = draws if bias else draws[:2]
    out, found = gradients(layers.linear, *draws)
    # In float64, what float32 can at most be off by.
    wide, expected = gradients(F.linear, *(t.double() for t in draws))
    tolerance = {"rtol": 1e-4, "atol": 5e-4} if dtype == torch.float32 else {}
    torch.testing.assert_close(out.double(), wide, **tolerance)
    for gradient, reference in zip(found, expected, strict=True):
        assert gradient.dtype == dtype
        torch.testing.assert_close(gradient.double(), reference, **tolerance)


def test_linear_takes_transposed_and_strided_rows():
    x = torch.randn(300, 50, generator=generator())
    weight = torch.randn(400, 300, generator=generator(1))
    for rows in (x.T, x.T[::2], torch.randn(300, generator=generator()).expand(9, 300)):
        torch.testing.assert_close(
            layers.linear(rows, weight), F.linear(rows, weight), rtol=1e-4, atol=1e-4
        )


def test_linear_without_onednn_is_torchs(monkeypatch):
    layer = Linear(300, 200)
    x = torch.randn(20, 300, generator=generator())
    fast = layer(x)
    monkeypatch.setattr(layers, "_HAS_WIDE_ONEDNN", False)
    assert torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))
    torch.testing.assert_close(layer(x), fast, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(4, 6, 300), (300,), (0, 300), (2, 0, 300)])
def test_linear_takes_what_torchs_takes(shape):
    x, weight, bias = (torch.randn(s, generator=generator()) for s in (shape, (200, 300), (200,)))
    out, found = gradients(layers.linear, x, weight, bias)
    expected, reference = gradients(F.linear, x, weight, bias)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(found, reference)


def test_linear_refuses_rows_of_another_width():
    with pytest.raises(RuntimeError):
        Linear(300, 200)(torch.ones(5, 301))


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_linear_can_be_traced_and_transformed():
    layer = Linear(300, 200)
    x = torch.randn(5, 300, generator=generator())
    traced = torch.jit.trace(layer, x)
    torch.testing.assert_close(traced(x), layer(x), rtol=1e-4, atol=1e-4)
    rows = torch.func.vmap(layer)(x)
    torch.testing.assert_close(rows, layer(x), rtol=1e-4, atol=1e-4)
    jacobian = torch.func.jacrev(layer)(x[:1])
    torch.testing.assert_close(jacobian[0, :, 0], layer.weight.detach())


def test_linear_follows_autocast():
    x = torch.randn(20, 300, generator=generator())
    with torch.autocast("cpu", torch.bfloat16):
        assert Linear(300, 200)(x).dtype == torch.bfloat16


CONVOLUTIONS = [
    (channels, maps, kernel, stride, padding)
    for channels, maps in ((1, 5), (3, 4), (16, 5), (20, 3))
    for kernel, stride, padding in (((4, 4), 2, 0), ((5, 3), 2, 2), ((3, 2), 1, 1), ((1, 1), 3, 0))
]


@pytest.mark.parametrize("channels, maps, kernel, stride, padding", CONVOLUTIONS)
@pytest.mark.parametrize("extra", [(0, 0), (1, 0)])
@pytest.mark.parametrize("bias", [True, False])
def test_transposed_convolution_is_torchs(channels, maps, kernel, stride, padding, extra, bias):
    if max(extra) >= stride:
        pytest.skip("torch has no such output padding")
    x = torch.randn(4, maps, 6, 5, generator=generator(), dtype=torch.float64)
    arguments = (maps, channels, kernel, stride, padding, extra)
    layer = TransposedConvolution(*arguments, bias=bias).double()
    plain = nn.ConvTranspose2d(*arguments, bias=bias).double()
    plain.load_state_dict(layer.state_dict())
    out, found = gradients(layer, x)
    expected, reference = gradients(plain, x)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(found, reference)
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(layer.get_parameter(name).grad, parameter.grad)


def test_rows_and_maps_are_inverse_to_each_other():
    x = torch.randn(3, 4, 5, 6, generator=generator())
    rows = MapsToRows()(x)
    assert rows.shape == (3, 120)
    assert torch.equal(RowsToMaps(4, 5, 6)(rows), x)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.97])
@pytest.mark.parametrize("shape", [(400, 301), (20, 7, 33, 29)])
def test_masking_zeroes_a_share_of_the_entries_and_rescales_the_rest(share, shape):
    x = torch.rand(shape, generator=generator()) + 1
    if x.ndim == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    out = masked(x, share, generator(5))
    kept = out != 0
    # Masks are drawn with 16 bits, and the rest is rescaled by what they really have.
    torch.testing.assert_close(out[kept], x[kept] / (1 - round(share * 2**16) / 2**16))
    deviation = np.sqrt(share * (1 - share) / x.numel())
    assert abs(1 - kept.double().mean().item() - share) < 4 * deviation
    # Neighbours in memory share a 64-bit draw; they must not share their fate.
    flat = kept.permute(0, 2, 3, 1).flatten() if x.ndim == 4 else kept.flatten()
    for gap in (1, 2, 3, 4):
        both = (flat[:-gap] & flat[gap:]).double().mean().item()
        assert abs(both - (1 - share) ** 2) < 6 * deviation
    assert torch.equal(out, masked(x, share, generator(5)))
    assert not torch.equal(out, masked(x, share, generator(6)))


def test_masking_of_almost_everything():
    x = torch.ones(1000, 100)
    assert masked(x, 1 - 1e-9, generator()).count_nonzero() <= 20
    assert torch.equal(masked(x, 0.0, generator()), x)


def test_masking_leaves_the_global_generator_alone():
    state = torch.get_rng_state()
    masked(torch.ones(10, 10), 0.3, generator())
    assert torch.equal(torch.get_rng_state(), state)
