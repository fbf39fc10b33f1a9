"""Data out of a function of the user's own: what it may return, and a sentence for each way to be wrong."""

import random
import sys
import textwrap

import numpy as np
import pytest
import torch
from torch.utils.data import Subset, TensorDataset

from stdl_engine.data import BadSampleError, Batches, ItemSource, fingerprint, load_dataset, split_off

from .samples import all_of

START = """
import random
import numpy as np
import torch
from torch.utils.data import Dataset as TorchDataset, IterableDataset, TensorDataset
from stdl_engine.data import Dataset, MemorySource
from stdl_engine.data.prepare import Preparation

X, Y = torch.arange(60 * 12).float().reshape(60, 3, 2, 2), torch.arange(60) % 3

def memory(x=X, y=Y):
    return MemorySource(samples=x, labels=y, prepare=Preparation())

def dataset(**changes):
    values = dict(name="mine", num_classes=3, in_shape=(3, 2, 2), train=memory(), test=memory(X[:9], Y[:9]))
    return Dataset(**{**values, **changes})

class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(X, Y))

class Own(TorchDataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.y)

    def __getitem__(self, index):
        return self.x[index], int(self.y[index])
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes the module `mine` into the current folder, and says what names its function `load`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def make(body: str) -> str:
        sys.modules.pop("mine", None)
        (tmp_path / "mine.py").write_text(START + textwrap.dedent(body))
        return "mine:load"

    yield make
    sys.modules.pop("mine", None)


def test_a_dataset(module):
    data = load_dataset(module("def load(): return dataset()"))
    assert (data.name, len(data.train), len(data.test)) == ("mine", 60, 9)


def test_the_function_gets_what_it_takes(module, tmp_path):
    body = "def load({}): return dataset(name=repr({}))"
    name = module(body.format("root, steps, augment='none'", "(root.name, steps, augment)"))
    assert load_dataset(name, tmp_path / "x", steps=3, augment="light").name == "('x', 3, 'light')"
    name = module(body.format("**options", "sorted(options)"))
    assert load_dataset(name, augment="none", size=3).name == "['augment', 'on_bad_sample', 'root', 'size', 'steps']"
    name = module(body.format("", "()"))
    assert load_dataset(name, augment="none").name == "()"
    with pytest.raises(ValueError, match=r"^mine:load has no option 'size': its options are none\.$"):
        load_dataset(name, size=3)


def test_a_pair_of_sets(module):
    name = module("def load(): return Own(X, Y), Own(X[:9], Y[:9])")
    data = load_dataset(name, on_bad_sample="skip")
    assert (data.name, data.num_classes, data.in_shape, data.events) == (name, 3, (3, 2, 2), False)
    x, y = all_of(data.test)
    assert torch.equal(x, torch.arange(9 * 12).float().reshape(9, 3, 2, 2))
    assert y.tolist() == [0, 1, 2] * 3
    drawn, labels = next(Batches(data.train, batch_size=60, training=True).epoch(0))
    assert (drawn[:, 0, 0, 0] / 12 % 3).tolist() == labels.tolist()
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert data.train.on_bad_sample == "skip"


def test_a_pair_of_events(module):
    name = module("def load(): return [Own(X.view(60, 3, 1, 2, 2), Y)] * 2")
    data = load_dataset(name, steps=3)
    assert (data.in_shape, data.events) == ((1, 2, 2), True)
    assert all_of(data.test)[0].shape == (3, 60, 1, 2, 2)
    with pytest.raises(ValueError, match=r"^mine:load has samples of 3 frames and steps is 4: set steps to 3\.$"):
        load_dataset(name)


def test_sets_of_pytorch_and_numpy(module):
    name = module("def load(): return TensorDataset(X, Y), TensorDataset(X.to(torch.uint8), Y)")
    assert load_dataset(name).num_classes == 3
    name = module("def load(): return [Own(X.numpy(), Y.numpy())] * 2")
    assert all_of(load_dataset(name).test)[0].dtype == torch.float32
    assert all_of(load_dataset(name).test, workers=1)[1].tolist() == [0, 1, 2] * 20


def test_labels_are_taken_from_where_torchvision_keeps_them(module):
    body = """
    read = []
    class Counting(Own):
        def __getitem__(self, index):
            read.append(index)
            return super().__getitem__(index)
    def load():
        read.clear()
        sets = Counting(X, Y), Counting(X, Y)
        for one in sets:
            one.targets = {}
        return sets
    """
    for targets, reads in (("Y.tolist()", 4), ("Y.numpy()", 4), ("list('abc')", 2 + 2 * 60 + 2), ("None", 124)):
        load_dataset(module(body.format(targets)))
        assert len(sys.modules["mine"].read) == reads, targets


RANDOM = """
class Augmented(Own):
    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x * 0 + torch.rand(()) + random.random() + np.random.rand() + index, y
