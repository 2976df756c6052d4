"""Random changes of training samples."""

import copy
import math

import numpy as np
import pytest
import torch
from scipy.ndimage import center_of_mass, rotate
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator

from skdeepcluster import Autoencoder, SRKMeans, augment
from skdeepcluster.augment import Augmentation, shift_rotate

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
def test_what_cannot_be_shifted_is_refused_before_training(method, blobs):
    X, _ = blobs
    with pytest.raises(ValueError, match=r"augment='shift-rotate' needs images.*image_shape"):
        method(augment="shift-rotate").fit(X)
    with pytest.raises(ValueError, match="The 'augment' parameter"):
        method(augment="rotate").fit(X)


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
