#!/usr/bin/env bash
# A real S3 server for tests: Ceph's RADOS gateway over one monitor and one OSD, on loopback, in a folder of its own.
#
#   ceph.sh DIR [memstore|bluestore]
#
# Prints "ready PORT TLS_PORT" when it answers, and ends all that it started when its standard input ends: whoever holds
# the other end of that pipe may die as it likes. Exits 77 when Debian's packages (ceph-mon ceph-osd radosgw ceph-common
# ceph-base) are not there. In DIR afterwards: run/{mon,osd,rgw}.pid, tls.crt, log/, and admin (a script: runs a command
# of Ceph's on this cluster). The keys are AKIDTEST / testsecret.
#
# Takes commands, one a line ("restart rgw", "restart all", "explain"), and answers "ok". A daemon that ends by itself, or
# is waited for too long, is named at once in a line "failed: ...", with the logs' ends on standard error, and all ends.
# Where another process took a port in between, it begins again with others; later, it waits for the port.
set -u
self=$(realpath "$0") dir=$1 store=${2:-memstore} attempt=${3:-1} ready=""
for program in ceph-mon ceph-osd radosgw radosgw-admin ceph ceph-authtool monmaptool openssl curl; do
    command -v $program >/dev/null || { echo "skip $program is not installed"; exit 77; }
done
mkdir -p "$dir"/{mon,osd,rgw,run,log} && cd "$dir" || exit 1
dir=$PWD

