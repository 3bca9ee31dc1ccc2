#!/usr/bin/env bash
# A real S3 server for tests: Ceph's RADOS gateway over one monitor and one OSD, on loopback, in a folder of its own.
#
#   ceph.sh DIR [memstore|bluestore]
#
# Prints "ready PORT TLS_PORT" when it answers, and ends all that it started when its standard input ends: whoever holds
# the other end of that pipe may die as it likes. Exits 77 when Debian's packages (ceph-mon ceph-osd radosgw ceph-common
# ceph-base) are not there. In DIR afterwards: run/{mon,osd,rgw}.pid, tls.crt, log/, and admin (a script: runs a command
# of Ceph's on this cluster). The keys are AKIDTEST / testsecret.
set -u
dir=$1 store=${2:-memstore}
for program in ceph-mon ceph-osd radosgw radosgw-admin ceph ceph-authtool monmaptool openssl curl; do
    command -v $program >/dev/null || { echo "skip $program is not installed"; exit 77; }
done
mkdir -p "$dir"/{mon,osd,rgw,run,log} && cd "$dir" || exit 1
dir=$PWD

# Free ports below the ephemeral ones, so that no connection of somebody else's sits on them.
free_port() {
    local p
    while :; do
        p=$((12000 + (RANDOM << 2 ^ RANDOM) % 20000))
        (exec 3<>/dev/tcp/127.0.0.1/$p) 2>/dev/null || { echo $p; return; }
    done
}
v2=$(free_port) v1=$(free_port) port=$(free_port) tls=$(free_port)

cat >ceph.conf <<CONF
[global]
fsid = $(cat /proc/sys/kernel/random/uuid)
mon initial members = a
mon host = [v2:127.0.0.1:$v2,v1:127.0.0.1:$v1]
public network = 127.0.0.0/8
ms bind ipv6 = false
ms public type = async+posix
auth allow insecure global id reclaim = false
keyring = $dir/admin.keyring
run dir = $dir/run
crash dir = $dir/log
admin socket = $dir/run/\$name.asok
log file = $dir/log/\$name.log
pid file =
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 4
osd pool default pgp num = 4
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
mon allow pool size one = true
mon max pg per osd = 1000
mon data avail crit = 1
paxos propose interval = 0.02
paxos min wait = 0.01
[mon]
mon data = $dir/mon
keyring = $dir/mon.keyring
[osd]
osd data = $dir/osd
osd objectstore = $store
osd class dir = $(dirname "$(find /usr/lib -name libcls_rgw.so -print -quit)")
osd class load list = *
osd class default list = *
memstore device bytes = 8589934592
bluestore block size = 10737418240
keyring = $dir/osd/keyring
[client.rgw]
rgw data = $dir/rgw
keyring = $dir/rgw/keyring
rgw frontends = beast endpoint=127.0.0.1:$port ssl_endpoint=127.0.0.1:$tls ssl_certificate=$dir/tls.crt ssl_private_key=$dir/tls.key
rgw enable ops log = false
rgw enable usage log = false
rgw dns name = localhost
rgw bucket quota ttl = 0
rgw user quota bucket sync interval = 1
rgw crypt require ssl = false
rgw crypt s3 kms backend = testing
rgw crypt s3 kms encryption keys = testkey=$(openssl rand -base64 32)
CONF
export CEPH_CONF=$dir/ceph.conf
printf '#!/bin/sh\nCEPH_CONF=%s exec "$@"\n' "$dir/ceph.conf" >admin && chmod +x admin

stop() {
    trap '' EXIT INT TERM
    for name in rgw osd mon; do
        [ -s run/$name.pid ] && kill -KILL "$(cat run/$name.pid)" 2>/dev/null
    done
    wait 2>/dev/null
}
trap stop EXIT
trap 'exit 1' INT TERM
start() { # name, command…: the folder knows its process, and what it prints
    local name=$1
    shift
    "$@" </dev/null >>"log/$name.out" 2>&1 &
    echo $! >"run/$name.pid"
}
until_true() { # seconds, command…
    local left=$(($1 * 20))
    shift
    until "$@" >>log/wait.out 2>&1; do
        left=$((left - 1))
        [ $left -gt 0 ] || { echo "failed: $* (see $dir/log)"; exit 1; }
        sleep 0.05
    done
}
end_now() { # name…: as a power cut would
    for name in "$@"; do
        kill -KILL "$(cat "run/$name.pid")" 2>/dev/null
        wait "$(cat "run/$name.pid")" 2>/dev/null
    done
}
rgw_up() { # a gateway that does not come up is started again
    if ! kill -0 "$(cat run/rgw.pid)" 2>/dev/null; then start rgw radosgw -f -n client.rgw; sleep 1; fi
    curl -s -m 5 -o /dev/null "http://127.0.0.1:$port/"
}
osd_up() { ceph osd stat 2>/dev/null | grep -q ' 1 up'; }

{
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost \
        -addext subjectAltName=DNS:localhost,DNS:*.localhost,IP:127.0.0.1 -keyout tls.key -out tls.crt
    ceph-authtool --create-keyring mon.keyring --gen-key -n mon. --cap mon 'allow *'
    ceph-authtool --create-keyring admin.keyring --gen-key -n client.admin --cap mon 'allow *' --cap osd 'allow *' --cap mgr 'allow *'
    ceph-authtool mon.keyring --import-keyring admin.keyring
    monmaptool --create --fsid "$(sed -n 's/^fsid = //p' ceph.conf)" --addv a "[v2:127.0.0.1:$v2,v1:127.0.0.1:$v1]" monmap
    ceph-mon --mkfs -i a --monmap monmap --keyring mon.keyring
} >log/setup.out 2>&1 || { echo "failed: see $dir/log/setup.out"; exit 1; }
start mon ceph-mon -f -i a
until_true 60 ceph --connect-timeout 5 -s
{
    uuid=$(cat /proc/sys/kernel/random/uuid)
    ceph osd new "$uuid"
    ceph auth get-or-create osd.0 mon 'allow profile osd' osd 'allow *' -o osd/keyring
    ceph-osd -i 0 --mkfs --osd-uuid "$uuid"
    ceph auth get-or-create client.rgw mon 'allow *' osd 'allow *' -o rgw/keyring
} >>log/setup.out 2>&1 || { echo "failed: see $dir/log/setup.out"; exit 1; }
start osd ceph-osd -f -i 0
until_true 60 osd_up
start rgw radosgw -f -n client.rgw
until_true 120 rgw_up
radosgw-admin user create --uid=test --display-name=Test --access-key=AKIDTEST --secret-key=testsecret >>log/setup.out 2>&1 ||
    { echo "failed: see $dir/log/setup.out"; exit 1; }
echo "ready $port $tls"
# Commands, one a line; the end of the input ends all.
while read -r what; do
    case $what in
    'restart rgw')
        end_now rgw
        start rgw radosgw -f -n client.rgw
        until_true 120 rgw_up
        echo ok
        ;;
    'restart all') # as after a power cut; only bluestore remembers
        end_now rgw osd mon
        start mon ceph-mon -f -i a
        until_true 60 ceph --connect-timeout 5 -s
        start osd ceph-osd -f -i 0
        until_true 60 osd_up
        start rgw radosgw -f -n client.rgw
        until_true 120 rgw_up
        echo ok
        ;;
    esac
done
