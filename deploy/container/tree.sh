#!/usr/bin/env bash
# Makes the file tree of the container's `program` stage in DIR without a container program and without a network: from the
# files of this machine's own Debian packages. usage: deploy/container/tree.sh DIR MLOPT
# The tree has $PACKAGES_PROGRAM with all that they depend on, and nothing else: less than the image, which has the base system.
set -euo pipefail
[ $# = 2 ] || { sed -n '2,4p' "$0" >&2; exit 2; }
tree=$1 program=$2
. "$(dirname "$0")/../packages.sh"

# $PACKAGES_PROGRAM and all that they depend on, of alternatives the first that is installed; without what only makes users and
# settings when packages are configured.
packages=$(dpkg-query -W -f '${Package}\t${db:Status-Status}\t${Pre-Depends},${Depends}\n' | awk -F'\t' -v wanted="$PACKAGES_PROGRAM" '
    $2 == "installed" { needs[$1] = $3 }
    END {
        n = split(wanted, queue, /[ \n]+/)
        for (at = 1; at <= n; at++) {
            name = queue[at]
            if (name == "" || name in have || name ~ /^(debconf|cdebconf|dpkg|perl|openssl|libpam|passwd|adduser)/) continue
            if (!(name in needs)) { print "the package " name " is not installed" > "/dev/stderr"; exit 1 }
            have[name]; print name
            k = split(needs[name], all, ",")
            for (i = 1; i <= k; i++) {
                m = split(all[i], any, "|")
                for (j = 1; j <= m; j++) {
                    one = any[j]; sub(/^ */, "", one); sub(/[ :(].*/, "", one)
                    if (one in needs) { queue[++n] = one; break }
                }
            }
        }
    }') || die "install what is missing: apt-get install $PACKAGES_PROGRAM"

mkdir -p "$tree"/{usr/bin,usr/lib,usr/lib64,usr/sbin,etc,proc,dev,tmp,run,var/lib/mlopt}
for name in bin sbin lib lib64; do ln -sfn "usr/$name" "$tree/$name"; done
dpkg -L $packages | grep -vE '^/(usr/share/(doc|man|locale|lintian|bug|info)/|etc/|var/)|\.a$' | sort -u | while IFS= read -r file; do
    if [ -e "$file" ] && [ ! -d "$file" ]; then printf '%s\n' "${file#/}"; fi
done | tar -C / -cf - --no-recursion --files-from=- | tar -C "$tree" -xf - --keep-directory-symlink
[ ! -f /etc/ssl/certs/ca-certificates.crt ] || install -D -m 0644 /etc/ssl/certs/ca-certificates.crt "$tree/etc/ssl/certs/ca-certificates.crt"
printf 'root:x:0:0::/:/usr/sbin/nologin\nmlopt:x:64800:64800::/var/lib/mlopt:/usr/sbin/nologin\n' >"$tree/etc/passwd"
printf 'root:x:0:\nmlopt:x:64800:\n' >"$tree/etc/group"
printf 'passwd: files\ngroup: files\nhosts: files dns\n' >"$tree/etc/nsswitch.conf"
chmod 1777 "$tree/tmp"
install -m 0755 "$program" "$tree/usr/bin/mlopt"
sort <<<"$packages"
