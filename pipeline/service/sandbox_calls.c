/* The system calls that a step is refused (sandbox_impl.h says why it is these). libseccomp makes the
 * program: it knows the numbers of each architecture, and ends who calls by the numbers of another one. */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <sched.h>
#include <seccomp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "pipeline/service/sandbox_impl.h"

/* A name that the library does not know is one that it cannot refuse: it is passed over. */
static const char *const refused[] = {
    /* other processes */
    "ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "process_mrelease", "pidfd_getfd",
    "kcmp", "move_pages", "migrate_pages",
    /* sockets of any kind; a pair (adapters talk over one) is another call. A database's socket is a file
     * that neither an empty network nor Landlock keeps anybody from */
    "socket", "connect", "bind", "listen", "accept", "accept4",
    /* the file system's shape */
    "mount", "umount2", "pivot_root", "chroot", "move_mount", "open_tree", "fsopen", "fsconfig", "fsmount",
    "fspick", "mount_setattr", "name_to_handle_at", "open_by_handle_at", "quotactl", "quotactl_fd", "swapon",
    "swapoff", "fanotify_init",
    /* what Landlock does not know of files: owners, modes, times and attributes of whatever the worker's user
     * owns; and lengths, of which it knows since version 3. A linker that makes its output executable goes on
     * without */
    "chown", "fchown", "lchown", "fchownat", "chmod", "fchmodat", "utime", "utimes", "futimesat", "truncate",
    "truncate64", "setxattr", "lsetxattr", "fsetxattr", "removexattr", "lremovexattr", "fremovexattr",
    /* namespaces */
    "unshare", "setns",
    /* the kernel's corners */
    "io_uring_setup", "io_uring_enter", "io_uring_register", "bpf", "perf_event_open", "userfaultfd",
    "keyctl", "add_key", "request_key", "lookup_dcookie", "vmsplice", "modify_ldt", "nfsservctl",
    /* the machine */
    "init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "reboot", "sethostname",
    "setdomainname", "settimeofday", "clock_settime", "clock_adjtime", "adjtimex", "stime", "iopl", "ioperm",
    "acct", "syslog", "vhangup", "uselib", "_sysctl"};

/* Younger than the library, by their numbers, which are the same everywhere: as if the kernel were older.
 * They do what is refused here by another way. */
static const int too_young[] = {452 /* fchmodat2 */, 463 /* setxattrat */, 466 /* removexattrat */,
                                467 /* open_tree_attr */, 469 /* file_setattr */};

/* Refused with some arguments. */
static const struct {
    const char *name;
    struct scmp_arg_cmp when;
} refused_when[] = {
    {"clone", {0, SCMP_CMP_MASKED_EQ, CLONE_NEWUSER, CLONE_NEWUSER}},
    {"clone", {0, SCMP_CMP_MASKED_EQ, CLONE_NEWNS, CLONE_NEWNS}},
    {"clone", {0, SCMP_CMP_MASKED_EQ, CLONE_NEWPID, CLONE_NEWPID}},
    {"clone", {0, SCMP_CMP_MASKED_EQ, CLONE_NEWNET, CLONE_NEWNET}},
    /* a socket pair of datagrams sends to any address, and one of raw ones is one of datagrams */
    {"socketpair", {1, SCMP_CMP_MASKED_EQ, 0xf, SOCK_DGRAM}},
    {"socketpair", {1, SCMP_CMP_MASKED_EQ, 0xf, SOCK_RAW}},
    {"sendto", {4, SCMP_CMP_NE, 0, 0}},
    /* all that the user has: where there is no namespace of processes, that is the worker and the server */
    {"kill", {0, SCMP_CMP_MASKED_EQ, 0xffffffff, 0xffffffff}},
    /* the limits of another process of the same user */
    {"prlimit64", {0, SCMP_CMP_NE, 0, 0}},
    /* an open file's mode: an input is a link to the blob store's file, and stays readable for others; and no
     * set-user-id program */
    {"fchmod", {1, SCMP_CMP_MASKED_EQ, S_IRUSR, 0}},
    {"fchmod", {1, SCMP_CMP_MASKED_EQ, S_ISUID, S_ISUID}},
    {"fchmod", {1, SCMP_CMP_MASKED_EQ, S_ISGID, S_ISGID}},
    /* the times of a file by its path; futimens has none */
    {"utimensat", {1, SCMP_CMP_NE, 0, 0}},
    /* opened not for writing and yet made empty, which Landlock knows since version 3 */
    {"open", {1, SCMP_CMP_MASKED_EQ, O_ACCMODE | O_TRUNC, O_RDONLY | O_TRUNC}},
    {"open", {1, SCMP_CMP_MASKED_EQ, O_ACCMODE | O_TRUNC, O_ACCMODE | O_TRUNC}},
    {"openat", {2, SCMP_CMP_MASKED_EQ, O_ACCMODE | O_TRUNC, O_RDONLY | O_TRUNC}},
    {"openat", {2, SCMP_CMP_MASKED_EQ, O_ACCMODE | O_TRUNC, O_ACCMODE | O_TRUNC}},
    /* typing into a terminal */
    {"ioctl", {1, SCMP_CMP_MASKED_EQ, 0xffffffff, TIOCSTI}},
    {"ioctl", {1, SCMP_CMP_MASKED_EQ, 0xffffffff, TIOCLINUX}},
};

