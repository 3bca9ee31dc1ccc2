#!/usr/bin/env bash
# A second real S3 server for tests: OpenStack Swift with its S3 interface, in one process (swift_node.py), on loopback, in a folder
# of its own. Stricter than Ceph's: another region, or an address signed for another, is refused.
#
#   swift.sh DIR
#
# Prints "ready PORT TLS_PORT" when it answers, and ends when its standard input ends: whoever holds the other end of that pipe
# may die as it likes. Exits 77 when Debian's python3-swift is not there (which starts nothing when it is installed), or the
# folder's file system has no extended attributes. In DIR afterwards: tls.crt, log. The keys are AKIDTEST / testsecret, the
# region is us-east-1.
set -u
dir=$1
/usr/bin/python3 -c 'import eventlet, swift.common' 2>/dev/null ||
    { echo "skip python3-swift is not installed"; exit 77; }
command -v openssl >/dev/null || { echo "skip openssl is not installed"; exit 77; }
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$dir" && cd "$dir" || exit 1
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost \
    -addext subjectAltName=DNS:localhost,DNS:*.localhost,IP:127.0.0.1 -keyout tls.key -out tls.crt 2>log ||
    { echo "failed: no certificate (see $dir/log)"; exit 1; }
exec /usr/bin/python3 "$here/swift_node.py" "$PWD" 2>>log
