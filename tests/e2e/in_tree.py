"""in_tree.py TREE UID [--bind FROM:TO]... -- COMMAND...: runs a command with TREE as the root of its file system, as a
container does (a mount namespace and pivot_root: in a chroot nobody may make user namespaces), as a user who is not root.
Ends with 77 where the machine does not allow it."""
import ctypes
import os
import sys

MS_BIND, MS_REC, MS_PRIVATE, MNT_DETACH, CLONE_NEWNS = 0x1000, 0x4000, 1 << 18, 2, 0x00020000
SYS_PIVOT_ROOT = 155  # x86-64
libc = ctypes.CDLL(None, use_errno=True)


def must(result, what):
    if result != 0:
        print(f"{what}: {os.strerror(ctypes.get_errno())}", file=sys.stderr)
        sys.exit(77)


def mount(source, target, flags):
    must(libc.mount(source.encode(), target.encode(), None, ctypes.c_ulong(flags), None), f"mount {source} at {target}")


split = sys.argv.index("--")
tree, uid = os.path.abspath(sys.argv[1]), int(sys.argv[2])
binds = [pair.split(":") for pair in sys.argv[3:split] if pair != "--bind"]
command = sys.argv[split + 1:]
must(libc.unshare(CLONE_NEWNS), "unshare")
mount("none", "/", MS_REC | MS_PRIVATE)
mount(tree, tree, MS_BIND | MS_REC)
for source, target in [("/proc", "/proc"), ("/dev", "/dev"), ("/sys", "/sys")] + binds:
    os.makedirs(tree + target, exist_ok=True)
    mount(source, tree + target, MS_BIND | MS_REC)
os.chdir(tree)
must(libc.syscall(SYS_PIVOT_ROOT, b".", b"."), "pivot_root")
must(libc.umount2(b".", MNT_DETACH), "umount")
os.chdir("/")
os.setgroups([])
os.setgid(uid)
os.setuid(uid)
libc.prctl(1, 9, 0, 0, 0)  # ends when the test does: setting the user forgets it, so it is last
environment = {k: v for k, v in os.environ.items() if k.startswith("MLOPT_") or k == "ASAN_OPTIONS"}
os.execve(command[0], command, {"HOME": "/var/lib/mlopt", **environment})