#ifdef MLOPT_SANITIZED
static const char needed_here[] = "ptrace"; /* the search for leaks stops the threads with it */
#else
static const char needed_here[] = "";
#endif

static bool fill(scmp_filter_ctx ctx)
{
    bool good = seccomp_attr_set(ctx, SCMP_FLTATR_CTL_OPTIMIZE, 2) == 0;
    for (size_t i = 0; good && i < MLO_COUNT(refused); i++) {
        int number = seccomp_syscall_resolve_name(refused[i]);
        if (number != __NR_SCMP_ERROR && number >= 0 && strcmp(refused[i], needed_here) != 0)
            good = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EPERM), number, 0) == 0;
    }
    for (size_t i = 0; good && i < MLO_COUNT(refused_when); i++) {
        int number = seccomp_syscall_resolve_name(refused_when[i].name);
        if (number >= 0)
            good = seccomp_rule_add_array(ctx, SCMP_ACT_ERRNO(EPERM), number, 1, &refused_when[i].when) == 0;
    }
    for (size_t i = 0; good && i < MLO_COUNT(too_young); i++)
        good = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(ENOSYS), too_young[i], 0) == 0;
    /* their flags are in memory, where no filter looks: whoever calls them then uses clone and openat */
    return good && seccomp_rule_add(ctx, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3), 0) == 0 &&
           seccomp_rule_add(ctx, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(openat2), 0) == 0;
}

enum mlo_status mlo_sandbox_calls(struct sock_filter **filter, unsigned short *count, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    scmp_filter_ctx ctx = seccomp_init(SCMP_ACT_ALLOW);
    int fd = memfd_create("calls", MFD_CLOEXEC);
    off_t size;
    size_t got = 0;
    *filter = NULL;
    *count = 0;
    if (!ctx || fd < 0 || !fill(ctx) || seccomp_export_bpf(ctx, fd) != 0 ||
        (size = lseek(fd, 0, SEEK_END)) <= 0 || (size_t)size / sizeof **filter > BPF_MAXINSNS) {
        status = mlo_error_set(err, MLO_EINTERNAL, "cannot make the list of refused system calls");
        goto out;
    }
    *filter = malloc((size_t)size);
    lseek(fd, 0, SEEK_SET);
    if (!*filter || !mlo_fs_read_full(fd, *filter, (size_t)size, &got) || got != (size_t)size) {
        free(*filter);
        *filter = NULL;
        status = mlo_error_nomem(err);
        goto out;
    }
    *count = (unsigned short)(got / sizeof **filter);
out:
    if (ctx)
        seccomp_release(ctx);
    if (fd >= 0)
        close(fd);
    return status;
}
