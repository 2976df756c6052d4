"""Networks, joint loss, information and accuracy, against hand computations."""

from itertools import pairwise, permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import xlogy
from torch import nn
from torch.nn import functional

from skdeepcluster import clustering_accuracy
from skdeepcluster.information import entropy, mutual_information
from skdeepcluster.networks import (
    MirroredAutoencoder,
    build,
    conv_autoencoder,
    mlp_autoencoder,
)
from skdeepcluster.objective import JointLoss, reconstruction_error
from skdeepcluster.sr_kmeans import SoftKMeans

seeds = st.integers(0, 2**32 - 1)


def tensor(array):
    return torch.from_numpy(np.ascontiguousarray(array))


def conv(image_shape, k=3, *, seed=0, bounded=True, **options):
    options = {
        "maps": (4, 5),
        "kernel_sizes": (4, 5),
        "strides": (2, 2),
        "paddings": (0, 2),
        **options,
    }
    return build(lambda: conv_autoencoder(image_shape, k, bounded=bounded, **options), seed)


def mlp(n_features=6, k=2, *, seed=0, hidden=(5, 4), bounded=False, **options):
    def make():
        return mlp_autoencoder(n_features, k, hidden_layer_sizes=hidden, bounded=bounded, **options)

    return build(make, seed)


def linears(layers):
    """(weight, bias) of the linear map of each layer, as arrays."""
    maps = [module for module in layers.modules() if isinstance(module, nn.Linear)]
    return [(m.weight.detach().numpy(), m.bias.detach().numpy()) for m in maps]


def relu(a):
    return np.maximum(a, 0)


def shapes(layers, x):
    """Shape, without the batch, of what each layer makes."""
    out = []
    for layer in layers:
        x = layer(x)
        out.append(tuple(x.shape[1:]))
    return out


# --- shapes -----------------------------------------------------------------------------------

OFFICIAL = {
    "MNIST": ((1, 28, 28), 10, (4, 5), (0, 2), (13, 13), (7, 7), 2450),
    "USPS": ((1, 16, 16), 10, (4, 5), (0, 2), (7, 7), (4, 4), 800),
    "CMU-PIE": ((1, 32, 32), 68, (4, 5), (2, 2), (17, 17), (9, 9), 4050),
    "FRGC": ((3, 32, 32), 20, (4, 5), (2, 2), (17, 17), (9, 9), 4050),
    "YTF": ((3, 55, 55), 41, (5, 4), (2, 0), (28, 28), (13, 13), 8450),
}


@pytest.mark.parametrize("row", OFFICIAL.values(), ids=OFFICIAL)
def test_official_convolutional_shapes_and_their_exact_inversion(row):
    image_shape, k, kernels, paddings, first, second, flat = row
    sizes = {"maps": (50, 50), "kernel_sizes": kernels, "strides": (2, 2), "paddings": paddings}
    network = conv(image_shape, k, **sizes).eval()
    x = torch.zeros(2, *image_shape)
    with torch.no_grad():
        assert shapes(network.encoder, x) == [(50, *first), (50, *second), (k,)]
        z = network.encode(x)
        assert shapes(network.decoder, z) == [(50, *second), (50, *first), image_shape]
    assert linears(network.encoder)[0][0].shape == (k, flat)
    assert linears(network.decoder)[0][0].shape == (flat, k)
    # Stride and padding alone invert these shapes.
    transposed = [m for m in network.modules() if isinstance(m, nn.ConvTranspose2d)]
    assert [m.output_padding for m in transposed] == [(0, 0), (0, 0)]


@st.composite
def conv_options(draw):
    depth = draw(st.integers(1, 3))

    def several(low, high):
        values = st.lists(st.integers(low, high), min_size=depth, max_size=depth)
        return draw(values.map(tuple))

    options = {"maps": several(1, 4), "kernel_sizes": several(1, 7)}
    return {**options, "strides": several(1, 3), "paddings": several(0, 3)}


