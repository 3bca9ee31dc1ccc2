"""Writes files that are wrong, each in one way, into the working folder. Needs nothing but Python."""
import json
import struct
import zipfile


def varint(n):
    out = b''
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def field(number, payload):
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def integer(number, value):
    return varint(number << 3) + varint(value)


def model(graph):
    return integer(1, 8) + field(7, graph) + field(8, field(1, b'') + integer(2, 13))


def value(name, dims):
    shape = b''.join(field(1, integer(1, d)) for d in dims)
    return field(1, name) + field(2, field(1, integer(1, 1) + field(2, shape)))


def write(path, data):
    with open(path, 'wb') as f:
        f.write(data)


def npy(archive, name, kind, shape, pieces):
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b' ' * (63 - (10 + len(header)) % 64) + b'\n'
    with archive.open(name, 'w', force_zip64=True) as f:
        f.write(b'\x93NUMPY\x01\x00' + struct.pack('<H', len(header)) + header)
        for piece in pieces:
            f.write(piece)


node = field(1, b'x') + field(2, b'y') + field(3, b'odd') + field(4, b'FooBar')
write('unknown.onnx', model(field(1, node) + field(2, b'g') + field(11, value(b'x', [1, 3])) +
                            field(12, value(b'y', [1, 3]))))
nested = b''
for _ in range(3000):  # graph in an attribute of a node of a graph …
    nested = field(1, field(5, field(6, nested)))
write('deep.onnx', model(nested))
with zipfile.ZipFile('zip.pt', 'w') as z:
    z.writestr('archive/data.pkl', b'\x80\x02}q\x00.')
    z.writestr('archive/version', '3\n')
with zipfile.ZipFile('exported.pt2', 'w') as z:
    z.writestr('serialized_exported_program.json', '{}')
    z.writestr('version', '5.1')
write('pickle.pth', b'\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.')
header = json.dumps({'a': {'dtype': 'F32', 'shape': [1], 'data_offsets': [0, 4]}}).encode()
write('weights.safetensors', struct.pack('<Q', len(header)) + header + bytes(4))
with zipfile.ZipFile('bomb.npz', 'w', zipfile.ZIP_DEFLATED) as z:
    npy(z, 'x.npy', '|u1', '(300000000,)', (bytes(1000000) for _ in range(300)))
for path, label in (('label.npz', 77), ('negative.npz', -1)):
    with zipfile.ZipFile(path, 'w', zipfile.ZIP_DEFLATED) as z:
        npy(z, 'x.npy', '|u1', '(20, 1, 28, 28)', [bytes(20 * 784)])
        npy(z, 'y.npy', '<i8', '(20,)', [struct.pack('<20q', *[3] * 19, label)])
