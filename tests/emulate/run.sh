#!/usr/bin/env bash
# tests/emulate/run.sh [OPTION…] COMMAND…: runs programs on a CPU that this machine has not, in the emulator Bochs: a Linux of its own,
# booted from an image made here, that has nothing but them. Each COMMAND is one line for a shell, such as
# 'MLOPT_ISA=avx512 build/tests/unit.engines.tile'. README.md beside this has the packages, and what to expect.
#   -c CPU      the emulated CPU (tigerlake+avx512fp16): one of `bochs --help cpu`, and features that it has besides
#   -f PATH     a file or folder that the programs need, under the same path in there (often)
#   -m MIB      memory (2048)
#   -t SECONDS  for all of it, boot included (7200)
# Fails when a command fails or does not end; 77 is "skipped", as in the suite. Needs no privileges; its files are temporary.
set -u
die() { echo "emulate: $*" >&2; exit 2; }
cpu=tigerlake+avx512fp16 memory=2048 limit=7200 files=()
while getopts c:f:m:t: option; do
    case $option in
    c) cpu=$OPTARG ;;
    f) files+=("$OPTARG") ;;
    m) memory=$OPTARG ;;
    t) limit=$OPTARG ;;
    *) die "usage: $0 [-c CPU] [-f PATH] [-m MIB] [-t SECONDS] COMMAND…" ;;
    esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || die "what is to run? (a COMMAND, such as 'build/tests/unit.engines.tile')"

bochs=${BOCHS:-bochs} busybox=${BUSYBOX:-/bin/busybox} isolinux=${ISOLINUX:-/usr/lib/ISOLINUX/isolinux.bin}
ldlinux=${LDLINUX:-/usr/lib/syslinux/modules/bios/ldlinux.c32}
kernel=${KERNEL:-$(find /boot -name 'vmlinuz-*' 2>/dev/null | sort -V | tail -1)}
command -v "$bochs" >/dev/null || die "there is no $bochs (packages bochs and bochs-term of Debian 13 or newer; or name one: BOCHS=PATH)"
command -v xorriso >/dev/null || die "there is no xorriso (package xorriso)"
[ -r "$busybox" ] || die "there is no $busybox (package busybox-static)"
ldd "$busybox" >/dev/null 2>&1 && die "$busybox needs libraries, which are not in there (package busybox-static has one that needs none)"
[ -r "$isolinux" ] || die "there is no $isolinux (package isolinux)"
[ -r "$ldlinux" ] || die "there is no $ldlinux (package syslinux-common)"
[ -r "$kernel" ] || die "there is no kernel '$kernel' that can be read: unpack one and name it, as README.md shows (KERNEL=PATH)"
ips=100000000 # of emulated time, about as fast as Bochs is: all clocks in there must agree on it
models=$("$bochs" --help cpu </dev/null 2>&1)
model=${cpu%%+*} features=$(tr -s + , <<<"${cpu#"$model"}")
grep -qx "$model" <<<"$models" || die "$bochs has no CPU '$model'; 'bochs --help cpu' lists those it has"

work=$(mktemp -d) || exit 2
emulator=
end() {
    [ -z "$emulator" ] || { kill "$emulator" && wait "$emulator"; } 2>/dev/null
    rm -rf "$work"
}
trap end EXIT
trap 'exit 130' INT TERM
root=$work/root cd=$work/cd
mkdir -p "$root"/{bin,dev,proc,sys,tmp} "$cd" || exit 2

# --- the image ---------------------------------------------------------------------------------------------------
bring() { # PATH: it, not as a link; and of a program, or a library, those libraries that it finds here (of a folder's files, none)
    local path library
    path=$(realpath -s "$1") || die "there is no $1"
    [ -e "$path" ] || die "there is no $1"
    mkdir -p "$root${path%/*}"
    [ -e "$root$path" ] || cp -rL "$path" "$root$path" || exit 2
    [ -f "$path" ] && [ "$(head -c 4 "$path" | tail -c 3 | tr -d '\0')" = ELF ] || return 0
    for library in $(ldd "$path" 2>/dev/null | grep -o '/[^ ]*'); do
        mkdir -p "$root${library%/*}"
        [ -e "$root$library" ] || cp -L "$library" "$root$library" || exit 2
    done
}
for file in "${files[@]}"; do bring "$file"; done
for line; do
    for word in $line; do # the first that is no VAR=VALUE
        [[ $word == *=* ]] || { bring "$word"; break; }
    done
    printf '%s\n' "$line" >>"$root/commands"