# Free ports below the ephemeral ones, so that no connection of somebody else's sits on them.
ports=()
while [ ${#ports[@]} -lt 4 ]; do
    p=$((12000 + SRANDOM % 20000))
    [[ " ${ports[*]} " == *" $p "* ]] || (exec 3<>/dev/tcp/127.0.0.1/$p) 2>/dev/null || ports+=("$p")
done
read -r v2 v1 port tls <<<"${ports[*]}"

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
log flush on exit = true
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
ms bind retry count = 1
mon data = $dir/mon
keyring = $dir/mon.keyring
[osd]
osd data = $dir/osd
# A placement group may serve reads for 16 s, and renews that every 8 s. One that could not in time (its OSD was stopped, or
# had no processor) waits for its replicas' leave; with size 1 nobody ever gives it, and each request there hangs for good
# ("waiting for readable"). So: an hour. And an OSD that was stopped for long, or whose disk is slow, is no broken one.
osd pool default read lease ratio = 180
osd op thread suicide timeout = 3600
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
        [ -s run/$name.pid ] && kill -KILL "$(<run/$name.pid)" 2>/dev/null
    done
    wait 2>/dev/null
}
trap stop EXIT
trap 'exit 1' INT TERM
explain() { # the logs' ends, and what the OSD's requests wait for
    local name log
    for name in mon osd rgw; do
        grep -s -m 3 -E 'FAILED ceph_assert|Caught signal|ceph_abort' log/$name.out | cut -c 1-300
        for log in log/$name.out log/*$name*.log; do
            [ -s "$log" ] && printf -- '-- %s, its end:\n' "$dir/$log" && tail -n 8 "$log" | cut -c 1-300
        done
    done
    if [ -S run/osd.0.asok ]; then
        echo "-- what the OSD's requests wait for:"
        timeout 10 ./admin ceph daemon run/osd.0.asok ops 2>&1 | grep flag_point | sort | uniq -c
    fi
} >&2
fail() { # what happened
    explain
    rm -rf osd/block memstore # the large part
    echo "failed: $1 (see $dir/log)"
    exit 1
}
running() { [ -s "run/$1.pid" ] && kill -0 "$(<"run/$1.pid")" 2>/dev/null; }
begin_again() { # in an emptied folder, with other ports
    stop
    trap - INT TERM # what is ignored would stay so
    rm -rf mon osd rgw run log admin ceph.conf monmap tls.* ./*.keyring
    exec "$BASH" "$self" "$dir" "$store" $((attempt + 1))
}
supervise() { # a daemon that should run and does not is the end, but where another has its port
    local name code
    for name in mon osd rgw; do
        [ -s run/$name.pid ] && ! running $name || continue
        wait "$(<run/$name.pid)" 2>/dev/null
        code=$?
        if [ $code = 98 ] || grep -qs 'Address already in use' log/$name.out; then # 98: the same, of rgw
            echo "another process took a port of the S3 server's $name" >&2
            [ -n "$ready" ] || [ "$attempt" -ge 10 ] || begin_again
            mv log/$name.out log/$name.taken
            sleep 0.5
            start $name
            continue
        fi
        fail "the S3 server's $name has ended by itself with exit code $code"
    done
}
declare -A daemons=([mon]="ceph-mon -f -i a" [osd]="ceph-osd -f -i 0" [rgw]="radosgw -f -n client.rgw")
start() { # name: the folder knows its process, and what it prints
    # shellcheck disable=SC2086
    ${daemons[$1]} </dev/null >>"log/$1.out" 2>&1 &
    echo $! >"run/$1.pid"
}
end_now() { # name…: as a power cut would
    local name pid
    for name in "$@"; do
        pid=$(<"run/$name.pid")
        rm -f "run/$name.pid"
        kill -KILL "$pid" 2>/dev/null
        wait "$pid" 2>/dev/null
    done
}
patience=180 # seconds for all that a start or a command waits for
until_true() { # what it is, command…
    local what=$1
    shift
    until "$@" >>log/wait.out 2>&1; do
        supervise
        [ $SECONDS -lt $deadline ] || fail "$what did not come up within $patience s"
        sleep 0.05
    done
}
set_up() { # command…: one that must succeed
    timeout $patience "$@" >>log/setup.out 2>&1 || { supervise; tail -n 5 log/setup.out >&2; fail "'$*' did not succeed"; }
}
mon_up() {
    start mon
    until_true "the S3 server's mon" ceph --connect-timeout 5 -s
}
osd_is_up() { ceph --connect-timeout 5 osd stat | grep -q ' 1 up'; }
osd_up() {
    start osd
    until_true "the S3 server's osd" osd_is_up
}
rgw_up() { # by its certificate: at a port that was taken another cluster's may answer
    start rgw
    until_true "the S3 server's rgw" curl -s -m 5 -o /dev/null --cacert tls.crt "https://127.0.0.1:$tls/"
}

deadline=$((SECONDS + patience))
set_up openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost \
    -addext subjectAltName=DNS:localhost,DNS:*.localhost,IP:127.0.0.1 -keyout tls.key -out tls.crt
set_up ceph-authtool --create-keyring mon.keyring --gen-key -n mon. --cap mon 'allow *'
set_up ceph-authtool --create-keyring admin.keyring --gen-key -n client.admin --cap mon 'allow *' --cap osd 'allow *' --cap mgr 'allow *'
set_up ceph-authtool mon.keyring --import-keyring admin.keyring
set_up monmaptool --create --fsid "$(sed -n 's/^fsid = //p' ceph.conf)" --addv a "[v2:127.0.0.1:$v2,v1:127.0.0.1:$v1]" monmap
set_up ceph-mon --mkfs -i a --monmap monmap --keyring mon.keyring
mon_up
uuid=$(</proc/sys/kernel/random/uuid)
set_up ceph osd new "$uuid"
set_up ceph auth get-or-create osd.0 mon 'allow profile osd' osd 'allow *' -o osd/keyring
set_up ceph-osd -i 0 --mkfs --osd-uuid "$uuid"
set_up ceph auth get-or-create client.rgw mon 'allow *' osd 'allow *' -o rgw/keyring
osd_up
rgw_up
set_up radosgw-admin user create --uid=test --display-name=Test --access-key=AKIDTEST --secret-key=testsecret
ready=yes
echo "ready $port $tls"

patience=110
while :; do
    what=""
    read -r -t 1 what
    case $? in
    0) ;;
    1) exit 0 ;; # the end of the input
    *) supervise; continue ;; # a second has gone by
    esac
    deadline=$((SECONDS + patience))
    case $what in
    'restart rgw')
        end_now rgw
        rgw_up
        ;;
    'restart all') # as after a power cut; only bluestore remembers
        end_now rgw osd mon
        mon_up
        # or the monitor goes on believing in the OSD that was, and the gateway waits for that one
        set_up ceph osd down 0
        osd_up
        rgw_up
        ;;
    explain) explain ;;
    esac
    echo ok
done
