/* What a lane has of its own where it may (root): small disks that can be filled, and hosts for its workers,
 * which are network namespaces whose cable can be pulled. */
#ifndef MLO_TESTS_CAMPAIGN_PLACE_H
#define MLO_TESTS_CAMPAIGN_PLACE_H

#include <sched.h>
#include <sys/mount.h>
#include <sys/statvfs.h>

#include "tests/integration/service/service_fixture.h"

enum campaign_disk { DISK_SCRATCH, DISK_STORE, DISK_DATABASE, DISKS };

/* Room for what they hold; what is filled is memory. */
static const unsigned DISK_MB[DISKS] = {[DISK_SCRATCH] = 32, [DISK_STORE] = 64, [DISK_DATABASE] = 384};

struct place {
    char *dir;          /* on no such disk: plan and logs */
    char *disks[DISKS]; /* NULL: not its own */
    bool hosts;
};

/* Whether a process of ours may have namespaces of these kinds, and `then` works in them. */
static inline bool place_can(int namespaces, bool (*then)(void))
{
    int ended = 1;
    pid_t pid = fork();
    if (pid == 0)
        _exit(unshare(namespaces) == 0 && then() ? 0 : 1);
    return pid > 0 && waitpid(pid, &ended, 0) == pid && ended == 0;
}

static inline bool place_mount(const char *dir, unsigned mb)
{
    char options[64];
    snprintf(options, sizeof options, "size=%um,mode=0755", mb);
    return mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount("campaign", dir, "tmpfs", 0, options) == 0;
}

static inline bool place_try_mount(void)
{
    return place_mount("/tmp", 1);
}

static inline bool place_can_disks(void)
{
    return place_can(CLONE_NEWNS, place_try_mount);
}

/* --- disks ---------------------------------------------------------------------------------------------- */

static inline char *place_disk(const struct place *p, const char *name, unsigned mb)
{
    struct mlo_error err = {0};
    char *dir = mlo_fs_join(p->dir, name, NULL);
    assert_mlo_ok(mlo_fs_mkdirs(dir, &err), &err);
    if (!place_mount(dir, mb))
        fail_msg("cannot mount %s: %s", dir, strerror(errno));
    return dir;
}

/* Takes all the room that there is. */
static inline void place_fill(const char *disk)
{
    char *path = mlo_fs_join(disk, "filler", NULL), page[4096] = {0};
    struct statvfs room;
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0 && fstatvfs(fd, &room) == 0);
    off_t size = (off_t)(room.f_bavail * room.f_frsize), at = 0;
    for (; size >= (off_t)sizeof page; size /= 2)
        while (posix_fallocate(fd, at, size) == 0)
            at += size;
    while (pwrite(fd, page, sizeof page, at) == (ssize_t)sizeof page)
        at += (off_t)sizeof page;
    close(fd);
    free(path);
}

static inline void place_free(const char *disk)
{
    char *path = mlo_fs_join(disk, "filler", NULL);
    unlink(path);
    free(path);
}

/* --- hosts ---------------------------------------------------------------------------------------------- */

static inline bool place_run(const char *const *argv)
{
    struct mlo_process_options o = MLO_PROCESS_OPTIONS_INIT;
    struct mlo_error err = {0};
    int code = 1;
    o.argv = argv;
    return mlo_process_run(&o, 60000, 4096, NULL, &code, &err) == MLO_OK && code == 0;
}

#define IP_PROGRAM "/usr/sbin/ip"
#define ENTER_PROGRAM "/usr/bin/nsenter"
#define UNSHARE_PROGRAM "/usr/bin/unshare"
#define SLEEP_PROGRAM "/usr/bin/sleep"

static inline bool place_loopback(void)
{
    const char *const up[] = {IP_PROGRAM, "link", "set", "lo", "up", NULL};
    const char *const pair[] = {IP_PROGRAM, "link", "add", "try0", "type", "veth", NULL};
    return place_run(up) && place_run(pair);
}

static inline bool place_can_hosts(void)
{
    return mlo_fs_exists(IP_PROGRAM) && mlo_fs_exists(ENTER_PROGRAM) && mlo_fs_exists(UNSHARE_PROGRAM) &&
           mlo_fs_exists(SLEEP_PROGRAM) && place_can(CLONE_NEWNET, place_loopback);
}

/* A process that holds the network namespace of worker i's host, 10.77.i.2, with a cable to us, 10.77.i.1. */
static inline pid_t place_host(int i)
{
    const char *const hold[] = {UNSHARE_PROGRAM, "-n", SLEEP_PROGRAM, "infinity", NULL};
    char mine[64], its[64] = "", path[64], number[24], ours[24], theirs[24], here[40], there[40];
    struct mlo_process_options o = MLO_PROCESS_OPTIONS_INIT;
    struct mlo_error err = {0};
    pid_t pid;
    o.argv = hold;
    o.die_with_parent = true, o.death_signal = SIGKILL;
    assert_mlo_ok(mlo_process_start(&o, &pid, &err), &err);
    ssize_t n = readlink("/proc/self/ns/net", mine, sizeof mine - 1);
    mine[n < 0 ? 0 : n] = '\0';
    snprintf(path, sizeof path, "/proc/%d/ns/net", (int)pid);
    do {
        n = readlink(path, its, sizeof its - 1);
        its[n < 0 ? 0 : n] = '\0';
        mlo_clock_sleep_ms(1);
    } while (!*its || strcmp(mine, its) == 0);
    snprintf(number, sizeof number, "%d", (int)pid);
    snprintf(ours, sizeof ours, "cable%d", i);
    snprintf(theirs, sizeof theirs, "to%d", i);
    snprintf(here, sizeof here, "10.77.%d.1/24", i);
    snprintf(there, sizeof there, "10.77.%d.2/24", i);
    const char *const commands[][16] = {
        {IP_PROGRAM, "link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", number, NULL},
        {IP_PROGRAM, "addr", "add", here, "dev", ours, NULL},
        {IP_PROGRAM, "link", "set", ours, "up", NULL},
        {ENTER_PROGRAM, "-t", number, "-n", IP_PROGRAM, "addr", "add", there, "dev", theirs, NULL},
        {ENTER_PROGRAM, "-t", number, "-n", IP_PROGRAM, "link", "set", theirs, "up", NULL},
    };
    for (size_t c = 0; c < MLO_COUNT(commands); c++)
        if (!place_run(commands[c]))
            fail_msg("no network namespace: %s %s %s failed", commands[c][0], commands[c][1], commands[c][2]);
    return pid;
}

static inline void place_cable(int i, bool up)
{
    char name[24];
    snprintf(name, sizeof name, "cable%d", i);
    const char *const set[] = {IP_PROGRAM, "link", "set", name, up ? "up" : "down", NULL};
    if (!place_run(set))
        fail_msg("cannot set %s %s", name, set[4]);
}

#endif
