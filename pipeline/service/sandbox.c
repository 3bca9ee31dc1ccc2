/* Landlock, capabilities and no-new-privileges; entering all of it. The kernel's own description is
 * Documentation/userspace-api/landlock.rst; its interface is written down here since Debian 12's headers know
 * less of it than the kernels that it may run on. */
#include "pipeline/service/sandbox_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/securebits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "pipeline/service/service.h"

enum { LANDLOCK_CREATE = 444, LANDLOCK_ADD = 445, LANDLOCK_RESTRICT = 446 }; /* on every architecture */
enum { LANDLOCK_VERSION = 1, LANDLOCK_PATH_BENEATH = 1 };

struct landlock_attr {
    uint64_t files, net, scoped;
};
struct landlock_beneath {
    uint64_t allowed;
    int32_t parent_fd;
} __attribute__((packed));

#define BIT(n) ((uint64_t)1 << (n))
#define EXECUTE BIT(0)
#define WRITE_FILE BIT(1)
#define READ_FILE BIT(2)
#define READ_DIR BIT(3)
#define MAKE_DEVICES (BIT(6) | BIT(11)) /* character and block */
#define REFER BIT(13)
#define TRUNCATE BIT(14)
#define IOCTL_DEV BIT(15)

/* What each version of the interface added, and the size of its attributes. */
static const struct {
    uint64_t files, net, scoped;
    size_t size;
} versions[] = {
    {0, 0, 0, 0},
    {BIT(13) - 1, 0, 0, 8},
    {BIT(14) - 1, 0, 0, 8},           /* renames between folders */
    {BIT(15) - 1, 0, 0, 8},           /* truncation */
    {BIT(15) - 1, 3, 0, 16},          /* TCP: bind, connect */
    {BIT(16) - 1, 3, 0, 16},          /* ioctl of devices */
    {BIT(16) - 1, 3, BIT(2) - 1, 24}, /* abstract sockets, signals */
};

#define ON_FILES (EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV)
#define ON_PROGRAMS (EXECUTE | READ_FILE | READ_DIR)
#define ON_INPUTS (READ_FILE | READ_DIR)
#define ON_DEVICES (READ_FILE | WRITE_FILE)
#define ON_GPUS (READ_FILE | WRITE_FILE | IOCTL_DEV)
#define ON_FOLDERS ((BIT(15) - 1) & ~(EXECUTE | MAKE_DEVICES))

/* Software, and what it asks of the machine. Of /etc only what no secret is in; of /proc other processes'
 * memory and environment are refused to whoever is in a domain of Landlock. */
static const char *const system_programs[] = {"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", NULL};
static const char *const system_inputs[] = {"/etc/ld.so.cache",
                                            "/etc/ld.so.conf",
                                            "/etc/ld.so.conf.d",
                                            "/etc/ld.so.preload",
                                            "/etc/localtime",
                                            "/etc/alternatives",
                                            "/etc/nsswitch.conf",
                                            "/etc/passwd",
                                            "/etc/group",
                                            "/etc/python3",
                                            "/etc/python3.11",
                                            "/etc/OpenCL",
                                            "/proc",
                                            "/sys/devices",
                                            "/sys/class",
                                            "/sys/bus",
                                            "/sys/module",
                                            "/sys/fs/cgroup",
                                            "/sys/kernel/mm",
                                            NULL};
static const char *const system_devices[] = {"/dev/null",   "/dev/zero",    "/dev/full",
                                             "/dev/random", "/dev/urandom", NULL};
static const char *const driver_devices[] = {"/dev/nvidiactl",        "/dev/nvidia-uvm",
                                             "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset",
                                             "/dev/nvidia-caps",      NULL};

enum { FIRST_FD = 64 }; /* away from what a new process puts in its first places */

struct mlo_sandbox {
    int ruleset_fd; /* -1: the kernel has no Landlock */
    struct sock_filter *filter;
    struct sock_fprog program; /* points at filter */
};