def load(): return Augmented(X, Y), Augmented(X, Y)
"""


def test_random_transforms_depend_on_seed_and_epoch_alone(module):
    data = load_dataset(module(RANDOM))

    def epoch(number, seed=0, workers=0):
        batches = Batches(data.train, batch_size=30, seed=seed, training=True, workers=workers)
        return torch.cat([x for x, _ in batches.epoch(number)])

    first = epoch(0)
    states = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    random.random()
    np.random.rand()  # noqa: NPY002
    assert torch.equal(epoch(0), first)
    assert torch.equal(epoch(0, workers=2), first)
    assert not torch.equal(epoch(1), first)
    assert not torch.equal(epoch(0, seed=1), first)
    random.setstate(states[0])
    before = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    epoch(2)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # noqa: NPY002
    assert torch.equal(all_of(data.test)[0], all_of(data.test)[0])
    assert fingerprint(data) == fingerprint(load_dataset(module(RANDOM)))


def test_a_validation_part(module):
    data, validation = split_off(load_dataset(module("def load(): return [Own(X, Y)] * 2")), 0.25)
    assert isinstance(validation, ItemSource)
    assert validation.labels.bincount().tolist() == [5, 5, 5]
    seen = [all_of(source)[0][:, 0, 0, 0] / 12 for source in (data.train, validation)]
    assert sorted(torch.cat(seen).tolist()) == list(range(60))
    again, second = split_off(data, 0.2)
    assert len(again.train) + len(second) == 45
    assert fingerprint(data) != fingerprint(again)


BROKEN = """
class Broken(Own):
    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        if index == {index}:
            {problem}
        return x, y
    targets = Y.tolist()
