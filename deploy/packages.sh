# Sourced by the other scripts: which Debian packages are needed, and installing those that are missing.

PACKAGES_BUILD="build-essential cmake ninja-build pkg-config libpq-dev libcurl4-openssl-dev libexpat1-dev libgit2-dev libjansson-dev
 libyaml-dev libprotobuf-c-dev protobuf-c-compiler libssl-dev libmicrohttpd-dev libgnutls28-dev libdnnl-dev libzip-dev zlib1g-dev libseccomp-dev"
PACKAGES_RUN="postgresql-15 dataset-fashion-mnist"
# What the built program needs beside it, in a container: PACKAGES_PROGRAM each of them, PACKAGES_WORKER workers too (a compiler,
# for the kernels that are made for a model).
PACKAGES_PROGRAM="libprotobuf-c1 libdnnl2 libzip4 zlib1g libseccomp2 libjansson4 libssl3 libyaml-0-2 libpq5 libexpat1 libmicrohttpd12 libgnutls30
 libcurl4 libgit2-1.5 ca-certificates"
PACKAGES_WORKER="gcc libc6-dev"
PACKAGES_TEST="libcmocka-dev libonnx-testdata ccache lld valgrind clang clang-tools libomp-dev clang-format curl jq procps python3 python3-numpy python3-onnx python3-yaml
 chromium chromium-driver python3-selenium fonts-dejavu-core
 man-db zsh fish openssl
 ceph-mon ceph-osd ceph-common ceph-base radosgw python3-swift git openssh-client systemd prometheus"

die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# Other systems get one clear line instead of a build that fails somewhere.
require_debian12() {
    local id="" version=""
    if [ -r /etc/os-release ]; then
        id=$(. /etc/os-release && printf '%s' "${ID:-}")
        version=$(. /etc/os-release && printf '%s' "${VERSION_ID:-}")
    fi
    [ "$id" = debian ] && [ "$version" = 12 ] ||
        die "this script installs packages of Debian 12 (bookworm), and this is ${id:-an unknown system} ${version}; see docs/building.md for other systems"
    [ "$(uname -m)" = x86_64 ] || die "mlopt runs on x86-64 processors; this is $(uname -m)"
    grep -qw avx2 /proc/cpuinfo && grep -qw fma /proc/cpuinfo ||
        die "mlopt needs a processor with AVX2 and FMA (any x86-64 since about 2013); this one has not"
}

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        die "installing packages needs root: run this as root, or install sudo"
    fi
}

# install_missing PACKAGE…: one dpkg-query when nothing is missing; apt only for the rest.
install_missing() {
    local missing=() p
    for p in "$@"; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || missing+=("$p")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    printf 'installing %d Debian packages: %s\n' ${#missing[@]} "${missing[*]}"
    local drop=/etc/postgresql-common/createcluster.d/mlopt-install.conf policy=/usr/sbin/policy-rc.d quiet=no promtool=no
    local log status=0
    log=$(mktemp)
    # a mirror that stumbles is asked again, and another installation waited for
    local patience="-o Acquire::Retries=5 -o DPkg::Lock::Timeout=900"
    case " ${missing[*]} " in *" prometheus "*) promtool=yes ;; esac
    # In a shell of its own, which takes away what is there for this installation only, also where it is interrupted.
    (
        trap 'exit 130' INT TERM
        trap '[ ! -e "$drop" ] || as_root rm -f "$drop"; [ $quiet = no ] || as_root rm -f $policy' EXIT
        # The postgresql-15 package makes a system cluster when it is installed first. mlopt runs a private
        # server of its own, so the package is told not to.
        case " ${missing[*]} " in
        *" postgresql-15 "*)
            as_root mkdir -p "${drop%/*}"
            printf "create_main_cluster = false\n" | as_root tee "$drop" >/dev/null
            ;;
        esac
        # Of prometheus the tests want promtool alone: its service begins neither with the installation nor with the machine.
        if [ $promtool = yes ] && [ ! -e $policy ]; then
            quiet=yes
            printf '#!/bin/sh\nexit 101\n' | as_root tee $policy >/dev/null
            as_root chmod 0755 $policy
        fi
        # shellcheck disable=SC2086
        as_root apt-get $patience update -q && as_root env DEBIAN_FRONTEND=noninteractive apt-get $patience install -y -q \
            --no-install-recommends "${missing[@]}"
    ) >"$log" 2>&1 || status=$?
    [ $promtool = no ] || as_root update-rc.d prometheus disable >/dev/null 2>&1 || true
    if [ $status != 0 ]; then
        tail -15 "$log" >&2
        rm -f "$log"
        die "apt could not install the packages (its last lines are above); check the network and /etc/apt/sources.list"
    fi
    rm -f "$log"
}