done
cp -L "$busybox" "$root/bin/busybox" && ln -s busybox "$root/bin/sh" && mkdir -p "$root$PWD"
cat >"$root/init" <<END
#!/bin/sh
/bin/busybox --install -s /bin
mount -t proc proc /proc && mount -t sysfs sys /sys && mount -t devtmpfs dev /dev
mkdir -p /dev/shm && dmesg -n 1 # the console is for what the programs say
export HOME=/tmp TMPDIR=/tmp
cd '$PWD'
echo "@cpu \$(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1): \$(grep -m 1 ^flags /proc/cpuinfo | tr ' ' '\n' | grep avx512 | tr '\n' ' ')"
while read -r line; do
    echo "@run \$line"
    begun=\$(cut -d . -f 1 /proc/uptime)
    sh -c "\$line" </dev/null
    echo "@rc \$? \$((\$(cut -d . -f 1 /proc/uptime) - begun))"
done </commands
echo @end && sleep 2 # what the serial port has yet to send
poweroff -f
END
chmod +x "$root/init"
(cd "$root" && find . | "$busybox" cpio -o -H newc) >"$cd/initrd" 2>"$work/cpio.log" || die "no image of the programs: $(cat "$work/cpio.log")"
cp -L "$kernel" "$cd/kernel" && cp -L "$isolinux" "$ldlinux" "$cd/" || exit 2
# clearcpuid: with fast short `rep movsb` it did not boot.
cat >"$cd/isolinux.cfg" <<END
default run
label run
    kernel kernel
    append initrd=initrd console=ttyS0,115200n8 quiet no5lvl panic=-1 reboot=t mitigations=off nokaslr lpj=$((ips / 500)) tsc=reliable tsc_early_khz=$((ips / 1000)) random.trust_cpu=on cryptomgr.notests edd=off clearcpuid=fsrm
END
xorriso -as mkisofs -quiet -o "$work/cd.iso" -b isolinux.bin -c boot.cat -no-emul-boot -boot-load-size 4 -boot-info-table "$cd" \
    2>"$work/xorriso.log" || die "no image to boot: $(tail -3 "$work/xorriso.log")"

# --- the run -----------------------------------------------------------------------------------------------------
# Of its messages none but panics: the one of each second, by a signal, waits forever for another one that it interrupts.
cat >"$work/bochsrc" <<END
cpu: model=$model, count=1, ips=$ips, reset_on_triple_fault=0, add_features="${features#,}"
memory: guest=$memory, host=$memory
ata0-master: type=cdrom, path=$work/cd.iso, status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev=$work/console
display_library: ${BOCHS_DISPLAY:-term}
clock: sync=none
log: $work/bochs.log
info: action=ignore
error: action=ignore
panic: action=fatal
END
if [ -n "${BXSHARE:-}" ]; then # an emulator that was unpacked, not installed
    printf 'romimage: file=%s\nvgaromimage: file=%s\n' "$BXSHARE/BIOS-bochs-latest" "$(find "$BXSHARE/" -name 'VGABIOS-lgpl-latest*' | sort | head -1)" >>"$work/bochsrc"
fi
echo continue >"$work/debugger" # Debian's Bochs has a debugger, which waits to be told
debugger=()
[[ $("$bochs" --help 2>&1 </dev/null) != *"-rc "* ]] || debugger=(-rc "$work/debugger")
: >"$work/console"
TERM=${TERM:-vt100} timeout --foreground -k 5 "$limit" "$bochs" -q -f "$work/bochsrc" "${debugger[@]}" </dev/null >"$work/screen" 2>&1 &
emulator=$!
tail -n +1 -f --pid=$emulator -s 1 "$work/console" | sed -u 's/\r//g' &
printer=$!
wait $emulator
rc=$?
emulator=
wait $printer
tr -d '\r' <"$work/console" >"$work/said"
ran=$(grep -c '^@rc ' "$work/said") skipped=$(grep -c '^@rc 77 ' "$work/said") passed=$(grep -c '^@rc 0 ' "$work/said")
echo "emulate: $# commands on $cpu: $passed passed, $skipped skipped, $((ran - passed - skipped)) failed, $(($# - ran)) did not end"
if ! grep -q '^@end' "$work/said"; then
    echo "emulate: the emulator ended before the programs did (status $rc); it says:" && tail -5 "$work/bochs.log"
    exit 1
fi
[ $((passed + skipped)) -eq $# ]
