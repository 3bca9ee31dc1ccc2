/* Child processes by fork and exec. A forked child never runs our code (OpenMP hangs in it): it execs. */
#ifndef MLO_BASE_PROCESS_H
#define MLO_BASE_PROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "base/str.h"

struct mlo_process_options {
    const char *const *argv; /* argv[0] is the path; NULL-terminated */
    const char *const *env;  /* extra "NAME=value", NULL-terminated, or NULL; a bare "NAME" unsets it */
    const char *cwd;         /* or NULL */
    int stdin_fd;            /* -1: /dev/null */
    int stdout_fd;           /* -1: inherit */
    int stderr_fd;           /* -1: inherit */
    bool own_group;          /* its own process group, so that it and its children can be ended together */
    bool die_with_parent;    /* a signal when the thread that started it ends (PR_SET_PDEATHSIG) */
    int death_signal;        /* which; 0: SIGTERM */
    bool no_network;         /* its own, empty network namespace, where the kernel and our rights allow it */
    /* Its own user, process, network and IPC namespaces, where the kernel and our rights allow it: it is
     * number 1 there, so that whatever it leaves behind ends with it, however it hid. Signals that it sends
     * itself are then ignored unless it handles them. Use SIGKILL as the death_signal: only that one passes.
     */
    bool own_namespaces;
    uint64_t max_memory_bytes; /* RLIMIT_AS; 0: no limit */
    uint64_t max_file_bytes;   /* RLIMIT_FSIZE; 0: no limit */
    uint32_t max_cpu_s;        /* RLIMIT_CPU; 0: no limit */
    uint32_t max_files;        /* RLIMIT_NOFILE; 0: as we have it */
    uint32_t max_processes;    /* RLIMIT_NPROC, in a user namespace of its own only (elsewhere it would count
                                  what    is not its); 0: no limit */
    bool no_core_dump;
    /* In the child, last before exec: what it cannot do any more. Async-signal-safe calls only; false with
     * errno set: the program is not started. NULL: nothing. */
    bool (*confine)(const void *arg);
    const void *confine_arg;
    uid_t run_as_uid; /* 0: stay who we are; else setgid/setuid to these before exec */
    gid_t run_as_gid;
};

#define MLO_PROCESS_OPTIONS_INIT                                                                             \
    {                                                                                                        \
        .stdin_fd = -1, .stdout_fd = -1, .stderr_fd = -1                                                     \
    }

/* Starts it; descriptors other than 0-2 are closed in the child. A program that cannot be executed is
 * reported here. */
MLO_MUST_USE enum mlo_status mlo_process_start(const struct mlo_process_options *options, pid_t *pid,
                                               struct mlo_error *err);

/* Runs to the end, collecting stdout (at most max_bytes; more is an error) into `output` when not NULL.
 * Ends the process group at the timeout (0: none). *exit_code is the exit status, or 128 + signal. */
MLO_MUST_USE enum mlo_status mlo_process_run(const struct mlo_process_options *options, uint64_t timeout_ms,
                                             size_t max_bytes, struct mlo_buf *output, int *exit_code,
                                             struct mlo_error *err);

/* Whether a child can have namespaces of its own (own_namespaces above); tries it. */
bool mlo_process_can_namespaces(void);

/* The path of the running program (/proc/self/exe resolved); yours (free), NULL on failure. */
char *mlo_process_self(void);

#endif
