"""Uploads over the REST API without looking at what it uploads, as a script of somebody's own may.

raw_push.py model NAME FILE | data NAME FILE | digest (a wrong one, which must be refused)
"""
import hashlib
import json
import os
import sys
import urllib.error
import urllib.request


def call(method, path, body, kind):
    request = urllib.request.Request(os.environ['MLOPT_URL'] + '/v1/projects/fashion' + path, body, method=method,
                                     headers={'Authorization': 'Bearer ' + os.environ['MLOPT_TOKEN'],
                                              'Content-Type': kind})
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def put(data, digest):
    return call('PUT', '/blobs/sha256:' + digest, data, 'application/octet-stream')


if sys.argv[1] == 'digest':
    status, problem = put(b'abc', '0' * 64)
    assert status == 422 and problem['code'] == 'digest-mismatch', (status, problem)
    status, problem = call('GET', '/blobs/sha256:' + '0' * 64, None, 'application/json')
    assert status == 404, (status, problem)
    sys.exit()
what, name, path = sys.argv[1:]
with open(path, 'rb') as f:
    content = f.read()
digest = hashlib.sha256(content).hexdigest()
status, answer = put(content, digest)
assert status in (200, 201), (status, answer)
version = {'files': [{'role': what, 'name': 'given.npz' if what == 'data' else 'given.onnx',
                      'digest': 'sha256:' + digest}]}
if what == 'data':
    version['metadata'] = {'normalize': 'scale=1/255'}
status, answer = call('POST', f'/{"datasets" if what == "data" else "models"}/{name}/versions',
                      json.dumps(version).encode(), 'application/json')
assert status == 201, (status, answer)
