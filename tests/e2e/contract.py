#!/usr/bin/env python3
"""What the examples of api/openapi.yaml speak of, in a service whose address and token are in the environment.

    MLOPT_URL=… MLOPT_TOKEN=… python3 tests/e2e/contract.py

Prints a second token, of an admin, that nothing in the contract's examples revokes."""
import hashlib
import json
import os
import urllib.request

DEMO = "/v1/projects/demo"
RECIPE = "name: mine\nsteps:\n  - benchmark: {batch: [1]}\n"


def call(method, path, body=None, **headers):
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    kind = "application/octet-stream" if isinstance(body, bytes) else "application/json"
    request = urllib.request.Request(os.environ["MLOPT_URL"] + path, data, method=method, headers={
        "Authorization": "Bearer " + os.environ["MLOPT_TOKEN"], "Content-Type": kind,
        **{name.replace("_", "-"): value for name, value in headers.items()}})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


def upload(data):
    digest = "sha256:" + hashlib.sha256(data).hexdigest()
    call("PUT", f"{DEMO}/blobs/{digest}", data)
    return digest


def main():
    if not any(p["name"] == "demo" for p in call("GET", "/v1/projects")["items"]):
        call("POST", "/v1/projects", {"name": "demo"})
    for i in range(8):  # the examples revoke one of them
        call("POST", "/v1/tokens", {"name": f"spare-{i}", "role": "viewer"})
    for model, data in [("cnn", b"a model"), ("cnn", b"b model"), ("cnn", b"c model"), ("old", b"a model"), ("gone", b"a model")]:
        files = [{"role": "model", "name": "m.onnx", "digest": upload(data)}]
        call("POST", f"{DEMO}/models/{model}/versions", {"files": files})
    call("POST", f"{DEMO}/datasets/test/versions", {"files": [{"role": "data", "name": "test.npz", "digest": upload(b"a model")}]})
    call("POST", f"{DEMO}/deletions", {"model": "gone", "reason": "not needed"})
    for version in 1, 2:
        call("POST", f"{DEMO}/models/cnn/promotions", {"stage": "production", "version": version, "variants": {"any": "source"},
                                                       "reason": "it is good"}, If_Match=f'"{version - 1}"')
    call("POST", f"{DEMO}/runs", {"model": "cnn", "version": 1, "recipe": RECIPE})
    call("POST", f"{DEMO}/schedules", {"name": "nightly", "model": "cnn", "cron": "0 3 * * *", "recipe": RECIPE})
    call("POST", f"{DEMO}/webhooks", {"url": "https://hooks.invalid/in"})
    print(call("POST", "/v1/tokens", {"name": "contract", "role": "admin"})["token"])


if __name__ == "__main__":
    main()
