from __future__ import annotations

import pytest

from llm_inference.engine.fake import FakeEngine
from llm_inference.errors import InvalidRequestError, ModelNotFoundError
from llm_inference.gateway.routing.router import Router


def test_names() -> None:
    one, two = FakeEngine("org/one"), FakeEngine("two")
    router = Router.of_engines({"org/one": one, "two": two})
    assert len(router) == 2
    assert router.resolve("org/one") == ("org/one", one)
    assert dict(router.items()) == {"org/one": one, "two": two}
    with pytest.raises(ModelNotFoundError, match="Did you mean 'org/one'"):
        router.resolve("org/ne")
    with pytest.raises(ModelNotFoundError, match="'org/one', 'two'"):
        router.resolve("gpt-x")
    with pytest.raises(InvalidRequestError) as caught:
        router.resolve(None)
    assert caught.value.param == "model"


def test_aliases_lead_to_the_served_name() -> None:
    one = FakeEngine("one")
    router = Router.of_engines({"one": one}, {"uno": "one"})
    assert router.resolve("uno") == router.resolve("one") == ("one", one)
    assert [name for name, _ in router.items()] == ["one"]
    with pytest.raises(ModelNotFoundError, match="Did you mean 'uno'"):
        router.resolve("unos")


def test_a_single_model_need_not_be_named() -> None:
    one = FakeEngine("one")
    assert Router.of_engines({"one": one}).resolve(None) == ("one", one)
    with pytest.raises(ModelNotFoundError):
        Router.of_engines({"one": one}).resolve("")
    with pytest.raises(InvalidRequestError, match="nothing"):
        Router.of_engines({}).resolve(None)