@given(st.integers(1, 4), st.integers(1, 33), st.integers(1, 17), conv_options())
@settings(deadline=None, max_examples=80)
def test_every_layer_of_any_image_is_reconstructed_in_its_own_shape(channels, h, w, options):
    image_shape = (channels, h, w)
    network = conv(image_shape, 2, **options)
    x = torch.zeros(2, *image_shape)
    with torch.no_grad():
        z, terms = network.reconstruct(x)
        assert network.decode(z).shape == x.shape
    assert z.shape == (2, 2)
    assert len(terms) == len(options["maps"]) + 1
    assert terms[0][1].shape == terms[0][2].shape == x.shape
    sides = [(h, w)]
    for kernel, stride, padding in zip(
        options["kernel_sizes"], options["strides"], options["paddings"], strict=True
    ):
        # A kernel larger than the padded image shrinks to it.
        padded = [side + 2 * padding for side in sides[-1]]
        sides.append(tuple((side - min(kernel, side)) // stride + 1 for side in padded))
    for (_, target, reconstruction), maps, side in zip(
        terms[1:], options["maps"], sides[1:], strict=True
    ):
        assert target.shape == reconstruction.shape == (2, maps, *side)


@pytest.mark.parametrize("image_shape", [(1, 1, 1), (3, 2, 3), (1, 33, 17), (4, 1, 17)])
def test_default_kernels_fit_any_image(image_shape):
    x = torch.ones(2, *image_shape)
    network = conv(image_shape).eval()
    assert network.decode(network.encode(x)).shape == x.shape


def test_kernel_larger_than_the_image_covers_it_once():
    sizes = {"maps": (4,), "kernel_sizes": (5,), "strides": (2,), "paddings": (0,)}
    network = conv((2, 2, 3), **sizes)
    assert shapes(network.encoder, torch.zeros(1, 2, 2, 3)) == [(4, 1, 1), (3,)]
    assert shapes(network.decoder, torch.zeros(1, 3)) == [(4, 1, 1), (2, 2, 3)]


@pytest.mark.parametrize("hidden", [(), (7,), (500, 500, 2000), (9, 3, 8, 2)])
def test_perceptron_widths_are_mirrored(hidden):
    network = mlp(20, 3, hidden=hidden)
    widths = [20, *hidden, 3]
    down = [weight.shape[::-1] for weight, _ in linears(network.encoder)]
    up = [weight.shape[::-1] for weight, _ in linears(network.decoder)]
    assert down == list(pairwise(widths))
    assert up == list(pairwise(widths[::-1]))


# --- activations ------------------------------------------------------------------------------


def test_perceptron_is_relu_layers_and_a_linear_output():
    network = mlp(k=3).double().eval()
    h = x = np.random.default_rng(0).normal(size=(9, 6))
    *hidden, (weight, bias) = linears(network.encoder)
    for w, b in hidden:
        h = relu(h @ w.T + b)
    z = h @ weight.T + bias
    np.testing.assert_allclose(network.encode(tensor(x)).detach(), z, rtol=0, atol=1e-14)
    # Embeddings of any size: the last layer must not saturate or clip.
    h = z = 100 * np.random.default_rng(1).normal(size=(9, 3))
    *hidden, (weight, bias) = linears(network.decoder)
    for w, b in hidden:
        h = relu(h @ w.T + b)
    out = h @ weight.T + bias
    assert out.min() < -1
    assert out.max() > 1
    np.testing.assert_allclose(network.decode(tensor(z)).detach(), out, rtol=1e-13, atol=1e-12)


def conv_layers(network):
    kinds = (nn.Conv2d, nn.Linear, nn.ConvTranspose2d)
    return [m for m in network.modules() if isinstance(m, kinds)]


@pytest.mark.parametrize("bounded", [True, False])
def test_convolutional_network_is_leaky_relu_layers_and_a_linear_output(bounded):
    network = conv((2, 11, 8), bounded=bounded).double().eval()
    c1, c2, dense, undense, t2, t1 = conv_layers(network)
    x = 10 * tensor(np.random.default_rng(0).normal(size=(3, 2, 11, 8)))
    h1 = functional.leaky_relu(functional.conv2d(x, c1.weight, c1.bias, 2, 0), 0.01)
    h2 = functional.leaky_relu(functional.conv2d(h1, c2.weight, c2.bias, 2, 2), 0.01)
    # The network lays maps out with the channels last.
    z = functional.linear(h2.permute(0, 2, 3, 1).flatten(1), dense.weight, dense.bias)
    z = torch.tanh(z) if bounded else z
    torch.testing.assert_close(network.encode(x), z, rtol=0, atol=1e-12)
    z = 100 * tensor(np.random.default_rng(1).normal(size=(3, 3)))
    g2 = functional.leaky_relu(functional.linear(z, undense.weight, undense.bias), 0.01)
    # (h1 + 2 * 2 - 5) % 2 and (x - 4) % 2 are what the convolutions dropped.
    more2 = tuple((side + 4 - 5) % 2 for side in h1.shape[2:])
    more1 = tuple((side - 4) % 2 for side in x.shape[2:])
    maps = g2.view(3, *h2.shape[2:], h2.shape[1]).permute(0, 3, 1, 2)
    g1 = functional.leaky_relu(
        functional.conv_transpose2d(maps, t2.weight, t2.bias, 2, 2, more2), 0.01
    )
    out = functional.conv_transpose2d(g1, t1.weight, t1.bias, 2, 0, more1)
    assert out.abs().max() > 1
    torch.testing.assert_close(network.decode(z), out, rtol=1e-13, atol=1e-12)


@pytest.mark.parametrize(
    "make", [lambda b: mlp(k=3, bounded=b), lambda b: conv((1, 9, 9), 3, bounded=b)]
)
def test_bounded_embedding_is_the_tanh_of_the_unbounded(make):
    shape = (5, 6) if len(linears(make(True).encoder)) == 3 else (5, 1, 9, 9)
    x = 50 * tensor(np.random.default_rng(0).normal(size=shape))
    bounded, free = make(True).double().eval().encode(x), make(False).double().eval().encode(x)
    assert free.abs().max() > 1
    assert bounded.abs().max() <= 1
    torch.testing.assert_close(bounded, torch.tanh(free), rtol=0, atol=1e-15)


# --- initial weights --------------------------------------------------------------------------


@pytest.mark.parametrize("make", [lambda: conv((3, 16, 16), 10), lambda: mlp(64, 10, hidden=(50,))])
def test_initial_weights_are_glorot_uniform_with_zero_biases(make):
    network = make()
    layers = conv_layers(network)
    assert len(layers) >= 4
    assert not network.output_bias.any()
    for layer in layers:
        weight = layer.weight.detach().double().numpy()
        # Both fans are channels times the size of the kernel.
        fans = (weight.shape[0] + weight.shape[1]) * np.prod(weight.shape[2:])
        bound = np.sqrt(6 / fans)
        assert np.abs(weight).max() <= bound * (1 + 1e-6)
        assert np.abs(weight).max() > 0.95 * bound
        # Uniform: variance bound^2 / 3, estimated with a relative deviation of sqrt(0.8 / size).
        error = weight.var() / (bound**2 / 3) - 1
        assert abs(error) < 5 * np.sqrt(0.8 / weight.size)
        assert abs(weight.mean()) < 5 * bound / np.sqrt(3 * weight.size)
        # The last convolution has none of its own: the output's is one per pixel.
        assert layer.bias is None or not layer.bias.any()


@pytest.mark.parametrize("make", [lambda s: conv((1, 9, 9), seed=s), lambda s: mlp(seed=s)])
def test_seed_decides_the_weights(make):
    first, again, other = (make(seed).state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_building_ignores_and_keeps_the_global_generator():
    def weights_after(global_seed):
        torch.manual_seed(global_seed)
        before = torch.get_rng_state()
        network = mlp(seed=5)
        assert torch.equal(torch.get_rng_state(), before)
        return network.state_dict()

    with torch.random.fork_rng(devices=[]):
        first, second = weights_after(0), weights_after(1)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_users_module_is_seeded_and_the_global_generator_put_back():
    before = torch.get_rng_state()
    first, again, other = (build(lambda: nn.Linear(4, 3), seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.weight, again.weight)
    assert not torch.equal(first.weight, other.weight)
    # Its own initialisation is kept: torch draws biases, Glorot would set them to zero.
    assert first.bias.all()


def test_global_generator_is_put_back_where_building_fails():
    def make():
        torch.rand(3)
        raise RuntimeError("no network")

    before = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="no network"):
        build(make, 0)
    assert torch.equal(torch.get_rng_state(), before)


# --- layer-wise reconstruction loss -----------------------------------------------------------


def forward(network, inputs):
    """Outputs of the encoder's layers in NumPy, each layer with the given input if there is one."""
    maps = linears(network.encoder)
    outputs = []
    for layer, (weight, bias) in enumerate(maps):
        h = inputs[layer] if layer < len(inputs) else outputs[-1]
        h = h @ weight.T + bias
        outputs.append(h if layer == len(maps) - 1 else relu(h))
    return outputs


def backward(network, z):
    """Outputs of the decoder's layers in NumPy, from the hidden layers to the input."""
    maps = linears(network.decoder)
    outputs = [z]
    for layer, (weight, bias) in enumerate(maps):
        h = outputs[-1] @ weight.T + bias
        outputs.append(h if layer == len(maps) - 1 else relu(h))
    return outputs[1:]


def hand_loss(network, x, z, layer_weight):
    """Loss of each sample: the clean layers against the decoder's, from an embedding z."""
    clean = [x, *forward(network, [x])[:-1]]
    rebuilt = backward(network, z)[::-1]
    weights = [1.0] + [layer_weight] * (len(clean) - 1)
    return sum(
        weight * ((a - b) ** 2).mean(axis=1)
        for weight, a, b in zip(weights, clean, rebuilt, strict=True)
    )


@pytest.mark.parametrize("hidden", [(), (5,), (5, 4), (8, 3, 7)])
@pytest.mark.parametrize("layer_weight", [0.0, 0.1, 1.0])
def test_loss_without_noise_equals_the_hand_computation(hidden, layer_weight):
    network = mlp(hidden=hidden, layer_weight=layer_weight).double()
    x = np.random.default_rng(0).normal(size=(7, 6))
    expected = hand_loss(network, x, forward(network, [x])[-1], layer_weight)
    loss, clustering = JointLoss(network, None)(tensor(x), torch.arange(7))
    assert clustering is None
    np.testing.assert_allclose(loss.item(), expected.mean(), rtol=1e-13)
    each = reconstruction_error(network, tensor(x)).detach().numpy()
    np.testing.assert_allclose(each, expected, rtol=1e-13)


def test_terms_are_the_input_with_weight_one_then_the_hidden_layers():
    network = mlp(layer_weight=0.3).double().eval()
    x = np.random.default_rng(0).normal(size=(7, 6))
    z, terms = network.reconstruct(tensor(x))
    layers = forward(network, [x])
    rebuilt = backward(network, layers[-1])[::-1]
    np.testing.assert_allclose(z.detach(), layers[-1], rtol=0, atol=1e-14)
    assert [weight for weight, _, _ in terms] == [1.0, 0.3, 0.3]
    for (_, target, found), a, b in zip(terms, [x, *layers[:-1]], rebuilt, strict=True):
        np.testing.assert_allclose(target.detach(), a, rtol=0, atol=1e-14)
        np.testing.assert_allclose(found.detach(), b, rtol=0, atol=1e-14)


def test_loss_of_a_convolutional_network_is_a_mean_over_all_elements_of_a_layer():
    network = conv((2, 11, 8), layer_weight=0.1).double().eval()
    x = tensor(np.random.default_rng(0).normal(size=(3, 2, 11, 8)))
    h1 = network.encoder[0](x)
    h2 = network.encoder[1](h1)
    g2 = network.decoder[0](network.encoder[2](h2))
    g1 = network.decoder[1](g2)
    pairs = [(1.0, x, network.decoder[2](g1)), (0.1, h1, g1), (0.1, h2, g2)]
    expected = sum(w * np.mean((a - b).detach().numpy() ** 2) for w, a, b in pairs)
    loss, _ = JointLoss(network)(x, torch.arange(3))
    np.testing.assert_allclose(loss.item(), expected, rtol=1e-13)


def recorded(network, x):
    """z and terms of reconstruct, with the inputs each encoder layer was given."""
    inputs = [[] for _ in network.encoder]
    hooks = [
        layer.register_forward_pre_hook(lambda _, args, seen=seen: seen.append(args[0].detach()))
        for layer, seen in zip(network.encoder, inputs, strict=True)
    ]
    result = network.reconstruct(x)
    for hook in hooks:
        hook.remove()
    return *result, inputs


def noisy_network(noise=0.25, layer_weight=0.3, hidden=(40, 30)):
    network = mlp(50, 4, hidden=hidden, noise=noise, layer_weight=layer_weight).double().train()
    network.generator = torch.Generator().manual_seed(1)
    return network


def noisy_inputs(network, x):
    """The inputs of the layers on the noisy path of one pass, and the pass's z and terms."""
    z, terms, inputs = recorded(network, tensor(x))
    clean = [x, *forward(network, [x])[:-1]]
    noisy = []
    for seen, undisturbed in zip(inputs, clean, strict=True):
        others = [h.numpy() for h in seen if not np.allclose(h, undisturbed, rtol=0, atol=1e-12)]
        assert len(others) == 1
        noisy.append(others[0])
    return noisy, z, terms


def test_masking_noise_zeroes_a_share_of_each_input_and_rescales_the_rest():
    network = noisy_network()
    x = np.random.default_rng(0).uniform(0.5, 1.5, size=(400, 50))
    noisy, _, _ = noisy_inputs(network, x)
    given = [x, *forward(network, noisy)[:-1]]
    for disturbed, undisturbed in zip(noisy[:-1], given[:-1], strict=True):
        active = undisturbed > 0
        kept = disturbed != 0
        np.testing.assert_allclose(
            disturbed[kept], undisturbed[kept] / 0.75, rtol=1e-12, atol=1e-14
        )
        share = 1 - kept[active].mean()
        assert abs(share - 0.25) < 4 * np.sqrt(0.25 * 0.75 / active.sum())
        # A mask per entry, not per sample or per feature.
        often = active.mean(axis=0) > 0.1
        assert 0 < kept[:, often].mean(axis=0).min()
        assert kept.mean(axis=1).max() < 1
    # The input of the last layer is left as it is.
    np.testing.assert_allclose(noisy[-1], given[-1], rtol=0, atol=1e-12)


def test_loss_with_noise_equals_the_hand_computation_from_the_same_masks():
    network = noisy_network()
    x = np.random.default_rng(0).normal(size=(20, 50))
    noisy, z, terms = noisy_inputs(network, x)
    expected_z = forward(network, noisy)[-1]
    np.testing.assert_allclose(z.detach(), expected_z, rtol=0, atol=1e-12)
    found = sum(w * ((a - b) ** 2).mean().item() for w, a, b in terms)
    expected = hand_loss(network, x, expected_z, 0.3).mean()
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    # The same masks again, through the loss.
    network.generator.manual_seed(1)
    loss, _ = JointLoss(network)(tensor(x), torch.arange(20))
    np.testing.assert_allclose(loss.item(), expected, rtol=1e-12)


def test_targets_are_clean_while_reconstructions_are_noisy():
    network = noisy_network()
    x = np.random.default_rng(0).normal(size=(20, 50))
    _, terms = network.reconstruct(tensor(x))
    clean = [x, *forward(network, [x])[:-1]]
    rebuilt = backward(network, forward(network, [x])[-1])[::-1]
    for (_, target, found), a, b in zip(terms, clean, rebuilt, strict=True):
        np.testing.assert_allclose(target.detach(), a, rtol=0, atol=1e-13)
        assert np.abs(found.detach().numpy() - b).max() > 1e-3


@pytest.mark.parametrize("bounded", [True, False])
def test_convolutional_noise_is_on_the_image_and_the_first_layer_only(bounded):
    network = conv((1, 28, 28), 5, bounded=bounded, noise=0.1).double().train()
    network.generator = torch.Generator().manual_seed(1)
    x = tensor(np.random.default_rng(0).uniform(0.5, 1.5, size=(20, 1, 28, 28)))
    z, _, inputs = recorded(network, x)
    noisy = next(h for h in inputs[0] if not torch.equal(h, x))
    kept = noisy != 0
    # Masks are drawn with 16 bits.
    share = round(0.1 * 2**16) / 2**16
    assert abs((~kept).double().mean().item() - 0.1) < 4 * np.sqrt(0.09 / x.numel())
    torch.testing.assert_close(noisy[kept], x[kept] / (1 - share), rtol=1e-12, atol=0)
    h1 = network.encoder[0](noisy)
    masked = next(h for h in inputs[1] if (h == 0).any())
    kept = masked != 0
    assert abs((~kept).double().mean().item() - 0.1) < 4 * np.sqrt(0.09 / h1.numel())
    torch.testing.assert_close(masked[kept], h1[kept] / (1 - share), rtol=1e-12, atol=0)
    expected = network.encoder[2](network.encoder[1](masked))
    torch.testing.assert_close(z, expected, rtol=0, atol=1e-13)


def test_evaluation_is_free_of_noise_and_draws_nothing():
    network = noisy_network().eval()
    before = network.generator.get_state()
    x = np.random.default_rng(0).normal(size=(20, 50))
    clean = forward(network, [x])[-1]
    z, _ = network.reconstruct(tensor(x))
    np.testing.assert_allclose(z.detach(), clean, rtol=0, atol=1e-13)
    np.testing.assert_allclose(network.encode(tensor(x)).detach(), clean, rtol=0, atol=1e-13)
    loss, _ = JointLoss(network).eval()(tensor(x), torch.arange(20))
    expected = hand_loss(network, x, clean, 0.3)
    np.testing.assert_allclose(loss.item(), expected.mean(), rtol=1e-13)
    assert torch.equal(network.generator.get_state(), before)


def test_noise_comes_from_the_networks_own_generator():
    network = noisy_network()
    x = tensor(np.random.default_rng(0).normal(size=(20, 50)))
    before = torch.get_rng_state()

    def embedding(seed):
        network.generator.manual_seed(seed)
        return network.reconstruct(x)[0]

    first, again, other = embedding(1), embedding(1), embedding(2)
    following = network.reconstruct(x)[0]
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(other, following)
    assert torch.equal(torch.get_rng_state(), before)


def test_network_of_one_layer_has_no_noise():
    # Its only layer is the last one.
    network = noisy_network(hidden=())
    x = np.random.default_rng(0).normal(size=(20, 50))
    z, terms = network.reconstruct(tensor(x))
    assert len(terms) == 1
    np.testing.assert_allclose(z.detach(), forward(network, [x])[-1], rtol=0, atol=1e-13)


@pytest.mark.parametrize("noise", [0.0, 0.25])
def test_hidden_targets_carry_no_gradient(noise):
    network = noisy_network(noise=noise)
    x = tensor(np.random.default_rng(0).normal(size=(20, 50)))
    _, terms = network.reconstruct(x)
    assert not any(target.requires_grad for _, target, _ in terms)
    assert all(found.requires_grad for _, _, found in terms)
    # With the targets frozen as numbers, the gradient of the loss is the same.
    frozen = sum(w * (found - a.clone()).square().mean() for w, a, found in terms)
    expected = torch.autograd.grad(frozen, list(network.parameters()))
    network.generator.manual_seed(1)
    loss, _ = JointLoss(network)(x, torch.arange(20))
    found = torch.autograd.grad(loss, list(network.parameters()))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize(
    ("make", "shape"),
    [(lambda: mlp(layer_weight=0.3), (9, 6)), (lambda: conv((2, 11, 8)), (9, 2, 11, 8))],
    ids=["mlp", "conv"],
)
def test_reconstruction_errors_average_to_the_joint_loss(make, shape):
    network = make().double().eval()
    x = tensor(np.random.default_rng(0).normal(size=shape))
    index = torch.arange(9)
    joint = JointLoss(network)
    each = reconstruction_error(network, x)
    assert each.shape == (9,)
    torch.testing.assert_close(each.mean(), joint(x, index)[0], rtol=1e-12, atol=0)
    singly = torch.stack([joint(x[i : i + 1], index[i : i + 1])[0] for i in range(9)])
    torch.testing.assert_close(each, singly, rtol=1e-12, atol=0)


def test_clustering_loss_is_that_of_the_embedding():
    network = mlp(layer_weight=0.3).double().eval()
    x = tensor(np.random.default_rng(0).normal(size=(9, 6)))
    z = network.encode(x).detach()
    objective = SoftKMeans(0.5, torch.zeros(3, 2, dtype=torch.float64))
    objective.start(z, torch.arange(9) % 3)
    objective.e_step(z, 0)
    index = torch.tensor([4, 0, 7])
    reconstruction, clustering = JointLoss(network, objective)(x[index], index)
    torch.testing.assert_close(clustering, objective.loss(z[index], index), rtol=1e-12, atol=0)
    alone, nothing = JointLoss(network)(x[index], index)
    assert nothing is None
    assert torch.equal(reconstruction, alone)
    # Only the encoder is moved by the clustering loss.
    clustering.backward()
    assert all(p.grad.abs().sum() > 0 for p in network.encoder.parameters())
    assert all(p.grad is None or not p.grad.any() for p in network.decoder.parameters())


# --- information ------------------------------------------------------------------------------


def simplex(seed, n, k, zeros):
    """Random rows, some of their entries exactly zero."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(k, 0.5), size=n)
    if zeros:
        p[rng.random((n, k)) < 0.4] = 0
        p[np.arange(n), rng.integers(0, k, n)] += 0.1
    return p / p.sum(axis=1, keepdims=True)


@given(seeds, st.integers(1, 8), st.integers(1, 6), st.booleans())
@settings(deadline=None)
def test_entropy_equals_the_formula_and_its_bounds(seed, n, k, zeros):
    p = simplex(seed, n, k, zeros)
    found = entropy(tensor(p)).numpy()
    assert found.shape == (n,)
    np.testing.assert_allclose(found, -xlogy(p, p).sum(axis=1), rtol=0, atol=1e-14)
    assert (found >= -1e-14).all()
    assert (found <= np.log(k) + 1e-14).all()


@given(seeds, st.integers(1, 8), st.integers(1, 6), st.booleans())
@settings(deadline=None)
def test_information_equals_the_mean_divergence_and_its_bounds(seed, n, k, zeros):
    # I = mean_i KL(p_i || share) is the other way to write it.
    p = simplex(seed, n, k, zeros)
    share = np.broadcast_to(p.mean(axis=0), p.shape)
    expected = (xlogy(p, p) - xlogy(p, share)).sum() / n
    found = mutual_information(tensor(p))
    assert found.shape == ()
    np.testing.assert_allclose(found.item(), expected, rtol=0, atol=1e-14)
    assert -1e-14 <= found.item() <= np.log(min(n, k)) + 1e-14


@pytest.mark.parametrize("k", [1, 2, 10])
def test_entropy_of_one_hot_and_uniform_rows(k):
    rows = tensor(np.vstack([np.eye(k), np.full((1, k), 1 / k)]))
    expected = [0.0] * k + [np.log(k)]
    np.testing.assert_allclose(entropy(rows).numpy(), expected, rtol=1e-15, atol=0)


def test_entropy_is_over_the_last_axis():
    p = simplex(0, 6, 4, zeros=True)
    found = entropy(tensor(p.reshape(2, 3, 4)))
    assert torch.equal(found, entropy(tensor(p)).reshape(2, 3))
    assert entropy(tensor(p[0])).shape == ()


@pytest.mark.parametrize("k", [1, 2, 10])
def test_information_of_balanced_one_hot_rows_is_log_k(k):
    p = torch.eye(k, dtype=torch.float64).repeat(3, 1)
    np.testing.assert_allclose(mutual_information(p).item(), np.log(k), rtol=1e-14, atol=1e-15)


def test_information_of_one_hot_rows_is_the_entropy_of_the_sizes():
    # Sizes 3, 1, 0: the empty cluster must not make a NaN.
    p = torch.eye(3, dtype=torch.float64)[[0, 0, 0, 1]]
    expected = -(0.75 * np.log(0.75) + 0.25 * np.log(0.25))
    np.testing.assert_allclose(mutual_information(p).item(), expected, rtol=1e-14)


@pytest.mark.parametrize("row", [[0.25] * 4, [0.1, 0.2, 0.3, 0.4], [1.0, 0.0, 0.0, 0.0]])
def test_information_of_equal_rows_is_zero(row):
    p = torch.tensor([row] * 8, dtype=torch.float64)
    np.testing.assert_allclose(mutual_information(p).item(), 0, atol=1e-15)


# --- accuracy ---------------------------------------------------------------------------------


def brute_force(y_true, y_pred):
    """Best share over all one-to-one maps of clusters to classes, padded to equal numbers."""
    classes, clusters = sorted(set(y_true)), sorted(set(y_pred))
    slots = max(len(classes), len(clusters))
    best = 0
    for order in permutations(range(slots)):
        named = {cluster: order[i] for i, cluster in enumerate(clusters)}
        right = sum(classes.index(a) == named[b] for a, b in zip(y_true, y_pred, strict=True))
        best = max(best, right)
    return best / len(y_true)


def labellings(classes, clusters):
    pair = st.tuples(st.integers(0, classes - 1), st.integers(0, clusters - 1))
    return st.lists(pair, min_size=1, max_size=15)


@pytest.mark.parametrize(("classes", "clusters"), [(2, 2), (4, 4), (2, 5), (5, 2), (1, 4), (4, 1)])
def test_accuracy_equals_the_best_of_all_matchings(classes, clusters):
    @given(labellings(classes, clusters))
    @settings(deadline=None, max_examples=50)
    def check(pairs):
        y_true, y_pred = map(list, zip(*pairs, strict=True))
        expected = brute_force(y_true, y_pred)
        found = clustering_accuracy(y_true, y_pred)
        assert isinstance(found, float)
        assert found == pytest.approx(expected, rel=1e-15)
        assert clustering_accuracy(y_pred, y_true) == pytest.approx(expected, rel=1e-15)
        assert clustering_accuracy(np.array(y_true), np.array(y_pred)) == found

    check()


@given(labellings(3, 4), st.permutations(["d", "a", "c", "b"]))
@settings(deadline=None)
def test_accuracy_does_not_depend_on_the_names(pairs, names):
    y_true, y_pred = map(list, zip(*pairs, strict=True))
    expected = clustering_accuracy(y_true, y_pred)
    assert clustering_accuracy([names[i] for i in y_true], y_pred) == expected
    assert clustering_accuracy(y_true, [names[i] for i in y_pred]) == expected
    assert clustering_accuracy(y_true, [10 * i - 7 for i in y_pred]) == expected


def test_accuracy_needs_the_optimal_matching_not_a_greedy_one():
    # Contingency [[5, 4], [4, 0]]: greedy takes 5 + 0, the best matching 4 + 4.
    y_true = [0] * 9 + [1] * 4
    y_pred = [0] * 5 + [1] * 4 + [0] * 4
    assert clustering_accuracy(y_true, y_pred) == pytest.approx(8 / 13, rel=1e-15)


@pytest.mark.parametrize(
    ("y_true", "y_pred", "expected"),
    [
        (["cat", "dog", "cat"], [1, 0, 1], 1.0),
        ([0, 1, 2, 3], [3, 2, 1, 0], 1.0),
        ([5], [-1], 1.0),
        ([0, 0, 1, 1, 1], [0, 0, 0, 0, 0], 0.6),
        ([0, 0, 0, 0], [0, 1, 2, 3], 0.25),
        ([0, 0, 1, 1], [0, 1, 0, 1], 0.5),
    ],
)
def test_accuracy_by_hand(y_true, y_pred, expected):
    assert clustering_accuracy(y_true, y_pred) == expected


@pytest.mark.parametrize(
    ("y_true", "y_pred"), [([], []), ([0, 1], [0, 1, 2]), ([[0, 1]], [[0, 1]]), ([0, 1], [[0, 1]])]
)
def test_accuracy_rejects_labels_that_do_not_pair_up(y_true, y_pred):
    with pytest.raises(ValueError, match=r"\w"):
        clustering_accuracy(y_true, y_pred)


def test_modes_reach_the_layers_that_have_them():
    layers = [nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)), nn.Linear(3, 2)]
    mirror = [nn.Linear(2, 3), nn.Linear(3, 4)]
    options = {"bounded": False, "noise": 0.5, "layer_weight": 0.0}
    network = MirroredAutoencoder(layers, mirror, **options)
    assert not network.eval().encoder[0][1].training
    assert network.train().encoder[0][1].training
    plain = mlp(4, 2)
    x = torch.ones(3, 4)
    plain.noise, plain.generator = 0.5, torch.Generator().manual_seed(0)
    plain.eval()
    assert not plain.training
    assert torch.equal(plain.reconstruct(x)[0], plain.encode(x))
    assert plain.train().training
    assert not torch.equal(plain.reconstruct(x)[0], plain.encode(x))