int mlo_landlock_abi(void)
{
    long abi = syscall(LANDLOCK_CREATE, NULL, 0, LANDLOCK_VERSION);
    return abi > 0 ? (int)abi : 0;
}

static enum mlo_status allow(int ruleset, uint64_t handled, const char *path, uint64_t rights,
                             struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct stat st;
    struct landlock_beneath rule = {.allowed = rights & handled, .parent_fd = open(path, O_PATH | O_CLOEXEC)};
    if (rule.parent_fd < 0)
        return MLO_OK; /* not on this machine */
    if (fstat(rule.parent_fd, &st) == 0 && !S_ISDIR(st.st_mode))
        rule.allowed &= ON_FILES;
    if (syscall(LANDLOCK_ADD, ruleset, LANDLOCK_PATH_BENEATH, &rule, 0) != 0)
        status = mlo_error_errno(err, errno, "cannot allow a step %s", path);
    close(rule.parent_fd);
    return status;
}

static enum mlo_status allow_all(int ruleset, uint64_t handled, const char *const *paths, uint64_t rights,
                                 struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    for (; status == MLO_OK && paths && *paths; paths++)
        status = allow(ruleset, handled, *paths, rights, err);
    return status;
}

static enum mlo_status make_ruleset(const struct mlo_sandbox_rules *rules, int *out, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    int abi = MLO_MIN(mlo_landlock_abi(), (int)MLO_COUNT(versions) - 1);
    if (abi == 0)
        return MLO_OK;
    const struct landlock_attr attr = {versions[abi].files, versions[abi].net, versions[abi].scoped};
    long low = syscall(LANDLOCK_CREATE, &attr, versions[abi].size, 0);
    int fd = low < 0 ? -1 : fcntl((int)low, F_DUPFD_CLOEXEC, FIRST_FD);
    int failed = errno;
    if (low >= 0)
        close((int)low);
    if (fd < 0)
        return mlo_error_errno(err, failed, "cannot make rules of what a step may read");
    const struct {
        const char *const *paths;
        uint64_t rights;
    } lists[] = {{system_programs, ON_PROGRAMS}, {system_inputs, ON_INPUTS}, {system_devices, ON_DEVICES},
                 {rules->programs, ON_PROGRAMS}, {rules->inputs, ON_INPUTS}, {rules->folders, ON_FOLDERS}};
    for (size_t i = 0; i < MLO_COUNT(lists); i++)
        MLO_TRY(allow_all(fd, attr.files, lists[i].paths, lists[i].rights, err));
    if (rules->gpus && rules->gpus[0]) { /* the driver shares its own among all */
        MLO_TRY(allow_all(fd, attr.files, driver_devices, ON_GPUS, err));
        MLO_TRY(allow_all(fd, attr.files, rules->gpus, ON_GPUS, err));
    }
    *out = fd;
    fd = -1;
out:
    if (fd >= 0)
        close(fd);
    return status;
}

enum mlo_status mlo_sandbox_new(const struct mlo_sandbox_rules *rules, struct mlo_sandbox **out,
                                struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_sandbox *s = calloc(1, sizeof *s);
    if (!s)
        return mlo_error_nomem(err);
    s->ruleset_fd = -1;
    MLO_TRY(mlo_sandbox_calls(&s->filter, &s->program.len, err));
    s->program.filter = s->filter;
    MLO_TRY(make_ruleset(rules, &s->ruleset_fd, err));
    *out = s;
    s = NULL;
out:
    mlo_sandbox_free(s);
    return status;
}

void mlo_sandbox_free(struct mlo_sandbox *sandbox)
{
    if (!sandbox)
        return;
    if (sandbox->ruleset_fd >= 0)
        close(sandbox->ruleset_fd);
    free(sandbox->filter);
    free(sandbox);
}

