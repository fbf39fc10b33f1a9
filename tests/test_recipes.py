"""The recipes are the paper's training settings, and survive being written down."""

import dataclasses
import json
import math
from pathlib import Path

import pytest

from stdl_engine.building import build_network
from stdl_engine.command_line import read_config
from stdl_engine.data import DATASETS
from stdl_engine.models import MODELS
from stdl_engine.recipes import RECIPES, as_dict, by_rule, find, from_dict
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
    assert recipe.first_stage is None or recipe.first_stage in RECIPES
    with shapes_only():
        model = build_network(recipe)
    assert model.architecture == recipe.model
    assert model[0].in_channels == recipe.in_shape[0]
    assert model[-1].num_classes == recipe.num_classes


@pytest.mark.parametrize("name", RECIPES)
def test_json_and_back(name):
    recipe = dataclasses.replace(RECIPES[name], rule="stdl", budget="2GiB", seed=7)
    assert from_dict(json.loads(json.dumps(as_dict(recipe)))) == recipe


def test_a_model_stands_for_the_papers_recipe_of_it():
    paper = {name: find(name).name for name in MODELS}
    assert paper["resnet18"] == "cifar10"
    assert paper["resnet19"] == "cifar100"
    assert paper["vgg11"] == "cifar10-dvs"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"neuron": "hodgkin"}, r"^unknown neuron 'hodgkin': choose from lif, plif, alif\.$"),
        ({"model": "resnet99"}, r"^unknown model 'resnet99': choose from resnet18, .*, or name a function of yours, "),
        ({"rule": "magic"}, r"^unknown rule 'magic': choose from bptt, "),
        ({"variant": "conv9x9"}, r"^unknown variant 'conv9x9': choose from stdl, conv3x3, "),
        ({"optimizer": "magic"}, r"^optimizer is 'magic': it must be 'sgd' or 'adamw'\.$"),
        ({"memory": "fat"}, r"^memory is 'fat': it must be 'lean' or 'paper'\.$"),
        ({"steps": 0}, r"^steps is 0: it must be 1 or more\.$"),
        ({"steps": 10**9}, r"^steps is 1000000000: it must be 10000 or less\.$"),
        ({"steps": 4.0}, r"^steps is 4\.0: it must be a whole number\.$"),
        ({"steps": True}, r"^steps is True: it must be a whole number\.$"),
        ({"epochs": "4"}, r"^epochs is '4': it must be a whole number\.$"),
        ({"batch_size": 1}, r"^batch_size is 1: it must be 2 or more\.$"),
        ({"batch_size": 10**12}, r"^batch_size is 1000000000000: it must be 10000000 or less\.$"),
        ({"lr": math.inf}, r"^lr is inf: it must be 1e30 or less\.$"),
        ({"lr": math.nan}, r"^lr is nan: it must be a number from 0 to 1e30\.$"),
        ({"lr": -0.1}, r"^lr is -0\.1: it must be 0 or more\.$"),
        ({"width": math.nan}, r"^width is nan: it must be a number from 0\.001 to 100\.$"),
        ({"width": 0}, r"^width is 0\.0: it must be 0\.001 or more\.$"),
        ({"size": 0}, r"^size is 0: it must be 1 or more\.$"),
        ({"in_shape": (1, 0, 8)}, r"^in_shape is 1 0 8: it must be 1 or more\.$"),
        ({"in_shape": (1, 8)}, r"^in_shape is \(1, 8\): it must be 3 whole numbers\.$"),
        ({"seed": 2**64}, r"^seed is \d+: it must be \d+ or less\.$"),
        ({"compile": "yes"}, r"^compile is 'yes': it must be true or false\.$"),
        ({"start_from": 3}, r"^start_from is 3: it must be a path or left out\.$"),
        ({"name": "a/b"}, r"^name is 'a/b': it must be a word, "),
        ({"budget": "lots"}, r"^cannot read the budget 'lots': "),
        ({"rule": "sltt", "budget": "0.5"}, r"^budget is '0.5', which only the rule stdl takes, and the rule is sltt"),
        ({"rule": "auto"}, r"^budget must be bytes, such as \"2GiB\", for the rule auto"),
        ({"rule": "auto", "budget": "published"}, r"^budget must be bytes"),
        ({"memory": "paper", "recompute": "all"}, r"^recompute is 'all': that takes the memory lean"),
        ({"memory": "paper", "chunk": 2}, r"^chunk is 2: time steps together take the memory lean"),
        ({"chunk": 0}, r"^chunk is 0: it must be 1 or more\.$"),
        ({"chunk": "some"}, r"^chunk is 'some': it must be a whole number or 'auto' or left out\.$"),
        ({"rule": "ell", "variant": "linear"}, r"^the variant is for the rule stdl, and the rule is ell: "),
        ({"rule": "bptt", "layerwise": True}, r"^layerwise is for the rule stdl, and the rule is bptt: "),
    ],
    ids=str,
)
def test_a_recipe_checks_itself(changes, says):
    with pytest.raises(ValueError, match=says):
        dataclasses.replace(RECIPES["digits"], **changes)


def test_values_take_their_fields_own_form():
    """Python, JSON and TOML may write a path as text, a shape as a list and a whole number for a float."""
    recipe = dataclasses.replace(RECIPES["digits"], data="here", in_shape=[1, 8, 8], lr=1, budget=0.5)
    assert (recipe.data, recipe.in_shape, recipe.lr, recipe.budget) == (Path("here"), (1, 8, 8), 1.0, "0.5")
    assert isinstance(recipe.lr, float)


def test_settings_that_are_none():
    with pytest.raises(ValueError, match=r"^a recipe has no setting 'learning_rate': the settings are name, dataset, "):
        from_dict({**as_dict(RECIPES["digits"]), "learning_rate": 1})
    with pytest.raises(ValueError, match=r"^a recipe has no setting 'epoch': did you mean 'epochs'\?$"):
        from_dict({**as_dict(RECIPES["digits"]), "epoch": 1})


@pytest.mark.parametrize(("tight", "malloc"), [(True, "tight"), (False, "system")])
def test_settings_of_an_older_run(tight, malloc, tmp_path):
    values = {name: value for name, value in as_dict(RECIPES["digits"]).items() if name != "malloc"}
    older = values | {"tight_malloc": tight}
    assert from_dict(older) == dataclasses.replace(RECIPES["digits"], malloc=malloc)
    (tmp_path / "config.json").write_text(json.dumps(older))
    assert read_config(tmp_path / "config.json")["malloc"] == malloc
    with pytest.raises(ValueError, match="a recipe has no setting 'tight_malloc': did you mean 'malloc'"):
        from_dict(older | {"tight_malloc": "yes"})


def test_settings_that_are_missing():
    values = as_dict(RECIPES["digits"])
    del values["lr"], values["steps"]
    with pytest.raises(ValueError, match=r"^a recipe needs steps, lr too: add what is missing\.$"):
        from_dict(values)
    values = as_dict(RECIPES["digits"])
    del values["variant"], values["layerwise"]  # a run of before there were such settings
    assert from_dict(values) == RECIPES["digits"]


def test_by_rule_keeps_what_is_stdls_for_stdl():
    recipe = dataclasses.replace(RECIPES["digits"], budget="0.6", variant="linear", layerwise=True)
    other = by_rule(recipe, "bptt", "paper")
    assert (other.rule, other.memory) == ("bptt", "paper")
    assert (other.budget, other.variant, other.layerwise) == (None, "stdl", False)
    assert by_rule(recipe, "stdl") == recipe