def load(on_bad_sample): return [Broken(X, Y)] * 2
"""


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        ("raise KeyError('gone')", r"there is no 'gone'"),
        ("x = x[:2]", r"it has shape \(2, 2, 2\) and the first one \(3, 2, 2\)"),
        ("y = 2", r"its label is 2 and was 1 at first"),
        ("y = 1.5", r"its label is 1\.5 instead of one whole number"),
        ("y = torch.eye(3)[0]", r"its label is .* instead of one whole number"),
        ("x = x * float('nan')", r"its sample has values that are not finite"),
        ("return x", r"it is a Tensor instead of a pair of a sample and a label"),
        ("x = 'image'", r"its sample is a str instead of a tensor; a transform such as ToTensor makes one"),
    ],
)
def test_a_bad_item(module, problem, message):
    name = module(BROKEN.format(index=7, problem=problem))
    with pytest.raises(BadSampleError, match=rf"^the sample mine:load test\[7\] cannot be read \({message}\): "):
        all_of(load_dataset(name).test)
    batches = Batches(load_dataset(name, on_bad_sample="skip").test, batch_size=60, training=False)
    ((x, _),) = batches.epoch(0)
    assert len(x) == 59
    assert batches.bad_samples == ["mine:load test[7]"]
    trained = Batches(load_dataset(name, on_bad_sample="skip").train, batch_size=60, training=True)
    assert len(next(trained.epoch(0))[0]) == 60
    assert trained.bad_samples == ["mine:load train[7]"]
    if problem.startswith(("y = 2", "x = x[:2]")):
        return
    with pytest.raises(BadSampleError, match=rf"^the sample mine:load train\[0\] cannot be read \({message}\): "):
        load_dataset(module(BROKEN.format(index=0, problem=problem)))


RETURNS = {
    "5": r"mine:load returned a int: return a stdl_engine\.data\.Dataset, or a pair of torch\.utils\.data\.Dataset",
    "None": r"mine:load returned a NoneType: ",
    "X, Y, X, Y": r"mine:load returned a tuple: ",
    "Own(X, Y), 3": r"the test set of mine:load is a int, which has no length or no samples by index: give a torch",
    "Stream(), Stream()": r"the train set of mine:load is a Stream, which has no length or no samples by index: ",
    "Own(X, Y), Own(X[:0], Y[:0])": r"the test set of mine:load is empty: it needs at least one sample\.",
    "Own(X, Y), Own(X[:, :2], Y)": r"mine:load has samples of shape \(3, 2, 2\) to train and \(2, 2, 2\) to test on: ",
    "[Own(X[:, 0, 0], Y)] * 2": r"mine:load train\[0\] has a sample of shape \(2,\): give images \[C, H, W\], or",
    "Own(X, Y + 1), Own(X, Y)": r"mine:load: train has 3 different labels from 1 to 3: number the classes from 0 up",
    "Own(X, Y), Own(X, Y + 1)": r"mine:load: test has labels from 1 to 3 and train 3 classes: test on labels from 0",
    "[Own(X, Y * 0)] * 2": r"mine:load: train has the single label 0: a network needs two or more to tell apart\.",
    "dataset(in_shape=(3, 2, 3))": r"mine:load promises samples of shape \(3, 2, 3\), and the first of the training "
    r"set has \(3, 2, 2\): make in_shape, events and steps those of the samples\.",
    "dataset(events=True)": r"mine:load promises samples of shape \(4, 3, 2, 2\), and the first of the training set",
    "dataset(train=memory(X * float('nan')))": r"the first sample of the training set of mine:load has values that",
}
RAISES = {
    "num_classes=2": r"the training set of mine has labels from 0 to 2, and there are 2 classes: number them from 0",
    "num_classes='3'": r"mine has '3' classes: a network needs two or more",
    "num_classes=1": r"mine has 1 classes: a network needs two or more",
    "in_shape=(2, 2)": r"mine has the in_shape \(2, 2\): give channels, height and width",
    "in_shape=(0, 2, 2)": r"mine has the in_shape \(0, 2, 2\): give",
    "train=[1]": r"the training set of mine is a list: give a MemorySource or a FileSource",
    "train=memory(X, Y[:5])": r"there are 5 labels for 60 samples: give one for each",
    "train=memory(X.numpy())": r"the samples are a ndarray: give a tensor \[N, C, H, W\] or",
    "train=memory(X[0])": r"the samples are \[3, 2, 2\] of torch\.float32: give a tensor",
    "train=memory(X, Y.float())": r"the labels are \[60\] of torch\.float32: give a tensor \[N\] of torch\.int64",
    "test=memory(X[:0], Y[:0])": r"the test set of mine is empty: it needs at least one readable sample",
}
BODIES = {
    "def load(needed, *, more=1): return dataset()": r"mine:load needs 'needed', and is offered root, steps, ",
    "def load(): raise OSError('no disk')": r"mine:load raised OSError: no disk \(mine\.py, line \d+\)\.",
    "load = 5": r"mine:load is a int, which cannot be called: name a function",
    "def lode(): pass": r"mine has no function 'load' for mine:load: it has ",
    "def load(:": r"importing mine for mine:load raised SyntaxError",
    "import nothing_of_that_name": r"importing mine for mine:load raised ModuleNotFoundError",
}
WRONG = {f"def load(): return {value}": message for value, message in RETURNS.items()}
WRONG |= {
    f"def load(): return dataset({value})": f"mine:load raised ValueError: {message}"
    for value, message in RAISES.items()
}
WRONG |= BODIES


@pytest.mark.parametrize(("body", "message"), WRONG.items(), ids=WRONG)
def test_every_way_to_be_wrong(module, body, message):
    with pytest.raises(ValueError, match=rf"^{message}"):
        load_dataset(module(body), augment="none")


def test_names_of_nothing(module):
    module("")
    with pytest.raises(
        ValueError, match=r"^there is no module nowhere for nowhere:load: modules are looked for in \S+ "
    ):
        load_dataset("nowhere:load")
    for name in ("mine:", ":load", "mine:a b", "C:\\data"):
        with pytest.raises(ValueError, match=r"names no function: write \"package\.module:function\"\.$"):
            load_dataset(name)
    with pytest.raises(ValueError, match=r"^unknown dataset 'mine': choose from .*, or name a function of your own, "):
        load_dataset("mine")


def test_a_part_of_a_set():
    whole = TensorDataset(torch.arange(120.0).view(10, 3, 2, 2), torch.arange(10) % 2)
    from stdl_engine.data.items import from_pair

    data = from_pair(Subset(whole, [3, 4, 7]), Subset(whole, [0, 1]), "some", 4, "stop")
    assert data.train.labels.tolist() == [1, 0, 1]
    assert torch.equal(all_of(data.train)[0], whole.tensors[0][[3, 4, 7]])
