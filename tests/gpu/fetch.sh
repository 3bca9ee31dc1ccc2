#!/bin/bash
# Puts the packages that a box without a network may lack into tests/gpu/packages (ignored by git; about 20 MB). On Debian or Ubuntu.
set -e
cd "$(dirname "$0")"
mkdir -p packages && cd packages
apt-get download libjansson-dev libjansson4 libyaml-dev libyaml-0-2 libprotobuf-c-dev libprotobuf-c1 protobuf-c-compiler \
    libprotoc32 libprotobuf32 libdnnl-dev libdnnl2 libzip-dev libzip4 zlib1g-dev libssl-dev libcmocka-dev libcmocka0 \
    pkgconf pkgconf-bin libpkgconf3 libbz2-1.0 liblzma5 libzstd1 libonnx-testdata
du -sh .
