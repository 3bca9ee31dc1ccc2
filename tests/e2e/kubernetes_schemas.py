"""The manifests of deploy/kubernetes against the schemas that Kubernetes and KEDA publish. For developers: needs PyPI.

    python3 -m venv /tmp/k8s && /tmp/k8s/bin/pip install kubernetes-validate==1.37.0 cloudcoil-models-keda==2.16.1.0
    /tmp/k8s/bin/python tests/e2e/kubernetes_schemas.py
"""
import os
import sys

try:
    import jsonschema
    import kubernetes_validate
    import yaml
    from cloudcoil.models.keda import v1alpha1 as keda
except ImportError as missing:
    print(f"not checked: {missing} (the packages are named at the top of {os.path.basename(__file__)})")
    sys.exit(77)

folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../deploy/kubernetes")
checked = 0
for root, _, files in sorted(os.walk(folder)):
    for name in sorted(files):
        if not name.endswith(".yaml") or name == "kustomization.yaml":
            continue
        with open(os.path.join(root, name), encoding="utf-8") as f:
            documents = [d for d in yaml.safe_load_all(f) if d]
        for d in documents:
            if isinstance(d, list):  # a patch by operations
                continue
            if d["apiVersion"].startswith("keda.sh/"):
                jsonschema.validate(d, getattr(keda, d["kind"]).model_json_schema())
            else:
                kubernetes_validate.validate(d, "1.37", strict=True)
            checked += 1
print(f"{checked} documents have the published shapes")