/* What root has, and the owner of a new user namespace: gone, and not given again by running a program. */
static bool drop_capabilities(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    const struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {{0}};
    prctl(PR_SET_SECUREBITS, SECBIT_NOROOT | SECBIT_NOROOT_LOCKED | SECBIT_KEEP_CAPS_LOCKED, 0, 0, 0);
    for (int i = 0; i <= 63 && prctl(PR_CAPBSET_DROP, i, 0, 0, 0) == 0; i++)
        continue; /* an ordinary user may not, and has none to drop */
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    return syscall(SYS_capset, &header, none) == 0;
}

/* When memory runs out, this process goes before its worker. */
static void offer_to_the_oom_killer(void)
{
    int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, "500", 3) < 0)
        errno = 0; /* then the kernel chooses by size, which is mostly the same */
    if (fd >= 0)
        close(fd);
}

bool mlo_sandbox_enter(const void *arg)
{
    const struct mlo_sandbox *s = arg;
    offer_to_the_oom_killer();
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || !drop_capabilities())
        return false;
    if (s->ruleset_fd >= 0 && syscall(LANDLOCK_RESTRICT, s->ruleset_fd, 0) != 0)
        return false;
    /* without the flag older kernels slow the process down, and every measurement with it, against attacks on
     * what shares its memory: nothing does */
    if (s->program.len &&
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_SPEC_ALLOW, &s->program) != 0)
        return errno == ENOSYS || errno == EINVAL; /* the kernel has no seccomp; mlo_isolation says so */
    return true;
}

/* --- what there is ------------------------------------------------------------------------------------- */

static bool has_seccomp(void)
{
    uint32_t action = SECCOMP_RET_ERRNO;
    struct sock_filter *filter = NULL;
    unsigned short count = 0;
    struct mlo_error ignored = {0};
    bool made = mlo_sandbox_calls(&filter, &count, &ignored) == MLO_OK && count > 0;
    free(filter);
    return made && syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) == 0;
}

enum mlo_status mlo_isolation(json_t **out, bool *whole, struct mlo_error *err)
{
    int abi = mlo_landlock_abi();
    const struct {
        const char *name;
        bool on;
        const char *gives, *lacks;
    } layers[] = {
        {"no-new-privileges", prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) >= 0,
         "a step gains no right by running a program", "this kernel is older than 3.5"},
        {"landlock-files", abi >= 1,
         "a step reads system software and its inputs, and writes in its own folders",
         "needs Linux 5.13 with Landlock (lsm=landlock): a step can read and write what the worker's user "
         "can"},
        {"landlock-truncate", abi >= 3, "a step truncates only files in its own folders",
         "needs Linux 6.2; seccomp refuses most ways to"},
        {"landlock-network", abi >= 4, "a step has no TCP, also where namespaces are refused",
         "needs Linux 6.7"},
        {"landlock-signals", abi >= 6,
         "a step signals only its own processes, also where namespaces are refused",
         "needs Linux 6.12; namespaces do the same"},
        {"seccomp", has_seccomp(),
         "a step has no sockets, no calls on other processes, mounts or keys, and changes no file's mode or "
         "times "
         "by its path",
         "needs CONFIG_SECCOMP_FILTER"},
        {"namespaces", mlo_process_can_namespaces(),
         "a step has an empty network, and what it started ends with it",
         "user namespaces are refused here (sysctl user.max_user_namespaces, "
         "kernel.unprivileged_userns_clone, or a container's profile): a process that a step hid may outlive "
         "it, and without landlock-signals it can end single processes of the worker's user"},
    };
    json_t *all = json_array();
    *whole = true;
    for (size_t i = 0; i < MLO_COUNT(layers); i++) {
        *whole = *whole && layers[i].on;
        json_array_append_new(all, json_pack("{s:s,s:b,s:s}", "layer", layers[i].name, "on", layers[i].on,
                                             "note", layers[i].on ? layers[i].gives : layers[i].lacks));
    }
    if (json_array_size(all) != MLO_COUNT(layers)) {
        json_decref(all);
        return mlo_error_nomem(err);
    }
    *out = all;
    return MLO_OK;
}
