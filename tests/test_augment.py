"""Random changes of training samples."""

import copy
import math
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.ndimage import center_of_mass, rotate
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator

from skdeepcluster import Autoencoder, SRKMeans, augment
from skdeepcluster.augment import Augmentation, shift_rotate
from skdeepcluster.training import Trainer

from .conftest import METHODS, small, small_autoencoder

CPU = torch.device("cpu")


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def spots(n, height, width):
    """Smooth bright spots in the middle of dark images."""
    rows, columns = np.mgrid[:height, :width]
    spot = np.exp(-((rows - (height - 1) / 2) ** 2 + (columns - (width - 1) / 2) ** 2) / 8)
    return torch.tensor(np.repeat(spot[None, None], n, axis=0), dtype=torch.float32)


def test_shifts_are_up_to_a_tenth_of_the_sides():
    images = shift_rotate(spots(300, 40, 60), generator())
    assert images.shape == (300, 1, 40, 60)
    centers = np.array([center_of_mass(image[0].numpy()) for image in images])
    shifts = np.abs(centers - [19.5, 29.5])
    # Sizes from 0.9 to 1.1 change the shift, and rotation mixes its parts.
    assert (
        shifts.max(axis=0) < 1.1 * (np.array([4, 6]) + np.sin(np.radians(10)) * np.array([6, 4]))
    ).all()
    assert (shifts.max(axis=0) > [3.5, 5.3]).all()
    assert (np.abs(centers.mean(axis=0) - [19.5, 29.5]) < [0.5, 0.75]).all()


def ramps(n, height, width):
    """Images whose two channels say in which row and in which column a pixel is."""
    ramp = torch.tensor(np.mgrid[:height, :width].copy(), dtype=torch.float32)
    return ramp.expand(n, 2, height, width)


def test_changes_are_turns_sizes_and_shifts_within_their_bounds():
    """Where pixels come from tells the map: a similarity, though the images are no squares."""
    changed = shift_rotate(ramps(400, 40, 60), generator())[:, :, 18:22, 28:32].double()
    by_row = (changed[:, :, 3] - changed[:, :, 0]).mean(dim=2) / 3
    by_column = (changed[..., 3] - changed[..., 0]).mean(dim=2) / 3
    torch.testing.assert_close(by_row[:, 0], by_column[:, 1], rtol=0, atol=1e-5)
    torch.testing.assert_close(by_row[:, 1], -by_column[:, 0], rtol=0, atol=1e-5)
    sizes = 1 / by_row.norm(dim=1)
    angles = torch.rad2deg(torch.atan2(by_row[:, 1], by_row[:, 0]))
    rows, columns = (changed.mean(dim=(2, 3)) - torch.tensor([19.5, 29.5])).T
    for values, middle, most in (
        (sizes, 1, 0.1), (angles, 0, 10), (rows, 0, 4), (columns, 0, 6),
    ):  # fmt: skip
        extent = (values - middle) / most
        assert -1.001 < extent.min() < -0.97
        assert 0.97 < extent.max() < 1.001
        # Of a uniform draw: 0 and 1/3, within four standard errors.
        assert abs(extent.mean()) < 4 * math.sqrt(1 / 3 / 400)
        assert abs(extent.square().mean() - 1 / 3) < 4 * math.sqrt(4 / 45 / 400)


def test_what_comes_in_continues_the_edge(monkeypatch):
    monkeypatch.setattr(augment, "_ROTATION", 0.0)
    monkeypatch.setattr(augment, "_ZOOM", 0.0)
    image = ramps(20, 20, 30)
    changed = shift_rotate(image, generator())
    shifts = (changed - image)[:, :, 10:11, 15:16]
    assert shifts.abs().amax(dim=(0, 2, 3)).min() > 1
    last = torch.tensor([19.0, 29.0]).view(1, 2, 1, 1)
    expected = torch.minimum((image + shifts).clamp_min(0), last)
    torch.testing.assert_close(changed, expected, rtol=0, atol=1e-4)


def test_rotations_keep_shapes_of_images_that_are_no_squares(monkeypatch):
    monkeypatch.setattr(augment, "_SHIFT", 0.0)
    monkeypatch.setattr(augment, "_ZOOM", 0.0)
    image = torch.zeros(1, 1, 31, 45)
    image[0, 0, 10:21, 20:32] = torch.rand(11, 12, generator=generator(1))
    changed = shift_rotate(image, generator(3))
    angle = augment._ROTATION * (torch.rand(4, 1, generator=generator(3)) * 2 - 1)[0].item()
    expected = rotate(image[0, 0].numpy(), math.degrees(angle), reshape=False, order=1)
    assert abs(angle) > 0.03
    np.testing.assert_allclose(changed[0, 0], expected, atol=2e-2)
    assert np.abs(changed[0, 0].numpy() - image[0, 0].numpy()).max() > 0.2


