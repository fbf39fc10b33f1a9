"""Sources of a user's own: what is asked of one, and that everything works on it."""

from dataclasses import dataclass, replace

import pytest
import torch

from stdl_engine.data import Batches, Dataset, fingerprint, split_off
from stdl_engine.data.prepare import Preparation


@dataclass(frozen=True)
class Halves:
    """All that a source has but `sample`."""

    labels: torch.Tensor
    prepare: Preparation = Preparation()  # noqa: RUF009 - immutable
    on_bad_sample: str = "stop"
    bad_samples: tuple[str, ...] = ()

    def __len__(self):
        return len(self.labels)

    def only(self, indices):
        return replace(self, labels=self.labels[indices])


class Constants(Halves):
    def sample(self, index, generator):
        label = int(self.labels[index])
        return self.prepare(torch.full((1, 1, 2, 2), float(label)), generator)[0], label


def dataset(kind):
    source = kind(torch.arange(12) % 3)
    return Dataset(name="own", num_classes=3, in_shape=(1, 2, 2), train=source, test=source)


def test_a_source_of_ones_own_is_batched_named_and_split():
    data = dataset(Constants)
    x, y = next(Batches(data.train, batch_size=6, training=False).epoch(0))
    assert torch.equal(x, y.float().reshape(6, 1, 1, 1).expand(6, 1, 2, 2))
    rest, validation = split_off(data, 0.25)
    assert (len(rest.train), len(validation)) == (9, 3)
    assert fingerprint(data) == fingerprint(dataset(Constants)) != fingerprint(rest)


def test_a_source_without_samples_is_refused():
    with pytest.raises(
        ValueError, match=r"^the training set of own is a Halves: give a MemorySource or a FileSource\.$"
    ):
        dataset(Halves)
