#!/usr/bin/env python3
"""What users of MLflow's client do, with a server of ours: test_mlflow.sh makes what is asked for here."""
import hashlib
import importlib.util
import json
import os
import pathlib
import tempfile
import warnings

import mlflow
import yaml
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

MODEL = pathlib.Path(os.environ["MODEL_FILE"])
FOLDED = pathlib.Path(os.environ["FOLDED_FILE"])


def digest(path):
    return "sha256:" + hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()


def refused(code, call, *args, **named):
    try:
        call(*args, **named)
    except MlflowException as e:
        assert e.error_code == code, (e.error_code, str(e))
        return str(e)
    raise AssertionError(f"{call.__name__}{args} was not refused")


def lists(client):
    assert [m.name for m in client.search_registered_models()] == ["a..lab.net.v1", "fashion.cnn"]
    assert [m.name for m in client.search_registered_models("name LIKE 'fashion.%'")] == ["fashion.cnn"]
    first = client.search_registered_models(max_results=1, order_by=["name DESC"])
    rest = client.search_registered_models(max_results=1, order_by=["name DESC"], page_token=first.token)
    assert [m.name for m in list(first) + list(rest)] == ["fashion.cnn", "a..lab.net.v1"] and not rest.token
    model = client.get_registered_model("fashion.cnn")
    assert model.aliases == {"production": "1", "staging": "2"}, model.aliases
    assert sorted(v.version for v in model.latest_versions) == ["1", "2"]
    print("models", [m.name for m in client.search_registered_models()], model.aliases)


def reads(client):
    one = client.get_model_version("fashion.cnn", "1")
    assert one.description == "the first" and one.status == "READY" and one.current_stage == "Production"
    assert one.tags["team"] == "vision" and one.tags["mlopt.digest"] == digest(MODEL)
    assert one.tags["mlopt.variants"] == "folded,source"
    assert one.tags["mlopt.production.release"] == "1"
    assert one.tags["mlopt.production.variants"] == "any=folded"
    assert one.tags["mlopt.production.digests"] == "any=" + digest(FOLDED)
    assert one.aliases == ["production"]
    assert client.get_model_version_by_alias("fashion.cnn", "staging").version == "2"
    found = client.search_model_versions("name = 'fashion.cnn' AND tags.team = 'edge'")
    assert [v.version for v in found] == ["2"]
    newest = client.search_model_versions("name = 'fashion.cnn'", order_by=["version_number DESC"])
    assert [v.version for v in newest] == ["2", "1"]
    assert client.get_model_version_download_uri("fashion.cnn", "1") == "mlflow-artifacts:/fashion.cnn/1"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # stages are deprecated there
        assert [v.version for v in client.get_latest_versions("fashion.cnn", ["Production"])] == ["1"]
    print("version 1", one.current_stage, one.tags["mlopt.production.variants"])


def downloads():
    def get(uri):
        return pathlib.Path(mlflow.artifacts.download_artifacts(uri, dst_path=tempfile.mkdtemp()))

    def names(folder):
        return sorted(p.name for p in folder.iterdir())

    for uri in "models:/fashion.cnn/1", "models:/fashion.cnn@production", "models:/fashion.cnn/Production":
        got = get(uri)
        assert names(got) == ["MLmodel", MODEL.name, "registered_model_meta"], names(got)
        assert digest(got / MODEL.name) == digest(MODEL)
    for uri in "models:/fashion.cnn@production/stages/production", "models:/fashion.cnn/1/variants/folded":
        got = get(uri)
        assert digest(got / "model.onnx") == digest(FOLDED)
        described = yaml.safe_load((got / "MLmodel").read_text())
        assert described["flavors"]["onnx"]["data"] == "model.onnx", described
        assert described["metadata"] == {"mlopt.ref": "fashion/cnn@1/folded", "mlopt.digest": digest(FOLDED)}, described
        assert json.loads(described["signature"]["inputs"])[0]["tensor-spec"]["dtype"] == "float32", described
    assert digest(get(f"models:/a..lab.net.v1/latest/{MODEL.name}")) == digest(MODEL)
    listed = mlflow.artifacts.list_artifacts("models:/fashion.cnn/1/variants")
    assert [(f.path, f.is_dir) for f in listed] == [("variants/folded", True), ("variants/source", True)], listed
    print("downloaded", digest(FOLDED))
    if importlib.util.find_spec("onnxruntime") and importlib.util.find_spec("pandas"):
        runs()


def runs():
    """Both flavors, where there is a runtime."""
    import mlflow.onnx
    import mlflow.pyfunc
    import numpy

    net = mlflow.onnx.load_model("models:/fashion.cnn@production/stages/production")
    assert len(net.graph.input) == 1
    image = numpy.zeros((2, 1, 28, 28), numpy.float32)
    given = mlflow.pyfunc.load_model("models:/fashion.cnn@production/stages/production").predict(image)
    assert all(v.shape == (2, 10) for v in given.values()), given
    print("ran", {name: v.shape for name, v in given.items()})


def refuses(client):
    assert "mlopt promote" in refused("PERMISSION_DENIED", client.set_registered_model_alias, "fashion.cnn", "production", "2")
    assert "mlopt push" in refused("PERMISSION_DENIED", client.create_registered_model, "fashion.new")
    assert "mlopt rollback" in refused("PERMISSION_DENIED", client.delete_registered_model_alias, "fashion.cnn", "production")
    refused("PERMISSION_DENIED", client.create_model_version, "fashion.cnn", "mlflow-artifacts:/x")
    refused("RESOURCE_DOES_NOT_EXIST", client.get_registered_model, "fashion.none")
    refused("RESOURCE_DOES_NOT_EXIST", client.get_model_version, "fashion.cnn", "9")
    refused("RESOURCE_DOES_NOT_EXIST", client.get_model_version_by_alias, "fashion.cnn", "champion")
    refused("INVALID_PARAMETER_VALUE", client.search_registered_models, "description = 'x'")
    refused("INVALID_PARAMETER_VALUE", client.search_model_versions, "name = 'a' OR name = 'b'")
    refused("ENDPOINT_NOT_FOUND", client.search_experiments)


def signs_in(client):
    token = os.environ.pop("MLFLOW_TRACKING_TOKEN")
    refused("UNAUTHENTICATED", client.get_registered_model, "fashion.cnn")
    os.environ.update(MLFLOW_TRACKING_USERNAME="me", MLFLOW_TRACKING_PASSWORD=token)
    assert client.get_registered_model("fashion.cnn").name == "fashion.cnn"
    # one who may read another project alone
    os.environ["MLFLOW_TRACKING_PASSWORD"] = os.environ["OTHER_TOKEN"]
    assert [m.name for m in client.search_registered_models()] == ["a..lab.net.v1"]
    assert {v.name for v in client.search_model_versions("")} == {"a..lab.net.v1"}
    assert list(client.search_model_versions("name = 'fashion.cnn'")) == []
    refused("RESOURCE_DOES_NOT_EXIST", client.get_model_version, "fashion.cnn", "1")


def main():
    client = MlflowClient()
    lists(client)
    reads(client)
    downloads()
    refuses(client)
    signs_in(client)
    print("mlflow", mlflow.__version__)


if __name__ == "__main__":
    main()