def test_flat_images_stay_flat_and_others_differ_from_each_other():
    flat = torch.full((3, 2, 9, 7), 1.5)
    torch.testing.assert_close(shift_rotate(flat, generator()), flat)
    images = shift_rotate(spots(2, 20, 20), generator())
    assert not torch.allclose(images[0], images[1])
    assert torch.equal(images, shift_rotate(spots(2, 20, 20), generator()))


def test_the_seed_draws_the_changes():
    images = spots(3, 8, 8)
    before = images.clone()
    first, again, other = (Augmentation("shift-rotate", None, seed, CPU) for seed in (0, 0, 1))
    changed = first(images)
    assert torch.equal(changed, again(images))
    assert not torch.allclose(changed, other(images))
    assert not torch.allclose(changed, first(images))
    assert torch.equal(images, before)


def test_flat_rows_are_changed_as_images():
    images = spots(5, 8, 8)
    rows = Augmentation("shift-rotate", (1, 8, 8), 0, CPU)(images.flatten(1))
    changed = Augmentation("shift-rotate", (1, 8, 8), 0, CPU)(images)
    assert rows.shape == (5, 64)
    assert torch.equal(rows, changed.flatten(1))


def add_noise(batch, generator):
    return batch + torch.randn(batch.shape, generator=generator)


@pytest.mark.parametrize("method", METHODS)
def test_training_sees_changed_samples_and_prediction_does_not(method, blobs):
    X, _ = blobs
    autoencoder = FrozenEstimator(small_autoencoder().fit(X))
    plain = small(method, autoencoder).fit(X)
    changed = small(method, autoencoder, augment=add_noise).fit(X)
    assert not np.array_equal(plain.transform(X), changed.transform(X))
    np.testing.assert_array_equal(changed.transform(X), changed.transform(X))
    np.testing.assert_array_equal(changed.labels_, changed.predict(X))
    again = small(method, autoencoder, augment=add_noise).fit(X)
    np.testing.assert_array_equal(changed.transform(X), again.transform(X))


@pytest.mark.parametrize("method", METHODS)
def test_a_callable_may_write_into_its_batch(method, blobs):
    X, _ = blobs
    autoencoder = FrozenEstimator(small_autoencoder().fit(X))

    def add_noise_in_place(batch, generator):
        return batch.add_(torch.randn(batch.shape, generator=generator))

    plain, in_place = (
        small(method, autoencoder, augment=change).fit(X)
        for change in (add_noise, add_noise_in_place)
    )
    np.testing.assert_array_equal(in_place.transform(X), plain.transform(X))


@pytest.mark.parametrize(
    "parameters, shape",
    [
        ({}, (64,)),
        ({"module": "mlp", "image_shape": (1, 8, 8)}, (1, 8, 8)),
        ({"module": "conv", "image_shape": (4, 2, 8)}, (4, 2, 8)),
    ],
)
def test_a_callable_gets_standardised_batches_and_a_generator(parameters, shape, digits):
    X = digits[0][:120]
    batches, generators = [], []

    def look(batch, generator):
        batches.append(batch.clone())
        generators.append(generator)
        return batch

    small_autoencoder(augment=look, max_epochs=1, **parameters).fit(X)
    seen = torch.cat(batches)
    assert seen.shape == (120, *shape)
    assert seen.dtype == torch.float32
    # Every sample once, in units of the data.
    seen = seen.flatten(1).double().numpy() * X.std() + X.mean()
    np.testing.assert_allclose(seen[np.lexsort(seen.round().T)], X[np.lexsort(X.T)], atol=1e-4)
    assert {type(one) for one in generators} == {torch.Generator}
    assert len(set(map(id, generators))) == 1


@pytest.mark.parametrize("module", ["mlp", "conv"])
def test_shifted_images_change_pretraining_and_not_prediction(module, small_images):
    X, _ = small_images
    state = torch.get_rng_state()
    plain, changed, again = (
        small_autoencoder(module=module, conv_maps=(3, 4), augment=change).fit(X)
        for change in (None, "shift-rotate", "shift-rotate")
    )
    Z = changed.transform(X)
    assert not np.allclose(Z, plain.transform(X), atol=1e-3)
    np.testing.assert_array_equal(changed.transform(X), Z)
    np.testing.assert_array_equal(again.transform(X), Z)
    np.testing.assert_allclose(changed.transform(X[::-1])[::-1], Z, atol=1e-5)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("module, shape", [("mlp", (64,)), ("conv", (8, 8))])
