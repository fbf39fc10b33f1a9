"""The recipes are the paper's training settings, and survive being written down."""

import dataclasses
import json

import pytest

from stdl_engine.data import DATASETS
from stdl_engine.models import MODELS
from stdl_engine.recipes import RECIPES, as_dict, find, from_dict
from stdl_engine.rules import RULES
from stdl_engine.units import shapes_only

COLUMNS = ("epochs", "optimizer", "lr", "batch_size", "weight_decay", "decay", "threshold", "steps", "model")
TABLE = {
    "cifar10": (400, "sgd", 0.4, 512, 5e-5, 0.1, 1.0, 4, "resnet18"),
    "cifar10-resnet19": (400, "sgd", 0.4, 512, 5e-5, 0.1, 1.0, 4, "resnet19"),
    "cifar100": (400, "sgd", 0.4, 512, 5e-5, 0.1, 1.0, 4, "resnet19"),
    "cifar100-resnet18": (400, "sgd", 0.4, 512, 5e-5, 0.1, 1.0, 4, "resnet18"),
    "svhn": (200, "sgd", 0.1, 512, 5e-5, 0.1, 1.0, 4, "vgg16"),
    "imagenet-pretrain": (100, "sgd", 0.15, 300, 1e-5, 0.2, 1.0, 1, "sew_resnet34"),
    "imagenet-pretrain-bptt": (100, "sgd", 0.128, 256, 1e-5, 0.2, 1.0, 1, "sew_resnet34"),
    "imagenet": (10, "sgd", 0.002, 512, 0.0, 0.2, 1.0, 4, "sew_resnet34"),
    "imagenet-bptt": (10, "sgd", 0.001, 256, 0.0, 0.2, 1.0, 4, "sew_resnet34"),
    "cifar10-dvs": (300, "adamw", 1e-3, 100, 5e-4, 0.1, 1.0, 10, "vgg11"),
    "gait-day-dvs": (100, "adamw", 5e-4, 100, 5e-4, 0.1, 1.0, 20, "resnet18"),
    "har-dvs": (100, "adamw", 1e-3, 100, 5e-4, 0.1, 1.0, 4, "resnet18_pooled"),
}
OF_OUR_OWN = ("digits", "digits-events", "cifar10-small", "n-mnist")


def test_one_for_each_row():
    assert {*RECIPES} == {*TABLE, *OF_OUR_OWN}
    assert all(recipe.name == name for name, recipe in RECIPES.items())


@pytest.mark.parametrize("name", TABLE)
def test_settings(name):
    found = tuple(getattr(RECIPES[name], column) for column in COLUMNS)
    for value, expected in zip(found, TABLE[name], strict=True):
        assert value == (expected if isinstance(expected, str) else pytest.approx(expected))


@pytest.mark.parametrize("name", RECIPES)
def test_everything_it_names_exists(name):
    recipe = RECIPES[name]
    assert recipe.dataset in DATASETS
    assert recipe.rule in RULES
    assert recipe.starts_from is None or recipe.starts_from in RECIPES
    with shapes_only():
        model = recipe.build()
    assert model.architecture == recipe.model
    assert model[0].in_channels == recipe.in_shape[0]
    assert model[-1].num_classes == recipe.num_classes


@pytest.mark.parametrize("name", RECIPES)
def test_json_and_back(name):
    recipe = dataclasses.replace(RECIPES[name], budget="2GiB", seed=7)
    assert from_dict(json.loads(json.dumps(as_dict(recipe)))) == recipe


def test_a_model_stands_for_the_papers_recipe_of_it():
    paper = {name: find(name).name for name in MODELS}
    assert paper["resnet18"] == "cifar10"
    assert paper["resnet19"] == "cifar100"
    assert paper["vgg11"] == "cifar10-dvs"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"neuron": "hodgkin"}, "unknown neuron 'hodgkin': choose from lif, plif, alif"),
        ({"model": "resnet99"}, "unknown model 'resnet99'"),
        ({"optimizer": "magic"}, "unknown optimizer 'magic': choose from sgd, adamw"),
        ({"rule": "magic"}, "unknown rule 'magic': choose from bptt"),
    ],
)
def test_unknown_names(changes, says):
    recipe = dataclasses.replace(RECIPES["digits"], **changes)
    with pytest.raises(ValueError, match=says):
        recipe.build(), recipe.make_optimizer(), recipe.rule_options()
