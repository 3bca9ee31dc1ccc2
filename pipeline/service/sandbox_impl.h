/* What a step's process may do, however hostile the model that it runs, and without any right of root.
 *
 * Layers, each of which stands alone where the kernel lacks another one:
 *   no-new-privileges, and no capability: a set-user-id program is an ordinary one.
 *   Landlock (kernel 5.13): a list of what is allowed. It may read and run system software, read its inputs,
 * and write in its own folders; no TCP (6.7), no signal and no abstract socket to others (6.12). seccomp
 * (sandbox_calls.c): a list of system calls that are refused. Not a list of those that are allowed: the
 *     process runs glibc, OpenMP, oneDNN, the system's compiler and linker (kernels), Python with another
 *     vendor's runtime, and a CUDA driver; what all of these may call changes with each of their releases,
 * and a job that is killed by an update of libc is worse than what such a list would add to the other layers.
 * What is refused is what those layers leave: other processes (ptrace and its kin, limits), sockets of any
 * kind, mounts and namespaces, keys, the machine's time and devices, and the parts of the kernel where most
 * holes were (io_uring, bpf, userfaultfd, perf). namespaces: no network but an empty one, and what it started
 * ends with it (base/process.h). limits, and an eye on what all its processes together use (usage.c).
 *
 * A compiler that a step starts to build its kernels, and a runtime's adapter, inherit all of it: running a
 * program of the system gives a step no right that it has not, and neither does code that it wrote itself,
 * which the system's loader and interpreters run for it. */
#ifndef MLO_SERVICE_SANDBOX_IMPL_H
#define MLO_SERVICE_SANDBOX_IMPL_H

#include <sys/types.h>

#include "base/base.h"

/* Paths are absolute, lists end with NULL or are NULL. A path that is not there is passed over. */
struct mlo_sandbox_rules {
    const char *const *programs; /* files and folders to read, and to run programs from */
    const char *const *inputs;   /* to read */
    const char *const *folders;  /* to read, write, make and remove in */
    const char *const *gpus;     /* devices of GPUs, for itself alone, beside those of the driver */
};

/* Prepares what mlo_sandbox_enter does; yours (mlo_sandbox_free). What the kernel has not is left out. */
struct mlo_sandbox;
MLO_MUST_USE enum mlo_status mlo_sandbox_new(const struct mlo_sandbox_rules *rules, struct mlo_sandbox **out,
                                             struct mlo_error *err);
void mlo_sandbox_free(struct mlo_sandbox *sandbox);

/* For mlo_process_options.confine: confines the calling process for good. */
bool mlo_sandbox_enter(const void *sandbox);

/* The program of refused system calls, for seccomp; made once. *count is 0 where libseccomp cannot make one
 * for this machine. */
struct sock_filter;
MLO_MUST_USE enum mlo_status mlo_sandbox_calls(struct sock_filter **filter, unsigned short *count,
                                               struct mlo_error *err);

/* The kernel's version of Landlock; 0: none. */
int mlo_landlock_abi(void);

/* --- what a job's processes use (usage.c) -------------------------------------------------------------- */

struct mlo_usage {
    uint64_t memory_bytes; /* of their own: not what is mapped from files */
    unsigned tasks;        /* processes and threads */
};
/* Of a process and of all that descend from it. */
void mlo_usage_of(pid_t leader, struct mlo_usage *out);
/* What the files of a folder take on the disk, links not followed; counting ends beyond `enough`.
 * MLO_USAGE_HIDDEN: some of it cannot be looked at. */
#define MLO_USAGE_HIDDEN UINT64_MAX
uint64_t mlo_usage_of_folder(const char *path, uint64_t enough);

#endif