@pytest.mark.parametrize("method", METHODS)
def test_joint_training_of_a_frozen_network_sees_shifted_images(
    method, module, shape, small_images
):
    X = small_images[0].reshape(-1, *shape)
    image_shape = (1, 8, 8) if module == "mlp" else None
    pretrained = small_autoencoder(
        module=module, image_shape=image_shape, conv_maps=(3, 4), max_epochs=2
    ).fit(X)
    before = pretrained.transform(X)
    plain, changed = (
        small(method, FrozenEstimator(pretrained), augment=change, max_epochs=2).fit(X)
        for change in (None, "shift-rotate")
    )
    assert not np.array_equal(changed.transform(X), plain.transform(X))
    np.testing.assert_array_equal(changed.predict(X), changed.labels_)
    np.testing.assert_array_equal(pretrained.transform(X), before)


def test_pretraining_has_the_changes_unless_it_has_others(small_images):
    X, _ = small_images
    seen = []

    def look(batch, generator):
        seen.append(tuple(batch.shape[1:]))
        return batch

    for given, expected in ((None, "shift-rotate"), (look, look)):
        autoencoder = small_autoencoder(augment=given, module="mlp")
        model = small(SRKMeans, autoencoder, augment="shift-rotate").fit(X)
        assert model.autoencoder_.augment == expected
        assert model.augment == "shift-rotate"
    assert set(seen) == {(1, 8, 8)}


@pytest.mark.parametrize("module", ["mlp", "conv"])
def test_images_and_flat_rows_of_a_known_shape_are_one(module, small_images):
    X, _ = small_images
    autoencoder = small_autoencoder(module=module, conv_maps=(3, 4), image_shape=(1, 8, 8))
    images = small(SRKMeans, autoencoder, augment="shift-rotate").fit(X)
    rows = small(SRKMeans, autoencoder, augment="shift-rotate").fit(X.reshape(300, 64))
    np.testing.assert_array_equal(images.labels_, rows.labels_)
    copied = copy.deepcopy(clone(images).set_params(max_epochs=2))
    assert copied.augment == "shift-rotate"


@pytest.mark.parametrize("method", [Autoencoder, *METHODS])
def test_the_parameter_is_one_like_others(method):
    model = method(augment="shift-rotate")
    assert model.get_params()["augment"] == "shift-rotate"
    assert clone(model).augment == "shift-rotate"
    assert pickle.loads(pickle.dumps(model)).augment == "shift-rotate"
    assert model.set_params(augment=add_noise).augment is add_noise
    assert clone(model).augment is add_noise
    assert method().augment is None


def test_fitted_models_are_pickled(small_images):
    X, _ = small_images
    model = small(SRKMeans, small_autoencoder(module="mlp"), augment="shift-rotate").fit(X)
    copied = pickle.loads(pickle.dumps(model))
    assert copied.augment == copied.autoencoder_.augment == "shift-rotate"
    np.testing.assert_array_equal(copied.transform(X), model.transform(X))


@pytest.mark.parametrize("method", [Autoencoder, *METHODS])
def test_what_cannot_be_shifted_is_refused_before_training(method, blobs, monkeypatch):
    X, _ = blobs
    monkeypatch.setattr(Trainer, "train", lambda *_: pytest.fail("was trained"))
    with pytest.raises(ValueError, match=r"augment='shift-rotate' needs images.*image_shape"):
        method(augment="shift-rotate").fit(X)
    with pytest.raises(ValueError, match="The 'augment' parameter"):
        method(augment="rotate").fit(X)


@pytest.mark.parametrize("method", METHODS)
def test_a_frozen_network_for_rows_cannot_learn_from_shifted_images(method, blobs):
    autoencoder = FrozenEstimator(small_autoencoder().fit(blobs[0]))
    with pytest.raises(ValueError, match="augment='shift-rotate' needs images"):
        small(method, autoencoder, augment="shift-rotate").fit(blobs[0])


@pytest.mark.parametrize("wrong", [lambda batch, _: batch[:, :3], lambda batch, _: None])
def test_a_change_of_the_shape_is_an_error(wrong, blobs):
    with pytest.raises(ValueError, match=r"augment must return a tensor of the batch's shape"):
        small_autoencoder(augment=wrong).fit(blobs[0])


def test_callables_are_not_cached(blobs, tmp_path):
    X, _ = blobs
    calls = []

    def look(batch, generator):
        calls.append(1)
        return batch

    for _ in range(2):
        small_autoencoder(augment=look, memory=str(tmp_path)).fit(X)
    assert len(calls) == 2 * 5 * 4  # epochs of four batches
    assert list(Path(tmp_path).rglob("output.pkl")) == []


def test_shifted_images_are_kept_apart_from_others(small_images, tmp_path):
    X, _ = small_images
    for change in (None, "shift-rotate", None, "shift-rotate"):
        cached, fresh = (
            small_autoencoder(module="mlp", augment=change, memory=memory).fit(X)
            for memory in (str(tmp_path), None)
        )
        np.testing.assert_array_equal(cached.transform(X), fresh.transform(X))
    assert len(list(Path(tmp_path).rglob("output.pkl"))) == 2
